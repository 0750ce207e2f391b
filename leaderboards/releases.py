"""Releases of a board: its table as it was when a build named it, kept by later builds, selected on the table's page.

``data/releases/NAME.json`` has the first board's record. A release never changes.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dare_bench.errors import DareError, RunError, UsageError
from dare_bench.leaderboards.board import TaskColumn, column_names
from dare_bench.leaderboards.board_page import board_record, csv_table, csv_text, entrance
from dare_bench.leaderboards.change_log import SeenRow
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.site import Site
from dare_bench.reading import read_json

FOLDER = "data/releases"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class Bounds(BaseModel):
    """The ends of the interval of a mean."""

    lo: float | None = None
    hi: float | None = None


class ReleasedRow(SeenRow):
    """A row of a release."""

    rank_band: tuple[int, int] | None = None
    mean: float | None = None
    mean_interval: Bounds | None = None

    @property
    def band(self) -> str:
        """The ranks that it may have: "2–5"; empty if it was not ranked."""
        return "–".join(map(str, dict.fromkeys(self.rank_band or ())))


class Release(BaseModel):
    """A release; ``number`` counts them from 1."""

    name: str
    number: int
    title: str
    rank_by: str
    columns: list[TaskColumn]
    rows: list[ReleasedRow]

    @property
    def place(self) -> str:
        return f"releases/{self.name}.html"


def keep(site: Site, context: Context, name: str) -> list[tuple[str, str]]:
    """Write the pages of the releases that the site has, and of a new one of that ``name`` (empty: none).

    Returns the name and place of each, newest first.

    Raises:
        UsageError: the name is not allowed, or another table has it.
    """
    records = _read(site, context)
    if name:
        record = _named(name, records, board_record(context.views[0]))
        records = {**records, name: record}
    releases = sorted((Release.model_validate(record) for record in records.values()), key=lambda each: -each.number)
    links = [(release.name, release.place) for release in releases]
    pages = {entry.page for entry in context.entries}
    current = entrance(context.views[0])
    for release in releases:
        known = {row.page for row in release.rows} & pages
        values = {"release": release, "known": known, "current": current, "section": current, "releases": links}
        record = records[release.name]
        site.part(f"release {release.name}", (record, sorted(known), values), partial(_write, site, record, values))
    return links


def _named(name: str, records: dict[str, dict[str, Any]], board: dict[str, Any]) -> dict[str, Any]:
    if not _NAME.fullmatch(name):
        raise UsageError(f"--release is {name!r}; a name has up to 40 letters, digits, dots and dashes")
    number = records[name]["number"] if name in records else 1 + max((r["number"] for r in records.values()), default=0)
    record = {**board, "name": name, "number": number}
    if name in records and _facts(record) != _facts(records[name]):
        raise UsageError(f"the release {name} exists and has another table; give --release another name")
    return record


def _facts(record: dict[str, Any]) -> str:
    return Release.model_validate(record).model_dump_json()


def _read(site: Site, context: Context) -> dict[str, dict[str, Any]]:
    """The records of the site's releases by name; what cannot be read is reported and left out."""
    records = {}
    for file in sorted((site.out / FOLDER).glob("*.json")):
        try:
            record = read_json(file, RunError)
            release = Release.model_validate(record)
            if release.name != file.stem or not _NAME.fullmatch(release.name):
                raise RunError(f"{file} is the release {release.name!r}")
            records[release.name] = record
        except ValidationError:
            context.problem(f"left out: {file} is not a release")
        except DareError as error:
            context.problem(f"left out: {error}")
    return records


def _write(site: Site, record: dict[str, Any], values: dict[str, Any]) -> None:
    release: Release = values["release"]
    stem = Path(FOLDER, release.name).as_posix()
    site.json(f"{stem}.json", record)
    site.text(f"{stem}.csv", csv_text(csv_table(record, release.columns)))
    site.page(release.place, "release.html.j2", names=column_names(release.columns), stem=stem, **values)
