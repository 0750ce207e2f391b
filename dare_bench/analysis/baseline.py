"""Baselines: the checkpoint, settings and scores of a run, and of each document the values, an answer hash, and whether
it is a near tie.

A baseline is a JSON file with one short row for each document. The same run always gives the same bytes, so that
changes of a baseline are readable diffs. Files up to ``VERSION`` can be read; a newer file is an error.
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

from dare_bench.analysis.agreement import Basis, token_ids
from dare_bench.analysis.pairing import mismatched_scores
from dare_bench.analysis.settings import prompt_settings
from dare_bench.config import one_line
from dare_bench.errors import RunError, UsageError
from dare_bench.reading import read_json
from dare_bench.runs.index import Document
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.writer import atomic_write_text
from dare_bench.types import TIE, Decoding, Tier

FORMAT = "dare-bench baseline"
VERSION = 1
_DIGITS = 6

Value = float | list[float] | str | None
"""A document's value of one score; a list where it has several parts (the instructions of IFEval)."""


class BaselineRow(NamedTuple):
    """One document: [question, answer, nfe, near tie, values]. ``question``: a hash of prompt and target. ``answer``: a
    hash of all answers, or the log-likelihoods in nats. ``nfe``: forward passes of generated answers, and how many of
    these wrote a token (0 without traces); they reveal sampler changes that leave the answers equal. ``near_tie``:
    could rounding have changed one of its answers (null: not recorded)? Older files have the smallest margin, a number
    that is below ``TIE`` in a near tie. ``values``: one for each of the task's scores."""

    question: str
    answer: str | list[float | None]
    nfe: tuple[int, int] | None
    near_tie: bool | float | None
    values: list[Value]


class _FrozenModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class BaselineCheckpoint(_FrozenModel):
    """The evaluated checkpoint; the hashes cover its weights and tokenizer, not its path."""

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
        default_factory=dict, description="settings of the prompts: examples, chat template, system instruction"
    )
    answers: Basis = Field(description="what a document's answer is a hash of; likelihoods are stored themselves")
    headline: str | None = Field(default=None, description="the score that stands for the task")
    scores: dict[str, BaselineScore] = Field(description='by "metric,filter"')
    documents: dict[str, BaselineRow] = Field(description="by document id, in the order of the run")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.headline is not None and self.headline not in self.scores:
            raise ValueError(f"headline {self.headline!r} is not a score; scores: {', '.join(self.scores) or 'none'}")
        for doc, row in self.documents.items():
            if len(row.values) != len(self.scores):
                raise ValueError(
                    f"document {doc} has {len(row.values)} values; expected {len(self.scores)}, one for each score"
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
    requested: dict[str, Any] = Field(
        default_factory=dict, description="requested decoding settings; all others had their defaults"
    )
    versions: dict[str, str] = Field(
        default_factory=dict, description="versions of the programs; differences are reported"
    )
    groups: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="scores of groups; reported, not judged"
    )
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
    if block.seeds is None:
        raise RunError(f"{run.path} is an external result; a baseline is made of a run of dare-bench")
    model, environment = block.model, block.environment.model_dump()
    scores: dict[str, list[Score]] = {}
    for score in run.scores():
        scores.setdefault(score.task, []).append(score)
    return Baseline(
        checkpoint=BaselineCheckpoint(**model.model_dump(include=set(BaselineCheckpoint.model_fields))),
        harness=block.harness.name,
        harness_version=block.harness.version,
        device=_device(run),
        seeds=block.seeds,
        repeats=block.repeats,
        limit=block.limit,
        requested=block.decoding_requested,
        versions={
            name: str(environment[name])
            for name in ("dare_bench", "python", "torch", "transformers")
            if environment.get(name)
        },
        groups={
            name: {score.key: _rounded(score.value) for score in of_name}
            for name, of_name in scores.items()
            if name not in block.tasks
        },
        tasks={task: _task(run, task, scores.get(task, [])) for task in run.tasks},
    )


def _device(run: Run) -> str:
    """``cpu``, or the name of the GPU that generated the answers (older runs: on which the results were written)."""
    block = run.require_block()
    if devices := {program.parts["device"] for program in block.programs if "device" in program.parts}:
        return " and ".join(sorted(devices))
    device = str(run.results.get("config", {}).get("device") or ("cuda" if block.environment.gpu else "cpu"))
    return "cpu" if device.startswith("cpu") else block.environment.gpu or device


def _task(run: Run, task: str, scores: list[Score]) -> BaselineTask:
    block = run.require_block().tasks[task]
    run.require_samples(task)
    if run.edited(task) or run.traces_edited(task):
        raise RunError(f"sample lines of {task} in {run.path} were changed after the run; evaluate with --fresh")
    if mismatches := mismatched_scores(run, task):
        raise RunError(f"{run.path}: {mismatches[0]}; evaluate with --fresh")
    keys = [(score.metric, score.filter) for score in scores]
    documents = {str(document.doc_id): _rows(document, keys) for document in run.documents(task)}
    traced = all(by_tokens is not None for by_tokens, _ in documents.values())
    scored = any(by_tokens is not None and isinstance(by_tokens.answer, list) for by_tokens, _ in documents.values())
    headline = run.headline(task)
    return BaselineTask(
        fingerprint=block.fingerprint,
        n_docs=block.n_docs,
        n_total=block.n_total,
        limited=block.limit_applied,
        tier=block.tier,
        decoding={name: value for name, value in sorted(block.decoding.items()) if name not in Decoding.hidden},
        likelihood=dict(sorted(block.likelihood.items())),
        around={name: value for name, value in prompt_settings(run, task).items() if value is not None},
        answers="likelihoods" if scored else "token ids" if traced else "text",
        headline=headline.key if headline else None,
        scores={
            score.key: BaselineScore(value=_rounded(score.value), n=score.n, higher_is_better=score.higher_is_better)
            for score in scores
        },
        documents={
            doc: by_tokens if traced and by_tokens else by_text for doc, (by_tokens, by_text) in documents.items()
        },
    )


def _rows(document: Document, keys: Iterable[tuple[str, str]]) -> tuple[BaselineRow | None, BaselineRow]:
    """A document's row with the hash of its token ids (None without traces) or its likelihoods, and with the hash of
    its text."""
    first, answers = document.rows[0], document.answers
    by_filter = {row.get("filter", "none"): row for row in document.rows}
    values = [_value(by_filter.get(name, {}).get(metric)) for metric, name in keys]
    question = _hash([first.get("prompt_hash"), first.get("target_hash")])
    text = _hash(first.get("resps"))
    if any(answer.get("kind") == "score" for answer in answers):
        nats = [_nats(answer.get("value")) for answer in answers]
        by_text = BaselineRow(question, text, None, _choice_tie(nats), values)
        return by_text._replace(answer=nats), by_text
    ties = [tie for answer in answers if (tie := _near_tie(answer)) is not None]
    writing = sum(len({event[0] for event in trace.get("events", ())}) for trace in document.traces.values())
    nfe = (sum(int(answer.get("nfe") or 0) for answer in answers), writing) if answers else None
    by_text = BaselineRow(question, text, nfe, any(ties) if ties else None, values)
    ids = token_ids(document)
    return None if ids is None else by_text._replace(answer=_hash([ids, text])), by_text


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


def _near_tie(answer: Mapping[str, Any]) -> bool | None:
    """Could rounding have changed a generated answer? Older runs recorded a margin. None: unknown."""
    margin, near = answer.get("margin"), answer.get("near_tie")
    return near if near is not None or not isinstance(margin, int | float) else margin < TIE


def _choice_tie(nats: list[float | None]) -> bool | None:
    """Are the two most likely choices equal, if each of their values changes by ``TIE``?"""
    values = sorted((value for value in nats if value is not None), reverse=True)
    return (values[0] - values[1]) / 2 < TIE if len(values) > 1 else None


def read(path: str | Path) -> Baseline:
    """The baseline in a file.

    Raises:
        UsageError: no such file, not a baseline, a damaged one, or a newer version.
    """
    if not os.path.lexists(path):
        raise UsageError(f"no baseline at {path}; create it: dare-bench regress RUN --baseline {path} --update")
    make = "give a file that dare-bench regress RUN --baseline FILE --update has written"
    try:
        raw = read_json(path, UsageError)
    except UsageError as error:
        raise UsageError(f"{path} is not a baseline ({error}); {make}") from error
    if raw.get("format") != FORMAT:
        raise UsageError(f'{path} is not a baseline: it has no "format": "{FORMAT}"; {make}')
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
    """Write a baseline to a file, atomically; raises SaveError."""
    atomic_write_text(path, text(baseline))


def text(baseline: Baseline) -> str:
    """The file's text: indented, one document per line."""
    record = baseline.model_dump(mode="json")
    rows = [task.pop("documents") for task in record["tasks"].values()]
    for at, task in enumerate(record["tasks"].values()):
        task["documents"] = f"\x00{at}"
    result = json.dumps(record, indent=1, ensure_ascii=False)
    for at, documents in enumerate(rows):
        lines = (f"    {json.dumps(doc)}: {json.dumps(row, separators=(',', ':'))}" for doc, row in documents.items())
        result = result.replace(json.dumps(f"\x00{at}"), "{\n" + ",\n".join(lines) + "\n   }", 1)
    return result + "\n"
