"""A board with more gaps than scores has a page for each task, ranked by it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from run_factory import make_run

from dare_bench.leaderboards.builder import build


def make_runs(root: Path) -> None:
    for at in range(4):
        make_run(root, f"a{at}", model=f"m{at}", content=f"{at:064x}", tasks={"task_a": at / 4}, n_docs=40)
    make_run(root, "b", model="m4", content="b" * 64, tasks={"task_b": 0.5, "task_c": 0.2}, n_docs=40)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    make_runs(root)
    build(root, out)
    return out


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><div><a [^>]*>([^<]+)</a>', page)


def test_the_navigation_leads_to_the_task_with_the_most_scores(site: Path) -> None:
    for place in ("index.html", "table.html"):
        page = (site / place).read_text()
        assert re.search(r'<a href="boards/table-task_a\.html"[^>]*>Table</a>', page), place
    page = (site / "boards/table-task_a.html").read_text()
    assert names(page) == ["m3", "m2", "m1", "m0"], "rows without a score of the task are not there"
    assert '<a href="../boards/table-task_a.html" aria-current="page">Table</a>' in page
    tabs = re.search(r'<nav class="tabs".*?</nav>', page)
    assert tabs and re.findall(r">([^<]+)</a>", tabs[0]) == ["task_a", "task_b", "task_c", "All tasks"]


def test_each_task_ranks_its_rows_by_its_own_score(site: Path) -> None:
    record = json.loads((site / "data/boards/table-task_a.json").read_bytes())
    assert record["rank_by"] == "task_a" and record["rows"][0]["rank"] == 1
    assert not [row for row in record["rows"] if row["badges"]], "no row lacks a task here"
    assert len(json.loads((site / "data/board.json").read_bytes())["rows"]) == 5, "all rows are in the board's data"
    assert (site / "data/boards/table-task_b.csv").is_file() and (site / "data/boards/table-task_b.md").is_file()


def test_a_full_board_is_one_table(tmp_path: Path) -> None:
    for at in range(2):
        tasks = {"task_a": 0.5, **({"task_b": 0.5} if at else {})}
        make_run(tmp_path / "runs", f"r{at}", model=f"m{at}", content=f"{at:064x}", tasks=tasks, n_docs=5)
    build(tmp_path / "runs", tmp_path / "site")
    assert not (tmp_path / "site/boards").exists() and 'class="tabs"' not in (tmp_path / "site/table.html").read_text()


def test_columns_of_one_task_have_pages_of_their_own(tmp_path: Path) -> None:
    for at in range(5):
        make_run(tmp_path / "runs", f"r{at}", model=f"m{at}", content=f"{at:064x}", tasks={f"t{at}": 0.5}, n_docs=5)
    board = tmp_path / "board.yaml"
    board.write_text(
        "title: Two\ntasks:\n- {task: t0}\n- {task: t0, metric: 'exact_match,none'}\n- t1\n- t2\n- t3\nrank_by: none\n"
    )
    build(tmp_path / "runs", tmp_path / "site", board=str(board), samples=False)
    assert len(list((tmp_path / "site/boards").glob("table-t0*.html"))) == 2
