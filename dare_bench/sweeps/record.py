"""The state of a node: ``OUT/nodes/<id>/node.json``, next to its ``log.txt``. The files are the only state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from dare_bench import fingerprint
from dare_bench.config import one_line
from dare_bench.errors import CheckpointError, DareError, DataError, RunError
from dare_bench.loading import here
from dare_bench.reading import existing, open_regular, read_json, read_text
from dare_bench.runs import lineage
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import atomic_write_json
from dare_bench.sweeps.planning import EXECUTION, with_first_names
from dare_bench.sweeps.sweep_graph import SweepNode
from dare_bench.training.folder import WEIGHTS, missing
from dare_bench.training.sources import find_files

Status = Literal["pending", "running", "done", "failed", "skipped"]
INTERRUPTED = "interrupted"
MAX_SECONDS = 1e9
"""Maximum time of a node, some 30 years."""


class _Score(BaseModel):
    task: str
    metric: str
    value: float | None
    n: int


def _is_folder_name(text: str) -> str:
    if text in ("", ".", "..") or not {"/", "\\", "\0"}.isdisjoint(text):
        raise ValueError("expected the name of a run's folder, without a path")
    return text


class _RunOutput(BaseModel):
    id: Annotated[str, AfterValidator(_is_folder_name)]
    scores: list[_Score]


class _Outputs(BaseModel):
    """What is read of a node's outputs."""

    content: str = ""
    runs: list[_RunOutput] = []


class _Cost(BaseModel):
    """What is read of a node's cost."""

    seconds: float = Field(0, ge=0, le=MAX_SECONDS)


class Record(BaseModel):
    """A node's file. ``key`` is empty if the id is the key. ``digest`` hashes settings and inputs at the last start,
    ``starts`` counts them, ``where`` is the process of the last one; the seconds of ``cost`` are of all starts that
    were not killed, the rest of it is of the last one. Earlier versions wrote ``asked`` for
    settings and ``mark`` for digest."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), populate_by_name=True)

    id: str
    kind: str
    key: str = ""
    status: Status = "pending"
    settings: dict[str, Any] = Field(default_factory=dict, validation_alias=AliasChoices("settings", "asked"))
    after: tuple[str, ...] = ()
    inputs: dict[str, Any] = Field(default_factory=dict)
    digest: str = Field(default="", validation_alias=AliasChoices("digest", "mark"))
    outputs: dict[str, Any] = Field(default_factory=dict)
    cost: dict[str, Any] = Field(default_factory=dict)
    error: str = ""
    starts: int = Field(default=0, ge=0)
    where: str = ""

    @field_validator("outputs", "cost")
    @classmethod
    def _readable(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        (_Outputs if info.field_name == "outputs" else _Cost).model_validate(value)
        return value

    @property
    def seconds(self) -> float:
        """The time of all starts, as far as it is known."""
        return float(self.cost.get("seconds", 0.0))

    def plain(self) -> dict[str, Any]:
        """The content of the file."""
        return self.model_dump(mode="json")


def folder(out: Path, name: str) -> Path:
    return out / "nodes" / name


def read(out: Path, node: SweepNode) -> Record:
    """The record of a node, a new one if it has none; raises RunError if the file is damaged."""
    record = read_file(out, node.id)
    if record is None:
        return Record(id=node.id, kind=node.kind, key=node.key, settings=node.settings, after=node.after)
    if record.id != node.id:  # it would be written to another folder
        file = folder(out, node.id) / "node.json"
        raise RunError(f"{file} is of the node {record.id!r}; remove it to run the node {node.id!r}")
    return record


def read_file(out: Path, name: str) -> Record | None:
    """A record, or None if there is no file. Raises RunError."""
    file = folder(out, name) / "node.json"
    if existing(file) is None:
        return None
    try:
        return Record.model_validate(read_json(file, RunError))
    except ValidationError as error:
        raise RunError(f"{file} is damaged ({one_line(error, 'the node')}); remove it to run the node again") from error


def write(out: Path, record: Record) -> None:
    """Replace a node's file; raises SaveError."""
    atomic_write_json(folder(out, record.id) / "node.json", record.plain())


def recorded(out: Path) -> list[str]:
    """The ids of all nodes that have a record."""
    root = out / "nodes"
    return sorted(file.parent.relative_to(root).as_posix() for file in root.rglob("node.json")) if root.is_dir() else []


def names(out: Path) -> dict[str, str]:
    """Key -> name of the nodes that have a record, without copies of their folders. Raises RunError."""
    records = {name: read_file(out, name) for name in recorded(out)}
    return {record.key or record.id: name for name, record in records.items() if record and record.id == name}


def inputs_of(out: Path, node: SweepNode) -> dict[str, Any]:
    """Content hashes of the checkpoints, data and runs that a node reads, without their paths.

    Raises:
        CheckpointError, UsageError: an input is missing.
    """
    settings = node.settings
    if node.kind == "board":
        return {"runs": {name: _outputs(out, name).get("content") for name in node.after}}
    if node.training is not None:
        content = _outputs(out, node.training).get("content")
        if not content:
            raise CheckpointError(f"{node.training} has no checkpoint yet; run the sweep without --only-failed")
        return {"checkpoint": str(content)}
    inputs = {"base" if node.kind == "train" else "checkpoint": _checkpoint_content(settings["model"])}
    if "adapter" in settings:
        inputs["adapter"] = _checkpoint_content(settings["adapter"])
    if "data" in settings:
        inputs["data"] = _data_content(settings["data"], settings.get("split", "train"))
    if (reference := (settings.get("options") or {}).get("reference")) is not None:
        inputs["reference"] = _checkpoint_content(reference)
    return inputs


def digest_of(node: SweepNode, inputs: dict[str, Any]) -> str:
    """A hash of settings and inputs: a node with another one is run again."""
    ignored = EXECUTION if node.kind == "train" else ()
    settings = {name: value for name, value in node.settings.items() if name not in ignored}
    return fingerprint.digest([with_first_names(settings), inputs], 32)


def is_done(out: Path, node: SweepNode) -> bool:
    """Is the node done with the present settings and inputs, and is its result unchanged?

    Inputs that are gone (data that was moved after a training) count as unchanged.
    """
    record = read(out, node)
    if record.status != "done" or not _has_result(out, node, record):
        return False
    try:
        return record.digest == digest_of(node, inputs_of(out, node))
    except DareError:
        return True


def _checkpoint_content(checkpoint: str) -> str:
    """The content hash of a checkpoint, or the hub id of one that is not on this machine; nothing is downloaded."""
    folder = here(checkpoint)
    return checkpoint if folder is None else fingerprint.content_hash(folder)


def run_content(run: Run) -> str:
    """A hash of a run's results file."""
    return fingerprint.digest(read_text(run.results_file, RunError) if run.results_file else "", 32)


def _outputs(out: Path, name: str) -> dict[str, Any]:
    record = read_file(out, name)
    return record.outputs if record is not None and record.status == "done" else {}


def _data_content(data: str, split: str) -> str:
    stats = [(file, file.stat()) for file in find_files(data, split)]
    return fingerprint.digest([_file_hash(f, s.st_size, s.st_mtime_ns) for f, s in stats], 32) if stats else data


@cache
def _file_hash(file: Path, size: int, mtime_ns: int) -> str:
    """A file's hash; size and time only select the cached value."""
    with open_regular(file, DataError) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _has_result(out: Path, node: SweepNode, record: Record) -> bool:
    try:
        if node.kind == "train":
            lost = missing(node.path(out))
            if WEIGHTS in lost and lineage.FILE not in lost:  # a finished training, kept in a repository
                return "content" in record.outputs
            return fingerprint.content_hash(node.path(out)) == record.outputs.get("content")
        if node.kind == "eval":
            runs: Sequence[dict[str, Any]] = record.outputs.get("runs", ())
            return all(Run(out / "runs" / run["id"]).status == "complete" for run in runs)
    except DareError:
        return False
    return (node.path(out) / "index.html").is_file()


def claim(out: Path, name: str, spec: dict[str, Any]) -> None:
    """Write name and content of the sweep to ``OUT/sweep.json``; raises RunError if the folder is another sweep's."""
    file = out / "sweep.json"
    if file.exists():
        owner = read_json(file, RunError).get("name")
        if not isinstance(owner, str):
            raise RunError(f"{file} is damaged (name={owner!r}); remove it, or choose another --output-path")
        if owner != name:
            raise RunError(f"{out} holds the sweep {owner!r}, this one is {name!r}; choose another --output-path")
    atomic_write_json(file, {"name": name, "spec": spec})
