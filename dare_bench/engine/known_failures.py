"""Settings that are known to fail, each with where that was reported. None is an error: the run goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from dare_bench.engine.journal import Journal
from dare_bench.protocols import HarnessResult, LoadedModel
from dare_bench.runs.text import counted
from dare_bench.types import ModelSpec, Request

CUT_SHARE = 0.2
"""The share of answers without an end above which a note says so."""
_CODE = re.compile(r"humaneval|mbpp|livecodebench|bigcodebench", re.IGNORECASE)
_BOUNDS = ("threshold", "confidence_threshold", "conf_threshold", "high_conf_threshold", "factor")
"""The fields of families and strategies that bound a confidence."""


def before(
    spec: ModelSpec, given: Mapping[str, Any], decoding: Mapping[str, Mapping[str, Any]], scored: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Of the fields that the user gave, and the resolved ``decoding`` of each task that generates: a warning and the
    task that it is for. ``scored``: the tasks that compute log-likelihoods."""
    if decoding and (bound := _bound(given)):
        for task in scored:
            yield f"{bound}: without effect on log-likelihoods", task
    for task, fields in decoding.items():
        if not (bound := _bound(fields)):
            continue
        if temperature := fields.get("temperature"):
            yield (
                f"temperature={temperature:g} beside {bound}: tokens are drawn and their confidence is bounded; "
                "HumanEval fell from 55.5 to 1.2 so (Gen-Verse/dLLM-RL issue 5)",
                task,
            )
        if spec.family == "dream" and _CODE.search(task):
            yield f"{bound}: Dream writes code badly with several tokens a forward (NVlabs/Fast-dLLM issue 43)", task


def _bound(fields: Mapping[str, Any]) -> str:
    """The field that bounds a confidence, with its value; empty if there is none."""
    strategy = fields.get("strategy") or {}
    if isinstance(strategy, str):
        return ""
    if not strategy and fields.get("remasking_strategy", "low_confidence_dynamic") != "low_confidence_dynamic":
        return ""
    for name in _BOUNDS:
        value = strategy.get(name) if strategy else fields.get(name)
        if isinstance(value, int | float):
            return f"{name}={value:g}"
    return ""


def after(
    model: LoadedModel, chat: bool, requests: Iterable[Request], journal: Journal, result: HarnessResult
) -> Iterator[str]:
    """Of the answers of a run: a note for each task that its answers' length, or its worked examples, may have failed.
    ``chat``: do prompts have the chat template?"""
    by_task: dict[str, list[Request]] = {}
    for request in requests:
        if request.kind == "generate" and request.key in journal:
            by_task.setdefault(request.task, []).append(request)
    for task, answered in by_task.items():
        cut = sum(journal.sample(request.key).get("finish_reason") == "length" for request in answered)
        if cut > CUT_SHARE * len(answered):
            yield (
                f"{task}: {cut / len(answered):.0%} of {counted(len(answered), 'answer')} reach gen_length without an "
                "end; with a longer --gen-length scores may be others"
            )
        length = median(request.resolved.gen_length if request.resolved else 0 for request in answered)
        needed = _reference_length(model, result.samples.get(task, ())) if not _CODE.search(task) else 0
        if needed > length > 0:
            yield f"{task}: reference answers have {needed:g} tokens in the median, more than gen_length={length:g}"
        shots = result.results.get("n-shot", {}).get(task)
        if chat and shots and model.spec.block_length is not None:
            yield (
                f"{task}: {counted(shots, 'worked example')} in a chat with a block diffusion model; such models have "
                "been reported to follow them badly (ZHZisZZ/dllm issue 88); --num-fewshot 0 has none"
            )


def _reference_length(model: LoadedModel, samples: Iterable[Mapping[str, Any]]) -> float:
    """The median number of tokens of reference answers that are texts; 0 if there are none."""
    targets = {str(sample["doc_id"]): sample.get("target") for sample in samples}
    texts = [text for text in targets.values() if isinstance(text, str) and text]
    if model.tokenizer is None or not texts:
        return 0
    return median(len(model.encode(text)) for text in texts)
