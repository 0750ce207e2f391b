"""The first page of a site: what is on it in five figures, the best checkpoints with their intervals, quality against
forward passes, which checkpoint was evaluated on which task, and the newest runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from dare_bench.formatting import short_number
from dare_bench.leaderboards import speed_page, unmasking_page
from dare_bench.leaderboards.board import column_names
from dare_bench.leaderboards.board_page import entrance
from dare_bench.leaderboards.board_ranking import unranked_reason
from dare_bench.leaderboards.board_rows import BoardRow, limit_text
from dare_bench.leaderboards.charts import frame, scatter
from dare_bench.leaderboards.charts.rows import Standing, standings
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import BoardEntry, RunScore, recipe_of
from dare_bench.leaderboards.site import Site
from dare_bench.version import __version__

PLACE = "index.html"
BEST, NEWEST, CHECKPOINTS, TASKS = 10, 5, 24, 40
"""Maximum numbers: of the best checkpoints, of the newest runs, and of rows and columns of the heat map."""
SHADES = 10


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A score as text, its shade from 0 (worst) to SHADES (best), and its limit of documents, empty for whole tasks."""

    text: str
    shade: int
    limit: str


def write(site: Site, context: Context) -> None:
    """Write the page, of the first board."""
    view = context.views[0]
    heat = _heat_rows(view)
    values = {
        "title": view.board.title,
        "about": view.board.about,
        "figures": _figures(context),
        "charts": [_best_chart(view, context), _passes_chart(view, context)],
        "columns": column_names(view.columns)[:TASKS],
        "heat": heat[:CHECKPOINTS],
        "heat_left_out": (max(len(heat) - CHECKPOINTS, 0), max(len(view.columns) - TASKS, 0)),
        "table": entrance(view),
        "strip_positions": unmasking_page.STRIP_POSITIONS,
        "strip": unmasking_page.strip(site, context) if context.samples else [],
        "newest": [_addition(entry) for entry in context.entries[: -NEWEST - 1 : -1]],
    }
    site.part("overview", values, partial(site.page, PLACE, "overview.html.j2", **values))


def _figures(context: Context) -> dict[str, int | str]:
    entries = context.entries
    scores = [entry.score(task) for entry in entries for task in entry.tasks]
    return {
        "Checkpoints": len({entry.checkpoint for entry in entries}),
        "Runs": len(entries),
        "Answers": sum(score.n for score in scores if score is not None),
        "Newest": entries[-1].created[:10],
        "Build": f"dare-bench {__version__}",
    }


def best_rows(view: BoardView) -> list[BoardRow]:
    """The best row of each checkpoint, best first; where no row is ranked, of those with a score."""
    rows = [row for row in view.rows if row.rank is not None]
    scored = [row for row in view.rows if row.mean is not None]
    rows = rows or sorted(scored, key=lambda row: row.sign * (row.mean or 0.0), reverse=True)
    best: dict[str, BoardRow] = {}
    for row in rows:
        best.setdefault(recipe_of(row.main), row)
    return list(best.values())


def _best_chart(view: BoardView, context: Context) -> Markup:
    rows, title = best_rows(view)[:BEST], f"Best checkpoints by {view.ranked_by or 'score'}"
    unranked = unranked_reason(view.rows, view.board, view.columns)
    if not rows:
        return frame.empty("best", title, f"No row is ranked here: {unranked}")
    note = f"No row is ranked here: {unranked}" if unranked else "Before each name are the ranks that it may have."
    ranked = view.board.ranked(view.columns)
    return standings(
        [_standing(row) for row in rows],
        context.families,
        ident="best",
        title=title,
        note=f"Each checkpoint at its best settings, with the 95% interval. {note}",
        percent=all(cell.score.is_share for row in rows for at in ranked if (cell := row.cells[at]) is not None),
    )


def _standing(row: BoardRow) -> Standing:
    interval = row.mean_interval
    return Standing(
        row.name.title,
        row.mean or 0.0,
        interval.lo if interval else None,
        interval.hi if interval else None,
        row.main.checkpoint_page,
        row.band,
        row.name.detail,
        row.main.family,
        row.settings,
    )


def _passes_chart(view: BoardView, context: Context) -> Markup:
    sheets = speed_page.sheets(view, 0)
    if not sheets:
        title = f"Quality against {speed_page.NFE}"
        return frame.empty("passes", title, "No run has both a score and a number of forward passes.")
    sheet = sheets[0]
    return scatter(
        sheet.passes,
        ident="passes",
        title=f"{sheet.name} against {speed_page.NFE}",
        x_title=speed_page.NFE,
        y_title=sheet.metric,
        x_unit=speed_page.UNITS[speed_page.NFE],
        higher_is_better=sheet.higher,
        percent=sheet.percent,
        families=context.families,
        joined=True,
    )


def _heat_rows(view: BoardView) -> list[tuple[BoardRow, list[HeatCell | None]]]:
    """Each checkpoint with its best score of each task, under any settings, of whole tasks where it has one."""
    groups: dict[str, list[BoardRow]] = {}
    for row in view.rows:
        if any(row.cells):
            groups.setdefault(recipe_of(row.main), []).append(row)
    columns = range(min(len(view.columns), TASKS))
    best = [[_best_cell([row.cells[at] for row in rows]) for at in columns] for rows in groups.values()]
    ranges = [_range([cell for cells in best if (cell := cells[at]) is not None]) for at in columns]
    return [
        (rows[0], [None if cell is None else _heat_cell(cell, *ends) for cell, ends in zip(cells, ranges, strict=True)])
        for rows, cells in zip(groups.values(), best, strict=True)
    ]


def _best_cell(cells: Sequence[RunScore | None]) -> RunScore | None:
    known = [cell for cell in cells if cell is not None]
    return max(known, key=lambda cell: (not cell.score.limited, cell.score.goodness), default=None)


def _range(cells: Sequence[RunScore]) -> tuple[float, float]:
    """The worst and the best value of a column: of shares, those that are possible."""
    if all(cell.score.is_share and cell.score.higher_is_better for cell in cells):
        return 0.0, 1.0
    values = [cell.score.goodness for cell in cells]
    return min(values), max(values)


def _heat_cell(cell: RunScore, worst: float, best: float) -> HeatCell:
    share = (cell.score.goodness - worst) / (best - worst) if best > worst else 0.0
    limit = limit_text([cell.entry]) if cell.score.limited else ""
    text = short_number(cell.score.value, cell.score.is_share)
    return HeatCell(text, round(SHADES * min(max(share, 0.0), 1.0)), limit)


def _addition(entry: BoardEntry) -> dict[str, Any]:
    scores = [(task, entry.score(task)) for task in entry.top_level]
    known = [(task, short_number(score.value, score.is_share)) for task, score in scores if score is not None]
    return {
        "date": entry.created,
        "name": entry.name.text,
        "page": entry.page,
        "family": entry.family,
        "scores": known[:4],
        "more": max(len(known) - 4, 0),
        "limit": limit_text([entry]) if any(score is not None and score.limited for _, score in scores) else "",
        "status": "" if entry.complete or entry.is_external else entry.status,
    }
