"""What dare-bench adds to lm-eval's result files, as pydantic models, and the JSON Schema made from them.

A results file has lm-eval's keys plus ``dare_bench`` (:class:`Block`); lines of samples and traces are in
:mod:`dare_bench.runs.lines`, field types in :mod:`dare_bench.runs.field_types`. Files of a newer version are refused.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import models_json_schema

from dare_bench.config import one_line
from dare_bench.errors import RunError
from dare_bench.runs.field_types import (
    LARGEST,
    MAX_METRICS,
    MAX_TASKS,
    Count,
    DocId,
    Folder,
    LineModel,
    MetricKey,
    Model,
    Moment,
    Name,
    Number,
    OpenModel,
    Rate,
    Seconds,
    StrictModel,
    Text,
    check,
    read,
)
from dare_bench.runs.lines import SampleLine, TraceLine
from dare_bench.types import Tier

SCHEMA_VERSION = 1
Status = Literal["complete", "incomplete", "running"]
UNKNOWN = "unknown"
"""A name, hash or fingerprint that an external result does not record."""


class LineagePart(OpenModel):
    """One training in ``lineage.json``: the fields that readers of runs show."""

    base: Text | None = None
    base_content: Text | None = None
    base_adapter: Text | None = None
    method: Name | None = None
    peft: Name | None = None
    data: Text | None = None
    data_hash: Text | None = None
    step: Count | None = None
    steps: Count | None = None
    seed: int | None = None
    forwards: dict[Name, Count] | None = None
    tokens: dict[Name, Count] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


class LineageFile(LineagePart):
    """The last training and its parents."""

    parents: list[LineagePart] = Field(default_factory=list, max_length=1000)


class Published(OpenModel):
    """A published score."""

    value: Number | None = None
    n: Count | None = None


def _of(model: type[BaseModel]) -> AfterValidator:
    """Validates a mapping by the fields of ``model``, and leaves it a mapping."""

    def validate(value: dict[str, Any]) -> dict[str, Any]:
        check(model, value)
        return value

    return AfterValidator(validate)


class EngineBlock(StrictModel):
    """The served engine that answered."""

    name: Name
    version: Name | None = Field(default=None, description="as the engine states it; null: it does not")
    content_verified: bool = Field(
        description="was the model's content hashed here? If not, content_hash is what the server states"
    )

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version or '(version unknown)'}"

    @property
    def text(self) -> str:
        """Name and version, and whether the model's content is only stated."""
        known = "" if self.content_verified else ", which states its model; the content is unverified"
        return f"{self.label}{known}"


class ModelBlock(StrictModel):
    """The evaluated checkpoint. ``content_hash`` covers its weights and tokenizer, not its path."""

    name: Name
    path: Text | None = None
    family: Name
    content_hash: Name
    adapter: Text | None = Field(default=None, description="the LoRA adapter as it was named; null: none")
    adapter_hash: Name | None = Field(
        default=None, description="of the adapter's files; null also where content_hash covers weights in memory"
    )
    dtype: Name
    parameters: Count = Field(default=0, description="0: not known")
    engine: EngineBlock | None = Field(default=None, description="null: dare-bench's own sampler")
    lineage: Annotated[dict[str, Any], _of(LineageFile)] | None = Field(
        default=None, description="of a checkpoint trained here: base, method, data hash, step, seed, settings, parents"
    )

    @property
    def on_server(self) -> bool:
        """Did a server hold the model, on hardware that is not recorded?"""
        return self.engine is not None and not self.engine.content_verified


class HarnessBlock(StrictModel):
    name: Name
    version: Name


class TaskBlock(StrictModel):
    """One task as evaluated. ``decoding`` and ``likelihood`` have all resolved values, not only the requested ones."""

    fingerprint: Name = Field(
        description="<definition>:<documents>: hashes of templates, filters and scorer source, and of all prompts"
    )
    n_docs: Count = Field(description="documents of this run, failed ones included")
    n_total: Count | None = Field(default=None, description="documents that the task has; null if not known")
    limit_applied: bool = False
    decoding: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] = Field(default_factory=dict)
    tier: Tier | None = Field(default=None, description="exactness of the sampler or estimator; the weakest of all")
    requests: Count = 0
    nfe: Count | None = Field(
        default=None, description="forward passes of this task's rows; null: only the run's is known"
    )
    undecided: Count | None = Field(default=None, description="documents whose adaptive draws reached their limit")
    data: Text | None = Field(
        default=None,
        description="where the documents came from: hub ID@REVISION, or files; null: not known, or the task makes them",
    )
    samples_sha256: Name | None = Field(
        default=None, description="of the task's samples file as the run wrote it; null: unknown, or none was written"
    )
    traces_sha256: Name | None = Field(default=None, description="the same of its traces file")


class Environment(OpenModel):
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


Parts = Annotated[dict[Name, Name], Field(max_length=100)]
"""Parts of a program by name: digests of code, versions of packages, device, threads, attention, dtype."""


class Program(StrictModel):
    """A program that answered ``requests`` of the run's requests."""

    parts: Parts = Field(
        description="digests of our code, versions, device, threads, attention, dtype; empty: not recorded"
    )
    requests: Count


class Cost(StrictModel):
    """The cost of a run over all its sessions. Speed counts only tokens up to the first EOS."""

    requests: Count = 0
    nfe: Count | None = Field(
        default=0, description="forward passes that rows took part in, summed over rows; null: the engine reports none"
    )
    forwards: Count = Field(default=0, description="forward passes of the network, each over many rows")
    tokens: Count = Field(default=0, description="response tokens, raw")
    tokens_to_eos: Count = Field(default=0, description="response tokens up to and including the first EOS")
    decoded_tokens: Count = Field(default=0, description="tokens that the sampler wrote, after an EOS too")
    seconds: Seconds = Field(default=0.0, description="of answering requests, all sessions together")
    generate_seconds: Seconds | None = Field(
        default=None, description="the part of seconds spent on generating; the rest went into likelihoods"
    )
    tokens_per_s: Rate | None = Field(default=None, description="tokens_to_eos / generate_seconds")
    tpf: Rate | None = Field(default=None, description="tokens to the first EOS per forward pass of a row")
    occupancy: Number | None = Field(default=None, description="share of row slots in use, 0 to 1")
    peak_memory_mb: Number | None = Field(default=None, description="MiB; the largest of all sessions")


class DrawNoise(StrictModel):
    """What the random draws of likelihoods do to a score."""

    sd: Number = Field(description="standard deviation of the score over seeds of the draws, documents as they are")
    undecided: Count = Field(description="documents that other draws may well decide otherwise (5% or more)")


class CI(StrictModel):
    """A confidence interval of one metric, from ``n`` documents."""

    method: Name
    level: float = Field(gt=0, lt=1)
    lo: Number | None
    hi: Number | None
    n: Count
    draws: DrawNoise | None = Field(default=None, description="null: nothing is drawn, or it is not known")


class Failure(StrictModel):
    """A document without an answer, which is left out of the scores."""

    task: Name
    doc_id: DocId
    error: Text


class Resumed(StrictModel):
    date: Moment
    samples: Count = Field(description="samples that were already answered")


class Execution(StrictModel):
    """How generated code was run. ``level``: bubblewrap, namespaces, or none (unsafe, by request)."""

    level: Name
    unsafe: bool = False
    statuses: dict[Name, Count] = Field(default_factory=dict, description="passed, failed, timeout, crashed, refused")
    timeout: Seconds | None = Field(default=None, description="seconds of wall time that a program may take")


class RecipeBlock(OpenModel):
    """The published score that this run is compared with, from its recipe."""

    name: Name
    published: Annotated[dict[str, Any], _of(Published)]
    score: dict[str, Name | None] = Field(description="task, metric, filter: the score of this run that is compared")
    settings: Name = Field(description="recorded, partly, unrecorded: how much of the published settings is known")
    missing: list[Text] = Field(default_factory=list)
    doubts: list[Text] = Field(default_factory=list)
    deviations: list[Text] = Field(default_factory=list, description="settings that differ from the recipe's")


class RunEvent(OpenModel):
    """An event during the run, such as rows halved when memory ran out."""

    what: Text


UNSAFE_ALLOWED = "the sandbox was not required"
"""The event of a session with ``--unsafe-no-sandbox``."""


class Block(StrictModel):
    """The ``dare_bench`` block of a results file."""

    schema_version: Literal[1] = 1
    status: Status
    run_id: Name
    created: Moment
    model: ModelBlock
    harness: HarnessBlock
    tasks: dict[Name, TaskBlock] = Field(max_length=MAX_TASKS)
    seeds: tuple[int, int, int, int] | None = Field(
        description="python, numpy, torch (keys the sampler), fewshot; null: unknown, in external results only"
    )
    limit: Annotated[int | float, Field(gt=0, le=10**15)] | None = None
    until_halfwidth: float | None = Field(
        default=None,
        gt=0,
        lt=50,
        description="points: documents were answered in a random order until intervals were so narrow; null: not",
    )
    repeats: int = Field(default=1, ge=1, le=10**6, description="answers to each prompt")
    command: Text = ""
    environment: Environment = Field(default_factory=Environment, description="of the sessions that answered")
    programs: list[Program] = Field(default_factory=list, description="that answered; empty: not recorded (older runs)")
    decoding_requested: dict[str, Any] = Field(default_factory=dict)
    cost: Cost = Field(default_factory=Cost)
    ci: dict[str, dict[str, CI]] = Field(default_factory=dict, description='by task, then by "metric,filter"')
    extraction: dict[str, dict[str, dict[Name, Count]]] = Field(
        default_factory=dict,
        description="by task, then filter: answers that were matched, no_match, ambiguous, truncated",
    )
    execution: Execution | None = None
    part_of: Name | None = Field(
        default=None, description="run_id of the run with more documents whose recorded answers these are"
    )
    suite: Name | None = Field(default=None, description="the suite that the run belongs to")
    recipes: list[RecipeBlock] = Field(
        default_factory=list, description="published scores that the run is compared with"
    )
    failures: list[Failure] = Field(default_factory=list)
    resumed_from: list[Resumed] = Field(default_factory=list)
    events: list[RunEvent] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)


class HarnessPart(LineModel):
    """The keys of lm-eval's results that dare-bench reads."""

    model_config = ConfigDict(extra="allow")

    results: dict[Name, Annotated[dict[MetricKey, Any], Field(max_length=MAX_METRICS)]] = Field(max_length=MAX_TASKS)
    groups: dict[Name, Annotated[dict[MetricKey, Any], Field(max_length=MAX_METRICS)]] | None = Field(
        default=None, max_length=MAX_TASKS
    )
    group_subtasks: dict[Name, list[Name]] = Field(default_factory=dict, max_length=MAX_TASKS)
    configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    versions: dict[str, Any] = Field(default_factory=dict)
    n_shot: dict[str, Count | None] = Field(default_factory=dict, alias="n-shot")
    higher_is_better: dict[str, dict[str, bool | None]] = Field(default_factory=dict)
    n_samples: dict[str, dict[str, Count]] = Field(default_factory=dict, alias="n-samples")
    config: dict[str, Any] = Field(default_factory=dict)
    chat_template: Text | None = None
    chat_template_sha: Name | None = None
    system_instruction: Text | None = None
    max_length: Count | None = None

    @model_validator(mode="after")
    def _tree(self) -> Self:
        if (parts := sum(map(len, self.group_subtasks.values()))) > 2 * MAX_TASKS:
            raise ValueError(f"group_subtasks names {parts:,} parts; expected at most {2 * MAX_TASKS:,}")
        for row in [*self.results.values(), *(self.groups or {}).values()]:
            for value in row.values():
                if isinstance(value, float) and LARGEST < abs(value) < float("inf"):
                    raise ValueError(f"results has the number {value:g}; expected at most {LARGEST:g}")
        try:
            TopologicalSorter(self.group_subtasks).prepare()
        except CycleError as error:
            raise ValueError(f"group_subtasks: group {error.args[1][0][:80]!r} is a part of itself") from None
        return self


class RequestedSpec(OpenModel):
    """The requested settings of a run: the fields of ``RunSpec`` that readers of runs use."""

    model: Name | None = None
    tasks: list[Name] | None = Field(default=None, max_length=MAX_TASKS)
    num_fewshot: Count | None = None
    likelihood: dict[str, Any] = Field(default_factory=dict)
    unsafe_no_sandbox: bool = False
    data_dir: Folder | None = None
    include_path: list[Folder] | None = None


class RunFile(OpenModel):
    """``run.json``: the facts of a run that precede its results. ``date`` is part of its file names."""

    schema_version: Annotated[int, Field(strict=True, ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    run_id: Name | None = None
    created: Moment | None = None
    date: Annotated[str, Field(pattern=r"^[0-9T.:+-]{4,40}$")] | None = None
    spec: RequestedSpec | None = None
    moment: Number | None = Field(default=None, description="seconds since 1970")


class ResultsFile(HarnessPart):
    """``results_<date>.json``: lm-eval's keys, more than are named here, and the ``dare_bench`` block."""

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
        "$comment": "Generated from dare_bench.runs.schema. SampleLine and TraceLine are in $defs.",
        "title": defs["title"],
        "$ref": "#/$defs/ResultsFile",
        "$defs": defs["$defs"],
    }


def read_part(model: type[Model], raw: Any, where: str | Path) -> Model:
    """``raw``, read from the file ``where``, as an instance of the model; raises RunError if a value is invalid."""
    try:
        return read(model, raw)
    except ValidationError as error:
        raise RunError(f"{where} is damaged: {one_line(error, 'the file')}") from error


def check_harness_part(raw: dict[str, Any], block: Block, where: str | Path) -> None:
    """Validate lm-eval's keys of the results file ``where``; raises RunError."""
    if not isinstance(raw.get("results"), dict):
        raise RunError(f"{where}: has no 'results'; the file is damaged, run the evaluation again")
    part = read_part(HarnessPart, raw, where)
    known = {*block.tasks, *(name for name, parts in part.group_subtasks.items() if parts)}
    scored = {*part.results, *(part.groups or ())}
    for name in sorted(scored | {inner for parts in part.group_subtasks.values() for inner in parts}):
        if name not in known:
            raise RunError(f"{where} is damaged: {name[:80]!r} is neither a task nor a group of this run")


def parse_block(raw: Any, where: str | Path) -> Block:
    """The ``dare_bench`` block of the file ``where``; raises RunError."""
    if not isinstance(raw, dict):
        raise RunError(
            f"{where}: no dare_bench block; this results file was not written by dare-bench. External results are read"
            " by compare, export, leaderboard, ls, report and show only"
        )
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise RunError(f"{where}: schema_version is {version!r}; expected a whole number from 1 to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise RunError(
            f"{where}: written in schema version {version}, this dare-bench reads up to {SCHEMA_VERSION}; upgrade it"
        )
    try:
        block = read(Block, raw)
    except ValidationError as error:
        raise RunError(f"{where}: the dare_bench block is damaged: {one_line(error, 'the block')}") from error
    if block.seeds is None:
        raise RunError(f"{where}: the dare_bench block is damaged: seeds is null; expected four whole numbers")
    return block
