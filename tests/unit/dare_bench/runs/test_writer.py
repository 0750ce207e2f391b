"""Files are replaced whole or not at all: full disks, killed writers, and values that JSON does not have."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from require import need_package

from dare_bench.errors import RunError, SaveError
from dare_bench.runs.run_files import file_date, file_digest, sample_line, samples_name
from dare_bench.runs.writer import (
    atomic_file,
    atomic_write_json,
    atomic_write_jsonl,
    atomic_write_text,
    dumps,
    ensure_folder,
    held,
    plain,
    remove_leftovers,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "a.txt"
    atomic_write_text(file, "one")
    atomic_write_text(file, "two ü")
    assert file.read_text() == "two ü" and names(file.parent) == ["a.txt"]
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic_write_text(pipe, "one")
    assert os.read(reader, 9) == b"one" and pipe.is_fifo() and names(tmp_path) == ["pipe"]
    os.close(reader)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    file = tmp_path / "results.json"
    atomic_write_text(file, "old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    elif call == "replace":
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SaveError) as caught, atomic_file(file) as out:
        out.write(b"new")
        if call == "write":
            full()
    message = str(caught.value)
    assert str(file) in message and "no space left on device" in message and "free some space" in message
    assert "\n" not in message and caught.value.exit_code == 1
    monkeypatch.undo()
    assert file.read_text() == "old" and names(tmp_path) == ["results.json"]


def test_a_real_write_that_fails_half_way(tmp_path: Path) -> None:
    """The operating system itself refuses after 4096 bytes (a file size limit behaves like a full disk)."""
    file = tmp_path / "samples.jsonl"
    file.write_text("old")
    code = """
import resource, sys
from dare_bench.errors import SaveError
from dare_bench.runs.writer import atomic_write_jsonl
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    atomic_write_jsonl(sys.argv[1], ({"n": n} for n in range(100_000)))
except SaveError as error:
    print(error)
    raise SystemExit(3)
"""
    result = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
    assert result.returncode == 3, result.stderr
    assert "file too large" in result.stdout
    assert file.read_text() == "old" and names(tmp_path) == ["samples.jsonl"]


def test_no_permission_to_make_the_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SaveError, match="taken"):
        atomic_write_text(tmp_path / "taken" / "x.json", "{}")


def test_a_folder_name_that_is_not_utf_8_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"out\\udcff': the name is not UTF-8 text; choose another folder"):
        ensure_folder(tmp_path / "out\udcff")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_writer_cleans_up(tmp_path: Path) -> None:
    file = tmp_path / "a"
    atomic_write_text(file, "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(file) as out:
        out.write(b"half")
        raise KeyboardInterrupt
    assert file.read_text() == "old" and names(tmp_path) == ["a"]


def test_a_held_folder_is_one_writers_and_free_of_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".dare-0123456789abcdef.tmp").write_text("of a killed writer")
    with held(tmp_path, "busy"):
        assert names(tmp_path) == [".lock"]
        with pytest.raises(RunError, match="busy"), held(tmp_path, "busy"):
            pass
    with held(tmp_path, "busy"):
        pass
    (tmp_path / "other" / ".lock").mkdir(parents=True)
    with pytest.raises(SaveError, match=r"other/\.lock is not a regular file"), held(tmp_path / "other", "busy"):
        pass


@pytest.mark.parametrize("moment", ["while writing", "before the move"])
def test_killed_writer_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    file = tmp_path / "results.json"
    file.write_text("old")
    code = """
import sys, time
from pathlib import Path
from dare_bench.runs.writer import atomic_file
def wait(*_):
    print("ready", flush=True)
    time.sleep(60)
if sys.argv[2] == "before the move":
    Path.replace = wait
with atomic_file(sys.argv[1]) as out:
    out.write(b"new" * 10_000)
    if sys.argv[2] == "while writing":
        wait()
"""
    with subprocess.Popen([sys.executable, "-c", code, str(file), moment], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline().strip() == "ready"
        child.send_signal(signal.SIGKILL)
    assert file.read_text() == "old"
    assert len(names(tmp_path)) == 2  # the half-written file is there, under a name that nobody reads
    (tmp_path / ".other.tmp").write_text("not ours")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".other.tmp", "results.json"]


def test_json_is_strict(tmp_path: Path) -> None:
    value = {
        "acc,none": float("nan"),
        "acc_stderr,none": float("nan"),
        "ppl,none": float("inf"),
        "n": np.int64(3),
        "x": np.float32(0.5),
        "yes": np.bool_(True),
        "list": (1, np.array([1.5, float("nan")])),
        "set": {"b", "a"},
        "path": Path("x"),
        7: "key",
    }
    atomic_write_json(tmp_path / "a.json", value)
    result = json.loads((tmp_path / "a.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert result == {
        "acc,none": None, "acc_stderr,none": "N/A", "ppl,none": None, "n": 3, "x": 0.5, "yes": True,
        "list": [1, [1.5, None]], "set": ["a", "b"], "path": "x", "7": "key",
    }  # fmt: skip


def test_broken_text_survives(tmp_path: Path) -> None:
    """A lone surrogate is legal in JSON and reads back equal; a text file gets a mark in its place."""
    text = "a\ud83d\x00\x1b[31m\u202eß"
    assert json.loads(dumps({"t": text})) == {"t": text}
    dumps({"t": text}).decode("utf-8")
    atomic_write_text(tmp_path / "t", text)
    assert (tmp_path / "t").read_text().startswith("a\ufffd")


def test_jsonl_writes_one_line_each_and_returns_the_digest(tmp_path: Path) -> None:
    digest = atomic_write_jsonl(tmp_path / "a.jsonl", ({"t": f"{i}\n"} for i in range(3)))
    assert digest == file_digest(tmp_path / "a.jsonl")
    assert [json.loads(line)["t"] for line in (tmp_path / "a.jsonl").read_text().splitlines()] == ["0\n", "1\n", "2\n"]


def test_plain_leaves_numbers_exact() -> None:
    assert plain({"seed": 2**62 + 1, "f": 0.1}) == {"seed": 2**62 + 1, "f": 0.1}


def test_names_are_lm_evals_and_stay_in_the_folder() -> None:
    from datetime import datetime

    date = file_date(datetime(2026, 11, 20, 10, 30, 5, 42))
    assert date == "2026-11-20T10-30-05.000042"
    assert samples_name("gsm8k_cot", date) == "samples_gsm8k_cot_2026-11-20T10-30-05.000042.jsonl"
    assert "/" not in samples_name("../../etc/passwd", date)


def test_lm_eval_reads_the_names_back() -> None:
    utils = need_package("lm_eval.utils")
    name = samples_name("gsm8k_cot", "2026-11-20T10-30-05.000042")
    assert utils.get_file_task_name(name) == "gsm8k_cot"
    assert utils.get_file_datetime(name) == "2026-11-20T10-30-05.000042"


def test_sample_lines_are_as_lm_eval_writes_them_and_doing_it_twice_changes_nothing() -> None:
    raw = {"doc_id": 0, "target": 3, "arguments": [("ask", {"until": []}), ("ask", " b")], "resps": [[(-1.5, False)]],
           "filtered_resps": [(-1.5, False)]}  # fmt: skip
    line = sample_line(raw)
    assert line["arguments"]["gen_args_1"] == {"arg_0": "ask", "arg_1": " b"}
    assert line["resps"] == [[["-1.5", "False"]]] and line["target"] == "3"
    assert sample_line(line) == line
