"""A baseline: what a run was, what it scored, and of every document its values, a digest of its answers and its margin.

A file is JSON with one short row a document, made anew from the same run byte for byte, so that a change of a baseline
is a diff that people can read. Readers exist for every version up to ``VERSION``; a newer file is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dare_bench.analysis.agreement import token_ids
from dare_bench.analysis.pairing import mismatched_scores
from dare_bench.analysis.settings import prompt_settings
from dare_bench.config import one_line
from dare_bench.errors import RunError, UsageError
from dare_bench.reading import read_json
from dare_bench.runs.index import Document
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.writer import atomic_write_text
from dare_bench.types import Decoding, Tier

FORMAT = "dare-bench baseline"
VERSION = 1
MARGINS_TO = 0.01
"""Margins from here on are not kept: they are far from any tie, and would differ from machine to machine."""
_DIGITS = 6

Value = float | list[float] | str | None
"""A document's value of one score; a list where it has several parts (the instructions of IFEval)."""
Basis = Literal["token ids", "text", "likelihoods"]


class BaselineRow(NamedTuple):
    """One document: [asked, answer, nfe, margin, values]. ``asked``: a hash of prompt and target. ``answer``: a hash of
    all answers, or the log-likelihoods in nats. ``nfe``: forward passes of generated answers, and how many of these
    wrote a token (0 without traces); they tell of changes in a sampler that spoil no answer. ``margin``: the smallest
    of its answers; null: 0.01 or more, or not recorded. ``values``: one for each of the task's scores, in order."""

    asked: str
    answer: str | list[float | None]
    nfe: tuple[int, int] | None
    margin: float | None
    values: list[Value]


class _FrozenModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class BaselineCheckpoint(_FrozenModel):
    """The checkpoint that answered; the hashes cover its weights and tokenizer, never its path."""

    name: str
    family: str
    content_hash: str
    adapter_hash: str | None = None
    dtype: str


class BaselineScore(_FrozenModel):
    value: float
    n: int = Field(description="documents behind the value")
    higher_is_better: bool | None = None


class BaselineTask(_FrozenModel):
    """One task. ``decoding`` and ``likelihood`` hold every resolved value that can change an answer."""

    fingerprint: str = Field(description="<definition>:<documents>, as in results files")
    n_docs: int
    n_total: int | None = None
    limited: bool = False
    tier: Tier | None = None
    decoding: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] = Field(default_factory=dict)
    around: dict[str, Any] = Field(
        default_factory=dict, description="what stood around the documents: examples, chat template, system instruction"
    )
    answers: Basis = Field(description="what a document's answer is a hash of, or the log-likelihoods themselves")
    headline: str | None = Field(default=None, description="the score that stands for the task")
    scores: dict[str, BaselineScore] = Field(description='by "metric,filter"')
    documents: dict[str, BaselineRow] = Field(description="by document id, in the order of the run")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.headline is not None and self.headline not in self.scores:
            raise ValueError(f"headline {self.headline!r} is none of its scores: {', '.join(self.scores) or 'none'}")
        for doc, row in self.documents.items():
            if len(row.values) != len(self.scores):
                raise ValueError(
                    f"document {doc} has {len(row.values)} values; expected {len(self.scores)}, one a score"
                )
        return self


class Baseline(_FrozenModel):
    """A baseline file."""

    format: Literal["dare-bench baseline"] = "dare-bench baseline"
    version: Literal[1] = 1
    checkpoint: BaselineCheckpoint
    harness: str
    harness_version: str
    device: str = Field(description="cpu, or the name of the GPU")
    seeds: tuple[int, int, int, int] = Field(description="python, numpy, torch (keys the sampler), fewshot")
    repeats: int = 1
    limit: int | float | None = None
    requested: dict[str, Any] = Field(default_factory=dict, description="decoding asked for; all else was the default")
    versions: dict[str, str] = Field(default_factory=dict, description="of the programs; told where they differ")
    groups: dict[str, dict[str, float]] = Field(default_factory=dict, description="scores of groups; told, not judged")
    tasks: dict[str, BaselineTask]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a baseline file."""
    comment = "Made from dare_bench.analysis.baseline; a test holds it equal."
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": comment}
    return {**head, **Baseline.model_json_schema()}


def of_run(run: Run) -> Baseline:
    """A run as a baseline.

    Raises:
        RunError: the run has no results, or no sample lines of a task; its results or sample lines were edited.
    """
    block = run.require_block()
    if run.results_edited:
        raise RunError(f"{run.results_file} was changed after the run; evaluate with --fresh")
    model, known = block.model, block.environment.model_dump()
    scores = run.scores()
    groups: dict[str, dict[str, float]] = {}
    for score in scores:
        if score.task not in block.tasks:
            groups.setdefault(score.task, {})[score.key] = _rounded(score.value)
    return Baseline(
        checkpoint=BaselineCheckpoint(
            name=model.name,
            family=model.family,
            content_hash=model.content_hash,
            adapter_hash=model.adapter_hash,
            dtype=model.dtype,
        ),
        harness=block.harness.name,
        harness_version=block.harness.version,
        device=_device(run),
        seeds=block.seeds,
        repeats=block.repeats,
        limit=block.limit,
        requested=block.decoding_requested,
        versions={
            name: str(known[name]) for name in ("dare_bench", "python", "torch", "transformers") if known.get(name)
        },
        groups=groups,
        tasks={task: _task(run, task, [score for score in scores if score.task == task]) for task in run.tasks},
    )


def _device(run: Run) -> str:
    """``cpu``, or the name of the GPU that answered; of older runs, that the results were written on."""
    assert run.block is not None
    if devices := {program.parts["device"] for program in run.block.programs if "device" in program.parts}:
        return " and ".join(sorted(devices))
    on = str(run.results.get("config", {}).get("device") or ("cuda" if run.block.environment.gpu else "cpu"))
    return "cpu" if on.startswith("cpu") else run.block.environment.gpu or on


def _task(run: Run, task: str, scores: list[Score]) -> BaselineTask:
    assert run.block is not None
    own = run.block.tasks[task]
    run.require_samples(task)
    if run.edited(task) or run.traces_edited(task):
        raise RunError(f"sample lines of {task} in {run.path} were changed after the run; evaluate with --fresh")
    if mismatches := mismatched_scores(run, task):
        raise RunError(f"{run.path}: {mismatches[0]}; evaluate with --fresh")
    keys = [(score.metric, score.filter) for score in scores]
    documents = [(str(document.doc_id), _read(document, keys)) for document in run.documents(task)]
    scored = any(isinstance(read.tokens, list) for _, read in documents)
    traced = all(read.tokens is not None for _, read in documents)
    headline = run.headline(task)
    return BaselineTask(
        fingerprint=own.fingerprint,
        n_docs=own.n_docs,
        n_total=own.n_total,
        limited=own.limit_applied,
        tier=own.tier,
        decoding={name: value for name, value in sorted(own.decoding.items()) if name not in Decoding.hidden},
        likelihood=dict(sorted(own.likelihood.items())),
        around={name: value for name, value in prompt_settings(run, task).items() if value is not None},
        answers="likelihoods" if scored else "token ids" if traced else "text",
        headline=headline.key if headline else None,
        scores={
            score.key: BaselineScore(value=_rounded(score.value), n=score.n, higher_is_better=score.higher_is_better)
            for score in scores
        },
        documents={doc: read.row(traced) for doc, read in documents},
    )


class _Read(NamedTuple):
    """A document as read; ``tokens``: likelihoods, or a hash of token ids and text where there are traces."""

    asked: str
    tokens: str | list[float | None] | None
    text: str
    nfe: tuple[int, int] | None
    margin: float | None
    values: list[Value]

    def row(self, traced: bool) -> BaselineRow:
        answer = self.tokens if traced and self.tokens is not None else self.text
        return BaselineRow(self.asked, answer, self.nfe, self.margin, self.values)


def _read(document: Document, keys: Iterable[tuple[str, str]]) -> _Read:
    first, answers = document.rows[0], document.answers
    by_filter = {row.get("filter", "none"): row for row in document.rows}
    values = [_value(by_filter.get(name, {}).get(metric)) for metric, name in keys]
    asked = _hash([first.get("prompt_hash"), first.get("target_hash")])
    text = _hash(first.get("resps"))
    if any(answer.get("kind") == "score" for answer in answers):
        nats = [_nats(answer.get("value")) for answer in answers]
        return _Read(asked, nats, text, None, _kept(_lead(nats)), values)
    ids = token_ids(document)
    margins = [answer.get("margin") for answer in answers]
    known = [margin for margin in margins if isinstance(margin, (int, float))]
    wrote = sum(len({event[0] for event in trace.get("events", ())}) for trace in document.traces.values())
    nfe = (sum(int(answer.get("nfe") or 0) for answer in answers), wrote) if answers else None
    return _Read(asked, None if ids is None else _hash([ids, text]), text, nfe, _kept(min(known, default=None)), values)


def _hash(value: Any) -> str:
    text = json.dumps(value, default=str, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _value(value: Any) -> Value:
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, (bool, int, float)) for part in value):
        return [_rounded(part) for part in value]
    if isinstance(value, (bool, int, float)):
        return _rounded(value) if math.isfinite(value) else None
    return None if value is None else str(value)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else value


def _nats(value: Any) -> float | None:
    return round(float(value), 4) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _lead(nats: list[float | None]) -> float | None:
    """Half of what the likeliest choice is ahead: one value falls as another rises."""
    known = sorted((value for value in nats if value is not None), reverse=True)
    return (known[0] - known[1]) / 2 if len(known) > 1 else None


def _kept(margin: float | None) -> float | None:
    return None if margin is None or margin >= MARGINS_TO else float(f"{margin:.2g}")


def read(path: str | Path) -> Baseline:
    """The baseline in a file.

    Raises:
        UsageError: no such file, no baseline, a damaged one, or one of a newer version.
    """
    if not os.path.lexists(path):
        raise UsageError(f"no baseline at {path}; make it: dare-bench regress RUN --baseline {path} --update")
    raw = read_json(path, UsageError)
    if raw.get("format") != FORMAT:
        raise UsageError(f'{path} is no baseline: expected "format": "{FORMAT}"; name another file')
    version = raw.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UsageError(f"{path}: version is {version!r}; expected a whole number from 1 to {VERSION}")
    if version > VERSION:
        raise UsageError(f"{path}: written in version {version}, this dare-bench reads up to {VERSION}; upgrade it")
    try:
        return Baseline.model_validate(raw)
    except ValidationError as error:
        raise UsageError(f"{path} is damaged: {one_line(error, 'the baseline')}") from error


def write(path: str | Path, baseline: Baseline) -> None:
    """Put a baseline into a file, whole or not at all; raises SaveError."""
    atomic_write_text(path, text(baseline))


def text(baseline: Baseline) -> str:
    """The file: indented, its documents one a line."""
    record = baseline.model_dump(mode="json")
    rows = [task.pop("documents") for task in record["tasks"].values()]
    for at, task in enumerate(record["tasks"].values()):
        task["documents"] = f"\x00{at}"
    whole = json.dumps(record, indent=1, ensure_ascii=False)
    for at, documents in enumerate(rows):
        whole = whole.replace(json.dumps(f"\x00{at}"), _lines(documents), 1)
    return whole + "\n"


def _lines(documents: Mapping[str, Any]) -> str:
    lines = (f"    {json.dumps(doc)}: {json.dumps(row, separators=(',', ':'))}" for doc, row in documents.items())
    return "{\n" + ",\n".join(lines) + "\n   }"
