"""The results of a run in lm-eval's form: rows of the scores, logged samples, groups, assembled task by task."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.harness.common.extraction_status import Status, is_nothing, status_of
from dare_bench.harness.common.repeats import combine, standard_error
from dare_bench.harness.opencompass.components import resolve, short_name
from dare_bench.harness.opencompass.scorer import Answer, RepeatScores, Scorer, perplexities
from dare_bench.opencompass_numbers import higher_is_better
from dare_bench.types import Generation, Likelihood, Request, Sample

Row = dict[str, Any]
FILTER = "none"
AnsweredDocuments = dict[int, list[tuple[Request, Sample]]]
"""By document: the requests of one repeat with their samples."""

REPORTING = frozenset(
    {
        "first_option_postprocess",
        "last_option_postprocess",
        "first_capital_postprocess",
        "last_capital_postprocess",
        "match_answer_pattern",
        "GPQA_Simple_Eval_postprocess",
        "math_judement_preprocess",
        "xml_tag_postprocessor",
        "gsm8k_postprocess",
    }
)
"""Postprocessors of OpenCompass 0.5.4 that return one of ``extraction_status.NOTHING`` where they find no answer; a
test runs the installed ones. Others return the first sentence or the whole text then, so their answers have no
status."""


class ResultTables:
    """Collects the results of tasks; the attributes are those of ``HarnessResult``."""

    def __init__(self, version: str) -> None:
        names = ("results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better")
        self.results: dict[str, Any] = {name: {} for name in (*names, "n-samples", "opencompass")}
        self.samples: dict[str, list[dict[str, Any]]] = {}
        self.notes: list[str] = []
        self._version = version

    def add(self, scorer: Scorer, repeats: Mapping[int, AnsweredDocuments]) -> None:
        """Score a task: each repeat alone, then all together."""
        data, name = scorer.data, scorer.data.name
        scored = [scorer.score({d: _answer(pairs) for d, pairs in answered.items()}) for answered in repeats.values()]
        results = self.results
        results["configs"][name] = plain({"task": name, "config": data.config, **data.cfg})
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
        raw = [plain(repeat.raw) for repeat in scored]
        results["opencompass"][name] = raw[0] if len(raw) == 1 else raw
        self.samples[name] = samples[name]

    def _part(self, scorer: Scorer, scored: RepeatScores, answered: AnsweredDocuments) -> Any:
        """One repeat in the form that ``combine`` takes."""
        name = scorer.data.name
        row: Row = {"name": name, "alias": name, "sample_len": len(answered)}
        for metric, total in scored.totals.items():
            values = list(scored.values.get(metric, {}).values())
            row |= {f"{metric},{FILTER}": total, f"{metric}_stderr,{FILTER}": standard_error(values)}
        results = {
            "results": {name: row},
            "higher_is_better": {name: higher_is_better(scored.totals)},
            "n-samples": {name: {"effective": len(answered)}},
        }
        return results, {name: [line(scorer, scored, *item) for item in answered.items()]}

    def add_groups(self, members: Mapping[str, Sequence[str]]) -> None:
        """Rows for configs of several data sets."""
        results = self.results
        for group, names in members.items():
            results["group_subtasks"][group] = list(names)
            missing = [name for name in names if name not in results["results"]]
            if missing:
                self.notes.append(f"group {group!r} has no score, since {missing[0]!r} has none")
                continue
            row = group_row(group, [results["results"][name] for name in names])
            results["groups"][group] = row
            metrics = [key.partition(",")[0] for key in row if key.endswith(f",{FILTER}")]
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


def line(scorer: Scorer, scored: RepeatScores, document: int, pairs: Sequence[tuple[Request, Sample]]) -> Row:
    """The logged sample of a document of one repeat."""
    data = scorer.data
    doc, target = plain(data.row(document)), scorer.target(document)
    metrics = {name: values[document] for name, values in scored.values.items() if document in values}
    row: Row = {"doc_id": document, "doc": doc, "target": target}
    answers = [sample.answer for _, sample in pairs]
    if data.kind == "gen":
        row |= _generated(scorer, scored, document, pairs[0])
    else:
        likelihoods = [answer for answer in answers if isinstance(answer, Likelihood)]
        row |= {
            "arguments": [(request.prompt, request.target) for request, _ in pairs],
            "resps": [[(answer.value, answer.is_greedy)] for answer in likelihoods],
            "filtered_resps": [str(scored.extracted.get(document, ""))],
            "nll_per_token": {str(k): v for k, v in zip(data.prompter.labels, perplexities(likelihoods), strict=True)},
        }
    return row | {
        "filter": FILTER,
        "metrics": list(metrics),
        "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hash(prompt_text(pairs[0][0].prompt)),
        "target_hash": _hash(target),
        **metrics,
    }


def _generated(scorer: Scorer, scored: RepeatScores, document: int, pair: tuple[Request, Sample]) -> Row:
    request, answer = pair[0], pair[1].answer
    assert isinstance(answer, Generation)
    text, value = answer.text or "", plain(scored.extracted.get(document))
    facts: Row = {"extracted": str(value)}
    extraction = of_opencompass(scorer.data.cfg, text, scored.extracted.get(document), answer.finish_reason)
    facts |= {"extraction": extraction} if extraction is not None else {}
    facts |= {"verdict": scored.verdicts[document]} if document in scored.verdicts else {}
    return {
        "arguments": [(request.prompt, scorer.data.generation_kwargs)],
        "resps": [[text]],
        "filtered_resps": [value],
        "_answers": [facts],
    }


def group_row(name: str, rows: Sequence[Mapping[str, Any]]) -> Row:
    """OpenCompass's naive average: the unweighted mean over data sets, for the metrics that all of them have."""
    group: Row = {"name": name, "alias": name}
    for key in rows[0] if rows else ():
        metric = key.removesuffix(f",{FILTER}")
        if metric == key or metric.endswith("_stderr"):
            continue
        values = _numbers(key, rows)
        if len(values) == len(rows):
            errors = _numbers(f"{metric}_stderr,{FILTER}", rows)
            error = math.sqrt(math.fsum(e * e for e in errors)) / len(errors) if len(errors) == len(rows) else "N/A"
            group |= {key: statistics.fmean(values), f"{metric}_stderr,{FILTER}": error}
    return group


def _numbers(key: str, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row[key] for row in rows if isinstance(row.get(key), (int, float))]


def plain(value: Any) -> Any:
    """A value in JSON types; classes and functions by their names."""
    return json.loads(json.dumps(value, default=_json_value, ensure_ascii=False))


def _json_value(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else str(value)


def prompt_text(prompt: Any) -> str:
    """A prompt as one text: itself, or its messages as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def of_opencompass(cfg: Mapping[str, Any], prediction: Any, extracted: Any, finish_reason: str | None) -> Status | None:
    """The status of one response, given its data set's configuration and the output of its postprocessor; None for a
    postprocessor that does not say when it finds nothing."""
    scoring = cfg.get("eval_cfg", cfg)
    evaluator = scoring.get("evaluator") or {}
    of_evaluator = evaluator.get("pred_postprocessor") if isinstance(evaluator, Mapping) else None
    component = (scoring.get("pred_postprocessor") or of_evaluator or {}).get("type")
    function = resolve(component, "TEXT_POSTPROCESSORS") or component  # a dotted path is in no registry
    if not isinstance(prediction, str) or short_name(function) not in REPORTING:
        return None
    return status_of([] if is_nothing(extracted) else [str(extracted)], finish_reason)
