"""Scores and answers in lm-eval's form: rows of the results, logged samples, groups."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.harness.common.repeats import standard_error
from dare_bench.harness.opencompass.dataset import DataSet
from dare_bench.harness.opencompass.extraction_rules import of_opencompass
from dare_bench.harness.opencompass.scorer import RepeatScores, Scorer, perplexities
from dare_bench.types import Generation, Likelihood, Request, Sample

Row = dict[str, Any]
FILTER = "none"


def metric_row(data: DataSet, scored: RepeatScores, count: int) -> Row:
    """A task's row of the results."""
    row: Row = {"name": data.name, "alias": data.name, "sample_len": count}
    for metric, total in scored.totals.items():
        values = list(scored.values.get(metric, {}).values())
        row |= {f"{metric},{FILTER}": total, f"{metric}_stderr,{FILTER}": standard_error(values)}
    return row


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
