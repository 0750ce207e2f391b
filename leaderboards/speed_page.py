"""Speed pages: each score against forward passes per request and against tokens per second, with the Pareto frontier
of both. A board has a page for the score that it ranks by and one for each of its tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from dare_bench.formatting import chart_score, compact, with_interval
from dare_bench.leaderboards import aup_table
from dare_bench.leaderboards.board_ranking import unranked_reason
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.charts import Point, frontier_table, scatter
from dare_bench.leaderboards.charts.scatter import BetterX
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import MOST_APART, farthest_apart
from dare_bench.leaderboards.rendering import Link, slug
from dare_bench.leaderboards.site import Site

NFE, SPEED = "forward passes per request", "tokens per second"
UNITS = {NFE: "NFE", SPEED: "tokens/s"}
"""Short names of the axes, for marks."""
NO_HARDWARE = "hardware not recorded"
Bounds = tuple[float | None, float | None, float | None]
"""A score and the ends of its interval."""
MOST_PAGES = 100
"""Pages of a board. Each links to all others, so their size grows with the square of the tasks."""


@dataclass(frozen=True, slots=True)
class SpeedSheet:
    """One page: a score of every row of a board against its cost.

    Links are relative to the site. ``passes`` are points over NFE, ``speeds`` points over tokens/s by hardware, the
    most common hardware first; ``apart`` is how many times the speed of the slowest of replicates the fastest has
    there. ``at`` is the number of its column (None: the mean). ``together`` counts the points whose run recorded only
    the cost of all its tasks together.
    """

    place: str
    name: str
    metric: str
    percent: bool
    higher: bool
    passes: list[Point]
    speeds: list[tuple[str, list[Point]]]
    apart: dict[str, float]
    together: int = 0
    at: int | None = None


def link(context: Context) -> Link | None:
    """In the navigation if any row has a score and a cost."""
    known = any(row.nfe_per_request and any(row.cells) for view in context.views for row in view.rows)
    return Link("speed/index.html", "Speed") if known else None


def write(site: Site, context: Context) -> None:
    """Write a page for each sheet of each board."""
    cache = site if context.samples else None
    boards = [(view, pages) for number, view in enumerate(context.views) if (pages := sheets(view, number))]
    links = [(view.board.title, pages[0].place) for view, pages in boards]
    for view, pages in boards:
        if len(pages) > MOST_PAGES:
            title, left_out = view.board.title, len(pages) - MOST_PAGES
            context.problem(
                f"left out: the speed pages of {left_out} tasks of {title}; at most {MOST_PAGES} are written"
            )
        shown = pages[:MOST_PAGES]
        values: dict[str, Any] = {
            "title": view.board.title,
            "families": context.families,
            "tabs": [(sheet.name, sheet.place) for sheet in shown],
            "boards": links if len(links) > 1 else [],
            # Why there is no page of the mean although the board ranks by it; empty if there is one.
            "no_mean": unranked_reason(view.rows, view.board, view.columns) if view.of_mean else "",
        }
        for sheet in shown:
            values["methods"] = aup_table.methods(cache, view, sheet.at) if sheet.at is not None else []
            site.part(f"speed {sheet.place}", (values, sheet), partial(_write, site, sheet, values))


def _write(site: Site, sheet: SpeedSheet, values: dict[str, Any]) -> None:
    chart = partial(_chart, sheet, values["families"])
    charts = [chart("nfe", f"{sheet.name} against {NFE}", NFE, sheet.passes, "left")]
    alone = [(name, points[0]) for name, points in sheet.speeds if len(points) == 1 and len(sheet.speeds) > 1]
    compared = [(name, points) for name, points in sheet.speeds if len(points) > 1 or len(sheet.speeds) == 1]
    for number, (name, points) in enumerate(compared, start=1):
        title = f"{sheet.name} against {SPEED} on {name}"
        charts.append(chart(f"speed-{number}", title, SPEED, points, "right", _no_frontier(sheet.apart[name])))
    alone_rows = [(name, _point_row(point, sheet)) for name, point in alone]
    site.page(sheet.place, "speed.html.j2", sheet=sheet, charts=charts, alone=alone_rows, **values)


@lru_cache(maxsize=2)
def sheets(view: BoardView, number: int) -> list[SpeedSheet]:
    """A board's sheets, the score that it ranks by first; none if nothing has a score and a cost. Kept for the page of
    the overview."""
    folder = "speed/" if number == 0 else f"speed/{number}-{view.name}/"
    of_tasks = [_of_task(view, at, f"{folder}{at + 1}-{slug(c.task)}.html") for at, c in enumerate(view.columns)]
    pages = [sheet for sheet in of_tasks if sheet.passes]
    if view.of_mean and any(row.rank is not None for row in view.rows):
        pages.insert(0, _of_mean(view))
    else:
        ranked_by = {column.name for column in view.columns if column.task == view.board.rank_by}
        pages.sort(key=lambda sheet: sheet.name not in ranked_by)
    return [replace(pages[0], place=f"{folder}index.html"), *pages[1:]] if pages else []


def _of_mean(view: BoardView) -> SpeedSheet:
    passes, speeds = [], list[_Speed]()
    for row, is_ranked in _each(view):
        mean = row.mean_interval
        score = (row.mean, mean.lo, mean.hi) if mean else (row.mean, None, None)
        approximate = any(cell is not None and cell.score.tier == "A" for cell in row.cells)
        point = _point(row, row.main.page, score, approximate, is_ranked)
        passes.append(replace(point, x=row.nfe_per_request))
        speeds.append(_Speed(row.main.hardware, row.recipe, replace(point, x=row.tokens_per_s)))
    title = f"Mean of {len(view.of_mean)} tasks"
    return SpeedSheet("", title, "mean", True, True, passes, *_by_hardware(speeds))


def _of_task(view: BoardView, at: int, place: str) -> SpeedSheet:
    """One task's score against the forward passes of the task if the run recorded them, else those of all tasks of the
    run."""
    column = view.columns[at]
    passes, speeds, together, scores = [], list[_Speed](), 0, []
    for row, _ in _each(view):
        cell = row.cells[at]
        if cell is None:
            continue
        score, entry = cell.score, cell.entry
        scores.append(score)
        ranked = all(badge.kind == "missing" for badge in row.badges)
        point = _point(row, entry.page, (score.value, score.lo, score.hi), score.tier == "A", ranked)
        remarks = [point.remark, f"cost of all {len(entry.tasks)} tasks of its run together"]
        shared = replace(point, remark=", ".join(filter(None, remarks)))
        nfe, is_of_task = entry.nfe_per_request(column.task)
        together += nfe is not None and not is_of_task
        passes.append(replace(point if is_of_task else shared, x=nfe))
        if column.task in entry.generated and entry.cost.tokens_per_s:
            own = replace(shared if len(entry.tasks) > 1 else point, x=entry.cost.tokens_per_s)
            speeds.append(_Speed(entry.hardware, row.recipe, own))
    metrics = {score.metric for score in scores}
    by_hardware, apart = _by_hardware(speeds)
    return SpeedSheet(
        place,
        column.name,
        metric=metrics.pop() if len(metrics) == 1 else "score",
        percent=all(score.is_share for score in scores),
        higher=not any(score.higher_is_better is False for score in scores),
        passes=passes,
        speeds=by_hardware,
        apart=apart,
        together=together,
        at=at,
    )


def _each(view: BoardView) -> list[tuple[BoardRow, bool]]:
    """Each row, of several seeds each of them, and whether the board ranks it."""
    return [(each, row.rank is not None) for row in view.rows for each in row.each]


def _point(row: BoardRow, page: str, score: Bounds, approximate: bool, ranked: bool) -> Point:
    y, lo, hi = score
    return Point(
        name=row.name.text,
        x=None,
        y=y,
        href=page,
        family=row.main.family,
        lo=lo,
        hi=hi,
        settings=row.settings,
        approximate=approximate,
        ranked=ranked,
        remark="" if ranked else ", ".join(badge.text for badge in row.badges),
    )


@dataclass(frozen=True, slots=True)
class _Speed:
    """A point with a speed; ``replicate`` is equal for runs that should have about the same speed."""

    hardware: str
    replicate: tuple[str, str]
    point: Point


def _by_hardware(speeds: Sequence[_Speed]) -> tuple[list[tuple[str, list[Point]]], dict[str, float]]:
    """The points with a speed by hardware, since speeds on different hardware are never in one chart, with the range of
    their replicates; and how far apart the replicates are on each hardware."""
    groups: dict[str, dict[tuple[str, str], list[Point]]] = defaultdict(lambda: defaultdict(list))
    for speed in speeds:
        if speed.point.x and speed.point.y is not None:
            groups[speed.hardware or NO_HARDWARE][speed.replicate].append(speed.point)
    points, apart = dict[str, list[Point]](), dict[str, float]()
    for hardware, replicates in groups.items():
        values = [[point.x or 0.0 for point in alike] for alike in replicates.values()]
        apart[hardware] = farthest_apart(values)
        points[hardware] = [
            replace(point, x_range=(min(own), max(own)) if len(own) > 1 else None)
            for own, alike in zip(values, replicates.values(), strict=True)
            for point in alike
        ]
    return sorted(points.items(), key=lambda group: (-len(group[1]), group[0])), apart


def _no_frontier(apart: float) -> str:
    """Why there is no frontier of speeds; empty if there is one."""
    if apart <= MOST_APART:
        return ""
    return (
        f"No frontier: here the fastest run of one recipe with equal settings is {compact(apart, 2)} times as fast as"
        f" the slowest, and speeds are compared up to {MOST_APART:g} times."
    )


def _chart(
    sheet: SpeedSheet,
    families: dict[str, int],
    ident: str,
    title: str,
    x_title: str,
    points: list[Point],
    better: BetterX,
    no_frontier: str = "",
) -> dict[str, Any]:
    """A chart and the table of its Pareto frontier, for the template."""
    ranked = [point for point in points if point.ranked]
    root = "../" * sheet.place.count("/")
    drawing = scatter(
        [replace(point, href=root + point.href) for point in points],
        ident=ident,
        title=title,
        x_title=x_title,
        y_title=sheet.metric,
        better=better,
        higher_is_better=sheet.higher,
        percent=sheet.percent,
        x_unit=UNITS[x_title],
        families=families,
        no_frontier=no_frontier,
    )
    shown = [] if no_frontier else [point for point in ranked if point.x]
    rows = frontier_table(shown, better, "up" if sheet.higher else "down")
    return {
        "ident": ident,
        "title": title,
        "x_title": x_title,
        "x_unit": UNITS[x_title],
        "drawing": drawing,
        "ranked": len(ranked),
        "no_frontier": no_frontier,
        "frontier": [{**_point_row(point, sheet), "dominated": len(dominated)} for point, dominated in rows],
    }


def _point_row(point: Point, sheet: SpeedSheet) -> dict[str, Any]:
    ends = [chart_score(end, sheet.percent) for end in (point.lo, point.hi) if end is not None]
    return {
        "point": point,
        "score": with_interval(point.y or 0.0, None, None, sheet.percent),
        "range": "–".join(ends) if len(ends) == 2 else "",
        "x": compact(point.x or 0.0),
        "x_range": "–".join(map(compact, point.x_range)) if point.x_range else "",
    }
