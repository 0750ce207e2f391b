"""Accuracy under parallelism of the checkpoints that a board has with several budgets: tokens per forward pass and
score of each, and the AUP over them.

Budgets of one method are runs of one checkpoint (or of seeds of one recipe) on the same documents whose decoding
differs in nothing but its numbers of steps, thresholds and the like.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dare_bench.analysis.decoders import without_budget
from dare_bench.analysis.parallelism import aup, kept_points
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.entries import BoardEntry, RunScore, recipe_of
from dare_bench.leaderboards.site import Site


@dataclass(frozen=True, slots=True)
class MethodBudget:
    """One run of a method: tokens per forward pass, score in percent, and whether AUP counts it."""

    page: str
    settings: str
    tpf: float
    score: float
    counted: bool


@dataclass(frozen=True, slots=True)
class ParallelMethod:
    """A checkpoint with several budgets, by tokens per forward."""

    name: str
    budgets: tuple[MethodBudget, ...]
    aup: float


def methods(site: Site | None, view: BoardView, at: int) -> list[ParallelMethod]:
    """The methods with several budgets in the task of that column, best AUP first. Rows that the board does not rank
    for another reason than missing tasks are left out. ``site`` has what was read with sample pages; without it, only
    runs whose whole cost is that of the task have tokens per forward."""
    found: dict[str, list[tuple[BoardRow, RunScore]]] = defaultdict(list)
    for row in view.rows:
        cell = row.cells[at]
        if cell is None or any(badge.kind != "missing" for badge in row.unranked_by):
            continue
        score = cell.score
        if score.is_share and score.higher_is_better and score.task in cell.entry.decodings:
            found[method_key(cell)].append((row, cell))
    best = max((100 * cell.score.value for rows in found.values() for _, cell in rows), default=0.0)
    several = [_of_rows(site, rows, best) for rows in found.values() if len(rows) > 1]
    return sorted((method for method in several if method is not None), key=lambda method: -method.aup)


def _of_rows(site: Site | None, rows: Sequence[tuple[BoardRow, RunScore]], best: float) -> ParallelMethod | None:
    """None where fewer than two of the rows differ in their tokens per forward."""
    rated = [(row, cell, rate) for row, cell in rows if (rate := _tokens_per_forward(site, cell))]
    points = [(rate, 100 * cell.score.value) for _, cell, rate in rated]
    if len({rate for rate, _ in points}) < 2:
        return None
    kept = kept_points(points)
    budgets = [
        MethodBudget(cell.entry.page, row.settings, *point, point in kept)
        for (row, cell, _), point in zip(rated, points, strict=True)
    ]
    ordered = tuple(sorted(budgets, key=lambda budget: (budget.tpf, budget.score)))
    return ParallelMethod(rated[0][0].name.text, ordered, aup(points, best))


def method_key(cell: RunScore) -> str:
    """Equal for two budgets of one method."""
    entry, score = cell.entry, cell.score
    decoding = without_budget(entry.decodings.get(score.task, {}))
    facts = [recipe_of(entry), entry.dtype, score.key, score.task_fingerprint, score.engine, decoding]
    return json.dumps(facts, sort_keys=True, default=str)


def _tokens_per_forward(site: Site | None, cell: RunScore) -> float | None:
    """Of several seeds their mean; None where one of them has none."""
    rates = [_of_run(site, each.entry, cell.score.task) for each in cell.seeds or (cell,)]
    known = [rate for rate in rates if rate]
    return fmean(known) if len(known) == len(rates) else None


def _of_run(site: Site | None, entry: BoardEntry, task: str) -> float | None:
    """Tokens up to the first EOS per forward pass in one task: of the run if it generated nothing else, otherwise from
    its sample lines, which were read with their pages."""
    if len(entry.decodings) == 1:
        return entry.cost.tpf
    pages = site.parts.get(f"samples {entry.slug} {task}") if site is not None else None
    rate: float | None = pages.facts.get("tpf") if pages is not None else None
    return rate
