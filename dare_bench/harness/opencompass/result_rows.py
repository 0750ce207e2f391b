"""Scores and answers in lm-eval's shapes: rows of the results, logged samples, groups."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dare_bench.harness.opencompass.dataset import DataSet
from dare_bench.harness.opencompass.scorer import RepeatScores, Scorer, perplexities
from dare_bench.types import Generation, Likelihood, Request, Sample

Row = dict[str, Any]
FILTER = "none"
_UNKNOWN = re.compile(r"loss|ppl|perplex|error|bpb|toxic|length|time", re.IGNORECASE)

Status = Callable[[Mapping[str, Any], Any, Any, str | None], str | None]
"""(configuration, response, what was read, why the response ended) -> extraction status."""


def metric_row(data: DataSet, scored: RepeatScores, count: int) -> Row:
    """A task's row of the results."""
    row: Row = {"name": data.name, "alias": data.name, "sample_len": count}
    for metric, total in scored.totals.items():
        values = list(scored.values.get(metric, {}).values())
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else "N/A"
        row |= {f"{metric},{FILTER}": total, f"{metric}_stderr,{FILTER}": error}
    return row


def higher_is_better(metrics: Iterable[str]) -> dict[str, bool | None]:
    """OpenCompass does not say; nearly all its scores are accuracies, and what is named otherwise is left open."""
    return {metric: None if _UNKNOWN.search(metric) else True for metric in metrics}


def lines(
    scorer: Scorer, scored: RepeatScores, answered: Mapping[int, Sequence[tuple[Request, Sample]]], status: Status
) -> list[Row]:
    """A logged sample for each document of one repeat."""
    return [_line(scorer, scored, document, pairs, status) for document, pairs in answered.items()]


def _line(
    scorer: Scorer, scored: RepeatScores, document: int, pairs: Sequence[tuple[Request, Sample]], status: Status
) -> Row:
    data = scorer.data
    doc, target = plain(data.row(document)), scorer.target(document)
    metrics = {name: found[document] for name, found in scored.values.items() if document in found}
    row: Row = {"doc_id": document, "doc": doc, "target": target}
    answers = [sample.answer for _, sample in pairs]
    if data.kind == "gen":
        row |= _generated(scorer, scored, document, pairs[0], status)
    else:
        told = [answer for answer in answers if isinstance(answer, Likelihood)]
        row |= {
            "arguments": [(request.prompt, request.target) for request, _ in pairs],
            "resps": [[(answer.value, answer.is_greedy)] for answer in told],
            "filtered_resps": [str(scored.extracted.get(document, ""))],
            "nll_per_token": {str(k): v for k, v in zip(data.labels, perplexities(told), strict=True)},
        }
    return row | {
        "filter": FILTER,
        "metrics": list(metrics),
        "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hash(shown(pairs[0][0].prompt)),
        "target_hash": _hash(target),
        **metrics,
    }


def _generated(
    scorer: Scorer, scored: RepeatScores, document: int, pair: tuple[Request, Sample], status: Status
) -> Row:
    request, answer = pair[0], pair[1].answer
    assert isinstance(answer, Generation)
    text, read = answer.text or "", scored.extracted.get(document)
    known: Row = {"extracted": read if isinstance(read, str) else str(plain(read))}
    found = status(scorer.data.cfg, text, read, answer.finish_reason)
    known |= {"extraction": found} if found is not None else {}
    known |= {"verdict": scored.verdicts[document]} if document in scored.verdicts else {}
    return {
        "arguments": [(request.prompt, scorer.data.words)],
        "resps": [[text]],
        "filtered_resps": [read if isinstance(read, str) else plain(read)],
        "_answers": [known],
    }


def group_row(name: str, rows: Sequence[Mapping[str, Any]]) -> Row:
    """OpenCompass's naive average: the unweighted mean over data sets, for the metrics that all of them have."""
    made: Row = {"name": name, "alias": name}
    first = rows[0] if rows else {}
    for key in (key for key in first if key.endswith(f",{FILTER}") and not _is_error(key)):
        values = [row.get(key) for row in rows]
        if any(not isinstance(value, (int, float)) for value in values):
            continue
        error_key = f"{key.removesuffix(f',{FILTER}')}_stderr,{FILTER}"
        errors = [row.get(error_key) for row in rows]
        made[key] = statistics.fmean(values)  # type: ignore[arg-type]
        known = [float(error) for error in errors if isinstance(error, (int, float))]
        whole = len(known) == len(errors)
        made[error_key] = math.sqrt(math.fsum(e * e for e in known)) / len(known) if whole else "N/A"
    return made


def _is_error(key: str) -> bool:
    return key.endswith(f"_stderr,{FILTER}")


def plain(value: Any) -> Any:
    """As JSON holds it; classes and functions by their names."""
    return json.loads(json.dumps(value, default=_named, ensure_ascii=False))


def _named(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else str(value)


def shown(prompt: Any) -> str:
    """A prompt as one text: itself, or its messages as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
