"""A rebuild makes what has changed and nothing else; a build that is broken off leaves nothing behind unlisted."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_factory import make_run

from dare_bench.errors import RunError, SaveError, UsageError
from dare_bench.leaderboards import board_page, sample_pages
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.site import MANIFEST, NOTED
from dare_bench.runs.writer import LOCK, held


def make(runs: Path, out: Path) -> tuple[Path, Path]:
    for number in range(3):
        tasks = {"a": 0.2 + number / 4, "b": 0.5}
        make_run(runs, f"run-{number}", model=f"model-{number}", tasks=tasks, n_docs=30)
    build(runs, out)
    return runs, out


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("original")
    return make(folder / "runs", folder / "site")


@pytest.fixture
def built(original: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Three runs, which all tests share and none changes (a copy has other times), and a copy of their site."""
    runs, site = original
    return runs, shutil.copytree(site, tmp_path / "site")


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """Three runs and their site, for a test that changes the runs."""
    return make(tmp_path / "runs", tmp_path / "site")


def times(out: Path) -> dict[str, int]:
    files = (path for path in out.rglob("*") if path.is_file() and path.name not in (Path(MANIFEST).name, ".lock"))
    return {path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in files}


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {place for place in after if before.get(place) != after[place]}


def test_nothing_new_writes_nothing(built: tuple[Path, Path]) -> None:
    runs, out = built
    before = times(out)
    report = build(runs, out)
    assert report.parts_written == 0 and times(out) == before
    assert report.documents == 180 and report.files == len(before) + 1


def test_a_new_run_writes_its_own_pages_and_those_over_all_runs(built: tuple[Path, Path], tmp_path: Path) -> None:
    runs, out = built
    before = times(out)
    new = make_run(tmp_path, "new", model="new", tasks={"a": 0.9, "b": 0.5}, n_docs=30)
    build([runs, new], out)
    touched = changed(before, times(out))
    assert {
        "index.html",
        "table.html",
        "data/board.json",
        "runs/new/index.html",
        "runs/new/samples/a/1.html",
    } <= touched
    assert not [place for place in touched if place.startswith(("runs/run-", "data/runs/run-", "static/"))]


def test_a_changed_samples_file_writes_the_pages_of_its_task(own: tuple[Path, Path]) -> None:
    runs, out = own
    before = times(out)
    file = next((runs / "run-1").glob("samples_a_*"))
    lines = file.read_text().splitlines(keepends=True)
    row = json.loads(lines[0])
    row["resps"] = [["other words"]]
    state = file.stat()
    file.write_text(json.dumps(row) + "\n" + "".join(lines[1:]))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))  # a time set back does not hide it
    build(runs, out)
    touched = changed(before, times(out))
    assert (
        "runs/run-1/samples/a/1.html" in touched and "other words" in (out / "runs/run-1/samples/a/1.html").read_text()
    )
    assert not [place for place in touched if place.startswith(("runs/run-0", "runs/run-2", "runs/run-1/samples/b"))]


def test_a_run_that_goes_takes_its_files_with_it(own: tuple[Path, Path]) -> None:
    runs, out = own
    for path in (runs / "run-2").iterdir():
        path.unlink()
    build(runs, out)
    assert not (out / "runs/run-2").exists() and not (out / "data/runs/run-2.json").exists()
    assert "model-2" not in (out / "index.html").read_text()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"parts": []}', '{"parts": {"static": {"key": "x"}}}', '{"files": 3}']
)
def test_a_damaged_list_of_files_only_costs_time(built: tuple[Path, Path], text: str) -> None:
    runs, out = built
    (out / MANIFEST).write_text(text)
    report = build(runs, out)
    assert report.parts_written > 6 and build(runs, out).parts_written == 0


@pytest.mark.parametrize("names", [[MANIFEST], [NOTED], [MANIFEST, NOTED]])
def test_a_list_of_files_that_is_a_fifo_only_costs_time(
    built: tuple[Path, Path], tmp_path: Path, names: list[str]
) -> None:
    runs, out = built
    for name in names:
        (out / name).unlink(missing_ok=True)
        os.mkfifo(out / name)
    runs_and_new = [runs, make_run(tmp_path, "new", model="new", tasks={"a": 0.9, "b": 0.5}, n_docs=30)]
    assert build(runs_and_new, out).parts_written > 6 - 3 * (MANIFEST not in names)
    assert (out / MANIFEST).is_file() and build(runs_and_new, out).parts_written == 0


def test_a_page_that_is_a_fifo_is_made_again(built: tuple[Path, Path]) -> None:
    runs, out = built
    pages = [path for path in out.rglob("*") if path.is_file() and path.name != LOCK]
    for path in pages:
        path.unlink()
        os.mkfifo(path)
    build(runs, out)
    assert all(path.is_file() for path in pages)


def test_a_lock_that_is_no_regular_file_is_refused(built: tuple[Path, Path], tmp_path: Path) -> None:
    """A link as well: to lock it would empty the file that it points to."""
    runs, out = built
    other = tmp_path / "other.txt"
    other.write_text("kept")
    for put in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to(other)):
        lock = out / LOCK
        lock.unlink() if not lock.is_dir() else lock.rmdir()
        put(lock)
        with pytest.raises(SaveError, match=r"\.lock is not a regular file; remove it"):
            build(runs, out)
    assert other.read_text() == "kept"


def test_a_build_that_is_broken_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    make_run(runs, "run-0", tasks={"a": 0.5}, n_docs=30)
    with monkeypatch.context() as patch:
        patch.setattr(board_page, "write", _stopped)
        with pytest.raises(KeyboardInterrupt):
            build(runs, out)
    before = times(out)
    listed = json.loads((out / MANIFEST).read_bytes())["files"]
    assert set(before) <= set(listed) and "runs/run-0/samples/a/1.html" in before
    build(runs, out)
    assert {place for place in changed(before, times(out)) if place.startswith("runs/")} == set()
    assert (out / "index.html").is_file()


def test_a_part_that_fails_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a task's pages are no task's pages: they are listed, so that they can go, but not taken for whole."""
    runs, out = tmp_path / "runs", tmp_path / "site"
    make_run(runs, "run-0", tasks={"a": 0.5}, n_docs=60)
    real, calls = sample_pages.Site.text, []

    def text(site: Any, place: str, content: str) -> None:
        calls.append(place)
        if "samples/" in place and place.endswith("2.html"):
            raise KeyboardInterrupt
        real(site, place, content)

    with monkeypatch.context() as patch:
        patch.setattr(sample_pages.Site, "text", text)
        with pytest.raises(KeyboardInterrupt):
            build(runs, out)
    assert any(place.endswith("samples/a/1.html") for place in calls)
    assert any(place.endswith("samples/a/1.html") for place in json.loads((out / MANIFEST).read_bytes())["files"])
    assert build(runs, out).documents == 60
    assert (out / "runs/run-0/samples/a/2.html").is_file() and set(times(out)) <= set(
        json.loads((out / MANIFEST).read_bytes())["files"]
    )


def test_what_a_killed_build_left_goes_with_its_run(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    make_run(runs, "kept", tasks={"a": 0.5}, n_docs=3)
    make_run(runs, "gone", tasks={"a": 0.5}, n_docs=3, model="other")
    process = multiprocessing.get_context("fork").Process(target=_killed_build, args=(runs, out))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    half = out / "runs/gone/samples/a/.dare-0123456789abcdef.tmp"
    half.write_text("half a page")
    assert (out / "runs/gone/samples/a/1.html").is_file() and (out / NOTED).is_file()
    shutil.rmtree(runs / "gone")
    build(runs, out)
    assert not (out / "runs/gone").exists() and not (out / NOTED).exists()
    assert set(times(out)) == set(json.loads((out / MANIFEST).read_bytes())["files"]) - {MANIFEST}


def test_one_build_at_a_time_has_the_folder(built: tuple[Path, Path]) -> None:
    runs, out = built
    with held(out, "busy"), pytest.raises(RunError, match="is being written by another build; wait for it"):
        build(runs, out)
    assert build(runs, out).parts_written == 0


def test_a_page_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=2)
    (tmp_path / "index.html").write_text("<p>My own page.")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_text("a photo")
    for out, held_there in ((tmp_path, "'index.html, photos, runs'"), (tmp_path / "photos", "'a.jpg'")):
        with pytest.raises(UsageError, match=f"did not write .{held_there}.; give a new or an empty folder"):
            build(tmp_path / "runs", out)
    assert (tmp_path / "index.html").read_text() == "<p>My own page." and not (tmp_path / "photos/data").exists()


def _killed_build(runs: Path, out: Path) -> None:
    """In a process of its own: build up to the board, and die there without any clean-up."""
    board_page.write = lambda *_: os._exit(9)
    build(runs, out)


def _stopped(*_: Any) -> None:
    raise KeyboardInterrupt
