"""A board as a page and as data: a JSON record, a CSV table, and the script behind the downloads of the page.

To add a column beside those of the tasks, add one line to :data:`COLUMNS`: the page, its controls, the CSV file and the
JSON files follow it.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any, Literal

from dare_bench.formatting import compact, figure
from dare_bench.leaderboards.board import TaskColumn, column_names
from dare_bench.leaderboards.board_ranking import column_bands, unranked_reason
from dare_bench.leaderboards.board_rows import BADGES, BoardRow
from dare_bench.leaderboards.charts.labels import varying
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.entries import RunScore
from dare_bench.leaderboards.rendering import slug
from dare_bench.leaderboards.site import Site
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import weakest
from dare_bench.runs.text import no_formula, one_line
from dare_bench.runs.writer import dumps

FIRST = "table.html"
"""The page of a site's first board."""
NAME = 32
"""Characters of a name that is not cut."""
SCORE_FIELDS = ("value", "lo", "hi", "n", "nfe_per_request", "tier", "fingerprint")
_ROW_FIELDS = {
    "rank": ("rank", "rank_shared"),
    "model": ("name", "model", "family", "settings_text", "seeds", "status", "badges", "created", "run_id"),
    "mean": ("mean", "mean_lo", "mean_hi"),
}
"""Fields of the CSV file that belong to the first columns of the page, by the column's key."""


@lru_cache(maxsize=1)
def board_record(view: BoardView) -> dict[str, Any]:
    """The contents of ``data/board.json``, kept for the next call; a score has the band of ranks by its task alone."""
    by_task = [column_bands(view.rows, at) for at in range(len(view.columns))]
    return {
        "title": view.board.title,
        "columns": [column.model_dump() for column in view.columns],
        "rank_by": view.board.rank_by,
        "rows": [
            _row_record(row, view.columns, [bands[number] for bands in by_task]) for number, row in enumerate(view.rows)
        ],
    }


@lru_cache(maxsize=1)
def board_json(view: BoardView) -> bytes:
    """The record as the file's bytes, which its citation has the digest of."""
    return dumps(board_record(view)) + b"\n"


def _row_record(
    row: BoardRow, columns: Sequence[TaskColumn], bands: Sequence[tuple[int, int] | None]
) -> dict[str, Any]:
    main, mean = row.main, row.mean_interval
    return {
        "run_id": main.run_id,
        "runs": [entry.run_id for entry in row.entries],
        "page": main.page,
        "model": main.model,
        "name": row.name.text,
        "family": main.family,
        "created": main.created,
        "status": main.status,
        "seeds": len(row.each),
        "rank": row.rank,
        "rank_shared": row.shared,
        "rank_band": None if row.rank is None else [row.rank, row.last],
        "badges": [badge.kind for badge in row.badges],
        "mean": row.mean,
        "mean_interval": None if mean is None else {"method": mean.method, "lo": mean.lo, "hi": mean.hi},
        "scores": {
            name: None if cell is None else {**_score_record(cell), "rank_band": band}
            for name, cell, band in zip(column_names(columns), row.cells, bands, strict=True)
        },
        "settings": {name: value for entry in reversed(row.entries) for name, value in entry.requested.items()},
        "settings_text": row.settings,
        # Text stands before numbers.
        **{column.field: column.value(row) for column in sorted(COLUMNS, key=lambda column: column.sort != "text")},
        "cost": None if main.is_external else main.cost.model_dump(),
    }


def _score_record(cell: RunScore) -> dict[str, Any]:
    """A score as JSON; of several seeds it is the mean, with the lowest and the highest."""
    spread = dict(zip(("lowest", "highest"), cell.spread, strict=True)) if cell.seeds else {}
    return {
        **{field.name: getattr(cell.score, field.name) for field in fields(cell.score)},
        "is_share": cell.score.is_share,
        **spread,
        "nfe_per_request": cell.nfe_per_request,
        "shots": cell.shots,
        "page": cell.entry.page,
    }


def csv_table(record: Mapping[str, Any], columns: Sequence[TaskColumn]) -> dict[str, Any]:
    """The record as text cells: ``heads``, ``rows``, and ``keys``, the key of the page's column for each CSV column."""
    keyed = list(zip(task_keys(columns), column_names(columns), strict=True))
    heads = list(_csv_fields({}, keyed))
    rows = [[_csv_text(value) for _, _, value in _csv_fields(row, keyed)] for row in record["rows"]]
    return {"keys": [key for key, _, _ in heads], "heads": [_csv_text(head) for _, head, _ in heads], "rows": rows}


def _csv_fields(row: Mapping[str, Any], tasks: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, Any]]:
    """(key of the page's column, CSV heading, value) of a row's fields; an empty row gives the headings.

    ``tasks``: the key and the name of each task's column.
    """
    interval = row.get("mean_interval") or {}
    flat = {**row, "badges": " ".join(row.get("badges", ()))}
    flat |= {f"mean_{end}": interval.get(end) for end in ("lo", "hi")}
    for key, names in _ROW_FIELDS.items():
        yield from ((key, name, flat.get(name)) for name in names)
    for key, name in tasks:
        score = row.get("scores", {}).get(name) or {}
        yield key, f"{name} metric", f"{score['metric']},{score['filter']}" if score else None
        yield from ((key, f"{name} {field}", score.get(field)) for field in SCORE_FIELDS)
    yield from ((column.key, column.field, row.get(column.field)) for column in COLUMNS)


def _csv_text(value: Any) -> str:
    """A cell as text that no spreadsheet takes for a formula; a number stays a number, None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return no_formula(value) if isinstance(value, str) else str(value)


def csv_text(table: Mapping[str, Any]) -> str:
    """The table as CSV (RFC 4180)."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([table["heads"], *table["rows"]])
    return file.getvalue()


def script(record: Mapping[str, Any], table: Mapping[str, Any], columns: Sequence[TaskColumn]) -> str:
    """Record and table as a script, which is loaded for a download: a page opened from a disk may load scripts, but no
    other files. It holds only ASCII and no "<", so that text of models can never be markup."""
    value = {"record": record, "names": column_names(columns), "table": table}
    return f"dareBoard({json.dumps(value).replace('<', chr(92) + 'u003c')});\n"


@dataclass(frozen=True, slots=True)
class FactColumn:
    """A column with one fact about each row.

    ``key`` names it in the page's address, ``title`` on the page, and ``field`` in the CSV and JSON files. ``format``
    turns the value into the text of the page. ``sort`` is the direction of the first click on a column of numbers
    ("desc" where more is better), or "text" for a column that is sorted by its text.
    """

    key: str
    title: str
    field: str
    value: Callable[[BoardRow], Any]
    format: Callable[[Any], str] = figure
    sort: Literal["asc", "desc", "text"] = "desc"


COLUMNS = (
    FactColumn("nfe", "NFE", "nfe_per_request", lambda row: row.nfe_per_request, sort="asc"),
    FactColumn("tpf", "TPF", "tpf", lambda row: row.tpf, partial(figure, digits=2)),
    FactColumn("speed", "tokens/s", "tokens_per_s", lambda row: row.tokens_per_s),
    FactColumn("hardware", "Hardware", "hardware", lambda row: row.main.hardware, partial(one_line, limit=40), "text"),
)

_KEYS = ("rank", "model", "mean", *(column.key for column in COLUMNS))


def task_keys(columns: Sequence[TaskColumn]) -> list[str]:
    """A unique key for each task's column, as it stands in the page's address."""
    keys = [slug(name) for name in column_names(columns)]
    return [f"{key}.{at + 1}" if key in _KEYS or keys.count(key) > 1 else key for at, key in enumerate(keys)]


TALL = 25
"""Number of rows from which the table scrolls under its headings."""
CARDS = 20
"""Number of rows that a phone shows, as cards, until all are asked for; also in board.css."""
SCRIPTS = ("board_view", "board_download", "board_passes", "board_compare", "board_table", "board", "board_details")


def entrance(view: BoardView) -> str:
    """The page of a board that the navigation leads to: of a sparse board that of the task with the most scores."""
    return view.split[0][2] if view.split else view.place


def write(site: Site, view: BoardView, whole: BoardView, releases: Sequence[tuple[str, str]]) -> None:
    """Write the page of a board, and the board as JSON, as CSV, and as the script for downloads. ``whole``: the board
    that it is one task of, or itself. ``releases``: the name and place of each, newest first."""
    record = board_record(view)
    shown = [(row.name, row.seeds, row.settings, row.badges) for row in view.rows]
    tabs = [(name, place) for _, name, place in whole.split]
    around: dict[str, Any] = {"section": entrance(whole), "tabs": [*tabs, ("All tasks", whole.place)] if tabs else []}
    around["releases"] = releases
    inputs = view.board, record, shown, around
    site.part(f"board {view.place}", inputs, lambda: _write(site, view, record, around))


def _write(site: Site, view: BoardView, record: dict[str, Any], around: dict[str, Any]) -> None:
    table = csv_table(record, view.columns)
    data = data_stem(view)
    places = {"data": f"{data}.json", "csv": f"{data}.csv", "script": f"{data}.js"}
    site.bytes(places["data"], board_json(view))
    site.text(places["csv"], csv_text(table))
    site.text(places["script"], script(record, table, view.columns))
    site.page(view.place, "board.html.j2", **places, **around, **_table_values(view, record), **_note_values(view))


def data_stem(view: BoardView) -> str:
    """The place of a board's files of data, without their suffix."""
    return "data/board" if view.place == FIRST else f"data/{view.place.removesuffix('.html')}"


def _table_values(view: BoardView, record: dict[str, Any]) -> dict[str, Any]:
    board, columns, rows = view.board, view.columns, view.rows
    bands = [[_band(score) for score in row["scores"].values()] for row in record["rows"]]
    ranking = board.ranked(columns)
    return {
        "name": view.name,
        "title": one_line(board.title, 200),
        "heads": [
            {"key": key, "ranks": ranking == [at], **_head(column, [row.cells[at] for row in rows])}
            for at, (key, column) in enumerate(zip(task_keys(columns), columns, strict=True))
        ],
        "columns": COLUMNS,
        "ranking": ranking[0] if len(ranking) == 1 else None,
        "rows": [
            (row, weakest(c.score.tier for c in row.cells if c) or "", name, chips, by_task)
            for row, name, chips, by_task in zip(rows, _names(rows), _chips(rows), bands, strict=True)
        ],
        "show_mean": len(view.of_mean),
        "tall": len(rows) >= TALL,
        "cards": CARDS,
        "models": len({row.main.checkpoint for row in rows}),
        "sheets": ["static/board.css"],
        "scripts": [f"static/{name}.js" for name in SCRIPTS],
    }


def _band(score: Mapping[str, Any] | None) -> str:
    """The band of ranks of a score's record as text; empty if it has none."""
    return "–".join(map(str, dict.fromkeys((score or {}).get("rank_band") or ())))


def _names(rows: Sequence[BoardRow]) -> list[tuple[str, str, str]]:
    """The start, middle and end of each name; the middle, empty in a short one, is left out on one line."""
    titles = [one_line(row.name.title, 500) for row in rows]
    ends: dict[tuple[str, str], set[str]] = defaultdict(set)
    for title in titles:
        ends[title[: NAME // 2], title[-NAME // 2 :]].add(title)
    return [_parts(title, ends[title[: NAME // 2], title[-NAME // 2 :]] - {title}) for title in titles]


def _parts(title: str, alike: Collection[str]) -> tuple[str, str, str]:
    """A name in parts; after the middle stands what distinguishes it from those with the same start and end."""
    if len(title) <= NAME:
        return title, "", ""
    start, end = NAME // 2, len(title) - NAME // 2
    if alike:
        end = min(end, max(_common_length(title, other) for other in alike))
        start = min(start, end, NAME // 4)
    return title[:start], title[start:end], title[end:]


def _common_length(one: str, two: str) -> int:
    """The number of characters with which both begin."""
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _chips(rows: Sequence[BoardRow]) -> list[tuple[list[str], list[str]]]:
    """What stands after each name: what distinguishes it from others of its name (data and seed of a training, the
    settings that differ), and its family and number of parameters."""
    details = _of_alike([row.name.title for row in rows], [row.name.detail for row in rows], _rarest_first)
    differing = _of_alike(
        [row.name.text for row in rows], [row.settings for row in rows], lambda texts: _rarest_first(varying(texts))
    )
    sizes = [compact(row.main.parameters) if row.main.parameters else "" for row in rows]
    return [
        ([fact for fact in own if fact], [fact for fact in (row.main.family, size) if fact not in ("", UNKNOWN)])
        for row, size, *own in zip(rows, sizes, details, differing, strict=True)
    ]


def _of_alike(
    names: Sequence[str], texts: Sequence[str], change: Callable[[Sequence[str]], Sequence[str]]
) -> list[str]:
    """The texts, those of equal names changed together."""
    alike: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(names):
        alike[name].append(at)
    changed = {
        at: text
        for group in alike.values()
        for at, text in zip(group, change([texts[at] for at in group]), strict=True)
    }
    return [changed[at] for at in range(len(texts))]


def _rarest_first(texts: Sequence[str]) -> list[str]:
    """Each text with the parts that the fewest have first, since the end may be cut off."""
    parts = [text.split(", ") for text in texts]
    counts = Counter(part for own in parts for part in own)
    return [", ".join(sorted(own, key=lambda part: counts[part])) for own in parts]


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
