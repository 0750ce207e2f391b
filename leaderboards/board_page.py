"""A board's page and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from dare_bench.leaderboards import board_data
from dare_bench.leaderboards.board import TaskColumn
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.ranking import why_unranked
from dare_bench.leaderboards.rows import BoardCell, BoardRow
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import weakest
from dare_bench.runs.text import one_line

BARS = 600
"""Cells up to which each share has its bar; a larger board stays under a megabyte without them."""
TALL = 25
"""Rows from which on the table scrolls in a box of its own, under its headings."""
DATATABLES = "static/vendor/datatables-3.1.5/dataTables.min.js"

BADGES = {
    "running": ("not finished", "The run has not been finished; the same command resumes it."),
    "incomplete": (
        "incomplete",
        "Some documents have no answer: left out of the scores, not counted as wrong.",
    ),
    "limited": ("limit", "Only part of a task's documents was evaluated."),
    "edited": ("samples edited", "A samples file is not as the run wrote it; the sample pages show what it holds now."),
    "results": ("results edited", "The file of results is not as the run wrote it."),
    "programs": ("answered by several programs", "A part of the answers is another program's; --fresh makes all anew."),
    "stale": ("other task version", "Templates, filters or scorer differ from those of the newest complete run."),
    "prompts": ("other prompts", "Examples, chat template or data differ from those of the newest complete run."),
    "uncertain": ("no interval", "How far chance could move the score that ranks is not known."),
    "missing": ("tasks missing", "The row has no score for some of the board's tasks."),
}
"""What each kind of badge is called and means; a run's page says what it means there."""


def write(site: Site, context: Context, view: BoardView) -> None:
    record = board_data.record(view)
    shown = [(row.name, row.settings, row.badges) for row in view.rows]
    site.part(f"board {view.place}", (view.board, record, shown), lambda: _write(site, view, record))


def _write(site: Site, view: BoardView, record: Mapping[str, Any]) -> None:
    table = board_data.csv_table(record, view.columns)
    data = PurePosixPath(view.data)
    places = {"data": view.data, "csv": str(data.with_suffix(".csv")), "script": str(data.with_suffix(".js"))}
    site.json(view.data, record)
    site.text(places["csv"], board_data.csv_text(table))
    site.text(places["script"], board_data.script(record, table, view.columns))
    site.page(view.place, "board.html.j2", **places, **_shown(view))


def _shown(view: BoardView) -> dict[str, Any]:
    board, columns, rows = view.board, view.columns, view.rows
    keys = board_data.column_keys(columns)
    kinds = dict.fromkeys(badge.kind for row in rows for badge in row.badges)
    scores = [cell.score for row in rows for cell in row.cells if cell is not None]
    return {
        "name": view.name,
        "title": one_line(board.title, 200),
        "about": one_line(board.about, 2_000),
        "heads": [
            {"key": key, **_head(column, [row.cells[at] for row in rows])}
            for at, (key, column) in enumerate(zip(keys, columns, strict=True))
        ],
        "rows": [(row, _tier(row)) for row in rows],
        "unranked": why_unranked(rows, board, columns),
        "rank_by": board.rank_by,
        "show_mean": board.rank_by == "mean" and len(columns) > 1,
        "bars": len(rows) * len(columns) <= BARS,
        "tall": len(rows) >= TALL,
        "models": len({row.main.checkpoint for row in rows}),
        "newest": max((row.created for row in rows), default=""),
        "badges_seen": [told for kind, told in BADGES.items() if kind in kinds],
        "tiers_seen": {score.tier for score in scores},
        "partly_read": any(score.extraction_rate is not None and score.extraction_rate < 0.95 for score in scores),
        "several": any(len(row.entries) > 1 for row in rows),
        "sheets": ["static/board.css"],
        "scripts": [DATATABLES, "static/board_view.js", "static/board_download.js", "static/board.js"],
    }


def _tier(row: BoardRow) -> str:
    """The weakest tier of a row's scores; empty where none has one."""
    return weakest(cell.score.tier for cell in row.cells if cell is not None) or ""


def _head(column: TaskColumn, cells: Sequence[BoardCell | None]) -> dict[str, str]:
    """A column's name and which metric stands in it; the filter is named where there is one."""
    keys = {cell.score.key.removesuffix(",none").replace(",", ", ") for cell in cells if cell is not None}
    metric = keys.pop() if len(keys) == 1 else "several metrics" if keys else ""
    lower = any(cell is not None and cell.score.higher_is_better is False for cell in cells)
    return {
        "name": column.name,
        "metric": f"{metric}, lower is better" if lower else metric,
        "first": "asc" if lower else "desc",
    }
