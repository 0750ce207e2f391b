"""The rows of a board, their cells and badges, and which runs, or seeds of one training recipe, share a row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from dare_bench.analysis.intervals import Interval
from dare_bench.analysis.names import CheckpointName
from dare_bench.leaderboards.board import TaskColumn
from dare_bench.leaderboards.entries import BoardEntry, RunScore, recipe_of, settings_line


def fold_seeds(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """The rows, those that differ only in the seed of the training or of the evaluation as one. Of several rows of one
    checkpoint and seed, each is in another row."""
    groups: dict[Hashable, list[dict[Hashable, BoardRow]]] = {}
    for row in rows:
        alike, own = groups.setdefault(_questions(row), []), (row.main.checkpoint, row.main.seed)
        free = next((group for group in alike if own not in group), None)
        if free is None:
            alike.append(free := {})
        free[own] = row
    return [_folded([*group.values()]) for alike in groups.values() for group in alike]


def _questions(row: BoardRow) -> Hashable:
    """Equal for rows that may be folded; of an external result, which records no settings, for itself alone."""
    main = row.main
    if main.is_external:
        return id(row)
    asked = tuple(
        cell and (cell.score.key, cell.score.task_fingerprint, cell.score.n, cell.entry.contexts[cell.score.task])
        for cell in row.cells
    )
    states = tuple(sorted((entry.status, str(entry.limit), str(entry.until_halfwidth)) for entry in row.entries))
    return row.recipe, main.hardware, asked, states


def _folded(rows: Sequence[BoardRow]) -> BoardRow:
    if len(rows) == 1:
        return rows[0]
    cells = [_mean_of([row.cells[at] for row in rows]) for at in range(len(rows[0].cells))]
    members = sorted(rows, key=lambda row: (*(seed.zfill(9) for seed in _seeds(row)), row.created))
    return BoardRow([entry for row in rows for entry in row.entries], cells, members=members)


def _seeds(row: BoardRow) -> tuple[str, str]:
    """The seeds of the training and of the evaluation."""
    return str((row.main.lineage or {}).get("seed")), row.main.seed


def _mean_of(cells: Sequence[RunScore | None]) -> RunScore | None:
    """The mean of the seeds' scores. All seeds answered the same documents, so its interval, like its documents, is not
    larger than theirs: it has their mean bounds."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    scores = [cell.score for cell in known]
    newest = max(known, key=lambda cell: cell.entry.created)
    rates = [score.extraction_rate for score in scores if score.extraction_rate is not None]
    score = replace(
        newest.score,
        value=fmean(score.value for score in scores),
        stderr=None,
        lo=_mean_bound([score.lo for score in scores]),
        hi=_mean_bound([score.hi for score in scores]),
        method=f"mean bounds of {len(known)} seeds",
        extraction_rate=min(rates, default=None),
    )
    return RunScore(score, newest.entry, tuple(known))


def _mean_bound(bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return fmean(known) if len(known) == len(bounds) else None


BADGES = {
    "external": (
        "external",
        "Written by the command-line tool of lm-eval or OpenCompass, and not ranked: some facts are not recorded.",
    ),
    "running": ("not finished", "The run is not finished; the same command resumes it."),
    "incomplete": (
        "incomplete",
        "Some documents have no answer: they are left out of the scores, not counted as wrong.",
    ),
    "limited": ("limit", "Only part of a task's documents was evaluated."),
    "edited": (
        "samples edited",
        "A samples file was changed after the run; the sample pages show the present content.",
    ),
    "results": ("results edited", "The results file was changed after the run."),
    "programs": (
        "answered by several programs",
        "Some of the answers come from another version of the program; --fresh generates all of them again.",
    ),
    "rescored": ("re-scored", "The recorded answers of another run, scored again."),
    "unsafe": (
        "sandbox not required",
        "--unsafe-no-sandbox was given: generated code and scorers may have run with the user's rights.",
    ),
    "stale": ("other task version", "Templates, filters or scorer differ from those of the newest complete run."),
    "prompts": ("other prompts", "Examples, chat template or data differ from those of most complete runs."),
    "uncertain": ("no interval", "The score that ranks has no interval, so its rank is unknown."),
    "missing": (
        "tasks missing",
        "The row has no score for some of the board's tasks; it is ranked if it has those that the board ranks by.",
    ),
}
"""Name and meaning of each kind of badge, in the order of the notes on a board's page."""


@dataclass(frozen=True, slots=True)
class Badge:
    """Why a row is not comparable with the others; a row with a badge that ``unranks`` is not ranked."""

    kind: str
    text: str
    reason: str
    unranks: bool = True


def badge(kind: str, text: str = "", detail: str = "") -> Badge:
    """A badge of that kind; by default with its general name, with ``detail`` after the general meaning."""
    name, meaning = BADGES[kind]
    return Badge(kind, text or name, f"{meaning.removesuffix('.')}: {detail}." if detail else meaning)


def limit_text(entries: Iterable[BoardEntry]) -> str:
    """What the badge of a limited row says: "limit 40", or "until ±2 points"."""
    limits = {f"limit {entry.limit:g}" for entry in entries if entry.limit is not None}
    limits |= {f"until ±{entry.until_halfwidth:g} points" for entry in entries if entry.until_halfwidth is not None}
    return limits.pop() if len(limits) == 1 else "some documents"


@dataclass
class BoardRow:
    """One checkpoint under one set of settings: a run, or several runs of different tasks.

    ``cells`` follow the board's columns, None where no run has such a score. ``mean`` is what the row is ranked by.
    ``rank`` to ``last`` is its band: the ranks that it may have. ``members``: the rows of seeds of which it
    has the mean.
    """

    entries: list[BoardEntry]
    cells: list[RunScore | None]
    badges: list[Badge] = field(default_factory=list)
    mean: float | None = None
    mean_interval: Interval | None = None
    rank: int | None = None
    last: int | None = None
    shared: bool = False
    members: list[BoardRow] = field(default_factory=list)

    @property
    def band(self) -> str:
        """The ranks that it may have: "2–5", or "1"; empty if it is not ranked."""
        if self.rank is None:
            return ""
        return str(self.rank) if self.last == self.rank else f"{self.rank}–{self.last}"

    @property
    def unranked_by(self) -> list[Badge]:
        """The badges that keep it from being ranked."""
        return [badge for badge in self.badges if badge.unranks]

    @property
    def main(self) -> BoardEntry:
        """The newest run, which names the row."""
        return max(self.entries, key=lambda entry: entry.created)

    @property
    def name(self) -> CheckpointName:
        """Of several seeds it has what they have in common."""
        name = self.main.name
        details = [row.main.name.detail.split(", ") for row in self.members]
        common = [part for part in name.detail.split(", ") if part and all(part in detail for detail in details)]
        return CheckpointName(name.title, ", ".join([*common, f"{len(details)} seeds"])) if details else name

    @property
    def each(self) -> list[BoardRow]:
        """The rows of its seeds, or itself."""
        return self.members or [self]

    @property
    def seeds(self) -> list[tuple[str, str]]:
        """The seeds of the training, of the evaluation, or of both ("0/1"), and their pages; empty for one."""
        varying = [at for at, of_kind in enumerate(zip(*map(_seeds, self.members), strict=True)) if len({*of_kind}) > 1]
        return [("/".join(_seeds(row)[at] for at in varying), row.main.page) for row in self.members]

    @property
    def runs_compared(self) -> str:
        """The slugs of the runs that stand for the row in comparisons, of several seeds those of the newest; empty
        where none has a score."""
        newest = max(self.each, key=lambda row: row.created)
        return ",".join(entry.slug for entry in newest.entries if entry.scores)

    @property
    def created(self) -> str:
        return self.main.created

    @cached_property
    def sign(self) -> int:
        """-1 where a lower score is better, else 1."""
        lower = any(cell is not None and cell.score.higher_is_better is False for cell in self.cells)
        return -1 if lower else 1

    @cached_property
    def settings(self) -> str:
        """How the answers were generated, in short; without the seed where several are one row."""
        return settings_line(self.entries, seed=len({row.main.seed for row in self.each}) == 1)

    @cached_property
    def recipe(self) -> tuple[str, str]:
        """Equal for replicates: the training recipe and the settings without the seed."""
        return recipe_of(self.main), settings_line(self.entries, seed=False)

    @property
    def nfe_per_request(self) -> float | None:
        """Forward passes per request, over all its runs that report them; None where none does."""
        costs = [entry.cost for entry in self.entries if entry.cost.nfe is not None]
        requests = sum(cost.requests for cost in costs)
        return sum(cost.nfe or 0 for cost in costs) / requests if requests else None

    def passes_behind(self, at: int | None) -> float | None:
        """Forward passes per request of the score in column ``at``; without such a score, or for the mean (None), over
        all its runs."""
        cell = None if at is None else self.cells[at]
        return self.nfe_per_request if cell is None else cell.nfe_per_request

    @property
    def tpf(self) -> float | None:
        """Tokens to the first EOS per forward pass, over the runs that generate; None where none does."""
        return self._tokens_per("tpf")

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens to the first EOS per second of generating, over the runs that generate; None where none does."""
        return self._tokens_per("tokens_per_s")

    def _tokens_per(self, rate: str) -> float | None:
        """All tokens divided by all passes or seconds, which are tokens / rate of each run."""
        runs = [(entry.cost.tokens_to_eos, getattr(entry.cost, rate)) for entry in self.entries]
        total = sum(tokens / value for tokens, value in runs if value)
        return sum(tokens for tokens, value in runs if value) / total if total else None


def group_rows(entries: Sequence[BoardEntry], one_run_per_row: bool) -> list[list[BoardEntry]]:
    """Group runs into rows: runs of one checkpoint on one machine with the same settings (or of one suite, or of
    recipes, whose tasks have different settings) and with no task in common. Parts of tasks are apart."""
    rows: list[list[BoardEntry]] = []
    for entry in sorted(entries, key=_precedence):
        for row in () if one_run_per_row or entry.status == "running" else rows:
            if _may_join(entry, row):
                row.append(entry)
                break
        else:
            rows.append([entry])
    return rows


def _precedence(entry: BoardEntry) -> tuple[Any, ...]:
    """Complete and new runs first: of two runs of a task, the better one is in the row that others may join. Parts of
    a suite are grouped before a run of the same settings joins one of them."""
    return (
        not entry.complete,
        _is_part(entry),
        entry.row.is_independent,
        tuple(-ord(char) for char in entry.created),
    )


def _is_part(entry: BoardEntry) -> bool:
    """Are documents left out? Such a run would keep complete ones in its row from being ranked."""
    return entry.limit is not None or entry.until_halfwidth is not None


def _may_join(entry: BoardEntry, row: Sequence[BoardEntry]) -> bool:
    if any(_is_part(other) != _is_part(entry) for other in row):
        return False
    if any(other.status == "running" or set(entry.tasks) & set(other.tasks) for other in row):
        return False
    return all(entry.row.joins(other.row) for other in row)


def cells_of(entries: Sequence[BoardEntry], columns: Sequence[TaskColumn]) -> list[RunScore | None]:
    """For each column the score of the first run that has one."""
    scores = [[(entry.score(column.task, column.metric), entry) for entry in entries] for column in columns]
    return [next((RunScore(score, entry) for score, entry in row if score is not None), None) for row in scores]
