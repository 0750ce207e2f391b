"""The first page of a site: its figures, charts and newest runs; what successive builds changed, and its feed;
releases that keep a board's table."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from lineages import make_family
from run_factory import alter, make_run
from site_pages import TASKS, Page, change, plain

from dare_bench.errors import UsageError
from dare_bench.leaderboards import board_page
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.change_log import MOST_BUILDS, moment
from dare_bench.version import __version__


def overview(runs: Path, out: Path, **options: object) -> str:
    build(runs, out, **options)  # type: ignore[arg-type]
    return (out / "index.html").read_text()


def names_of_best(html: str) -> list[str]:
    figure = html.split('<figure class="chart standings">')[1].split("</figure>")[0]
    assert '<svg viewBox="0 0 600 ' in figure
    return [plain(text) for text in re.findall(r"</title><text [^>]*>(.*?)</text>", figure)]


def heat(html: str) -> list[list[str]]:
    body = html.split('<table class="heat">')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [[plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in body.split("<tr>")[1:]]


def test_five_figures_say_what_is_on_the_site(site: Path) -> None:
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", (site / "index.html").read_text())
    assert facts == [
        ("Checkpoints", "2"),
        ("Runs", "8"),
        ("Answers", "1,134"),
        ("Newest", "2026-11-21"),
        ("Build", f"dare-bench {__version__}"),
    ]


def test_the_best_are_one_a_checkpoint_with_their_ranks(site: Path) -> None:
    """Of two settings of tiny-llada, both ranked first, the one with the better score is shown."""
    html = (site / "index.html").read_text()
    assert names_of_best(html) == ["1–2 tiny-llada", "3 tiny-llada-base"]
    assert 'href="checkpoints/abababababab.html"' in html.split('class="chart standings"')[1].split("</figure>")[0]
    assert "Best checkpoints by the mean of 3 tasks" in html


def test_seeds_are_one_row_and_ten_are_enough(tmp_path: Path) -> None:
    make_family(tmp_path / "runs")
    names = names_of_best(overview(tmp_path / "runs", tmp_path / "family"))
    assert len(names) == 6 and len(set(names)) == 6 and "mdpo" in names[0].lower()
    for at in range(12):
        tasks = {"dare_sudoku": 0.3 + at / 20}
        make_run(tmp_path / "many", f"r{at}", model=f"m{at:02}", content=f"c{at}", tasks=tasks, n_docs=60)
    names = names_of_best(overview(tmp_path / "many", tmp_path / "site"))
    assert [name.split()[-1] for name in names] == [f"m{at:02}" for at in range(11, 1, -1)]


def test_where_no_row_is_ranked_the_page_says_why(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "some", limit=3)
    html = overview(tmp_path / "runs", tmp_path / "site")
    assert names_of_best(html) == ["– tiny-llada"]
    assert "No row is ranked here: see the badges in the table." in html
    board = tmp_path / "board.yaml"
    board.write_text("title: x\nrank_by: none\n")
    html = overview(tmp_path / "runs", tmp_path / "site", board=str(board))
    assert "standings" not in html and "No row is ranked here: this board is declared without a ranking." in html


def test_a_line_joins_the_budgets_of_one_checkpoint(tmp_path: Path) -> None:
    for model, shares in {"one": (0.4, 0.6, 0.8), "other": (0.5,)}.items():
        for at, share in enumerate(shares):
            tasks, decoding = {"dare_sudoku": share}, {"steps": 4 * 2**at}
            run = make_run(
                tmp_path / "runs", f"{model}{at}", model=model, content=model, tasks=tasks, decoding=decoding
            )
            alter(run, cost__nfe=20 * 4 * 2**at)
    html = overview(tmp_path / "runs", tmp_path / "site")
    chart = html.split('id="passes"')[1].split("</figure>")[0]
    lines = re.findall(r'<g class="series f0" aria-hidden="true"><path class="line" d="([^"]+)"/></g>', chart)
    assert len(lines) == 1 and lines[0].count("L") == 2 and chart.count("<use ") == 4
    assert "<text" in chart.split('<g class="names"')[1], "the front has names"
    assert 'class="line"' not in (tmp_path / "site/speed/index.html").read_text()


def test_the_map_has_the_best_score_of_each_checkpoint_and_shows_gaps(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "few", tasks={"a": 0.4, "b": 0.9}, decoding={"steps": 4})
    make_run(tmp_path / "runs", "all", tasks={"a": 0.6, "b": 0.5})
    make_run(tmp_path / "runs", "limited", tasks={"a": 1.0, "b": 1.0}, limit=5, n_docs=5)
    make_run(tmp_path / "runs", "other", model="other", content="other", tasks={"a": 0.1})
    make_run(tmp_path / "runs", "part", model="part", content="part", tasks={"b": 0.2}, limit=5, n_docs=5)
    html = overview(tmp_path / "runs", tmp_path / "site")
    whole = [["tiny-llada", "60.0", "90.0"], ["other", "10.0", "not evaluated"]]
    assert heat(html) == [*whole, ["part", "not evaluated", "20.0 limit 5"]]
    newest = html.split('<ol class="newest">')[1]
    assert [" limit 5 " in plain(item) for item in newest.split("</li>")[:5]].count(True) == 2
    shades = re.findall(r'<td class="(\w+)">', html.split('<table class="heat">')[1])
    assert shades == ["h6", "h9", "h1", "gap", "gap", "h2"]


@pytest.mark.parametrize("models", [24, 26])
def test_a_large_map_is_cut_and_says_so(tmp_path: Path, models: int) -> None:
    for at in range(models):
        make_run(tmp_path / "runs", f"r{at}", model=f"m{at}", content=f"c{at}", n_docs=2)
    html = overview(tmp_path / "runs", tmp_path / "site", samples=False)
    assert len(heat(html)) == 24 and ("2 more checkpoints are in the table" in html) == (models == 26)


def test_the_newest_five_runs_are_listed(site: Path) -> None:
    newest = (site / "index.html").read_text().split('<ol class="newest">')[1].split("</ol>")[0]
    assert re.findall(r'href="runs/([^/]+)/', newest) == ["few-steps", "best", "base", "limited", "failed"]
    first = plain(newest.split("</li>")[0])
    assert first.startswith("2026-11-21 tiny-llada dare_sudoku 90.0") and all(task in first for task in TASKS)
    assert plain(newest.split("</li>")[4]).endswith("(incomplete)")


def test_of_several_boards_the_overview_is_that_of_the_first(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", tasks=TASKS, n_docs=4)
    build(tmp_path / "runs", tmp_path / "site", board=["demo", "default"])
    page = Page(tmp_path / "site" / "index.html")
    assert "dare-bench demo" in page.words and {"table.html", "boards/1-default.html"} <= set(page.links)


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


def table(path: Path) -> str:
    return path.read_text()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "one", model="pioneer", tasks={"task_a": 0.5}, n_docs=40)
    return tmp_path / "runs"


def test_a_release_stays_as_it_was_and_can_be_selected(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    before = json.loads((out / "data/releases/v1.json").read_bytes())
    assert '<a href="releases/v1.html">v1</a>' in table(out / "table.html")
    make_run(runs, "two", model="newcomer", content="c" * 64, tasks={"task_a": 1.0}, n_docs=40)
    build(runs, out, samples=False, release="v2")
    page = table(out / "releases/v1.html")
    assert "pioneer" in page and "newcomer" not in page and "50.0% (" in page
    assert 'href="../runs/one/index.html"' in page
    assert json.loads((out / "data/releases/v1.json").read_bytes()) == before
    assert re.findall(r'<a href="releases/[^>]+>(\w+)<', table(out / "table.html")) == ["v2", "v1"]
    assert "newcomer" in table(out / "releases/v2.html")
    rows = (out / "data/releases/v1.csv").read_text().splitlines()
    assert len(rows) == 2 and "task_a value" in rows[0]


def test_a_run_that_is_gone_has_no_link_in_a_release(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    make_run(tmp_path / "others", "two", model="newcomer", tasks={"task_a": 1.0}, n_docs=40)
    build(tmp_path / "others", out, samples=False)
    page = table(out / "releases/v1.html")
    assert "pioneer" in page and "runs/one" not in page


def test_a_release_is_not_overwritten(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    assert build(runs, out, samples=False, release="v1").parts_written == 0, "the same table again"
    make_run(runs, "two", model="newcomer", content="c" * 64, tasks={"task_a": 1.0}, n_docs=40)
    with pytest.raises(UsageError, match="the release v1 exists and has another table"):
        build(runs, out, samples=False, release="v1")


@pytest.mark.parametrize("name", ["../x", "a b", "", ".hidden", "x" * 41])
def test_a_name_is_a_file_name(runs: Path, tmp_path: Path, name: str) -> None:
    if not name:
        build(runs, tmp_path / "site", samples=False, release=name)
        assert not (tmp_path / "site/releases").exists()
        return
    with pytest.raises(UsageError, match="--release is"):
        build(runs, tmp_path / "site", samples=False, release=name)


def test_a_damaged_release_is_reported_and_left_out(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    (out / "data/releases/v1.json").write_text('{"name": "v1"}')
    problems: list[str] = []
    build(runs, out, samples=False, on_problem=problems.append)
    assert len(problems) == 1 and problems[0].endswith("v1.json is not a release")
    assert "releases/" not in table(out / "table.html")


def test_addresses_are_absolute_where_the_site_is_known(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False)
    assert "og:url" not in table(out / "index.html") and not (out / "preview.png").exists()
    build(runs, out, samples=False, url="https://example.org/board")
    assert '<meta property="og:url" content="https://example.org/board/">' in table(out / "index.html")
    page = table(out / "runs/one/index.html")
    assert '<meta property="og:url" content="https://example.org/board/runs/one/index.html">' in page
    assert '<meta property="og:image" content="https://example.org/board/preview.png">' in page
    assert 'xml:base="https://example.org/board/"' in table(out / "feed.xml")
    build(runs, out, samples=False)
    assert not (out / "preview.png").exists()


def test_the_preview_is_an_image_of_the_intervals(runs: Path, tmp_path: Path) -> None:
    build(runs, tmp_path / "site", samples=False, url="http://localhost:8000/")
    data = (tmp_path / "site/preview.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and (width, height) == (1200, 630) and len(rows) == 630 * 3601
    middle = rows[315 * 3601 + 1 : 316 * 3601]
    assert middle[600 * 3 : 600 * 3 + 3] == bytes((63, 79, 181)), "the score of 0.5 is in the middle"
    assert middle[:3] == bytes((252, 251, 249)) and middle[100 * 3 : 100 * 3 + 3] == bytes((229, 227, 221))


def test_the_documentation_is_a_link_of_every_page(runs: Path, tmp_path: Path) -> None:
    build(runs, tmp_path / "site", docs="../index.html")
    for place, link in (("index.html", "../index.html"), ("runs/one/index.html", "../../../index.html")):
        assert f'<a href="{link}">Docs</a></nav>' in (tmp_path / "site" / place).read_text()
    build(runs, tmp_path / "site", docs="https://example.org/docs/")
    assert '<a href="https://example.org/docs/">Docs</a>' in (tmp_path / "site/runs/one/index.html").read_text()
    for docs in ("javascript:alert(1)", "/docs"):
        with pytest.raises(UsageError, match="--docs is"):
            build(runs, tmp_path / "site", docs=docs)


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "https://", "https://a/?b", "javascript:alert(1)"])
def test_what_is_no_address_is_refused(runs: Path, tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="--url is"):
        build(runs, tmp_path / "site", url=url)
