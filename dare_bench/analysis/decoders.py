"""Decoders of one checkpoint side by side, each at several budgets on the same documents: what each saves in forwards
at equal accuracy, and what it loses in accuracy at equal forwards.

A curve joins a decoder's budgets, by their mean forwards for a document, with straight lines. At the accuracy y of a
budget, the baseline needs the fewest forwards at which its curve has y; where no point of it has y, it does not reach
y, and there is no number. At the forwards of a budget, the baseline has the accuracy of its curve; outside of it there
is none. Intervals are percentiles of :data:`RESAMPLES` bootstrap samples of the documents, the same for all decoders,
each of which moves accuracies, forwards and curves together; where a sample has no number, there is no interval if
that happens in more than half of what the interval leaves out.

Shape letters: R bootstrap samples, D documents, B budgets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.intervals import LEVEL
from dare_bench.analysis.parallelism import aup
from dare_bench.errors import RunError, UsageError, unknown
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score, headline
from dare_bench.runs.text import listed
from dare_bench.types import Decoding

RESAMPLES = 2000
_BUDGET = re.compile(r"steps|threshold|factor|bound|num_to_transfer|minimal_topk")
"""Decoding fields that trade accuracy for speed; a decoder's runs may differ in them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval; ``value`` is None where it does not exist, ``lo`` and ``hi`` where the interval does
    not."""

    value: float | None
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, slots=True)
class DecoderBudget:
    """One run: accuracy in percent, mean forwards for a document, tokens up to EOS per forward. ``saved``: the share of
    the baseline's forwards at equal accuracy, in percent; ``lost``: points of accuracy at equal forwards."""

    settings: str
    accuracy: float
    forwards: float
    tpf: float
    saved: Estimate
    lost: Estimate


@dataclass(frozen=True, slots=True)
class DecoderCurve:
    """A decoder with its budgets, fewest forwards first; ``best`` indexes the most accurate (of equal ones the one with
    fewest forwards)."""

    name: str
    budgets: tuple[DecoderBudget, ...]
    best: int
    aup: Estimate


@dataclass(frozen=True, slots=True)
class DecoderComparison:
    """The decoders of a checkpoint on the same ``n`` documents of a task; ``baseline`` indexes ``curves``."""

    model: str
    task: str
    key: str
    n: int
    unpaired: int
    curves: tuple[DecoderCurve, ...]
    baseline: int
    level: float


@dataclass(frozen=True, slots=True)
class _Documents:
    """A run's task: by document, its value, forwards, and tokens up to EOS."""

    run: Run
    score: Score
    rows: Mapping[str, tuple[float, float, float]]

    def forwards(self, ids: Sequence[str]) -> float:
        """Those of these documents."""
        return math.fsum(self.rows[doc][1] for doc in ids)


def without_budget(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those of budget, also inside a strategy, and without those that only record more."""
    return {
        name: without_budget(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if name not in Decoding.hidden and not _BUDGET.search(name)
    }


def compare_decoders(
    runs: Sequence[Run], task: str | None = None, baseline: str | None = None, *, level: float = LEVEL
) -> list[DecoderComparison]:
    """Compare the decoders of ``runs`` task by task.

    Args:
        task: the only task to compare; None: all that the runs share.
        baseline: the name of the decoder to compare with; None: the one with most forwards.

    Raises:
        UsageError: fewer than two runs, several checkpoints, no task or document in common, an unknown baseline.
        RunError: a run without sample lines or forwards.
    """
    opened = list({run.path.resolve(): run for run in runs}.values())
    if len(opened) < 2:
        raise UsageError(f"--decoders compares runs of one checkpoint, found {len(opened)}; give at least two")
    models = {(run.require_block().model.content_hash, run.require_block().model.adapter_hash) for run in opened}
    if len(models) > 1:
        raise UsageError(f"--decoders compares runs of one checkpoint, found {len(models)}; use compare for others")
    shared = [name for name in opened[0].tasks if all(_decoding(run, name) for run in opened)]
    if task is not None and task not in shared:
        raise unknown("task", task, shared, place="all of the runs, as one that generates")
    if not shared:
        raise UsageError("the runs share no task that generates; give runs of one task with different decoding")
    return [_compare(opened, name, baseline, level) for name in ([task] if task else shared)]


def _decoding(run: Run, task: str) -> dict[str, Any]:
    block = run.require_block()
    return block.tasks[task].decoding if task in block.tasks else {}


def _read(run: Run, task: str) -> _Documents:
    run.require_samples(task)
    score = headline([score for score in run.scores() if score.task == task], task)
    if score is None or not score.is_share or score.higher_is_better is False:
        raise UsageError(f"{run.path}: {task} has no score that is a share of right answers; leave it out with --task")
    rows = {}
    for line in run.samples(task):
        costs = [cost for cost in line["dare_bench"] if cost.get("kind") == "generate"]
        if line.get("filter", "none") == score.filter and costs and isinstance(line.get(score.metric), int | float):
            forwards, tokens = (sum(cost[name] for cost in costs) / len(costs) for name in ("nfe", "tokens_to_eos"))
            if forwards:
                rows[f"{line['doc_id']} {line['prompt_hash']}"] = (float(line[score.metric]), forwards, tokens)
    if not rows:
        raise RunError(f"{run.path} records no forwards of the answers to {task}")
    return _Documents(run, score, rows)


def _compare(runs: Sequence[Run], task: str, baseline: str | None, level: float) -> DecoderComparison:
    import numpy as np

    read = [_read(run, task) for run in runs]
    if len({each.score.key for each in read}) > 1:
        raise UsageError(f"{task}: the runs have different scores ({listed(sorted({r.score.key for r in read}), 3)})")
    ids = [doc for doc in read[0].rows if all(doc in each.rows for each in read)]
    if not ids:
        raise UsageError(f"{task}: no document has the same prompt in all {len(read)} runs")
    grouped: dict[str, list[int]] = {}
    for at, run in enumerate(runs):
        key = json.dumps(
            [_kind(_decoding(run, task)), without_budget(_decoding(run, task))], sort_keys=True, default=str
        )
        grouped.setdefault(key, []).append(at)
    groups = sorted(grouped.values(), key=lambda group: -max(read[at].forwards(ids) for at in group))
    for group in groups:
        group.sort(key=lambda at: read[at].forwards(ids))
    names = _names([runs[group[0]] for group in groups], task)
    if baseline is not None and baseline not in names:
        raise unknown("decoder", baseline, names, place="--baseline")
    chosen = names.index(baseline) if baseline is not None else 0
    settings = [_budgets([_decoding(runs[at], task) for at in group]) for group in groups]
    values = np.array([[each.rows[doc] for doc in ids] for each in read])
    curves = decoder_curves([values[group] for group in groups], names, settings, chosen, level)
    unpaired = len(set().union(*(each.rows for each in read))) - len(ids)
    return DecoderComparison(runs[0].model, task, read[0].score.key, len(ids), unpaired, curves, chosen, level)


def decoder_curves(
    values: Sequence[Any], names: Sequence[str], settings: Sequence[Sequence[str]], baseline: int, level: float = LEVEL
) -> tuple[DecoderCurve, ...]:
    """The curves of decoders by name, each against that at index ``baseline``. ``values``: of each decoder an array
    [B, D, 3], the value (0 to 1), forwards and tokens of each document at each budget, fewest forwards first;
    ``settings``: the name of each budget."""
    import numpy as np

    n = values[0].shape[1]
    # How often each document is in a bootstrap sample; the first sample is the data themselves.
    counts_RD = np.random.default_rng(0).multinomial(n, [1 / n] * n, size=RESAMPLES)
    counts_RD = np.concatenate([np.ones((1, n), dtype=counts_RD.dtype), counts_RD])
    sums = [np.einsum("rd,bdp->prb", counts_RD, part) / n for part in values]
    best_R = 100 * np.concatenate([part[0] for part in sums], axis=1).max(1)
    base = 100 * sums[baseline][0], sums[baseline][1]
    points = [sorted(zip(f_B, y_B, strict=True)) for y_B, f_B in zip(*base, strict=True)]
    curves = []
    for at, (name, (value_RB, forwards_RB, tokens_RB)) in enumerate(zip(names, sums, strict=True)):
        accuracy_RB, rate_RB = 100 * value_RB, tokens_RB / forwards_RB
        budgets = [
            DecoderBudget(
                text,
                float(accuracy_RB[0, b]),
                float(forwards_RB[0, b]),
                float(rate_RB[0, b]),
                *(
                    [Estimate(None)] * 2
                    if at == baseline
                    else _against(points, accuracy_RB[:, b], forwards_RB[:, b], level)
                ),
            )
            for b, text in enumerate(settings[at])
        ]
        best = max(range(len(budgets)), key=lambda b: (budgets[b].accuracy, -budgets[b].forwards))
        rows = zip(rate_RB, accuracy_RB, best_R, strict=True)
        areas = [aup(list(zip(rate_B, y_B, strict=True)), top) for rate_B, y_B, top in rows]
        curves.append(DecoderCurve(name, tuple(budgets), best, _estimate(areas, level)))
    return tuple(curves)


def _against(points: Sequence[Any], accuracy_R: Any, forwards_R: Any, level: float) -> list[Estimate]:
    """What a budget saves and loses against the baseline, whose curve has ``points`` in each sample."""
    saved: list[float | None] = []
    lost: list[float | None] = []
    for of_sample, accuracy, forwards in zip(points, accuracy_R, forwards_R, strict=True):
        needed, there = _forwards_at(of_sample, accuracy), _accuracy_at(of_sample, forwards)
        saved.append(None if needed is None else 100 * (1 - forwards / needed))
        lost.append(None if there is None else there - accuracy)
    return [_estimate(saved, level), _estimate(lost, level)]


def _kind(decoding: Mapping[str, Any]) -> list[str]:
    """Which fields of budget are set at all: with a threshold a family decodes in another way than without."""
    return sorted(name for name, value in decoding.items() if _BUDGET.search(name) and value is not None)


def _budgets(decodings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of budget in which the runs of a decoder differ: "steps 16"."""
    each = [{**decoding, **(decoding.get("strategy") or {})} for decoding in decodings]
    differ = [name for name in each[0] if _BUDGET.search(name) and len({str(fields.get(name)) for fields in each}) > 1]
    return [", ".join(f"{name} {fields.get(name)}" for name in differ) for fields in each]


def _names(runs: Sequence[Run], task: str) -> list[str]:
    """The name of each decoder: its strategy, or its family's with the bounds that are set; where two are equal, with
    the fields that tell them apart."""
    decodings = [_decoding(run, task) for run in runs]
    names = [
        each["strategy"]["name"]
        if each.get("strategy")
        else " ".join([str(run.require_block().model.family), *_bounds(each)])
        for run, each in zip(runs, decodings, strict=True)
    ]
    for name in {name for name in names if names.count(name) > 1}:
        same = [at for at, other in enumerate(names) if other == name]
        plain = [without_budget(decodings[at]) for at in same]
        fields = [field for field in plain[0] if len({str(each.get(field)) for each in plain}) > 1]
        for at, each in zip(same, plain, strict=True):
            names[at] = ", ".join([name, *(f"{field} {each.get(field)}" for field in fields)])
    return names


def _bounds(decoding: Mapping[str, Any]) -> list[str]:
    return [name for name in _kind(decoding) if "steps" not in name]


def _forwards_at(points: Sequence[tuple[float, float]], accuracy: float) -> float | None:
    """The fewest forwards at which the curve has the accuracy."""
    before: tuple[float, float] | None = None
    for forwards, here in points:
        if here >= accuracy:
            if before is None or here == before[1]:
                return forwards
            return before[0] + (forwards - before[0]) * (accuracy - before[1]) / (here - before[1])
        before = forwards, here
    return None


def _accuracy_at(points: Sequence[tuple[float, float]], forwards: float) -> float | None:
    """The accuracy of the curve at so many forwards; None outside of it."""
    for (left, y), (right, z) in zip(points, [*points[1:], points[-1]], strict=True):
        if left <= forwards <= right:
            return y if left == right else y + (z - y) * (forwards - left) / (right - left)
    return None


def _estimate(values: Sequence[float | None], level: float) -> Estimate:
    """The first of ``values``, with the percentiles of the others."""
    import numpy as np

    if not values or values[0] is None:
        return Estimate(None)
    drawn = [value for value in values[1:] if value is not None]
    if len(values) - 1 - len(drawn) > (1 - level) / 2 * (len(values) - 1):
        return Estimate(float(values[0]))
    lo, hi = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(values[0]), float(lo), float(hi))
