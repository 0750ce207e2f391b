"""A board as data: one JSON record, the same as CSV, and both as the script that a page's downloads are made from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dare_bench.leaderboards.board import TaskColumn, column_names
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.pages import slug
from dare_bench.leaderboards.rows import row_record
from dare_bench.runs.text import no_formula

SCORE_FIELDS = ("value", "lo", "hi", "n", "tier", "fingerprint")


def record(view: BoardView) -> dict[str, Any]:
    """What ``data/board.json`` holds."""
    return {
        "title": view.board.title,
        "columns": [column.model_dump() for column in view.columns],
        "rank_by": view.board.rank_by,
        "rows": [row_record(row, view.columns) for row in view.rows],
    }


def column_keys(columns: Sequence[TaskColumn]) -> list[str]:
    """A name for each task's column that can stand in an address; none twice."""
    keys = [slug(name) for name in column_names(columns)]
    return [f"{key}.{at + 1}" if key in FIXED or keys.count(key) > 1 else key for at, key in enumerate(keys)]


FIXED = ("rank", "model", "mean", "nfe", "tpf", "speed", "hardware")
"""Keys of the columns that are no task's."""


@dataclass(frozen=True, slots=True)
class Table:
    """A board as text cells. ``keys``: for each column that of the page's column which it belongs to."""

    keys: list[str]
    heads: list[str]
    rows: list[list[str]]


def csv_table(made: Mapping[str, Any], columns: Sequence[TaskColumn]) -> Table:
    """The board's record as a table."""
    heads = [("rank", "rank"), ("rank", "rank_shared")]
    heads += [("model", name) for name in ("name", "model", "family", "settings_text", "status", "badges", "created")]
    heads += [("model", "run_id")]
    heads += [("mean", name) for name in ("mean", "mean_lo", "mean_hi")]
    for key, name in zip(column_keys(columns), column_names(columns), strict=True):
        heads += [(key, f"{name} {part}") for part in ("metric", *SCORE_FIELDS)]
    heads += [("nfe", "nfe_per_request"), ("tpf", "tpf"), ("speed", "tokens_per_s"), ("hardware", "hardware")]
    rows = [[_text(cell) for cell in _cells(row)] for row in made["rows"]]
    return Table([key for key, _ in heads], [_text(name) for _, name in heads], rows)


def _cells(row: Mapping[str, Any]) -> list[Any]:
    cells = [row[name] for name in ("rank", "rank_shared", "name", "model", "family", "settings_text", "status")]
    cells += [" ".join(row["badges"]), row["created"], row["run_id"], row["mean"]]
    interval = row["mean_interval"] or {}
    cells += [interval.get("lo"), interval.get("hi")]
    for score in row["scores"].values():
        found = score or {}
        cells.append(f"{found['metric']},{found['filter']}" if found else None)
        cells += [found.get(name) for name in SCORE_FIELDS]
    return cells + [row[name] for name in ("nfe_per_request", "tpf", "tokens_per_s", "hardware")]


def _text(cell: Any) -> str:
    """A cell as text that no spreadsheet takes for a formula; a number stays one, what is not known is empty."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return no_formula(cell) if isinstance(cell, str) else str(cell)


def csv_text(table: Table) -> str:
    """The table as CSV (RFC 4180)."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([table.heads, *table.rows])
    return file.getvalue()


def script(made: Mapping[str, Any], table: Table, columns: Sequence[TaskColumn]) -> str:
    """Record and table as a script, since a page opened from a disk may load scripts and no other files. It is loaded
    when somebody downloads the view. Only ASCII and no "<": text of models is data in it, wherever it ends up."""
    value = {"record": made, "names": column_names(columns), "table": asdict(table)}
    return f"dareBoard({json.dumps(value).replace('<', chr(92) + 'u003c')});\n"
