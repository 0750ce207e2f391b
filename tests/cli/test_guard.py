"""Signals, closed pipes, full disks, and modules in the current folder: work is kept, nothing strange is executed; one
line and the exit code tell."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import toy_source
from require import need_package
from toy_model import ToyModel

from dare_bench.cli import main
from dare_bench.engine.journal import unpack

toy_source.register()
EVAL = ["eval", "--model", "toy", "--harness", "toy", "--tasks", "toygen", "--limit", "6", "--max-rows", "1"]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ToyModel:
    """``--model toy`` opens a torch-free model; the test stands in an empty folder."""
    model = ToyModel()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dare_bench.engine.opener.Opener.model", lambda self, spec: model)
    monkeypatch.setattr("dare_bench.engine.opener.Opener.content", lambda self, spec: "toy content")
    return model


@pytest.fixture
def unread() -> Iterator[Any]:
    """A pipe to write to whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    yield stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    stream.close()


def leave(words: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def journaled(out: Path) -> list[str]:
    """The keys of all samples in the journals, in the order written."""
    lines = [line for file in out.glob("*/journal/*.jsonl") for line in file.read_bytes().splitlines(keepends=True)]
    return [r["key"] for r in map(unpack, lines) if r is not None and r["type"] == "sample"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_run_in_one_line_and_the_same_command_resumes(
    toy: ToyModel,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    number: signal.Signals,
    code: int,
) -> None:
    outside = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    request.addfinalizer(lambda: signal.signal(number, outside))
    before = signal.getsignal(number)
    toy.fail_on = lambda request: len(journaled(Path("out"))) == 3 and os.kill(os.getpid(), number) is None
    assert leave(EVAL) == code
    output = capsys.readouterr()
    assert output.err.splitlines()[-1] == f"interrupted by {number.name}; run the same command to resume"
    assert not output.out and "Traceback" not in output.err and signal.getsignal(number) == before
    kept = journaled(Path("out"))
    assert len(kept) == 3
    toy.fail_on = None
    assert leave(EVAL) == 0
    assert journaled(Path("out"))[:3] == kept and len(set(journaled(Path("out")))) == 6
    assert len(journaled(Path("out"))) == 6


def test_a_hangup_that_the_caller_ignores_stays_ignored(toy: ToyModel) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        toy.fail_on = lambda request: os.kill(os.getpid(), signal.SIGHUP) is not None
        assert leave(EVAL) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_is_no_defect_of_ours_wherever_it_is_met(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    def full(_: Any) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/file")

    toy.fail_on = full
    assert leave(EVAL) == 1
    output = capsys.readouterr().err.splitlines()[-1]
    assert output == (
        "error: cannot write /cache/file: no space left on device; free some space and run the same command again"
    )


def test_a_broken_pipe_of_ours_is_not_taken_for_a_reader_that_left(
    toy: ToyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> bool:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    toy.fail_on = broken
    assert leave(EVAL) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: BrokenPipeError: ")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_run_whose_reader_goes_away_is_finished_and_its_exit_code_kept(
    toy: ToyModel, unread: Any, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    toy.fail_on = lambda request: request.key.startswith("toygen/1/")
    monkeypatch.setattr(sys, closed, unread)
    assert leave(EVAL) == 4
    assert json.loads(next(Path("out").glob("*/done.json")).read_text())["status"] == "incomplete"


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        ("ls models > /dev/full", 1, "", "error: cannot write standard output: no space left on device; free some"),
        ("ls models | true", 0, "", ""),
        ("eval --tasks x 2>&-", 2, "", ""),
        ("ls models >&-", 0, "", ""),
        ("ls models <&- | head -1", 0, "bundled checkpoints", ""),
    ],
)
def test_streams_that_are_closed_or_full(words: str, code: int, out: str, err: str) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m dare_bench.cli {words}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout.startswith(out) and bool(done.stdout) == bool(out)
    assert done.stderr.startswith(err) and done.stderr.count("\n") == bool(err)


for package in ("accelerate", "lm_eval"):
    need_package(package)
PROGRAMS = Path(sys.executable).parent
DARE = (str(PROGRAMS / "dare-bench"),)
TRAINING = "method: sft, task: dare_sudoku, max_steps: 1, rows: 16, report_to: [none]"
SWEEP = f"models: [tiny-llada-base]\ntrain: {{{TRAINING}}}\neval: {{tasks: dare_sudoku, limit: 2, steps: 4}}\n"
EXECUTOR = "ray" if find_spec("ray") else "devices"  # not imported here: its tests set variables that it reads then
COMMANDS = ((*DARE, "sweep", "../sweep.yaml", "-o", "../out/sweep", "--executor", EXECUTOR), (*DARE, "doctor"))
"""A sweep trains and evaluates in the processes of its executor; scorers have processes too."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; a file in it that is executed writes its name into ``ran``, beside the folder."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "sweep.yaml").write_text(SWEEP)
    folder = place / "folder"
    folder.mkdir()
    installed = (name for name in packages_distributions() if name.isidentifier())
    for name in {*sys.stdlib_module_names, *installed, "sitecustomize", "usercustomize"}:
        (folder / f"{name}.py").write_text(f"open({str(place / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    return folder


@pytest.mark.slow
def test_nothing_of_the_current_folder_runs(hostile: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in COMMANDS:
        done = subprocess.run(command, cwd=hostile, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert what_ran(hostile) == [], command
        assert done.returncode == 0, done.stderr[-2000:]


def test_the_files_would_run(hostile: Path) -> None:
    """As modules of the current folder, where Python itself searches it."""
    subprocess.run([sys.executable, "-c", "import colorsys"], cwd=hostile, check=False, capture_output=True)
    assert what_ran(hostile)[-1] == "colorsys"


def what_ran(hostile: Path) -> list[str]:
    """The files that were executed since the last call."""
    ran = hostile.with_name("ran")
    names = ran.read_text().split() if ran.exists() else []
    ran.unlink(missing_ok=True)
    return names
