"""The results of a run in lm-eval's form, assembled task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.harness.common.extraction_status import count
from dare_bench.harness.common.repeats import combine
from dare_bench.harness.opencompass import result_rows
from dare_bench.harness.opencompass.scorer import Answer, RepeatScores, Scorer
from dare_bench.opencompass_numbers import higher_is_better
from dare_bench.types import Generation, Likelihood, Request, Sample

AnsweredDocuments = dict[int, list[tuple[Request, Sample]]]
"""By document: the requests of one repeat with their samples."""


class ResultTables:
    """Collects the results of tasks; the attributes are those of ``HarnessResult``."""

    def __init__(self, version: str) -> None:
        names = ("results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better")
        self.results: dict[str, Any] = {name: {} for name in (*names, "n-samples", "opencompass")}
        self.samples: dict[str, list[dict[str, Any]]] = {}
        self.extraction: dict[str, dict[str, dict[str, int]]] = {}
        self.statuses: list[str] = []
        """Of every program that was run."""
        self.notes: list[str] = []
        self._version = version

    def add(self, scorer: Scorer, repeats: Mapping[int, AnsweredDocuments]) -> None:
        """Score a task: each repeat alone, then all together."""
        data, name = scorer.data, scorer.data.name
        scored = [scorer.score({d: _answer(pairs) for d, pairs in answered.items()}) for answered in repeats.values()]
        results = self.results
        results["configs"][name] = result_rows.plain({"task": name, "config": data.config, **data.cfg})
        results["versions"][name] = self._version
        results["n-shot"][name] = data.prompter.shots
        results["n-samples"][name] = {"original": data.total, "effective": len(next(iter(repeats.values()), {}))}
        self.samples[name] = []
        self.notes += scorer.notes
        if not scored:
            self.notes.append(f"task {name!r} has no score: none of its documents was answered")
            return
        parts = [self._part(scorer, *pair) for pair in zip(scored, repeats.values(), strict=True)]
        combined, samples = combine(parts)
        results["results"][name] = combined["results"][name]
        results["higher_is_better"][name] = combined["higher_is_better"][name]
        results["n-samples"][name] |= combined["n-samples"][name]
        raw = [result_rows.plain(repeat.raw) for repeat in scored]
        results["opencompass"][name] = raw[0] if len(raw) == 1 else raw
        self.samples[name] = samples[name]
        self._count(scorer, samples[name])

    def _part(self, scorer: Scorer, scored: RepeatScores, answered: AnsweredDocuments) -> Any:
        """One repeat in the form that ``combine`` takes."""
        name = scorer.data.name
        results = {
            "results": {name: result_rows.metric_row(scorer.data, scored, len(answered))},
            "higher_is_better": {name: higher_is_better(scored.totals)},
            "n-samples": {name: {"effective": len(answered)}},
        }
        return results, {name: [result_rows.line(scorer, scored, *item) for item in answered.items()]}

    def _count(self, scorer: Scorer, rows: Sequence[Mapping[str, Any]]) -> None:
        answers = [answer for row in rows for answer in row.get("_answers", ())]
        if counts := count(answer.get("extraction") for answer in answers):
            self.extraction[scorer.data.name] = {result_rows.FILTER: counts}
        if scorer.runs_code:
            self.statuses += [answer["verdict"]["status"] for answer in answers if "verdict" in answer]

    def add_groups(self, members: Mapping[str, Sequence[str]]) -> None:
        """Rows for configs of several data sets."""
        results = self.results
        for group, names in members.items():
            results["group_subtasks"][group] = list(names)
            missing = [name for name in names if name not in results["results"]]
            if missing:
                self.notes.append(f"group {group!r} has no score, since {missing[0]!r} has none")
                continue
            row = result_rows.group_row(group, [results["results"][name] for name in names])
            results["groups"][group] = row
            metrics = [key.partition(",")[0] for key in row if key.endswith(f",{result_rows.FILTER}")]
            better = higher_is_better(metric for metric in metrics if not metric.endswith("_stderr"))
            results["higher_is_better"][group] = better
            counts = [results["n-samples"][name] for name in names]
            results["n-samples"][group] = {key: sum(row[key] for row in counts) for key in ("original", "effective")}
        results["results"] |= results["groups"]


def _answer(pairs: Sequence[tuple[Request, Sample]]) -> Answer:
    """A document's text, or the log-likelihoods of its labels in their order."""
    answers = [sample.answer for _, sample in pairs]
    if isinstance(answers[0], Generation):
        return answers[0].text or ""
    return [answer for answer in answers if isinstance(answer, Likelihood)]
