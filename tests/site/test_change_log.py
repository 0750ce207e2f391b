"""The log of what successive builds changed, and its feed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from run_factory import make_run
from site_pages import Page, change

from dare_bench.leaderboards import board_page
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.change_log import MOST_BUILDS, moment

ATOM = "{http://www.w3.org/2005/Atom}"


def log(out: Path) -> list[dict[str, Any]]:
    builds: list[dict[str, Any]] = json.loads((out / "data/changes.json").read_text())["builds"]
    return builds


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    runs, out = tmp_path / "runs", tmp_path / "site"
    make_run(runs, "one", tasks={"a": 0.5}, n_docs=20, created="2026-11-20T10:00:00")
    make_run(runs, "two", model="other", tasks={"a": 0.9}, n_docs=20, created="2026-11-21T10:00:00+02:00")
    build(runs, out)
    return runs, out


def test_the_first_build_lists_all_rows(place: tuple[Path, Path]) -> None:
    _, out = place
    (first,) = log(out)
    assert sorted(row["page"] for row in first["added"]) == ["runs/one/index.html", "runs/two/index.html"]
    assert first["time"] == "2026-11-21T08:00:00Z" and not first["changed"] and not first["removed"]
    assert "runs/one/index.html" in Page(out / "changes.html").links


def test_a_long_list_of_rows_unfolds(tmp_path: Path) -> None:
    for number in range(8):
        make_run(tmp_path / "runs", f"r{number}", model=f"m{number}", content=f"{number:064x}", n_docs=5)
    build(tmp_path / "runs", tmp_path / "site")
    shown, _, folded = (tmp_path / "site/changes.html").read_text().partition("<summary>3 more</summary>")
    assert shown.count("<li><a") == 5 and folded.count("<li><a") == 3


def test_a_build_without_a_change_adds_nothing(place: tuple[Path, Path]) -> None:
    runs, out = place
    before = {name: (out / name).read_bytes() for name in ("data/changes.json", "feed.xml", "changes.html")}
    assert build(runs, out).parts_written == 0
    assert before == {name: (out / name).read_bytes() for name in before}


def test_rows_that_come_change_and_go_are_listed(place: tuple[Path, Path]) -> None:
    runs, out = place
    make_run(runs, "three", model="third", tasks={"a": 1.0}, n_docs=20, created="2026-11-22T10:00:00", limit=20)
    shutil.rmtree(runs / "one")
    change(runs / "two", lambda results: results["results"]["a"].update({"exact_match,none": 0.8}))
    build(runs, out)
    newest, _ = log(out)
    assert [row["name"] for row in newest["added"]] == ["third"] and "100.0%" in newest["added"][0]["facts"][1]
    assert newest["added"][0]["facts"][-1] == "limit"
    assert [row["page"] for row in newest["removed"]] == ["runs/one/index.html"]
    (changed,) = newest["changed"]
    assert changed["facts"][0].startswith("a: 80.0%") and "(before: 90.0%" in changed["facts"][0]
    assert "now: samples edited" in changed["facts"]
    assert newest["time"] == "2026-11-22T10:00:00Z" and newest["number"] == 2
    page = Page(out / "changes.html")
    assert "1 row added, 1 row changed, 1 row removed" in page.words and "Removed" in page.words
    assert "runs/one/index.html" not in page.links and "runs/three/index.html" in page.links


def test_a_new_first_row_and_a_new_task_are_said(place: tuple[Path, Path]) -> None:
    runs, out = place
    shutil.rmtree(runs / "two")
    values = {"a": [1.0] * 20, "b": [1.0] * 20}
    make_run(runs, "three", model="third", values=values, created="2026-11-22T10:00:00")
    build(runs, out)
    notes = log(out)[0]["notes"]
    assert notes[0] == "new on the board: b" and notes[-1] == "first is now third (before: other)"


def test_a_run_that_is_finished_is_a_change(place: tuple[Path, Path]) -> None:
    runs, out = place
    make_run(runs, "four", model="late", tasks={"a": 0.5}, n_docs=10, done=False, created="2026-11-22T10:00:00")
    build(runs, out)
    shutil.rmtree(runs / "four")
    make_run(runs, "four", model="late", tasks={"a": 0.5}, n_docs=20, created="2026-11-22T10:00:00")
    build(runs, out)
    (changed,) = log(out)[0]["changed"]
    assert "complete (before: running)" in changed["facts"] and "no longer: not finished" in changed["facts"]


def test_only_removals_have_the_time_of_the_build_before(place: tuple[Path, Path]) -> None:
    runs, out = place
    shutil.rmtree(runs / "two")
    build(runs, out)
    newest, first = log(out)
    assert newest["removed"] and newest["time"] == first["time"]


def test_a_build_that_is_broken_off_is_logged_once(place: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runs, out = place
    make_run(runs, "three", model="third", tasks={"a": 1.0}, n_docs=20, created="2026-11-22T10:00:00")

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(board_page, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            build(runs, out)
    assert len(log(out)) == 2
    build(runs, out)
    assert [len(each["added"]) for each in log(out)] == [1, 2]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"builds": 5}', '{"builds": [{"added": [{"page": 1}]}]}'])
def test_a_damaged_log_begins_again(place: tuple[Path, Path], text: str) -> None:
    runs, out = place
    (out / "data/changes.json").write_text(text)
    build(runs, out)
    assert len(log(out)) == 1 and len(log(out)[0]["added"]) == 2


def test_a_damaged_board_adds_nothing(place: tuple[Path, Path]) -> None:
    runs, out = place
    before = log(out)
    (out / "data/board.json").write_text('{"rows": [{"page": 1}]}')
    build(runs, out)
    assert log(out) == before


def test_the_feed_is_atom_with_an_entry_for_each_build(place: tuple[Path, Path]) -> None:
    runs, out = place
    kept = out.parent / "kept"
    shutil.copytree(runs / "two", kept)
    for _ in range(2):  # the same change twice
        shutil.rmtree(runs / "two")
        build(runs, out)
        shutil.copytree(kept, runs / "two")
        build(runs, out)
    feed = ElementTree.fromstring((out / "feed.xml").read_text())
    entries = feed.findall(f"{ATOM}entry")
    idents = [entry.findtext(f"{ATOM}id") for entry in entries]
    assert len(entries) == len(log(out)) == 5 and len(set(idents)) == len(idents)
    updated = [str(entry.findtext(f"{ATOM}updated")) for entry in entries]
    assert updated == sorted(updated, reverse=True) and feed.findtext(f"{ATOM}updated") == updated[0]
    ids = Page(out / "changes.html").ids
    for entry in entries:
        link = entry.find(f"{ATOM}link")
        assert link is not None and link.get("href", "").partition("#")[2] in ids
    assert "Added: other" in str(entries[-1].findtext(f"{ATOM}content"))


def test_the_data_of_the_last_build_is_all_that_a_log_needs(place: tuple[Path, Path]) -> None:
    """A workflow that publishes the site keeps no more than this."""
    runs, out = place
    for path in out.iterdir():
        if path.name != "data":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    make_run(runs, "three", model="third", tasks={"a": 1.0}, n_docs=20, created="2026-11-22T10:00:00")
    build(runs, out)
    assert [len(each["added"]) for each in log(out)] == [1, 2]
    assert (out / "static/site.css").is_file() and (out / "runs/one/index.html").is_file()


def test_an_old_log_loses_its_oldest_builds(place: tuple[Path, Path]) -> None:
    runs, out = place
    file = out / "data/changes.json"
    (first,) = log(out)
    builds = [{**first, "number": MOST_BUILDS - at} for at in range(MOST_BUILDS)]
    file.write_text(json.dumps({"builds": builds}))
    shutil.rmtree(runs / "two")
    build(runs, out)
    numbers = [each["number"] for each in log(out)]
    assert len(numbers) == MOST_BUILDS and numbers[:2] == [MOST_BUILDS + 1, MOST_BUILDS] and numbers[-1] == 2


@pytest.mark.parametrize(
    ("created", "time"),
    [
        ("2026-11-20T10:30:00.123456", "2026-11-20T10:30:00Z"),
        ("2026-11-20T10:30:00+02:00", "2026-11-20T08:30:00Z"),
        ("0001-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z"),
        ("yesterday", "1970-01-01T00:00:00Z"),
        ("", "1970-01-01T00:00:00Z"),
    ],
)
def test_times_are_in_utc(created: str, time: str) -> None:
    assert moment(created) == time
