"""What dare-bench adds to lm-eval's result files, as pydantic models, and the JSON Schema made from them.

A results file has exactly lm-eval's keys plus ``dare_bench`` (:class:`Block`); each line of a samples file has
lm-eval's keys plus ``dare_bench`` (a list of :class:`GenerateAnswer` or :class:`ScoreAnswer`, one for each request of
the document); each line of a traces file is a :class:`TraceLine`. Readers exist for every version up to
``SCHEMA_VERSION``; a file of a newer version is refused, never guessed at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema

from dare_bench.config import one_line
from dare_bench.errors import RunError
from dare_bench.types import Tier

SCHEMA_VERSION = 1
Status = Literal["complete", "incomplete", "running"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class ModelBlock(_Strict):
    """The checkpoint that answered. ``content_hash`` covers its weights and tokenizer, never its path."""

    name: str
    path: str | None = None
    family: str
    content_hash: str
    adapter: str | None = Field(default=None, description="the LoRA adapter on it, as it was named; null: none")
    adapter_hash: str | None = Field(
        default=None, description="of the adapter's files; null also where content_hash covers weights in memory"
    )
    dtype: str
    parameters: int = 0
    lineage: dict[str, Any] | None = Field(
        default=None, description="of a checkpoint trained here: base, method, data hash, step, seed, settings, parents"
    )


class HarnessBlock(_Strict):
    name: str
    version: str


class TaskBlock(_Strict):
    """One task as it was run. ``decoding`` and ``likelihood`` hold every resolved value, not only those asked for."""

    fingerprint: str = Field(
        description="<definition>:<documents>: hashes of templates, filters and scorer source, and of all prompts asked"
    )
    n_docs: int = Field(ge=0, description="documents of this run, failed ones included")
    n_total: int | None = Field(default=None, description="documents that the task has; null if not known")
    limit_applied: bool = False
    decoding: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] = Field(default_factory=dict)
    tier: Tier | None = Field(default=None, description="exactness of the sampler or estimator; the weakest of all")
    requests: int = Field(default=0, ge=0)
    nfe: int | None = Field(
        default=None, description="forward passes of this task's rows; null: only the run's is known"
    )
    samples_sha256: str | None = Field(
        default=None, description="of the task's samples file as the run wrote it; null: not known, or none was written"
    )
    traces_sha256: str | None = Field(default=None, description="the same of its traces file")


class Environment(_Open):
    """Versions and hardware. More keys may be added by the writer."""

    python: str | None = None
    torch: str | None = None
    transformers: str | None = None
    lm_eval: str | None = None
    dare_bench: str | None = None
    platform: str | None = None
    cpu: str | None = None
    gpu: str | None = None
    git_commit: str | None = None


class Cost(_Strict):
    """What the run cost, over all its sessions. Speed counts tokens to the first EOS only."""

    requests: int = 0
    nfe: int = Field(default=0, description="forward passes that rows took part in, summed over rows")
    forwards: int = Field(default=0, description="forward passes of the network, each over many rows")
    tokens: int = Field(default=0, description="response tokens, raw")
    tokens_to_eos: int = Field(default=0, description="response tokens up to and including the first EOS")
    decoded_tokens: int = Field(default=0, description="tokens that the sampler wrote, after an EOS too")
    seconds: float = Field(default=0.0, description="of answering requests, all sessions together")
    generate_seconds: float | None = Field(
        default=None, description="the part of seconds spent on generating; the rest went into likelihoods"
    )
    tokens_per_s: float | None = Field(default=None, description="tokens_to_eos / generate_seconds")
    tpf: float | None = Field(default=None, description="tokens to the first EOS per forward pass of a row")
    occupancy: float | None = Field(default=None, description="share of row slots in use, 0 to 1")
    peak_memory_mb: float | None = Field(default=None, description="MiB; the largest of all sessions")


class CI(_Strict):
    """A confidence interval of one metric. ``n`` counts the documents it was made from."""

    method: str
    level: float
    lo: float | None
    hi: float | None
    n: int


class Failure(_Strict):
    """A document without an answer: left out of the scores, counted here."""

    task: str
    doc_id: int | str
    error: str


class Resumed(_Strict):
    date: str
    samples: int = Field(description="samples that were already there")


class Execution(_Strict):
    """How code that the model wrote was run. ``level``: bubblewrap, namespaces, or none (unsafe, asked for)."""

    level: str
    unsafe: bool = False
    statuses: dict[str, int] = Field(default_factory=dict, description="passed, failed, timeout, crashed, refused")
    timeout: float | None = Field(default=None, description="seconds of wall time that a program may take")


class Verdict(_Strict):
    """What came of running one answer's code against its tests."""

    status: str
    level: str
    seconds: float = 0.0


class RecipeBlock(_Open):
    """The published score that this run is held against, as its recipe tells it."""

    name: str
    published: dict[str, Any]
    score: dict[str, Any] = Field(description="task, metric, filter: the score of this run that is compared")
    settings: str = Field(description="recorded, partly, unrecorded: how much of the published settings is known")
    missing: list[str] = Field(default_factory=list)
    doubts: list[str] = Field(default_factory=list)
    deviations: list[str] = Field(default_factory=list, description="where this run leaves its recipe")


class RunEvent(_Open):
    """Something worth knowing that happened during the run, such as rows halved for want of memory."""

    what: str


class Block(_Strict):
    """The ``dare_bench`` block of a results file."""

    schema_version: Literal[1] = 1
    status: Status
    run_id: str
    created: str = Field(description="ISO 8601")
    model: ModelBlock
    harness: HarnessBlock
    tasks: dict[str, TaskBlock]
    seeds: tuple[int, int, int, int] = Field(description="python, numpy, torch (keys the sampler), fewshot")
    limit: int | float | None = None
    repeats: int = Field(default=1, ge=1, description="answers asked for each prompt")
    command: str = ""
    environment: Environment = Field(default_factory=Environment)
    decoding_requested: dict[str, Any] = Field(default_factory=dict)
    cost: Cost = Field(default_factory=Cost)
    ci: dict[str, dict[str, CI]] = Field(default_factory=dict, description='by task, then by "metric,filter"')
    extraction: dict[str, dict[str, dict[str, int]]] = Field(
        default_factory=dict,
        description="by task, then filter: answers that were matched, no_match, ambiguous, truncated",
    )
    execution: Execution | None = None
    suite: str | None = Field(default=None, description="the suite that asked for the run")
    recipes: list[RecipeBlock] = Field(default_factory=list, description="published scores this run is held against")
    failures: list[Failure] = Field(default_factory=list)
    resumed_from: list[Resumed] = Field(default_factory=list)
    events: list[RunEvent] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class GenerateAnswer(_Strict):
    """One generated response. ``trace_ref`` is the ``key`` of its line in the traces file."""

    kind: Literal["generate"] = "generate"
    key: str
    nfe: int
    reference_nfe: int = 0
    tokens: int = Field(description="raw length of the response in tokens")
    tokens_to_eos: int = 0
    decoded_tokens: int | None = Field(default=None, description="tokens that the sampler wrote, after an EOS too")
    finish_reason: Literal["length", "eos", "stop"]
    seconds: float = 0.0
    tokens_per_s: float | None = Field(
        default=None, description="tokens_to_eos / seconds, of this row among those that shared its forward passes"
    )
    tpf: float | None = Field(default=None, description="tokens_to_eos / nfe")
    seed: int = 0
    tier: Tier = "E1"
    margin: float | None = None
    residual_masks: int = 0
    trace_ref: str | None = None
    repeat: int = 0
    extraction: str | None = Field(default=None, description="matched, no_match, ambiguous or truncated")
    extracted: str | None = Field(default=None, description="what the harness read out of the answer")
    verdict: Verdict | None = None


class ScoreAnswer(_Strict):
    """One log-likelihood, in nats. ``stderr`` is its Monte Carlo standard error (0: exact)."""

    kind: Literal["score"] = "score"
    key: str
    value: float | None = Field(description="null where it was not a finite number")
    stderr: float | None
    is_greedy: bool | None = None
    nfe: int
    estimator: str = ""
    draws: int = 0
    seconds: float = 0.0
    seed: int = 0
    tier: Tier = "E1"


SampleAnswer = Annotated[GenerateAnswer | ScoreAnswer, Field(discriminator="kind")]
SAMPLE_ANSWER: TypeAdapter[GenerateAnswer | ScoreAnswer] = TypeAdapter(SampleAnswer)


class SampleLine(_Open):
    """One line of ``samples_<task>_<date>.jsonl``: a document as one filter saw it."""

    doc_id: int | str
    doc: Any = None
    target: str
    arguments: dict[str, dict[str, Any]]
    resps: Any
    filtered_resps: Any
    filter: str
    metrics: list[str]
    doc_hash: str
    prompt_hash: str
    target_hash: str
    dare_bench: list[SampleAnswer]


TraceEvent = tuple[int, Literal["set", "remask", "insert", "delete"], int, int, float | None]
"""(step from 0, op, position from the first response token, token id, confidence)."""


class TraceLine(_Strict):
    """One line of ``traces_<task>_<date>.jsonl``: how a response came to be, in order."""

    key: str
    doc_id: int | str
    repeat: int = 0
    prompt_tokens: int = 0
    pieces: list[str] = Field(description="text of each response token")
    events: list[TraceEvent]
    others: dict[str, str] = Field(
        default_factory=dict,
        description="text by token id, of those in events that are not what stands at their position in the end",
    )


class HarnessPart(_Open):
    """lm-eval's keys of a results file, as far as something here reads them."""

    results: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]] | None = None
    group_subtasks: dict[str, list[str]] = Field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    versions: dict[str, Any] = Field(default_factory=dict)
    n_shot: dict[str, Any] = Field(default_factory=dict, alias="n-shot")
    higher_is_better: dict[str, dict[str, bool | None]] = Field(default_factory=dict)
    n_samples: dict[str, dict[str, int]] = Field(default_factory=dict, alias="n-samples")


class ResultsFile(HarnessPart):
    """``results_<date>.json``: lm-eval's keys (more of them than are named here) and the ``dare_bench`` block."""

    dare_bench: Block


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a results file; ``$defs`` has ``SampleLine`` and ``TraceLine`` too."""
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        (ResultsFile, "validation"),
        (SampleLine, "validation"),
        (TraceLine, "validation"),
    ]
    _, defs = models_json_schema(models, title="dare-bench result files")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made from dare_bench.runs.schema; a test holds it equal. SampleLine and TraceLine are in $defs.",
        "title": defs["title"],
        "$ref": "#/$defs/ResultsFile",
        "$defs": defs["$defs"],
    }


_READERS: dict[int, type[Block]] = {1: Block}


def check_harness_part(raw: dict[str, Any], where: str | Path) -> None:
    """Are lm-eval's keys of the results file ``where`` of the shape that its readers count on?

    Raises:
        RunError: one of them is not.
    """
    try:
        HarnessPart.model_validate(raw)
    except ValidationError as error:
        raise RunError(f"{where} is damaged: {one_line(error, 'the file')}") from error


def parse_block(raw: Any, where: str | Path) -> Block:
    """The ``dare_bench`` block of the file ``where``.

    Raises:
        RunError: not a block, a version this program does not know, or a value that the version does not allow.
    """
    if not isinstance(raw, dict):
        raise RunError(f"{where}: no dare_bench block; this results file was not written by dare-bench")
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise RunError(f"{where}: schema_version is {version!r}; expected a whole number from 1 to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise RunError(
            f"{where}: written in schema version {version}, this dare-bench reads up to {SCHEMA_VERSION}; upgrade it"
        )
    if version not in _READERS:
        raise RunError(f"{where}: schema version {version} is unknown; known: {', '.join(map(str, _READERS))}")
    try:
        return _READERS[version].model_validate(raw)
    except ValidationError as error:
        raise RunError(f"{where}: the dare_bench block is damaged: {one_line(error, 'the block')}") from error
