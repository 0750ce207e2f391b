"""Several processes write the sample pages of a large site: the same files, problems and errors as of one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from run_factory import make_run

from dare_bench.errors import RunError, SaveError
from dare_bench.leaderboards import builder
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.forked import mapped
from dare_bench.leaderboards.site import MANIFEST, NOTED, Site

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are written by several processes on Linux only")


def files_of(site: Path) -> dict[str, bytes]:
    """All files, without the times in their list."""
    found = {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    parts = json.loads(found.pop(MANIFEST))["parts"]
    facts = {name: [part["key"], sorted(part["files"]), part["facts"]] for name, part in parts.items()}
    return found | {MANIFEST: json.dumps(facts).encode()}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number in range(5):
        make_run(tmp_path / "runs", f"run-{number}", model=f"m{number}", tasks={"a": 0.5, "choice_b": 0.5}, n_docs=30)
    with next((tmp_path / "runs/run-2").glob("samples_a_*")).open("a") as file:
        file.write('{"x": 1}\n')
    return tmp_path / "runs"


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "FORK_FROM", 0)
    monkeypatch.setattr(builder, "processors", lambda: 3)


def test_three_processes_write_what_one_writes(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    one, progress = list[str](), list[tuple[int, int]]()
    alone = build(runs, tmp_path / "one", on_problem=one.append)
    request.getfixturevalue("three")
    several = list[str]()
    out = tmp_path / "three"
    report = build(runs, out, on_problem=several.append, on_progress=lambda *count: progress.append(count))
    assert files_of(out) == files_of(tmp_path / "one")
    assert several == one and "line 31 is damaged" in one[0] and progress == [(at, 5) for at in range(1, 6)]
    assert report.documents == alone.documents == 270 and report.parts_written == alone.parts_written
    again = build(runs, out, on_problem=several.append)
    assert again.parts_written == 0 and again.documents == 270
    assert not (out / NOTED).exists() and not list(out.rglob("*.tmp"))


@pytest.mark.usefixtures("three")
def test_an_error_in_a_process_ends_the_build_and_its_files_are_listed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "site", Site.text

    def text(site: Site, place: str, content: str) -> None:
        if place == "runs/run-4/samples/a/2.js":
            raise SaveError("no space left; free some")
        real(site, place, content)

    with monkeypatch.context() as patch:
        patch.setattr(Site, "text", text)
        with pytest.raises(SaveError, match="no space left"):
            build(runs, out, on_problem=_ignored)
    assert not multiprocessing.active_children()
    listed = set(json.loads((out / MANIFEST).read_bytes())["files"])
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    assert "runs/run-4/samples/a/1.js" in written and written <= listed and not (out / NOTED).exists()
    build(runs, out, on_problem=_ignored)
    build(runs, tmp_path / "whole", on_problem=_ignored)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_killed_process_is_an_error() -> None:
    def work(item: int) -> int:
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item

    with mapped(work, range(6), 2) as results:
        assert [next(results) for _ in range(3)] == [0, 1, 4]
        with pytest.raises(RunError, match="a process of the build was killed; if memory is short"):
            next(results)


def test_processes_end_with_the_block_and_with_a_killed_parent(tmp_path: Path) -> None:
    def wait(item: int) -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    def parent() -> None:
        with mapped(wait, range(2), 2) as results:
            next(results)

    process = multiprocessing.get_context("fork").Process(target=parent)
    process.start()
    started = time.monotonic()
    while len(children := list(tmp_path.iterdir())) < 2 and time.monotonic() - started < 20:
        time.sleep(0.02)
    process.kill()
    process.join()
    while any(_runs(int(child.name)) for child in children) and time.monotonic() - started < 30:
        time.sleep(0.02)
    assert len(children) == 2 and not any(_runs(int(child.name)) for child in children)
    with mapped(wait, range(2), 2):
        pass
    assert not multiprocessing.active_children()


def _ignored(problem: str) -> None:
    """For a damaged line that another test is about."""


def _runs(pid: int) -> bool:
    """Is there such a process, other than one that has ended and waits to be collected?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
