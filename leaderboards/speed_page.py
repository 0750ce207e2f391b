"""Speed beside quality: each score against forward passes per request and against tokens per second, with the front of
both. A board has a page for what it ranks by and one for each of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dare_bench.leaderboards.board import TaskColumn
from dare_bench.leaderboards.charts import Point, front_table, scatter
from dare_bench.leaderboards.charts.axes import compact
from dare_bench.leaderboards.charts.frame import score as told
from dare_bench.leaderboards.charts.frame import with_interval
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.pages import Link, slug
from dare_bench.leaderboards.ranking import why_unranked
from dare_bench.leaderboards.rows import BoardCell, BoardRow
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import is_share

NFE, SPEED = "forward passes per request", "tokens per second"
UNITS = {NFE: "NFE", SPEED: "tokens/s"}
"""Short names of the axes, for marks."""
NO_HARDWARE = "hardware not on record"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One page: a score of every row of a board, against what it cost.

    ``passes`` are points over NFE, ``speeds`` those over tokens/s by hardware class, the largest class first.
    ``together`` counts the points whose run knows only what all its tasks cost together.
    """

    place: str
    name: str
    metric: str
    percent: bool
    higher: bool
    passes: list[Point]
    speeds: list[tuple[str, list[Point]]]
    together: int = 0


SHEETS = 100
"""Pages of a board. Each names all others, so they grow with the square of the tasks."""


def link(context: Context) -> Link | None:
    """In the navigation once any row has a score and what it cost."""
    known = any(row.nfe_per_request and any(row.cells) for view in context.views for row in view.rows)
    return Link("speed/index.html", "Speed") if known else None


def write(site: Site, context: Context) -> None:
    """A page for each sheet of each board."""
    boards = [(view, sheets(view, number)) for number, view in enumerate(context.views)]
    for view, made in boards:
        if len(made) > SHEETS:
            title = view.board.title
            context.problem(f"left out: the speed pages of {len(made) - SHEETS} tasks of {title}; {SHEETS} are made")
    boards = [(view, made[:SHEETS]) for view, made in boards if made]
    names = [(view.board.title, made[0].place) for view, made in boards]
    for view, made in boards:
        tabs = [(sheet.name, sheet.place) for sheet in made]
        why = _no_mean(view)
        for sheet in made:
            told = (view.board.title, tabs, names, why, sheet)
            site.part(f"speed {sheet.place}", told, partial(_write, site, view, sheet, tabs, names, why))


def _write(
    site: Site, view: BoardView, sheet: Sheet, tabs: list[tuple[str, str]], boards: list[tuple[str, str]], why: str
) -> None:
    charts = [_chart("nfe", f"{sheet.name} against {NFE}", NFE, sheet.passes, sheet, "left")]
    alone = [(name, points[0]) for name, points in sheet.speeds if len(points) == 1 and len(sheet.speeds) > 1]
    shown = [(name, points) for name, points in sheet.speeds if len(points) > 1 or len(sheet.speeds) == 1]
    for number, (name, points) in enumerate(shown, start=1):
        charts.append(
            _chart(f"speed-{number}", f"{sheet.name} against {SPEED} on {name}", SPEED, points, sheet, "right")
        )
    site.page(
        sheet.place,
        "speed.html.j2",
        title=view.board.title,
        sheet=sheet,
        tabs=tabs,
        boards=boards if len(boards) > 1 else [],
        charts=charts,
        alone=[(name, _entry(point, sheet)) for name, point in alone],
        no_mean=why,
    )


def _no_mean(view: BoardView) -> str:
    """Why there is no page of the mean, where one would be expected."""
    if view.board.rank_by != "mean" or len(view.columns) < 2 or any(row.rank is not None for row in view.rows):
        return ""
    return why_unranked(view.rows, view.board, view.columns)


def sheets(view: BoardView, number: int) -> list[Sheet]:
    """A board's sheets, what it ranks by first; none where nothing has a score and a cost."""
    folder = "speed/" if number == 0 else f"speed/{number}-{view.name}/"
    made = [_of_column(view, at, f"{folder}{at + 1}-{slug(c.task)}.html") for at, c in enumerate(view.columns)]
    made = [sheet for sheet in made if sheet.passes]
    if view.board.rank_by == "mean" and len(view.columns) > 1 and any(row.rank is not None for row in view.rows):
        made.insert(0, _of_mean(view))
    else:
        first = [at for at, column in enumerate(view.columns) if column.task == view.board.rank_by]
        chosen = {view.columns[at].name for at in first}
        made.sort(key=lambda sheet: sheet.name not in chosen)
    return [replace(made[0], place=f"{folder}index.html"), *made[1:]] if made else []


def _of_mean(view: BoardView) -> Sheet:
    """The mean over all tasks, against the cost of all runs of a row."""
    passes, speeds = [], []
    root = _root(view)
    for row in view.rows:
        made = row.mean_interval
        point = _point(
            row, root, row.mean, (made.lo, made.hi) if made else (None, None), row.cells, row.rank is not None
        )
        passes.append(replace(point, x=row.nfe_per_request))
        speeds.append((row.hardware, replace(point, x=row.tokens_per_s)))
    return Sheet("", f"Mean of {len(view.columns)} tasks", "mean", True, True, passes, _classes(speeds))


def _of_column(view: BoardView, at: int, place: str) -> Sheet:
    """One task's score; its own forward passes where the run knows them, else those of all the run's tasks."""
    column = view.columns[at]
    passes, speeds, together, cells = [], [], 0, []
    root = _root(view)
    for row in view.rows:
        cell = row.cells[at]
        if cell is None:
            continue
        cells.append(cell)
        score, entry = cell.score, cell.entry
        fine = all(badge.kind == "missing" for badge in row.badges)
        point = _point(row, root, score.value, (score.lo, score.hi), [cell], fine, entry.page)
        passes_each, own = entry.nfe_per_request(column.task)
        shared = f"cost of all {len(entry.tasks)} tasks of its run together"
        together += passes_each is not None and not own
        passes.append(replace(point, x=passes_each, remark=point.remark if own else _joined(point.remark, shared)))
        if column.task in entry.generated and entry.cost.tokens_per_s:
            several = _joined(point.remark, shared) if len(entry.tasks) > 1 else point.remark
            speeds.append((entry.hardware, replace(point, x=entry.cost.tokens_per_s, remark=several)))
    percent = all(is_share(cell.score) for cell in cells)
    higher = not any(cell.score.higher_is_better is False for cell in cells)
    return Sheet(place, column.name, _metric(column, cells), percent, higher, passes, _classes(speeds), together)


def _root(view: BoardView) -> str:
    """From a speed page of this board to the site's folder."""
    return "../" if view.place == "index.html" else "../../"


def _metric(column: TaskColumn, cells: Sequence[BoardCell]) -> str:
    keys = {cell.score.metric for cell in cells}
    return keys.pop() if len(keys) == 1 else "score"


def _point(
    row: BoardRow,
    root: str,
    value: float | None,
    ends: tuple[float | None, float | None],
    cells: Sequence[BoardCell | None],
    ranked: bool,
    page: str | None = None,
) -> Point:
    return Point(
        name=row.name.text,
        x=None,
        y=value,
        href=root + (page or row.main.page),
        family=row.family,
        lo=ends[0],
        hi=ends[1],
        settings=row.settings,
        approximate=any(cell is not None and cell.score.tier == "A" for cell in cells),
        ranked=ranked,
        remark="" if ranked else ", ".join(badge.text for badge in row.badges),
    )


def _joined(*remarks: str) -> str:
    return ", ".join(filter(None, remarks))


def _classes(points: Sequence[tuple[str, Point]]) -> list[tuple[str, list[Point]]]:
    """Points with a speed by hardware class; never two classes in one chart."""
    found: dict[str, list[Point]] = {}
    for hardware, point in points:
        if point.x and point.y is not None:
            found.setdefault(hardware or NO_HARDWARE, []).append(point)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def _chart(ident: str, title: str, x_title: str, points: list[Point], sheet: Sheet, better: Any) -> dict[str, Any]:
    """A chart and who is on its front, for the template."""
    ranked = [point for point in points if point.ranked]
    drawing = scatter(
        points,
        ident=ident,
        title=title,
        x_title=x_title,
        y_title=sheet.metric,
        better=better,
        higher_is_better=sheet.higher,
        percent=sheet.percent,
        x_unit=UNITS[x_title],
    )
    rows = front_table([p for p in ranked if p.x], better, "up" if sheet.higher else "down")
    return {
        "ident": ident,
        "title": title,
        "x_title": x_title,
        "drawing": drawing,
        "ranked": len(ranked),
        "front": [{**_entry(row.point, sheet), "beaten": len(row.dominated)} for row in rows],
    }


def _entry(point: Point, sheet: Sheet) -> dict[str, Any]:
    ends = None if point.lo is None or point.hi is None else [told(end, sheet.percent) for end in (point.lo, point.hi)]
    return {
        "point": point,
        "score": with_interval(point.y or 0.0, None, None, sheet.percent),
        "range": "–".join(ends) if ends else "",
        "x": compact(point.x or 0.0),
    }
