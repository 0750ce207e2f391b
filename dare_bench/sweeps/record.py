"""What became of a node: ``OUT/nodes/<id>/node.json`` and ``log.txt`` beside it. The files are the only state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dare_bench import fingerprint
from dare_bench.config import one_line
from dare_bench.errors import CheckpointError, DareError, DataError, RunError
from dare_bench.loading import here
from dare_bench.reading import existing, open_regular, read_json, read_text
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import atomic_write_json
from dare_bench.sweeps.entries import HOW
from dare_bench.sweeps.graph import SweepNode
from dare_bench.training.files import find_files

Status = Literal["pending", "running", "done", "failed", "skipped"]
INTERRUPTED = "interrupted"


class Attempt(BaseModel):
    """One time that a node was begun; ``seconds`` is None where it was killed."""

    started: str
    where: str
    seconds: float | None = None
    error: str = ""


class Record(BaseModel):
    """A node's file. ``key`` is empty where the id is the key. ``mark`` hashes what was asked and what it
    was made from, when it was last begun."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    id: str
    kind: str
    key: str = ""
    status: Status = "pending"
    asked: dict[str, Any] = Field(default_factory=dict)
    after: tuple[str, ...] = ()
    inputs: dict[str, Any] = Field(default_factory=dict)
    mark: str = ""
    outputs: dict[str, Any] = Field(default_factory=dict)
    cost: dict[str, Any] = Field(default_factory=dict)
    error: str = ""
    attempts: list[Attempt] = Field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of all attempts together, as far as they are known."""
        return sum(attempt.seconds or 0.0 for attempt in self.attempts)


def folder(out: Path, name: str) -> Path:
    return out / "nodes" / name


def read(out: Path, node: SweepNode) -> Record:
    """A node's record, a fresh one where there is none.

    Raises:
        RunError: the file is damaged.
    """
    return read_file(folder(out, node.id) / "node.json") or Record(
        id=node.id, kind=node.kind, key=node.key, asked=node.asked, after=node.after
    )


def read_file(file: Path) -> Record | None:
    """A record; None where there is no file. Raises RunError."""
    if existing(file) is None:
        return None
    try:
        return Record.model_validate(read_json(file, RunError))
    except ValidationError as error:
        raise RunError(f"{file} is damaged ({one_line(error, 'the node')}); remove it to do the node again") from error


def write(out: Path, record: Record) -> None:
    """Replace a node's file; raises SaveError."""
    atomic_write_json(folder(out, record.id) / "node.json", record.model_dump(mode="json"))


def known(out: Path) -> list[str]:
    """The ids of all nodes that have a record."""
    root = out / "nodes"
    return sorted(file.parent.relative_to(root).as_posix() for file in root.rglob("node.json")) if root.is_dir() else []


def names(out: Path) -> dict[str, str]:
    """Key -> name of the nodes that have a record, each where it was written (copies of folders are no nodes).

    Raises:
        RunError: a file is damaged.
    """
    records = {name: read_file(folder(out, name) / "node.json") for name in known(out)}
    return {record.key or record.id: name for name, record in records.items() if record and record.id == name}


def inputs_of(out: Path, node: SweepNode) -> dict[str, Any]:
    """What a node is made from: contents of checkpoints and data, never paths.

    Raises:
        CheckpointError, UsageError: something it is made from is not there.
    """
    if node.kind == "train":
        asked = node.asked
        inputs: dict[str, Any] = {"base": content(asked["model"])}
        if "adapter" in asked:
            inputs["adapter"] = content(asked["adapter"])
        if "data" in asked:
            inputs["data"] = _data(asked["data"], asked.get("split", "train"))
        if (reference := (asked.get("options") or {}).get("reference")) is not None:
            inputs["reference"] = content(reference)
        return inputs
    if node.kind == "eval":
        if node.of is None:
            inputs = {"checkpoint": content(node.asked["model"])}
            return {**inputs, "adapter": content(node.asked["adapter"])} if "adapter" in node.asked else inputs
        return {"checkpoint": _trained(out, node.of)}
    return {"runs": {name: _outputs(out, name).get("content") for name in node.after}}


def mark_of(node: SweepNode, inputs: dict[str, Any]) -> str:
    """A hash over what a node is and what it is made from: with another one, it is done again."""
    asked = {name: value for name, value in node.asked.items() if node.kind != "train" or name not in HOW}
    return fingerprint.digest([asked, inputs], 32)


def is_done(out: Path, node: SweepNode) -> bool:
    """Is the node done, from what it would be made from now, with its result still there?

    What cannot be looked at any more (data that was moved away after a training) counts as unchanged.
    """
    record = read(out, node)
    if record.status != "done" or not _there(out, node, record):
        return False
    try:
        return record.mark == mark_of(node, inputs_of(out, node))
    except DareError:
        return True


def content(checkpoint: str) -> str:
    """A checkpoint's content; a hub id that is not on this machine stands for itself: nothing is fetched for this."""
    folder = here(checkpoint)
    return checkpoint if folder is None else fingerprint.content_hash(folder)


def run_content(run: Run) -> str:
    """What a run holds: a hash over its results file."""
    return fingerprint.digest(read_text(run.results_file, RunError) if run.results_file else "", 32)


def _trained(out: Path, name: str) -> str:
    trained = _outputs(out, name).get("content")
    if not trained:
        raise CheckpointError(f"{name} has no checkpoint yet; run the sweep without --only-failed to train it")
    return str(trained)


def _outputs(out: Path, name: str) -> dict[str, Any]:
    record = read_file(folder(out, name) / "node.json")
    return record.outputs if record is not None and record.status == "done" else {}


def _data(data: str, split: str) -> str:
    files = find_files(data, split)
    stats = [(file, file.stat()) for file in files]
    return fingerprint.digest([_file(f, s.st_size, s.st_mtime_ns) for f, s in stats], 32) if files else data


@cache
def _file(file: Path, size: int, moment: int) -> str:
    """A file's hash; size and time are there to be remembered by."""
    with open_regular(file, DataError) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _there(out: Path, node: SweepNode, record: Record) -> bool:
    """Are the files that the record tells of as they were?"""
    try:
        if node.kind == "train":
            return fingerprint.content_hash(node.place(out)) == record.outputs.get("content")
        if node.kind == "eval":
            runs: Sequence[dict[str, Any]] = record.outputs.get("runs", ())
            return all(Run(out / "runs" / run["id"]).status == "complete" for run in runs)
    except DareError:
        return False
    return (node.place(out) / "index.html").is_file()


def error_text(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DareError) else f"{type(error).__name__}: {text}"


def claim(out: Path, name: str, asked: dict[str, Any]) -> None:
    """Note in ``OUT/sweep.json`` whose folder this is.

    Raises:
        RunError: the folder is another sweep's.
    """
    file = out / "sweep.json"
    if file.exists():
        before = read_json(file, RunError).get("name")
        if not isinstance(before, str):
            raise RunError(f"{file} is damaged (name={before!r}); remove it, or choose another --output-path")
        if before != name:
            raise RunError(f"{out} holds the sweep {before!r}, this one is {name!r}; choose another --output-path")
    atomic_write_json(file, {"name": name, "asked": asked})
