"""The first page of a site: its figures, its charts, the map of scores, the newest runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lineages import make_family
from run_factory import alter, make_run
from site_pages import TASKS, Page, plain

from dare_bench.leaderboards.builder import build
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
