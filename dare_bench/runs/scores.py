"""The scores of a run: one record for each (task, metric, filter), with interval, size and settings."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.formatting import interval_text, score_text
from dare_bench.runs.results import members, metric_keys, stderr_of, value_range
from dare_bench.runs.schema import UNKNOWN, Block, TaskBlock
from dare_bench.types import Decoding, Tier

HEADLINE = (
    "math_verify",
    "exact_match",
    "prompt_level_strict_acc",
    "Prompt-level-strict-accuracy",
    "accuracy",
    "pass@1",
    "humaneval_pass@1",
    "humaneval_plus_pass@1",
    "mbpp_plus_pass@1",
    "acc_norm",
    "acc",
    "score",
    "f1",
)
"""Metrics by priority as a task's headline score, in lm-eval's and OpenCompass's names; else the first in its file is
used. math-verify comes first, because the exact match of the same tasks reads only one fixed phrase."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score of a run.

    ``value`` is as lm-eval reports it (shares from 0 to 1); ``lo`` and ``hi`` bound it at ``level`` (None: no
    interval); ``n`` counts the documents. ``task_fingerprint`` is ``<definition>:<documents>``, hashes of templates and
    scorer, and of the prompts; ``fingerprint`` hashes these and every setting. ``extraction_rate`` is the share of
    answers from which the harness extracted a value (None if it extracts none); if it is low, so is the score.
    """

    task: str
    metric: str
    filter: str
    value: float
    stderr: float | None
    lo: float | None
    hi: float | None
    level: float | None
    method: str
    n: int
    n_total: int | None
    tier: Tier | None
    task_fingerprint: str
    fingerprint: str
    higher_is_better: bool | None
    limited: bool
    is_group: bool
    extraction_rate: float | None = None
    engine: str | None = None
    """The served engine that answered, with its version; None: dare-bench's sampler."""

    @property
    def goodness(self) -> float:
        """The value, negated where a lower one is better: the larger, the better."""
        return -self.value if self.higher_is_better is False else self.value

    @property
    def exactness(self) -> str:
        """The tier, beside a served engine: ``A, lmdeploy 0.18.0``; empty if an older run did not record it."""
        if self.engine is None and self.fingerprint != UNKNOWN:
            return self.tier or ""
        tier = self.tier or "tier unknown"
        return tier if self.engine is None else f"{tier}, {self.engine}"

    @property
    def is_share(self) -> bool:
        """Is it shown in percent? See :func:`are_shares`."""
        return are_shares(self.metric, self.value)

    @property
    def text(self) -> str:
        """The value with its unit."""
        return score_text(self.value, self.is_share)

    @property
    def interval(self) -> str:
        """The interval with its unit."""
        return interval_text(self.lo, self.hi, self.is_share)

    @property
    def n_text(self) -> str:
        """The number of documents, of a limited score with that of the task."""
        return f"{self.n} of {self.n_total or UNKNOWN}" if self.limited else str(self.n)

    @property
    def key(self) -> str:
        """lm-eval's "metric,filter"."""
        return f"{self.metric},{self.filter}"


def opened_with(results: Mapping[str, Any]) -> dict[str, Any]:
    """The special ids with which a run's model was opened in place of the checkpoint's; other opening settings
    (adapter, family, device, dtype) are in the model's block."""
    args = results.get("config", {}).get("model_args")
    return {name: args[name] for name in Decoding.id_fields if name in args} if isinstance(args, Mapping) else {}


def settings_fingerprint(task: TaskBlock, block: Block, opened: Mapping[str, Any]) -> str:
    """16 hex digits over a task's fingerprint (prompts, targets, filters, scorer) and all settings that can change
    answers or their number, not those that only record more."""
    decoding = {name: value for name, value in task.decoding.items() if name not in Decoding.hidden}
    common = [block.model.dtype, block.seeds, block.repeats, opened]
    common += [block.model.engine.name] if block.model.engine is not None else []
    return _hash(json.dumps([task.fingerprint, decoding, task.likelihood, *common], sort_keys=True, default=str))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _joined_tasks(prints: Iterable[str]) -> str:
    """The task fingerprint of a group: its halves (definition, documents) are joined separately."""
    halves = [text.partition(":")[::2] for text in prints]
    return ":".join(_joined(half) for half in zip(*halves, strict=True)) if halves else ""


def _joined(prints: Iterable[str]) -> str:
    """One fingerprint for the tasks of a group; that of a single task is unchanged."""
    fingerprints = list(prints)
    return fingerprints[0] if len(fingerprints) == 1 else _hash(" ".join(fingerprints))


def scores_of(results: Mapping[str, Any], block: Block) -> list[Score]:
    """All scores of a results file, tasks in the file's order; groups come where lm-eval puts them."""
    rows = {**results.get("results", {}), **(results.get("groups") or {})}
    return [score for name, metrics in rows.items() for score in _of_row(name, metrics, results, block)]


def _of_row(name: str, metrics: Mapping[str, Any], results: Mapping[str, Any], block: Block) -> Iterator[Score]:
    tasks = [block.tasks[task] for task in members(results, name) if task in block.tasks]
    task_fingerprint = _joined_tasks(task.fingerprint for task in tasks)
    fingerprint = _joined(settings_fingerprint(task, block, opened_with(results)) for task in tasks)
    totals = [task.n_total for task in tasks]
    better = results.get("higher_is_better", {}).get(name, {})
    count = results.get("n-samples", {}).get(name, {}).get("effective")
    for metric, filter_name, value in metric_keys(metrics):
        ci = block.ci.get(name, {}).get(f"{metric},{filter_name}")
        statuses: Counter[str] = Counter()
        for task in members(results, name):
            statuses.update(block.extraction.get(task, {}).get(filter_name, {}))
        yield Score(
            task=name,
            metric=metric,
            filter=filter_name,
            value=value,
            stderr=stderr_of(metrics, metric, filter_name),
            lo=ci.lo if ci else None,
            hi=ci.hi if ci else None,
            level=ci.level if ci else None,
            method=ci.method if ci else "none",
            n=ci.n if ci else count if isinstance(count, int) else sum(task.n_docs for task in tasks),
            n_total=sum(n for n in totals if n) if tasks and all(totals) else None,
            tier=weakest(task.tier for task in tasks),
            task_fingerprint=task_fingerprint,
            fingerprint=fingerprint,
            higher_is_better=better.get(metric),
            limited=any(task.limit_applied for task in tasks),
            is_group=bool(results.get("group_subtasks", {}).get(name)),
            extraction_rate=extraction_rate(statuses),
            engine=None if block.model.engine is None else block.model.engine.label,
        )


def extraction_rate(counts: Mapping[str, int]) -> float | None:
    """Share of answers, 0 to 1, from which a value was read: ``matched`` and ``ambiguous`` of all statuses; None if no
    answer has one."""
    total = sum(counts.values())
    return (counts.get("matched", 0) + counts.get("ambiguous", 0)) / total if total else None


def weakest(tiers: Iterable[Tier | None]) -> Tier | None:
    """The least exact of several tiers: a score is as exact as its weakest part; None if none is known."""
    order: tuple[Tier, ...] = ("A", "E2", "E1", "E0")
    seen = set(tiers)
    return next((tier for tier in order if tier in seen), None)


def headline(scores: Iterable[Score], task: str) -> Score | None:
    """The score that stands for a task (see :data:`HEADLINE`); None if the run does not have the task."""
    own = [score for score in scores if score.task == task]
    ranked = (score for metric in HEADLINE for score in own if score.metric == metric)
    return next(ranked, own[0] if own else None)


def are_shares(metric: str, *values: float) -> bool:
    """Are a metric's values shares between 0 and 1? Perplexity and BLEU never are. ``metric`` may be lm-eval's
    "metric,filter"."""
    return value_range(metric, *values) == (0.0, 1.0)
