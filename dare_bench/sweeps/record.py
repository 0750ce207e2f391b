"""How a node ended: ``OUT/nodes/<id>/node.json``, next to its ``log.txt``; whether it is done is what the training and
the runs themselves say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from dare_bench import fingerprint
from dare_bench.config import one_line
from dare_bench.errors import DareError, RunError
from dare_bench.loading import here
from dare_bench.reading import existing, read_json
from dare_bench.runs import lineage
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import atomic_write_json
from dare_bench.sweeps.planning import EXECUTION
from dare_bench.sweeps.sweep_graph import SweepNode
from dare_bench.training import folder as training
from dare_bench.training.sources import find_files

Status = Annotated[
    Literal["pending", "done", "failed", "skipped"], BeforeValidator(lambda v: "pending" if v == "running" else v)
]
"""Earlier versions also wrote that a node is running, which remained where one was killed."""


class RunOfNode(BaseModel):
    """A run of an evaluation, by the name of its folder."""

    id: str = Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")


class Record(BaseModel):
    """A node's file, written when it ends. ``started``: when it was begun; ``where``: its process; ``seconds``: of
    every time that it ended."""

    id: str
    kind: str
    status: Status = "pending"
    settings: dict[str, Any] = {}
    runs: tuple[RunOfNode, ...] = ()
    seconds: float = Field(default=0.0, ge=0, le=1e9)
    error: str = ""
    started: float = Field(default=0.0, ge=0)
    where: str = ""


def folder(out: Path, name: str) -> Path:
    return out / "nodes" / name


def read(out: Path, node: SweepNode) -> Record:
    """The record of a node, a new one if it has none; raises RunError if the file is damaged."""
    file = folder(out, node.id) / "node.json"
    if existing(file) is None:
        return Record(id=node.id, kind=node.kind, settings=node.settings)
    try:
        return Record.model_validate({**read_json(file, RunError), "id": node.id, "kind": node.kind})
    except ValidationError as error:
        raise RunError(f"{file} is damaged ({one_line(error, 'the node')}); remove it to run the node again") from error


def write(out: Path, record: Record) -> None:
    """Replace a node's file; raises SaveError."""
    atomic_write_json(folder(out, record.id) / "node.json", record.model_dump(mode="json"))


def is_done(out: Path, node: SweepNode, content: Callable[[str], str | None]) -> bool:
    """Did the node end with the present settings, and do its results come from the present checkpoints and data?

    Nothing is opened but results and records. An input that is gone (data that was moved after a training) counts as
    unchanged. Data files that were written since are read by the training, which says whether they have other rows.
    ``content``: :func:`content_of` or a cache of it.
    """
    record = read(out, node)
    if record.status != "done" or _identity(record.settings, node) != _identity(node.settings, node):
        return False
    try:
        if node.kind == "train":
            return _is_trained(node.path(out), node.settings, record.started, content)
        if node.kind == "eval":
            return all(_is_of(Run(out / "runs" / run.id), out, node, content) for run in record.runs)
    except DareError:
        return False
    return (node.path(out) / "index.html").is_file()


def _identity(settings: dict[str, Any], node: SweepNode) -> dict[str, Any]:
    ignored = EXECUTION if node.kind == "train" else ()
    return {name: value for name, value in settings.items() if name not in ignored}


def _is_trained(place: Path, settings: dict[str, Any], started: float, content: Callable[[str], str | None]) -> bool:
    """Did the training in ``place`` end, from the present checkpoints and from data that were there when it started?"""
    lost, record = training.missing(place), training.read(place)
    if lineage.FILE in lost or record.status != "complete":
        return False
    if training.WEIGHTS in lost:  # a finished training, kept in a repository
        return True
    made_from = record.settings.model_extra or {}
    recorded = {made_from.get(name) for name in ("base_content", "base_adapter", "reference_content")}
    named = [settings["model"], settings.get("adapter")]
    if made_from.get("reference_content"):
        named.append((settings.get("options") or {}).get("reference"))
    if not {content(checkpoint) for checkpoint in named if checkpoint} - {None} <= recorded:
        return False
    try:
        stats = [file.stat() for file in find_files(settings["data"], settings.get("split", "train"))]
    except (KeyError, DareError):
        return True
    return all(max(stat.st_mtime, stat.st_ctime) <= started for stat in stats)


def _is_of(run: Run, out: Path, node: SweepNode, content: Callable[[str], str | None]) -> bool:
    """Is the run complete, and of the node's present checkpoint and adapter?"""
    if run.status != "complete" or run.block is None:
        return False
    model, named = run.block.model, node.settings["model"] if node.training is None else str(out / node.training)
    if model.on_server:  # which states its content itself
        return True
    present = {content(name) for name in (named, node.settings.get("adapter")) if name}
    return present - {None} <= {model.content_hash, model.adapter_hash}


def content_of(checkpoint: str) -> str | None:
    """The content hash of a checkpoint; None if it has no weights on this machine."""
    try:
        place = here(checkpoint)
        return None if place is None else fingerprint.content_hash(place)
    except DareError:
        return None
