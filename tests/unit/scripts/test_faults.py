"""``scripts/faults.py`` notices what it is there to notice: results that differ, work that is lost or done twice."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paths import ROOT
from run_factory import make_run

from dare_bench.engine.journal import Journal

SCRIPTS = ROOT / "scripts"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from faults import state

    return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with a journal of two samples, and a checkpoint."""
    root = tmp_path / "one"
    run = make_run(root / "out")
    (run / "run.json").write_text("{}")
    journal(run, "k0", "k1")
    weights = root / "train" / "checkpoint-2"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(b"weights")
    (weights / "lineage.json").write_text("{}")
    return root


def journal(run: Path, *keys: str, writer: str = "main") -> None:
    with Journal(run / "journal", writer) as file:
        for key in keys:
            file.append({"type": "sample", "key": key, "answer": {}})


def run_of(folder: Path) -> Path:
    return next(folder.glob("out/*/results_*.json")).parent


def spoil_score(folder: Path) -> None:
    file = next(run_of(folder).glob("results_*.json"))
    result = json.loads(file.read_text())
    task, scores = next(iter(result["results"].items()))
    key = next(key for key, value in scores.items() if isinstance(value, float))
    result["results"][task][key] += 0.25
    file.write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (spoil_score, "differs > results"),
        (lambda folder: (folder / "train/checkpoint-2/model.safetensors").write_bytes(b"other"), "safetensors differs"),
        (lambda folder: (folder / "train/.checkpoint-4.saving").touch(), "left over: train/.checkpoint-4.saving"),
        (lambda folder: (folder / "train/checkpoint-2/lineage.json").unlink(), "missing: train/checkpoint-2/lineage"),
    ],
)
def test_a_result_that_differs_is_named(state: Any, folder: Path, harm: Callable[[Path], Any], said: str) -> None:
    before = state.results(folder)
    assert not state.differences(state.results(folder), before)
    harm(folder)
    assert any(said in line for line in state.differences(state.results(folder), before))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (run_of(folder) / "journal/main.jsonl").write_bytes(b""), "lost: sample"),
        (lambda folder: journal(run_of(folder), "k1", writer="shard"), "computed 2 times: sample"),
        (lambda folder: (folder / "train/checkpoint-2/lineage.json").write_text("{} "), "done twice: checkpoint"),
    ],
)
def test_work_that_is_lost_or_done_twice_is_named(
    state: Any, folder: Path, harm: Callable[[Path], Any], said: str
) -> None:
    before = state.finished(folder)
    assert len(before) >= 3 and not state.lost(before, state.finished(folder))
    harm(folder)
    assert any(said in line for line in state.lost(before, state.finished(folder)))


def test_confidences_alone_may_differ_in_their_last_digits(state: Any) -> None:
    assert state.same({"events": [5.0885338], "value": 1.5}, {"events": [5.0885348], "value": 1.5})
    assert not state.same({"events": [5.0885338], "value": 1.5}, {"events": [5.0885338], "value": 1.500001})
    assert not state.same({"events": [5.08]}, {"events": [5.09]})


def test_the_clock_of_a_process_is_set_back(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from faults.inject import shift_clock

    module = ModuleType("dare_bench.of_this_test")
    module.datetime = datetime.datetime  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith("dare_bench")]:
        if vars(sys.modules[name]).get("datetime") is datetime.datetime:
            monkeypatch.setattr(sys.modules[name], "datetime", datetime.datetime)  # put back afterwards
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    before, day = time.time(), 86400.0
    shift_clock(0.0, 30 * day)
    assert time.time() < before - 29 * day and time.time_ns() < (before - 29 * day) * 1e9
    assert module.datetime.now().timestamp() < before - 29 * day
    assert datetime.datetime.now().timestamp() >= before  # of other modules


def test_rows_take_the_place_of_their_cases_in_the_table(state: Any, tmp_path: Path) -> None:
    import importlib.util

    result = importlib.util.spec_from_file_location("faults_script", SCRIPTS / "faults.py")
    assert result is not None and result.loader is not None
    script = importlib.util.module_from_spec(result)
    sys.modules["faults_script"] = script  # dataclasses look their module up
    try:
        result.loader.exec_module(script)
    finally:
        del sys.modules["faults_script"]
    file = tmp_path / "reliability.md"
    file.write_text(f"# Title\n\n{script.HEAD}\n\nBelow.\n")
    script._rewrite(file, [script.FaultRow("eval", "SIGKILL", 5), script.FaultRow("train", "SIGKILL", 2)])
    script._rewrite(file, [script.FaultRow("eval", "SIGKILL", 9, failures=["one"])])
    rows = [line for line in file.read_text().splitlines() if line.startswith("| `")]
    assert rows == ["| `eval` | SIGKILL | 9 |  | 1 |", "| `train` | SIGKILL | 2 |  | 0 |"]
    assert file.read_text().startswith("# Title\n\n") and file.read_text().endswith("\n\nBelow.\n")
