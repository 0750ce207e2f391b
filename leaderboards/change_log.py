"""What successive builds of a site added, changed and removed: a page, a JSON file, and an Atom feed.

A build compares the rows of its first board with those in ``data/board.json``, which the last build wrote. Times are
those of the runs, so equal runs in equal folders give equal files. A log or board that cannot be read starts again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dare_bench.errors import RunError
from dare_bench.formatting import short_range, short_score
from dare_bench.leaderboards.board_page import board_record
from dare_bench.leaderboards.board_rows import BADGES
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.site import Site
from dare_bench.reading import read_json
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import counted, one_line

PAGE, FEED, LOG = "changes.html", "feed.xml", "data/changes.json"
MOST_BUILDS = 200
MOST_UNFOLDED = 5
"""Builds, and changes of one kind in a build, that the page shows before more are unfolded."""
"""Builds that the log keeps; the feed has the newest tenth of them."""
_START = "1970-01-01T00:00:00Z"


class SeenScore(BaseModel):
    """A score in ``data/board.json``, as far as changes are told by it."""

    metric: str
    value: float
    lo: float | None = None
    hi: float | None = None
    n: int

    @property
    def text(self) -> str:
        share = are_shares(self.metric, self.value)
        bounds = "" if self.lo is None or self.hi is None else f" ({short_range(self.lo, self.hi, share)})"
        return f"{short_score(self.value, share)}{bounds}, n {self.n}"


class SeenRow(BaseModel):
    """A row in ``data/board.json``. Two rows with a run in common are the same row."""

    page: str
    name: str
    settings_text: str = ""
    runs: list[str]
    status: str
    badges: list[str]
    rank: int | None
    created: str
    scores: dict[str, SeenScore | None]


class SeenBoard(BaseModel):
    """``data/board.json``."""

    rows: list[SeenRow]

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.model_dump_json().encode("utf-8", "replace"), digest_size=12).hexdigest()


class RowChange(BaseModel):
    """A row with what is new about it, in words; ``page`` may be gone since."""

    page: str
    name: str
    facts: list[str]


class SiteChange(BaseModel):
    """What the build of that number changed. ``before``: the digest of the rows that it found; empty for the first."""

    number: int = 1
    before: str = ""
    time: str = _START
    notes: list[str] = []
    added: list[RowChange] = []
    changed: list[RowChange] = []
    removed: list[RowChange] = []

    @property
    def title(self) -> str:
        """ "2 rows added, 1 row changed": the change in short."""
        kinds = {"added": self.added, "changed": self.changed, "removed": self.removed}
        texts = [f"{counted(len(rows), 'row')} {kind}" for kind, rows in kinds.items() if rows]
        return ", ".join(texts) or "; ".join(self.notes)

    @property
    def ident(self) -> str:
        """A UUID, by the content."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, self.model_dump_json()))

    @property
    def is_empty(self) -> bool:
        return not (self.notes or self.added or self.changed or self.removed)


class ChangeLog(BaseModel):
    """``data/changes.json``, the newest build first."""

    builds: list[SiteChange] = []


def write(site: Site, context: Context) -> None:
    """Write the log with what this build changes. It comes before the board, whose earlier file it reads."""
    now = SeenBoard.model_validate(board_record(context.views[0]))
    log = updated(_read_log(site.out), _read_board(site.out), now)
    pages = {entry.page for entry in context.entries}
    title = one_line(context.views[0].board.title, 200)
    site.part("changes", (log, sorted(pages), title), partial(_write, site, log, pages, title))


def _write(site: Site, log: ChangeLog, pages: set[str], title: str) -> None:
    site.json(LOG, log.model_dump())
    site.page(PAGE, "changes.html.j2", most=MOST_UNFOLDED, builds=log.builds, pages=pages, board_title=title)
    newest = log.builds[0].time if log.builds else _START
    ident = uuid.uuid5(uuid.NAMESPACE_OID, title)
    shown = log.builds[: MOST_BUILDS // 10]
    site.page(FEED, "feed.xml.j2", builds=shown, board_title=title, newest=newest, ident=ident, page=PAGE)


def _read_log(out: Path) -> ChangeLog:
    try:
        return ChangeLog.model_validate(read_json(out / LOG, RunError))
    except (RunError, ValidationError):
        return ChangeLog()


def _read_board(out: Path) -> SeenBoard | None:
    try:
        return SeenBoard.model_validate(read_json(out / "data/board.json", RunError))
    except (RunError, ValidationError):
        return None


def updated(log: ChangeLog, before: SeenBoard | None, now: SeenBoard) -> ChangeLog:
    """The log with the change from ``before`` to ``now``. A build that was interrupted after it wrote the log found the
    same rows: its entry is replaced. Without earlier rows a log that has begun stays as it is."""
    if not log.builds:
        return ChangeLog(builds=[first_build(now)])
    if before is None:
        return log
    earlier = log.builds[1:] if log.builds[0].before == before.digest else log.builds
    change = change_between(before, now)
    if change.is_empty:
        return log
    if earlier:
        change.time, change.number = max(change.time, earlier[0].time), earlier[0].number + 1
    return ChangeLog(builds=[change, *earlier][:MOST_BUILDS])


def first_build(now: SeenBoard) -> SiteChange:
    """The beginning of a log: all rows."""
    return SiteChange(time=_newest(now.rows), added=[_described(row) for row in now.rows])


def change_between(before: SeenBoard, now: SeenBoard) -> SiteChange:
    """What was added, changed and removed; its time is that of the newest run behind it."""
    row_of = {run: row for row in before.rows for run in row.runs}
    columns = _columns(before) & _columns(now)
    change, touched = SiteChange(before=before.digest, notes=list(_notes(before, now))), list[SeenRow]()
    for row in now.rows:
        old = next((row_of[run] for run in row.runs if run in row_of), None)
        if old is None:
            change.added.append(_described(row))
        elif facts := [*_differences(old, row, columns, row_of)]:
            change.changed.append(RowChange(page=row.page, name=row.name, facts=facts))
        else:
            continue
        touched.append(row)
    kept = {run for row in now.rows for run in row.runs}
    change.removed = [_described(row) for row in before.rows if not kept.intersection(row.runs)]
    change.time = _newest(touched)
    return change


def _described(row: SeenRow) -> RowChange:
    """A row with its settings, scores and badges."""
    scores = [f"{name}: {score.text}" for name, score in row.scores.items() if score is not None]
    facts = [row.settings_text, *scores, _names_of(row.badges)]
    return RowChange(page=row.page, name=row.name, facts=[text for text in facts if text])


def _names_of(kinds: Iterable[str]) -> str:
    return ", ".join(sorted(BADGES.get(kind, (kind, ""))[0] for kind in kinds))


def _columns(board: SeenBoard) -> set[str]:
    return {name for row in board.rows for name in row.scores}


def _notes(before: SeenBoard, now: SeenBoard) -> Iterator[str]:
    """Columns that come and go, and a new first row."""
    old, new = _columns(before), _columns(now)
    if new - old:
        yield f"new on the board: {', '.join(sorted(new - old))}"
    if old - new:
        yield f"no longer on the board: {', '.join(sorted(old - new))}"
    first, then = _first(now), _first(before)
    if first is not None and then is not None and not set(first.runs) & set(then.runs):
        yield f"first is now {first.name} (before: {then.name})"


def _first(board: SeenBoard) -> SeenRow | None:
    return next((row for row in board.rows if row.rank is not None), None)


def _differences(old: SeenRow, new: SeenRow, columns: set[str], row_of: Mapping[str, Any]) -> Iterator[str]:
    for name in (name for name in new.scores if name in columns):
        was, score = old.scores.get(name), new.scores[name]
        if was is None and score is not None:
            yield f"{name}: {score.text} (new)"
        elif was is not None and score is None:
            yield f"{name}: no score (before: {was.text})"
        elif was is not None and score is not None and (was.value, was.n) != (score.value, score.n):
            yield f"{name}: {score.text} (before: {was.text})"
    if joined := [run for run in new.runs if run not in row_of]:
        yield f"joined by {', '.join(joined)}"
    if old.status != new.status:
        yield f"{new.status} (before: {old.status})"
    for word, kinds in (("now", set(new.badges) - set(old.badges)), ("no longer", set(old.badges) - set(new.badges))):
        if kinds:
            yield f"{word}: {_names_of(kinds)}"


def _newest(rows: list[SeenRow]) -> str:
    return max((moment(row.created) for row in rows), default=_START)


def moment(created: str) -> str:
    """A run's time in UTC as RFC 3339 has it; a time without a zone counts as UTC."""
    try:
        time = datetime.fromisoformat(created)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return _START
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
