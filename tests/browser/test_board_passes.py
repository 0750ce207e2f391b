"""The table's number of passes, and its slider "at most N passes", in a real browser."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from browsing import Look, settle
from run_factory import alter, make_run

from dare_bench.leaderboards.builder import build


def names(page: Any) -> list[str]:
    settle(page)
    return list(page.locator("table.board tbody th[scope=row] > div > a").all_inner_texts())


def test_the_slider_limits_the_passes_of_the_task_that_ranks(look: Look, tmp_path: Path) -> None:
    """A run of two tasks, 10 and 3 passes a request, and one of the first task alone: as equal as they are."""
    board = tmp_path / "board.yaml"
    board.write_text("title: x\nrank_by: dare_sudoku\n")
    costs_of = {"both": {"dare_sudoku": 10, "dare_arithmetic": 3}, "alone": {"dare_sudoku": 10}}
    for name, costs in costs_of.items():
        run = make_run(tmp_path / "runs", name, model=name, content=name, tasks=dict.fromkeys(costs, 0.5))
        (file,) = run.glob("results_*.json")
        results = json.loads(file.read_text())
        for task, nfe in costs.items():
            results["dare_bench"]["tasks"][task]["nfe"] = 20 * nfe
        results["dare_bench"]["cost"]["nfe"] = 20 * sum(costs.values())
        file.write_text(json.dumps(results))
    build(tmp_path / "runs", tmp_path / "site", samples=False, board=str(board))
    table = tmp_path / "site" / "table.html"
    rows = {row["name"]: row for row in json.loads((tmp_path / "site/data/board.json").read_text())["rows"]}
    assert rows["both"]["nfe_per_request"] == 6.5, "over both tasks"
    assert {task: score["nfe_per_request"] for task, score in rows["both"]["scores"].items()} == costs_of["both"]
    with (tmp_path / "site/data/board.csv").open() as file:
        assert {line["dare_sudoku nfe_per_request"] for line in csv.DictReader(file)} == {"10.0"}
    words, passes = ".passes span", "td[data-of=NFE]"
    page = look(table, scripts=False)
    assert page.locator(passes).all_inner_texts() == ["10.0", "10.0"]
    page = look(table, query="?passes=9")
    assert names(page) == [] and page.locator(words).inner_text() == "At most 9 passes: no ranked row"
    page = look(table, query="?rank=dare_arithmetic&passes=9")
    assert names(page) == ["both"] and page.locator(passes).all_inner_texts() == ["3.0"]
    assert page.locator(words).inner_text() == "At most 9 passes: best is both 50.0"
    page.get_by_role("combobox", name="Rank by").select_option("dare_sudoku")
    settle(page)
    assert names(page) == [] and page.evaluate("location.search") == "?passes=9"
    page.get_by_role("button", name="Reset").click()
    assert names(page) == ["alone", "both"] and page.locator(".tick").count() == 2, "rows hidden at first have ticks"
    page.goto(f"{table.as_uri()}?sort=nfe")
    assert page.locator(passes).all_inner_texts() == ["10.0", "10.0"]


def test_the_best_within_a_budget_is_named_with_what_tells_it_apart(look: Look, tmp_path: Path) -> None:
    for steps in (4, 8):
        run = make_run(tmp_path / "runs", f"s{steps}", decoding={"steps": steps}, tasks={"dare_sudoku": steps / 10})
        alter(run, cost__nfe=20 * steps)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site" / "table.html", query="?passes=5")
    assert page.locator(".passes span").inner_text() == "At most 5 passes: best is tiny-llada 40.0 (steps 4)"
    assert "dare_sudoku score" not in page.locator(".notes").inner_text()
