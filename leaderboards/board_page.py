"""A board's page and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.leaderboards.board import Column
from dare_bench.leaderboards.context import Context, View
from dare_bench.leaderboards.ranking import why_unranked
from dare_bench.leaderboards.rows import Cell, row_record
from dare_bench.leaderboards.site import Site


def write(site: Site, context: Context, view: View) -> None:
    record = {
        "title": view.board.title,
        "columns": [column.model_dump() for column in view.columns],
        "rank_by": view.board.rank_by,
        "rows": [row_record(row, view.columns) for row in view.rows],
    }
    site.part(f"board {view.place}", (view.board, record), lambda: _write(site, view, record))


def _write(site: Site, view: View, record: Mapping[str, Any]) -> None:
    site.json(view.data, record)
    board, columns, rows = view.board, view.columns, view.rows
    site.page(
        view.place,
        "board.html.j2",
        title=board.title,
        about=board.about,
        data=view.data,
        heads=[_head(column, [row.cells[at] for row in rows]) for at, column in enumerate(columns)],
        rows=rows,
        unranked=why_unranked(rows, board, columns),
        rank_by=board.rank_by,
        show_mean=board.rank_by == "mean" and len(columns) > 1,
        models=len({row.model for row in rows}),
        newest=max((row.created for row in rows), default=""),
    )


def _head(column: Column, cells: Sequence[Cell | None]) -> dict[str, str]:
    """A column's name and which metric stands in it; the filter is named where there is one."""
    keys = {cell.score.key.removesuffix(",none").replace(",", ", ") for cell in cells if cell is not None}
    return {"name": column.name, "metric": keys.pop() if len(keys) == 1 else "several metrics" if keys else ""}
