"""What a checkpoint, a run and a program are, by content: names of runs, and our code that can change an answer."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from dare_bench import fingerprint, program
from dare_bench.cache import cache_dir
from dare_bench.errors import CheckpointError
from dare_bench.runs.schema import Program


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"one")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"two")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("a card")
    return folder


def test_content_alone_counts(checkpoint: Path, tmp_path: Path) -> None:
    first = fingerprint.content_hash(checkpoint)
    assert re.fullmatch("sha256:[0-9a-f]{64}", first)
    (checkpoint / "README.md").write_text("another card")
    os.utime(checkpoint / "config.json", (1, 1))
    shutil.copytree(checkpoint, tmp_path / "copy")
    (tmp_path / "link").symlink_to(checkpoint)
    for same in (checkpoint, tmp_path / "copy", tmp_path / "link", str(checkpoint)):
        assert fingerprint.content_hash(same) == first


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json", "tokenizer.json"])
def test_every_part_counts(checkpoint: Path, name: str) -> None:
    first = fingerprint.content_hash(checkpoint)
    (checkpoint / name).write_bytes(b"2wo")
    assert fingerprint.content_hash(checkpoint) != first


def test_a_new_file_and_swapped_names_count(checkpoint: Path) -> None:
    seen = {fingerprint.content_hash(checkpoint)}
    (checkpoint / "chat_template.jinja").write_text("x")
    seen.add(fingerprint.content_hash(checkpoint))
    item, two = sorted(checkpoint.glob("*.safetensors"))
    item.write_bytes(b"two")
    two.write_bytes(b"one")
    seen.add(fingerprint.content_hash(checkpoint))
    assert len(seen) == 3


def test_hashes_are_remembered_until_the_file_changes(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_SMALL", 2)
    first = fingerprint.content_hash(checkpoint)
    memory = cache_dir() / "file_hashes.json"
    kept = json.loads(memory.read_text())
    weights = str(checkpoint / "model-00001-of-00002.safetensors")
    kept[weights][-1] = "0" * 64  # only a remembered hash can come out as this
    memory.write_text(json.dumps(kept))
    assert fingerprint.content_hash(checkpoint) != first
    Path(weights).write_bytes(b"one")
    os.utime(weights, ns=(1, 1))
    assert fingerprint.content_hash(checkpoint) == first
    memory.write_text("not json")
    assert fingerprint.content_hash(checkpoint) == first


def test_hashes_of_small_files_and_of_files_that_are_gone_are_not_remembered(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = cache_dir() / "file_hashes.json"
    fingerprint.content_hash(checkpoint)
    assert not memory.exists()
    monkeypatch.setattr(fingerprint, "_SMALL", 2)
    fingerprint.content_hash(checkpoint)
    one, two = (str(checkpoint / f"model-0000{number}-of-00002.safetensors") for number in (1, 2))
    assert json.loads(memory.read_text()).keys() == {one, two}
    Path(one).unlink()
    Path(two).write_bytes(b"three")
    fingerprint.content_hash(checkpoint)
    assert json.loads(memory.read_text()).keys() == {two}


def test_an_overwrite_in_place_with_its_time_set_back_is_seen(checkpoint: Path) -> None:
    weights = checkpoint / "model-00001-of-00002.safetensors"
    kept, first, states = weights.stat(), fingerprint.content_hash(checkpoint), fingerprint.file_states(checkpoint)
    weights.write_bytes(bytes(reversed(weights.read_bytes())))
    while (now := weights.stat()).st_ctime_ns == kept.st_ctime_ns or now.st_mtime_ns != kept.st_mtime_ns:
        os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # the clock of file systems ticks in milliseconds
    assert (now.st_size, now.st_ino) == (kept.st_size, kept.st_ino)
    assert fingerprint.content_hash(checkpoint) != first and fingerprint.file_states(checkpoint) != states


def test_reading_large_files_is_told_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fingerprint, "_LARGE", 1)
    monkeypatch.setattr(fingerprint, "_SMALL", 0)
    with caplog.at_level("INFO", logger="dare_bench"):
        for _ in range(2):
            fingerprint.content_hash(checkpoint)
    assert [record.message for record in caplog.records] == [f"hashing {checkpoint} (0.0 GB, once)"]


def test_works_where_nothing_can_be_written(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint.content_hash(checkpoint)
    monkeypatch.setenv("DARE_BENCH_CACHE", "/proc/none")
    assert fingerprint.content_hash(checkpoint) == first


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DARE_BENCH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/dare-bench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_dir() == Path("/h/.cache/dare-bench")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cache_dir().name == f"dare-bench-{os.getuid()}"


def test_weights_replaced_in_a_hub_snapshot_are_another_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in checkpoint.iterdir():
        shutil.copy(file, blobs / f"blob-of-{file.name}")
        (snapshot / file.name).symlink_to(blobs / f"blob-of-{file.name}")
    assert fingerprint.content_hash(snapshot) == fingerprint.content_hash(checkpoint)
    item, two = sorted(snapshot.glob("*.safetensors"))
    item.unlink()
    item.symlink_to(two.readlink())
    assert fingerprint.content_hash(snapshot) != fingerprint.content_hash(checkpoint)


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        fingerprint.content_hash(tmp_path / "none")
    with pytest.raises(CheckpointError, match="safetensors"):
        fingerprint.content_hash(tmp_path)


def test_weights_in_memory() -> None:
    import torch

    network = torch.nn.Linear(3, 2).to(torch.bfloat16)
    first = fingerprint.network_hash(network)
    assert first == fingerprint.network_hash(network)
    with torch.no_grad():
        network.bias[0] += 1
    assert fingerprint.network_hash(network) != first


def test_names_of_runs(tmp_path: Path) -> None:
    def prefix(model: str, tasks: list[str], harness: str = "lm-eval") -> str:
        return fingerprint.readable_prefix(model, harness, tasks)

    assert prefix("GSAI-ML/LLaDA-8B-Base", ["gsm8k"]) == "LLaDA-8B-Base-gsm8k"
    assert prefix("tiny-llada", ["a", "b", "c", "d", "e"]) == "tiny-llada-a-b-c-and-2-more"
    assert prefix("m", ["t"], "opencompass") == "m-opencompass-t"
    (tmp_path / "my model").mkdir()
    assert prefix(f"{tmp_path}/my model/", ["mmlu_*"]) == "my-model-mmlu"
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    assert fingerprint.model_name(str(snapshot)) == "org/name"
    long = prefix("x" * 300, ["../../etc/passwd " + "y" * 100] * 3)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", long) and len(long) < 150
    digest, other = (fingerprint.digest({"a": [1, 0.1], "b": value}) for value in (None, 0))
    assert re.fullmatch("[0-9a-f]{10}", digest) and digest != other
    assert fingerprint.digest({"b": None, "a": [1, 0.1]}) == digest


SOURCE = Path(program.__file__).parent


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, which from here on is the one that is looked at."""
    shutil.copytree(SOURCE, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "tiny", "*.json", "*.md"))
    monkeypatch.setattr("dare_bench.program._HERE", tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("model_adapters/sampling/tokens.py", "sampler"),
        ("model_adapters/scoring/score.py", "scorer"),
        ("model_adapters/llada/family.py", "adapters"),
        ("model_adapters/backbone/sdpa.py", "adapters"),
        ("diffusion/rng.py", "diffusion"),
        ("loading.py", "core"),
        ("cli/eval.py", None),
        ("leaderboards/board_ranking.py", None),
    ],
)
def test_a_change_of_a_file_shows_in_its_part(copy: Path, file: str, part: str | None) -> None:
    before = program.code.__wrapped__()
    assert before == program.code(), "the same code in another folder is the same program"
    (copy / file).write_text((copy / file).read_text() + "\nADDED = 1\n")
    after = program.code.__wrapped__()
    assert [name for name in before if before[name] != after[name]] == ([part] if part else [])
    reported = program.differences(before, after)
    assert reported == (f"{part} {before[part]} -> {after[part]}" if part else "")


SAMPLER = '''"""A module."""
from x import y
def f(a, *, b=None):
    """What it does."""
    return {**a, "x": f"{b!r:>{a}}", "y": -1.5, "z": u"t"}
class A:
    field: int = 3
    "What the field says."
'''
SAME = '''# A comment.
from x import y

def f(a, *, b=None,
      ):  # another
    return {**a, "x": f"{b!r:>{a}}", "y": -1.5, 'z': "t"}


class A:
    """Documented."""

    field: int = 3
'''


def test_comments_docstrings_and_layout_make_no_other_program(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "f.py").write_text(text)
        return program._digest(tmp_path, [tmp_path / "f.py"])

    assert digest(SAMPLER) == digest(SAME) == "ast:78593f960124"
    changes = (
        ("-1.5", "-1.25"),
        ("{**a,", "{"),
        ("b=None", "b=0"),
        ("3", "'3'"),
        ("!r", "!s"),
        ("import y", "import z"),
    )
    different = {digest(SAME.replace(old, new)) for old, new in changes}
    assert len(different) == len(changes) and digest(SAME) not in different


def test_trees_are_parsed_once_and_a_broken_cache_is_no_obstacle(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    first = program.code.__wrapped__()
    with monkeypatch.context() as patched:
        patched.setattr("ast.parse", lambda *_: pytest.fail("parsed again"))
        assert program.code.__wrapped__() == first
    (cached,) = (tmp_path / "cache").iterdir()
    for content in ("[]", "[1, 2]", "{", '{"a": 3}'):
        cached.write_text(content)
        assert program.code.__wrapped__() == first


def test_code_that_was_recorded_by_its_bytes_is_neither_equal_nor_different() -> None:
    now = program.code()
    before = {**now, "sampler": "0123456789ab", "core": "ba9876543210", "torch": "1.0"}
    text = f"torch 1.0 -> {now['torch']}, sampler, core: recorded by the bytes of the files, which cannot be compared"
    assert program.differences(before, now) == text and program.from_running(before) == text


def test_what_it_stands_on_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"torch", "transformers", "tokenizers"} <= program.code().keys()
    monkeypatch.setattr("dare_bench.program.installed", {"torch": "1.0"}.get)
    changed = program.code.__wrapped__()
    assert changed["torch"] == "1.0" and "transformers" not in changed
    assert f"transformers {program.code()['transformers']} -> none" in program.differences(program.code(), changed)


def test_several_programs_are_counted_and_named() -> None:
    item, two = ({**program.code(), "device": device} for device in ("cpu", "NVIDIA H200"))
    assert program.from_running(item) == program.from_running(two) == ""
    assert program.several([Program(parts=item, requests=3)]) == ""
    reported = program.several([Program(parts=item, requests=3), Program(parts=two, requests=2)])
    assert reported == "answered by 2 programs: 3 answers by the first, 2 by another (device cpu -> NVIDIA H200)"
    assert "not recorded" in program.several([Program(parts={}, requests=3), Program(parts=two, requests=2)])
