"""What stands on a board: scores, ranks, badges, and the boards that are declared."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_factory import alter, make_run, raise_scores
from site_pages import EVIL, TASKS, Page, board_data, change, ranks_of, rows

from dare_bench.errors import UnknownNameError, UsageError
from dare_bench.leaderboards.board import load_board
from dare_bench.leaderboards.builder import build
from dare_bench.runs.run_files import DONE_FILE, file_digest


def test_rows_carry_score_interval_size_tier_settings_and_speed(site: Path) -> None:
    row = rows(site)["best"]
    assert "95.0 86.3–98.3" in row  # Wilson, 57 of 60
    assert "n 60 · 0-shot · E1" in row and "E2" in row
    assert re.search(r"· [0-9a-f]{6} ", row)
    assert "12.0" in row and "0.92" in row and "Test CPU" in row
    assert rows(site)["few-steps"].count("steps 8") == 2  # beside the name, and in the details
    assert "NVIDIA H200" in rows(site)["limited"]


def test_how_many_answers_could_be_read_stands_beside_the_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "some", tasks=TASKS, n_docs=20)
    counts = {"dare_sudoku": {"none": {"matched": 11, "ambiguous": 2, "truncated": 7}}}
    counts |= {"dare_countdown3": {"none": {"matched": 20}}}
    change(run, lambda results: results["dare_bench"].update(extraction=counts))
    make_run(tmp_path / "runs", "none", tasks=TASKS, n_docs=20)
    out = tmp_path / "site"
    build(tmp_path / "runs", out)
    assert "read 65.0%" in rows(out)["some"] and "read 100" not in rows(out)["some"]
    assert "read" not in rows(out)["none"]
    saved = board_data(out)["rows"]
    assert sorted(str(row["scores"]["dare_sudoku"]["extraction_rate"]) for row in saved) == ["0.65", "None"]


def test_a_failed_document_of_a_newer_run_unranks_no_complete_one(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root, "a", n_docs=200, created="2026-11-20T00:00:00")
    make_run(root, "b", n_docs=200, failures=1, status="incomplete", created="2026-11-21T00:00:00")
    assert ranks_of(root, tmp_path / "site") == {"a": (1, []), "b": (None, ["incomplete"])}
    # Not even when the newer one asked otherwise: only what was answered whole says how a task is now.
    make_run(root, "c", n_docs=200, fingerprint="v2", failures=1, status="incomplete", created="2026-11-22T00:00:00")
    ranks = ranks_of(root, tmp_path / "site")
    assert ranks["a"] == (1, []) and ranks["c"] == (None, ["incomplete", "stale"])


def test_edited_results_and_answers_of_several_programs_have_a_badge_and_no_rank(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("sound", "edited", "known"):
        folder = make_run(runs, name, model=name, tasks=dict.fromkeys(TASKS, 0.4333), n_docs=30)
        if name == "known":
            (folder / DONE_FILE).write_text(json.dumps({"results_sha256": file_digest(next(folder.glob("results_*")))}))
        if name != "sound":
            raise_scores(folder)
    make_run(runs, "mixed", model="mixed", tasks=TASKS, n_docs=30, programs=({}, {"sampler": "another"}))
    build(runs, tmp_path / "site")
    result = {row["model"]: row for row in board_data(tmp_path / "site")["rows"]}
    assert {name: row["badges"] for name, row in result.items()} == {
        "sound": [], "edited": ["edited"], "known": ["edited", "results"], "mixed": ["programs"],
    }  # fmt: skip
    assert [name for name, row in result.items() if row["rank"] is not None] == ["sound"]


def test_other_prompts_are_told_from_another_task_version(tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "site"
    make_run(root, "now", created="2026-11-21T00:00:00")
    make_run(root, "shots", prompts="five examples", created="2026-11-20T00:00:00")
    make_run(root, "old", prompts="five examples", fingerprint="v0", created="2026-11-19T00:00:00")
    make_run(root, "old-limited", fingerprint="v0", limit=10, created="2026-11-18T00:00:00")
    ranks = ranks_of(root, out)
    assert ranks["now"] == (1, []) and ranks["shots"] == (None, ["prompts"]) and ranks["old"] == (None, ["stale"])
    assert ranks["old-limited"] == (None, ["limited", "stale"])
    assert "other prompts" in rows(out)["shots"] and "other task version" in rows(out)["old"]


def test_a_board_without_ranks_says_why(tmp_path: Path) -> None:
    root, out, board = tmp_path / "runs", tmp_path / "site", tmp_path / "board.yaml"
    make_run(root, "whole")

    def said() -> str:
        return re.sub(r"\s+", " ", Page(out / "table.html").text)

    board.write_text("title: x\nrank_by: none\n")
    assert ranks_of(root, out, str(board)) == {"whole": (None, [])}
    assert "No row is ranked here: this board is declared without a ranking." in said()
    assert "badge" not in said() and "see the badges" not in (out / "table.html").read_text()
    make_run(root, "whole", limit=3)
    ranks_of(root, out)
    assert "No row is ranked here: see the badges in the table." in said()
    make_run(root, "whole")
    ranks_of(root, out)
    assert "No row is ranked here" not in said() and "Rows with a badge are shown but not ranked." in said()


def test_the_demos_board_fits_our_tasks(tmp_path: Path) -> None:
    make_run(tmp_path, "demo", tasks={"dare_sudoku": 0.9, "dare_countdown3": 0.4, "dare_arithmetic": 0.5})
    assert ranks_of(tmp_path, tmp_path / "site", "demo") == {"demo": (1, [])}


def test_ranks_are_bands_and_badged_rows_have_none(site: Path) -> None:
    data = json.loads((site / "data" / "board.json").read_text())
    ranks = {row["run_id"]: (row["rank"], row["rank_shared"], row["badges"]) for row in data["rows"]}
    assert ranks["best"] == (1, True, []) and ranks["few-steps"] == (1, True, [])
    assert ranks["base"] == (3, False, [])
    assert ranks["limited"] == (None, False, ["limited"])
    assert ranks["failed"] == (None, False, ["incomplete"])
    assert ranks["unfinished"][0] is None and "running" in ranks["unfinished"][2]
    assert ranks["old-prompts"] == (None, False, ["stale"])
    assert ranks["one-task"] == (None, False, ["missing"])
    badges = {"limited": "limit 50", "failed": "incomplete: 6 failed", "unfinished": "not finished",
              "old-prompts": "other task version", "one-task": "2 of 3 tasks missing"}  # fmt: skip
    for run_id, text in badges.items():
        assert text in rows(site)[run_id], run_id
        assert rows(site)[run_id].startswith("–"), run_id
    assert [row["run_id"] for row in data["rows"]][-1] == "one-task"


def test_boards_are_declared_in_yaml(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", tasks=TASKS, n_docs=30)
    board = tmp_path / "mine.yaml"
    board.write_text(
        "title: <b>Mine</b>\ntasks:\n  - dare_countdown3\n"
        "  - {task: dare_sudoku, label: Sudoku, metric: 'exact_match,none'}\nrank_by: dare_sudoku\n"
    )
    build(tmp_path / "runs", tmp_path / "site", board=str(board))
    page = Page(tmp_path / "site" / "table.html")
    assert "<b>Mine</b>" in page.text and "Sudoku" in page.text and "choice_x" not in page.text
    data = json.loads((tmp_path / "site" / "data" / "board.json").read_text())
    assert data["rows"][0]["rank"] == 1 and data["rows"][0]["mean"] == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title: x\ncolor: red\n", "'color' is not a field of a board"),
        ("title: x\ntasks: []\n", "at least one task"),
        ("title: x\ntasks: [a, a]\n", "once"),
        ("title: x\ntasks: [a]\nrank_by: b\n", "allowed: mean, none, a"),
        ("title: x\ntitle: y\n", "duplicate key 'title'"),
    ],
)
def test_a_board_that_is_off_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "b.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_board(str(file))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_our_boards_load_and_an_unknown_one_names_the_closest() -> None:
    assert load_board("default").tasks == "all" and load_board("demo").title
    with pytest.raises(UnknownNameError, match="demo"):
        load_board("demmo")


def as_csv(out: Path) -> list[dict[str, str]]:
    with (out / "data" / "board.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_board_as_csv_says_what_its_json_says(site: Path) -> None:
    table, saved = as_csv(site), board_data(site)["rows"]
    assert [row["run_id"] for row in table] == [row["run_id"] for row in saved]
    for line, row in zip(table, saved, strict=True):
        assert line["rank"] == ("" if row["rank"] is None else str(row["rank"]))
        for name, score in row["scores"].items():
            for part in ("value", "lo", "hi", "n", "tier", "fingerprint"):
                assert line[f"{name} {part}"] == ("" if score is None else str(score[part])), (name, part)
    assert table[0]["mean_lo"] == str(saved[0]["mean_interval"]["lo"])


@pytest.mark.parametrize(
    "change",
    [{"model__dtype": "bfloat16"}, {"harness__name": "opencompass"}, {"results": {"chat_template": "<u>"}}],
    ids=["dtype", "harness", "template"],
)  # fmt: skip
def test_rows_that_differ_in_settings_differ_in_the_boards_data(tmp_path: Path, change: dict[str, Any]) -> None:
    for name in ("plain", "other"):
        make_run(tmp_path / "runs", name)
    alter(tmp_path / "runs" / "other", **change)
    out = tmp_path / "site"
    build(tmp_path / "runs", out)
    reported = {row["run_id"]: row["settings_text"] for row in board_data(out)["rows"]}
    assert (
        reported == {line["run_id"]: line["settings_text"] for line in as_csv(out)}
        and reported["plain"] != reported["other"]
    )
    assert all(reported[run_id] in text for run_id, text in rows(out).items())


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@cmd", "\t=1", " =1", "\r=1"])
def test_no_spreadsheet_takes_a_name_for_a_formula(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "runs", "r", model=name, n_docs=2)
    change(run, lambda results: results["results"]["dare_sudoku"].update({"exact_match,none": -1.5}))
    build(tmp_path / "runs", tmp_path / "site")
    (row,) = as_csv(tmp_path / "site")
    assert row["model"] == "'" + name and "-1.5" in row.values()  # a number stays one


def test_the_script_for_downloads_holds_the_same_and_no_markup(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", model=EVIL, tasks=TASKS, n_docs=4)
    build(tmp_path / "runs", tmp_path / "site")
    text = (tmp_path / "site" / "data" / "board.js").read_text()
    assert "<" not in text and text.isascii() and text.startswith("dareBoard({") and text.endswith("});\n")
    held = json.loads(text.removeprefix("dareBoard(").removesuffix(");\n"))
    assert held["record"] == board_data(tmp_path / "site")
    assert [dict(zip(held["table"]["heads"], row, strict=True)) for row in held["table"]["rows"]] == as_csv(
        tmp_path / "site"
    )


def test_columns_of_one_task_keep_apart(tmp_path: Path) -> None:
    """Two metrics of one task, and a task called like a column of ours: each has its own key and its own cell."""
    run = make_run(tmp_path / "runs", "r", tasks={"rank": 0.5}, n_docs=4)
    change(run, lambda results: results["results"]["rank"].update({"f1,none": 0.25}))
    board = tmp_path / "b.yaml"
    board.write_text("title: t\ntasks: [{task: rank, metric: 'exact_match,none'}, {task: rank, metric: 'f1,none'}]\n")
    build(tmp_path / "runs", tmp_path / "site", board=str(board))
    scores = board_data(tmp_path / "site")["rows"][0]["scores"]
    assert {name: score["value"] for name, score in scores.items()} == {
        "rank exact_match,none": 0.5,
        "rank f1,none": 0.25,
    }
    keys = [value for _, name, value in Page(tmp_path / "site" / "table.html").attributes if name == "data-key"]
    assert len(keys) == len(set(keys)) == 9


def test_where_a_row_has_several_runs_each_score_leads_to_its_own(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    make_run(runs, "sudoku", tasks={"dare_sudoku": 0.9}, created="2026-11-20T00:00:00")
    make_run(runs, "countdown", tasks={"dare_countdown3": 0.4}, created="2026-11-21T00:00:00")
    build(runs, out)
    links = [link for link in Page(out / "table.html").links if link.startswith("runs/")]
    assert links == ["runs/countdown/index.html", "runs/countdown/index.html", "runs/sudoku/index.html"] or links == [
        "runs/countdown/index.html", "runs/sudoku/index.html", "runs/countdown/index.html",
    ]  # fmt: skip
    make_run(runs, "countdown", model="other", tasks={"dare_countdown3": 0.4}, created="2026-11-21T00:00:00")
    build(runs, out)
    assert len([link for link in Page(out / "table.html").links if link.startswith("runs/")]) == 2


def test_two_boards_lead_to_each_other(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", tasks=TASKS, n_docs=4)
    out = tmp_path / "site"
    build(tmp_path / "runs", out, board=["default", "demo"])
    assert "boards/1-demo.html" in Page(out / "table.html").links
    second = Page(out / "boards" / "1-demo.html")
    assert {"../index.html", "../table.html"} <= set(second.links) and "../runs/r/index.html" in second.links
    for link in second.links:
        assert link.startswith(("data:", "#")) or (second.path.parent / link).is_file(), link


def test_a_board_of_300_runs_and_12_tasks_loads_in_a_megabyte(tmp_path: Path) -> None:
    """Page, sheets and scripts together, uncompressed. A fifth of the rows is built; each weighs what each weighs."""
    tasks = {f"some_benchmark_task_{n:02d}": 0.1 + 0.07 * n for n in range(12)}
    runs, out = tmp_path / "runs", tmp_path / "site"
    run = make_run(runs, "first", tasks=tasks, n_docs=3)
    for n in range(60):
        copy = runs / f"a-model-with-a-long-name-{n:03d}-and-many-tasks-0123456789"
        shutil.copytree(run, copy)
        change(copy, lambda results, n=n: results["dare_bench"]["model"].update(content_hash=f"sha256:{n}"))
        change(copy, lambda results, copy=copy: results["dare_bench"].update(run_id=copy.name))
    shutil.rmtree(run)
    build(runs, out, samples=False)
    html = (out / "table.html").read_text()
    _, _, body = html.partition("<tbody>")
    body = body.partition("</tbody>")[0]
    page = Page(out / "table.html")
    files = [link for link in page.links if link.startswith("static/")]
    rest = len(html) - len(body) + sum((out / link).stat().st_size for link in files)
    assert body.count("<tr") == 60 and len(files) >= 7
    assert 5 * len(body.encode()) + rest < 1_000_000
    assert len(body.encode()) / (60 * 12) < 260
