"""A board's page and its data files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from dare_bench.leaderboards import board_data
from dare_bench.leaderboards.board import TaskColumn
from dare_bench.leaderboards.columns import COLUMNS, task_keys
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.ranking import why_unranked
from dare_bench.leaderboards.rows import BoardCell, BoardRow
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import weakest
from dare_bench.runs.text import one_line

BARS = 600
"""Number of cells up to which each share has a bar; without bars a larger board stays under a megabyte."""
TALL = 25
"""Number of rows from which the table scrolls in a box of its own, under its headings."""
DATATABLES = "static/vendor/datatables-3.1.5/dataTables.min.js"

BADGES = {
    "running": ("not finished", "The run is not finished; the same command resumes it."),
    "incomplete": (
        "incomplete",
        "Some documents have no answer: they are left out of the scores, not counted as wrong.",
    ),
    "limited": ("limit", "Only part of a task's documents was evaluated."),
    "edited": (
        "samples edited",
        "A samples file was changed after the run; the sample pages show the present content.",
    ),
    "results": ("results edited", "The results file was changed after the run."),
    "programs": (
        "answered by several programs",
        "Some of the answers come from another version of the program; --fresh generates all of them again.",
    ),
    "stale": ("other task version", "Templates, filters or scorer differ from those of the newest complete run."),
    "prompts": ("other prompts", "Examples, chat template or data differ from those of the newest complete run."),
    "uncertain": ("no interval", "The score that ranks has no interval, so its rank is unknown."),
    "missing": ("tasks missing", "The row has no score for some of the board's tasks."),
}
"""Name and meaning of each kind of badge; a run's page gives the reason for its own."""


def write(site: Site, view: BoardView) -> None:
    """Write the page of a board, and the board as JSON, as CSV, and as the script for downloads."""
    record = board_data.board_record(view)
    shown = [(row.name, row.settings, row.badges) for row in view.rows]
    site.part(f"board {view.place}", (view.board, record, shown), lambda: _write(site, view, record))


def _write(site: Site, view: BoardView, record: dict[str, Any]) -> None:
    table = board_data.csv_table(record, view.columns)
    data = PurePosixPath(view.data)
    places = {"data": view.data, "csv": str(data.with_suffix(".csv")), "script": str(data.with_suffix(".js"))}
    site.json(view.data, record)
    site.text(places["csv"], board_data.csv_text(table))
    site.text(places["script"], board_data.script(record, table, view.columns))
    site.page(view.place, "board.html.j2", **places, **_table_values(view), **_note_values(view))


def _table_values(view: BoardView) -> dict[str, Any]:
    """The values of the page's head and table."""
    board, columns, rows = view.board, view.columns, view.rows
    return {
        "name": view.name,
        "title": one_line(board.title, 200),
        "about": one_line(board.about, 2_000),
        "heads": [
            {"key": key, **_head(column, [row.cells[at] for row in rows])}
            for at, (key, column) in enumerate(zip(task_keys(columns), columns, strict=True))
        ],
        "columns": COLUMNS,
        "rows": [(row, _tier(row)) for row in rows],
        "show_mean": board.rank_by == "mean" and len(columns) > 1,
        "bars": len(rows) * len(columns) <= BARS,
        "tall": len(rows) >= TALL,
        "models": len({row.main.checkpoint for row in rows}),
        "newest": max((row.created for row in rows), default=""),
        "sheets": ["static/board.css"],
        "scripts": [DATATABLES, "static/board_view.js", "static/board_download.js", "static/board.js"],
    }


def _note_values(view: BoardView) -> dict[str, Any]:
    """The values of the notes under the table, which explain only what the table has."""
    kinds = {badge.kind for row in view.rows for badge in row.badges}
    scores = [cell.score for row in view.rows for cell in row.cells if cell is not None]
    return {
        "unranked": why_unranked(view.rows, view.board, view.columns),
        "rank_by": view.board.rank_by,
        "badges_shown": [badge for kind, badge in BADGES.items() if kind in kinds],
        "tiers_shown": {score.tier for score in scores},
        "partly_read": any(score.extraction_rate is not None and score.extraction_rate < 0.95 for score in scores),
        "several": any(len(row.entries) > 1 for row in view.rows),
    }


def _tier(row: BoardRow) -> str:
    """The weakest tier of a row's scores; empty if no score has a tier."""
    return weakest(cell.score.tier for cell in row.cells if cell is not None) or ""


def _head(column: TaskColumn, cells: Sequence[BoardCell | None]) -> dict[str, str]:
    """A column's name, its metric and filter (if any), and the direction of the first sort."""
    keys = {cell.score.key.removesuffix(",none").replace(",", ", ") for cell in cells if cell is not None}
    metric = keys.pop() if len(keys) == 1 else "several metrics" if keys else ""
    lower = any(cell is not None and cell.score.higher_is_better is False for cell in cells)
    return {
        "name": column.name,
        "metric": f"{metric}, lower is better" if lower else metric,
        "first": "asc" if lower else "desc",
    }
