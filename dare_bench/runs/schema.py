"""What dare-bench adds to lm-eval's result files, as pydantic models, and the JSON Schema made from them.

A results file has exactly lm-eval's keys plus ``dare_bench`` (:class:`Block`); each line of a samples file has
lm-eval's keys plus ``dare_bench`` (a list of :class:`GenerateAnswer` or :class:`ScoreAnswer`, one for each request of
the document); each line of a traces file is a :class:`TraceLine`. Readers exist for every version up to
``SCHEMA_VERSION``; a file of a newer version is refused, never guessed at.

Runs are handed on, so whatever is read was perhaps written to do harm. What a field may hold is settled here, for all
readers: names and texts have a greatest length, counts a range, numbers are finite, groups are a tree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.json_schema import models_json_schema

from dare_bench.config import one_line
from dare_bench.errors import RunError
from dare_bench.types import Tier

SCHEMA_VERSION = 1
Status = Literal["complete", "incomplete", "running"]
MAX_TASKS = 1000
"""Most tasks of a run, and most groups; all its groups together have at most twice as many parts."""
MAX_METRICS = 500
"""Most entries in the scores of one task."""
LARGEST = 1e100
"""Numbers beyond are no measurement, and sums and squares of them overflow."""

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Text = Annotated[str, Field(max_length=1_000_000)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


def _moment(text: str) -> str:
    if not 1970 <= datetime.fromisoformat(text).year < 3000:
        raise ValueError("expected a date from 1970 to 2999")
    return text


Moment = Annotated[str, Field(max_length=40, description="ISO 8601"), AfterValidator(_moment)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=(), allow_inf_nan=False)


DocId = Annotated[int, Field(strict=True, ge=-(10**18), le=10**18)] | Name
MetricKey = Annotated[str, Field(max_length=1000)]
Key = Annotated[str, Field(max_length=5000, pattern=r"/\d{1,9}/\d{1,9}/[^/]*$")]
"""Of a request: <task>/<document>/<index>/<repeat>/<hash>."""
_VALUE: TypeAdapter[Any] = TypeAdapter(
    Number | bool | str | list[Number | bool | str | list[Any] | None] | dict[str, Any],
    config=ConfigDict(strict=True, allow_inf_nan=False),
)


class LineagePart(_Open):
    """One training in ``lineage.json``, as far as readers of runs tell of it."""

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
    settings: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


class LineageFile(LineagePart):
    """The last training, and those before it."""

    parents: list[LineagePart] = Field(default_factory=list, max_length=1000)


class Published(_Open):
    """What was published, and where."""

    value: Number | None = None
    n: Count | None = None


def _of(model: type[BaseModel]) -> AfterValidator:
    """What is kept as a mapping, with the fields of ``model``."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        _check(model, value)
        return value

    return AfterValidator(check)


class ModelBlock(_Strict):
    """The checkpoint that answered. ``content_hash`` covers its weights and tokenizer, never its path."""

    name: Name
    path: Text | None = None
    family: Name
    content_hash: Name
    adapter: Text | None = Field(default=None, description="the LoRA adapter on it, as it was named; null: none")
    adapter_hash: Name | None = Field(
        default=None, description="of the adapter's files; null also where content_hash covers weights in memory"
    )
    dtype: Name
    parameters: Count = 0
    lineage: Annotated[dict[str, Any], _of(LineageFile)] | None = Field(
        default=None, description="of a checkpoint trained here: base, method, data hash, step, seed, settings, parents"
    )


class HarnessBlock(_Strict):
    name: Name
    version: Name


class TaskBlock(_Strict):
    """One task as it was run. ``decoding`` and ``likelihood`` hold every resolved value, not only those asked for."""

    fingerprint: Name = Field(
        description="<definition>:<documents>: hashes of templates, filters and scorer source, and of all prompts asked"
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
    samples_sha256: Name | None = Field(
        default=None, description="of the task's samples file as the run wrote it; null: not known, or none was written"
    )
    traces_sha256: Name | None = Field(default=None, description="the same of its traces file")


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

    requests: Count = 0
    nfe: Count = Field(default=0, description="forward passes that rows took part in, summed over rows")
    forwards: Count = Field(default=0, description="forward passes of the network, each over many rows")
    tokens: Count = Field(default=0, description="response tokens, raw")
    tokens_to_eos: Count = Field(default=0, description="response tokens up to and including the first EOS")
    decoded_tokens: Count = Field(default=0, description="tokens that the sampler wrote, after an EOS too")
    seconds: Seconds = Field(default=0.0, description="of answering requests, all sessions together")
    generate_seconds: Seconds | None = Field(
        default=None, description="the part of seconds spent on generating; the rest went into likelihoods"
    )
    tokens_per_s: Number | None = Field(default=None, description="tokens_to_eos / generate_seconds")
    tpf: Number | None = Field(default=None, description="tokens to the first EOS per forward pass of a row")
    occupancy: Number | None = Field(default=None, description="share of row slots in use, 0 to 1")
    peak_memory_mb: Number | None = Field(default=None, description="MiB; the largest of all sessions")


class CI(_Strict):
    """A confidence interval of one metric. ``n`` counts the documents it was made from."""

    method: Name
    level: float = Field(gt=0, lt=1)
    lo: Number | None
    hi: Number | None
    n: Count


class Failure(_Strict):
    """A document without an answer: left out of the scores, counted here."""

    task: Name
    doc_id: DocId
    error: Text


class Resumed(_Strict):
    date: Moment
    samples: Count = Field(description="samples that were already there")


class Execution(_Strict):
    """How code that the model wrote was run. ``level``: bubblewrap, namespaces, or none (unsafe, asked for)."""

    level: Name
    unsafe: bool = False
    statuses: dict[Name, Count] = Field(default_factory=dict, description="passed, failed, timeout, crashed, refused")
    timeout: Seconds | None = Field(default=None, description="seconds of wall time that a program may take")


class Verdict(_Strict):
    """What came of running one answer's code against its tests."""

    status: Name
    level: Name
    seconds: Seconds = 0.0


class RecipeBlock(_Open):
    """The published score that this run is held against, as its recipe tells it."""

    name: Name
    published: Annotated[dict[str, Any], _of(Published)]
    score: dict[str, Name | None] = Field(description="task, metric, filter: the score of this run that is compared")
    settings: Name = Field(description="recorded, partly, unrecorded: how much of the published settings is known")
    missing: list[Text] = Field(default_factory=list)
    doubts: list[Text] = Field(default_factory=list)
    deviations: list[Text] = Field(default_factory=list, description="where this run leaves its recipe")


class RunEvent(_Open):
    """Something worth knowing that happened during the run, such as rows halved for want of memory."""

    what: Text


class Block(_Strict):
    """The ``dare_bench`` block of a results file."""

    schema_version: Literal[1] = 1
    status: Status
    run_id: Name
    created: Moment
    model: ModelBlock
    harness: HarnessBlock
    tasks: dict[Name, TaskBlock] = Field(max_length=MAX_TASKS)
    seeds: tuple[int, int, int, int] = Field(description="python, numpy, torch (keys the sampler), fewshot")
    limit: Annotated[int | float, Field(gt=0, le=10**15)] | None = None
    repeats: int = Field(default=1, ge=1, le=10**6, description="answers asked for each prompt")
    command: Text = ""
    environment: Environment = Field(default_factory=Environment)
    decoding_requested: dict[str, Any] = Field(default_factory=dict)
    cost: Cost = Field(default_factory=Cost)
    ci: dict[str, dict[str, CI]] = Field(default_factory=dict, description='by task, then by "metric,filter"')
    extraction: dict[str, dict[str, dict[Name, Count]]] = Field(
        default_factory=dict,
        description="by task, then filter: answers that were matched, no_match, ambiguous, truncated",
    )
    execution: Execution | None = None
    suite: Name | None = Field(default=None, description="the suite that asked for the run")
    recipes: list[RecipeBlock] = Field(default_factory=list, description="published scores this run is held against")
    failures: list[Failure] = Field(default_factory=list)
    resumed_from: list[Resumed] = Field(default_factory=list)
    events: list[RunEvent] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)


class _Line(BaseModel):
    """A part of a line, which readers take as it stands: nothing is converted."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False, strict=True)


class GenerateAnswer(_Line):
    """One generated response. ``trace_ref`` is the ``key`` of its line in the traces file."""

    kind: Literal["generate"] = "generate"
    key: Key
    nfe: Count
    reference_nfe: Count = 0
    tokens: Count = Field(description="raw length of the response in tokens")
    tokens_to_eos: Count = 0
    decoded_tokens: Count | None = Field(default=None, description="tokens that the sampler wrote, after an EOS too")
    finish_reason: Literal["length", "eos", "stop"]
    seconds: Seconds = 0.0
    tokens_per_s: Number | None = Field(
        default=None, description="tokens_to_eos / seconds, of this row among those that shared its forward passes"
    )
    tpf: Number | None = Field(default=None, description="tokens_to_eos / nfe")
    seed: int = 0
    tier: Tier = "E1"
    margin: Number | None = None
    residual_masks: Count = 0
    trace_ref: Key | None = None
    repeat: Count = 0
    extraction: Name | None = Field(default=None, description="matched, no_match, ambiguous or truncated")
    extracted: str | None = Field(default=None, description="what the harness read out of the answer")
    verdict: Verdict | None = None


class ScoreAnswer(_Line):
    """One log-likelihood, in nats. ``stderr`` is its Monte Carlo standard error (0: exact)."""

    kind: Literal["score"] = "score"
    key: Key
    value: Number | None = Field(description="null where it was not a finite number")
    stderr: Number | None
    is_greedy: bool | None = None
    nfe: Count
    estimator: Annotated[str, Field(max_length=1000)] = ""
    draws: Count = 0
    seconds: Seconds = 0.0
    seed: int = 0
    tier: Tier = "E1"


SampleAnswer = Annotated[GenerateAnswer | ScoreAnswer, Field(discriminator="kind")]
SAMPLE_ANSWER: TypeAdapter[GenerateAnswer | ScoreAnswer] = TypeAdapter(SampleAnswer)


class SampleLine(_Line):
    """One line of ``samples_<task>_<date>.jsonl``: a document as one filter saw it. Each of ``metrics`` is a key of the
    line, whose value is that document's own."""

    model_config = ConfigDict(extra="allow")

    doc_id: DocId
    doc: Any = None
    target: str
    arguments: dict[str, dict[str, Any]]
    resps: list[list[Any]]
    filtered_resps: Any
    filter: Name
    metrics: list[Name]
    doc_hash: str
    prompt_hash: str
    target_hash: str
    dare_bench: list[SampleAnswer]

    @model_validator(mode="after")
    def _values(self) -> Self:
        known = self.model_extra or {}
        for metric in self.metrics:
            if (value := known.get(metric)) is not None:
                try:
                    _VALUE.validate_python(value)
                except ValidationError:
                    text = f"{value!r:.80}"
                    raise ValueError(f"{metric[:80]!r} is {text}; expected a finite number, text, or a list") from None
        return self


TraceEvent = Annotated[
    tuple[Count, Literal["set", "remask", "insert", "delete"], int, int, Number | None], Field(strict=False)
]
"""(step from 0, op, position from the first response token, token id, confidence)."""


class TraceLine(_Line):
    """One line of ``traces_<task>_<date>.jsonl``: how a response came to be, in order."""

    key: Key
    doc_id: DocId
    repeat: Count = 0
    prompt_tokens: Count = 0
    pieces: list[str] = Field(description="text of each response token")
    events: list[TraceEvent]
    others: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], str] = Field(
        default_factory=dict,
        description="text by token id, of those in events that are not what stands at their position in the end",
    )


class HarnessPart(_Line):
    """lm-eval's keys of a results file, as far as something here reads them."""

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
        if (name := _in_itself(self.group_subtasks)) is not None:
            raise ValueError(f"group_subtasks: group {name[:80]!r} is a part of itself")
        return self


def _in_itself(children: Mapping[str, list[str]]) -> str | None:
    """A group that is a part of itself, at whatever depth; None if there is none."""
    above: dict[str, int] = dict.fromkeys(children, 0)
    for parts in children.values():
        for part in parts:
            above[part] = above.get(part, 0) + 1
    free = [name for name, count in above.items() if not count]
    while free:  # take away what is in no group that is left
        name = free.pop()
        del above[name]
        for part in children.get(name, ()):
            above[part] -= 1
            if not above[part]:
                free.append(part)
    return next(iter(above), None)


def _folder(text: str) -> str:
    try:
        place = Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("it is in the home of a user whom this machine does not have") from error
    if "\0" in text or any(len(os.fsencode(part)) > 255 for part in place.parts):
        raise ValueError("it is no name that a folder can have")
    return text


Folder = Annotated[str, Field(max_length=4000), AfterValidator(_folder)]


class Asked(_Open):
    """What a run was asked to do: the fields of ``RunSpec`` that readers of runs take from ``run.json``."""

    model: Name | None = None
    tasks: list[Name] | None = Field(default=None, max_length=MAX_TASKS)
    num_fewshot: Count | None = None
    data_dir: Folder | None = None
    include_path: list[Folder] | None = None


class RunFile(_Open):
    """``run.json``: what is known of a run before it has results. ``date`` is a part of its files' names."""

    schema_version: Annotated[int, Field(strict=True, ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    run_id: Name | None = None
    created: Moment | None = None
    date: Annotated[str, Field(pattern=r"^[0-9T.:+-]{4,40}$")] | None = None
    spec: Asked | None = None
    moment: Number | None = Field(default=None, description="seconds since 1970")


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


def check_sample_line(raw: Any) -> None:
    """Raises ValueError, in one line, where ``raw`` is no line of a samples file."""
    _check(SampleLine, raw)


def check_trace_line(raw: Any) -> None:
    """Raises ValueError, in one line, where ``raw`` is no line of a traces file."""
    _check(TraceLine, raw)


def _check(model: type[BaseModel], raw: Any) -> None:
    try:
        model.model_validate(raw)
    except ValidationError as error:
        raise ValueError(one_line(error, "it")) from None


def parse_run_file(raw: dict[str, Any], where: str | Path) -> RunFile:
    """What ``run.json`` says; raises RunError where it is not of the schema."""
    try:
        return RunFile.model_validate(raw)
    except ValidationError as error:
        raise RunError(f"{where} is damaged: {one_line(error, 'the file')}") from error


def check_harness_part(raw: dict[str, Any], block: Block, where: str | Path) -> None:
    """Are lm-eval's keys of the results file ``where`` of the shape that its readers count on?

    Raises:
        RunError: one of them is not.
    """
    if not isinstance(raw.get("results"), dict):
        raise RunError(f"{where}: has no 'results'; the file is damaged, run the evaluation again")
    try:
        part = HarnessPart.model_validate(raw)
    except ValidationError as error:
        raise RunError(f"{where} is damaged: {one_line(error, 'the file')}") from error
    known = {*block.tasks, *(name for name, parts in part.group_subtasks.items() if parts)}
    scored = {*part.results, *(part.groups or ())}
    for name in sorted(scored | {inner for parts in part.group_subtasks.values() for inner in parts}):
        if name not in known:
            raise RunError(f"{where} is damaged: {name[:80]!r} is none of the run's tasks, nor a group of them")


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
