"""Files that somebody else may have written, damaged at random: each is read in time, or refused by a DareError.

The damage is drawn from a fixed seed: bytes cut, doubled and replaced, and JSON values put in the place of others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_factory import make_run
from safetensors import SafetensorError, safe_open

from dare_bench.checkpoint_files import read_header
from dare_bench.config import run_spec
from dare_bench.errors import DareError
from dare_bench.harness.common.local_data import LocalData
from dare_bench.loading import family_of, load, locate
from dare_bench.model_adapters.checkpoint import INDEX, folder_shapes
from dare_bench.run_fields import run_fields
from dare_bench.runs.reader import Run
from dare_bench.suites import read as read_suite
from dare_bench.sweeps.sweep_graph import graph
from dare_bench.sweeps.sweep_spec import read_spec
from dare_bench.training.data import read_data
from dare_bench.training.spec import train_spec

SECONDS = 10
"""CPU time that one file may take."""
WALL_SECONDS = 60
"""Time by the clock, for what waits without working; long, because the machine may be busy with other things."""
TINY = locate("tiny-sdar")

odd = st.sampled_from(
    [None, True, -1, 0, 1.5, 10**9, 10**30, float("nan"), float("inf"), "", "x", "x" * 300, "\0", "\ud800", "../x", "5"]
)
values = st.recursive(
    odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class TookTooLong(BaseException):
    """No ``except Exception`` on the way keeps it from the test."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends what takes longer than a file may; a DareError is a right answer."""

    def late(number: int, _: Any) -> None:
        raise TookTooLong(f"more than {SECONDS} s of CPU time, or {WALL_SECONDS} s ({signal.Signals(number).name})")

    limits = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, WALL_SECONDS))
    before = [signal.signal(number, late) for _, number, _ in limits]
    for timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    except DareError as error:
        assert str(error)
    finally:
        for timer, _, _ in limits:
            signal.setitimer(timer, 0)
        for (_, number, _), handler in zip(limits, before, strict=True):
            signal.signal(number, handler)


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value stands in a JSON value."""
    yield here
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*here, key))


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replaced(value[place[0]], place[1:], by)
    return copy


@st.composite
def other_values(draw: st.DrawFn, sound: Any, write: Callable[[Any], str]) -> bytes:
    """A file with one or two of its values replaced."""
    value = sound
    for _ in range(draw(st.integers(1, 2))):
        value = replaced(value, draw(st.sampled_from(list(places(value)))), draw(values))
    return write(value).encode("utf-8", "surrogatepass")


@st.composite
def other_bytes(draw: st.DrawFn, sound: bytes) -> bytes:
    """A file with a part of it cut out, doubled, or replaced by other bytes."""
    start = draw(st.integers(0, len(sound)))
    end = min(len(sound), start + draw(st.integers(0, 40)))
    deep = st.sampled_from(
        [b"[" * 2000, b'{"a":' * 2000, b"9" * 5000, b"\xff", b"\0", b"- " * 2000, b"&a [*a]", b"<<: 5"]
    )
    new = draw(st.sampled_from([b"", sound[start:end] * 2]) | st.binary(max_size=12) | deep)
    return sound[:start] + new + sound[end:]


def damaged(sound: Any, write: Callable[[Any], str] = json.dumps) -> st.SearchStrategy[bytes]:
    return other_values(sound, write) | other_bytes(write(sound).encode())


def budget(examples: int) -> settings:
    """A fixed number of examples, the same in each run."""
    allowed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=allowed
    )


def lines(rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows]))


CONFIG = json.loads((TINY / "config.json").read_text())
RAW = (TINY / "model.safetensors").read_bytes()
END = 8 + int.from_bytes(RAW[:8], "little")
HEADER = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "F16", "shape": [], "data_offsets": [32, 34]},
}
NAMES = sorted(json.loads(RAW[8:END]).keys() - {"__metadata__"})
SETTINGS = {
    "model": "tiny-llada",
    "tasks": ["dare_sudoku"],
    "limit": 5,
    "seed": [1, 2, 3, 4],
    "gen_kwargs": {"steps": 8, "until": ["x"]},
    "samples": {"dare_sudoku": [0, 5]},
    "max_rows": "auto",
    "apply_chat_template": "true",
}
SWEEP = {
    "name": "s",
    "models": ["tiny-llada-base", {"model": "tiny-dream-base", "name": "d"}],
    "train": [{"method": "sft", "task": "dare_sudoku", "max_steps": [1, 2], "models": ["d"], "options": {}}],
    "eval": {"tasks": ["dare_sudoku"], "limit": 1, "gen_kwargs": {"steps": [8, 16]}},
    "board": {"title": "t"},
}
SUITE = {"about": "x", "entries": [{"name": "a", "harness": "lm-eval", "tasks": ["gsm8k"], "limit": 5, "decoding": {}}]}
ROWS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]},
]
MANIFEST = {
    "datasets": [
        {
            "name": "x",
            "hf_ids": ["o/x:c (part)"],
            "configs": ["c"],
            "files": [{"file": "x.jsonl", "sha256": "0" * 64}],
            "lm_eval": {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "x.jsonl"}}},
        }
    ]
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as built:
        yield Path(built)


def open_config(folder: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            (folder / name).symlink_to(TINY / name)
    family_of(folder)
    load(folder)


def index_of(folder: Path) -> list[str]:
    if not (folder / "model.safetensors").exists():
        (folder / "model.safetensors").symlink_to(TINY / "model.safetensors")
    return sorted(folder_shapes(folder))


def settings_of(folder: Path) -> None:
    run_spec(**{"model": "-", "tasks": "-", **run_fields(str(folder / "run.yaml"), {})})


def rows_of(folder: Path) -> Any:
    return read_data(
        train_spec(method="sft", model="-", data=str(folder / "x.jsonl"), output_path="-"), "examples"
    ).rows


def redirect(folder: Path) -> None:
    LocalData(folder).redirect({"dataset_path": "o/x", "dataset_name": "c"})


def documents_of(path: Path) -> None:
    run = Run(path)
    run.scores()
    for task in run.tasks:
        list(run.documents(task))


READERS: dict[str, Callable[[Path], Any]] = {
    "x.safetensors": lambda folder: read_header(folder / "x.safetensors"),
    INDEX: index_of,
    "config.json": open_config,
    "run.yaml": settings_of,
    "sweep.yaml": lambda folder: graph(read_spec(folder / "sweep.yaml")),
    "suite.yaml": lambda folder: read_suite(folder / "suite.yaml").specs({"model": "-"}),
    "x.jsonl": rows_of,
    "manifest.json": redirect,
}


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_in_place_of_a_file_keeps_nobody_waiting(folder: Path, name: str) -> None:
    os.mkfifo(folder / name)
    with limited():
        READERS[name](folder)


def test_a_fifo_in_place_of_a_file_of_a_run_keeps_nobody_waiting(sound: Path, folder: Path) -> None:
    names = sorted(path.name for path in sound.iterdir() if path.is_file())
    assert len(names) > 2
    for name in names:
        run = Path(shutil.copytree(sound, folder / name))
        (run / name).unlink()
        os.mkfifo(run / name)
        with limited():
            documents_of(run)


def test_what_waits_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WALL_SECONDS", 0.2)
    os.mkfifo(folder / "x")
    with pytest.raises(TookTooLong, match="SIGALRM"), limited():
        (folder / "x").read_bytes()


@budget(100)
@given(raw=damaged(HEADER), data=st.binary(min_size=33, max_size=35))
def test_safetensors_headers(folder: Path, raw: bytes, data: bytes) -> None:
    """What is taken is what the format's own reader takes, with the same tensors."""
    file = folder / "x.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    result = None
    with limited():
        result = READERS["x.safetensors"](folder)
    if result is not None:
        with safe_open(str(file), "pt") as reference:
            assert {name: tuple(reference.get_slice(name).get_shape()) for name in reference.keys()} == {  # noqa: SIM118
                name: shape for name, (_, shape) in result.items()
            }


@budget(40)
@given(raw=other_bytes(RAW[:END]))
def test_the_start_of_weights(folder: Path, raw: bytes) -> None:
    file = folder / "x.safetensors"
    file.write_bytes(raw + RAW[END:])
    result = None
    with limited():
        result = read_header(file)
    try:
        with safe_open(str(file), "pt"):
            reference = True
    except SafetensorError:
        reference = False
    assert result is None or reference


@budget(100)
@given(raw=damaged({"metadata": {}, "weight_map": dict.fromkeys(NAMES, "model.safetensors")}))
def test_weight_indices(folder: Path, raw: bytes) -> None:
    (folder / INDEX).write_bytes(raw)
    with limited():
        assert index_of(folder) == NAMES


@budget(80)
@given(raw=damaged(CONFIG))
def test_configs(folder: Path, raw: bytes) -> None:
    """A config that describes a network is opened with the weights, or they do not fit."""
    (folder / "config.json").write_bytes(raw)
    with limited():
        open_config(folder)


@budget(60)
@given(raw=damaged(SETTINGS, yaml.safe_dump))
def test_settings(folder: Path, raw: bytes) -> None:
    (folder / "run.yaml").write_bytes(raw)
    with limited():
        settings_of(folder)


@budget(60)
@given(raw=damaged(SWEEP, yaml.safe_dump))
def test_sweeps(folder: Path, raw: bytes) -> None:
    (folder / "sweep.yaml").write_bytes(raw)
    with limited():
        READERS["sweep.yaml"](folder)


@budget(40)
@given(raw=damaged(SUITE, yaml.safe_dump))
def test_suites(folder: Path, raw: bytes) -> None:
    (folder / "suite.yaml").write_bytes(raw)
    with limited():
        READERS["suite.yaml"](folder)


@budget(80)
@given(raw=damaged(ROWS, lines))
def test_training_rows(folder: Path, raw: bytes) -> None:
    (folder / "x.jsonl").write_bytes(raw)
    with limited():
        assert rows_of(folder)


@budget(80)
@given(raw=damaged(MANIFEST))
def test_manifests(folder: Path, raw: bytes) -> None:
    (folder / "x.jsonl").write_bytes(b"{}\n")
    (folder / "manifest.json").write_bytes(raw)
    with limited():
        redirect(folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"), n_docs=2)


@budget(120)
@given(data=st.data())
def test_runs(sound: Path, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(sorted(path for path in sound.iterdir() if path.is_file())))
    before = file.read_bytes()
    whole = file.suffix == ".json"
    content = json.loads(before) if whole else [json.loads(line) for line in before.splitlines()]
    file.write_bytes(data.draw(damaged(content, json.dumps if whole else lines)))
    try:
        with limited():
            documents_of(sound)
    finally:
        file.write_bytes(before)
