"""A board's page and its data files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare_bench.leaderboards import board_data
from dare_bench.leaderboards.board import TaskColumn
from dare_bench.leaderboards.board_data import COLUMNS, task_keys
from dare_bench.leaderboards.board_ranking import unranked_reason
from dare_bench.leaderboards.board_rows import BADGES
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.entries import RunScore
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import weakest
from dare_bench.runs.text import one_line

BARS = 600
"""Maximum number of cells for which shares have bars, which keeps larger boards under a megabyte."""
TALL = 25
"""Number of rows from which the table scrolls under its headings."""
DATATABLES = "static/vendor/datatables-3.1.5/dataTables.min.js"


def write(site: Site, view: BoardView) -> None:
    """Write the page of a board, and the board as JSON, as CSV, and as the script for downloads."""
    record = board_data.board_record(view)
    shown = [(row.name, row.seeds, row.settings, row.badges) for row in view.rows]
    site.part(f"board {view.place}", (view.board, record, shown), lambda: _write(site, view, record))


def _write(site: Site, view: BoardView, record: dict[str, Any]) -> None:
    table = board_data.csv_table(record, view.columns)
    data = "data/board" if view.place == "index.html" else f"data/{view.place.removesuffix('.html')}"
    places = {"data": f"{data}.json", "csv": f"{data}.csv", "script": f"{data}.js"}
    site.json(places["data"], record)
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
        "rows": [(row, weakest(cell.score.tier for cell in row.cells if cell) or "") for row in rows],
        "show_mean": bool(view.of_mean),
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
        "unranked": unranked_reason(view.rows, view.board, view.columns),
        "rank_by": view.board.rank_by,
        "badges_shown": [badge for kind, badge in BADGES.items() if kind in kinds],
        "tiers_shown": {score.tier for score in scores},
        "partly_read": any(score.extraction_rate is not None and score.extraction_rate < 0.95 for score in scores),
        "several_seeds": any(row.members for row in view.rows),
        "several": any(len(each.entries) > 1 for row in view.rows for each in row.each),
    }


def _head(column: TaskColumn, cells: Sequence[RunScore | None]) -> dict[str, str]:
    """A column's name, its metric and filter (if any), and the direction of the first sort."""
    keys = {cell.score.key.removesuffix(",none").replace(",", ", ") for cell in cells if cell is not None}
    metric = keys.pop() if len(keys) == 1 else "several metrics" if keys else ""
    lower = any(cell is not None and cell.score.higher_is_better is False for cell in cells)
    return {
        "name": column.name,
        "metric": f"{metric}, lower is better" if lower else metric,
        "first": "asc" if lower else "desc",
    }
