"""The output folder of a training: its settings and status (``train.json``). The same settings resume; more steps
extend a training whose learning rate does not depend on the number of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from dare_bench.config import one_line
from dare_bench.errors import RENAMED, TrainingError, UsageError
from dare_bench.log import log
from dare_bench.reading import existing, read_json
from dare_bench.runs import lineage
from dare_bench.runs.writer import atomic_write_json, ensure_folder, refuse_other_files
from dare_bench.training.spec import MAX_EPOCHS, MAX_STEPS, optimizer_steps

FILE = "train.json"
WEIGHTS = "weights (*.safetensors)"
_NAMES = frozenset({"base", "data"})
"""Names, which are not compared: the content hashes are."""
_DERIVED = frozenset({"data_hash", "items", "batch", "canvas_length"})
"""Values that settings determine; named last in messages (another seed generates other rows of our own tasks)."""
_LENGTH = frozenset({"max_steps", "num_train_epochs"})
"""Settings that determine nothing but the number of steps if the learning rate is constant."""
Kind = TypeVar("Kind", bound=BaseModel)
MAX_BATCH = 1 << 20
"""Maximum number of items of an optimizer step."""


class DefiningSettings(BaseModel):
    """The recorded settings of a training; those that are not declared here are only compared. A number that determines
    the number of steps may be missing in a record of an earlier version."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    max_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    num_train_epochs: float | None = Field(None, gt=0, le=MAX_EPOCHS)
    items: int | None = Field(None, ge=1, le=1 << 40)
    batch: int | None = Field(None, ge=1, le=MAX_BATCH)
    options: dict[str, Any] | None = None


class FolderRecord(BaseModel):
    """``train.json``: status, the settings that define the training, and all of its settings (``spec``)."""

    model_config = ConfigDict(strict=True)

    status: Literal["running", "complete"]
    settings: DefiningSettings = Field(validation_alias=AliasChoices("settings", "asked"))
    """Called ``asked`` in records of earlier versions."""
    spec: dict[str, Any] | None = None

    @field_validator("spec")
    @classmethod
    def _with_present_names(cls, spec: dict[str, Any] | None) -> dict[str, Any] | None:
        return spec and {RENAMED.get(name, name): value for name, value in spec.items()}


def read(out: Path) -> FolderRecord:
    """The record of the training in ``out``; raises TrainingError."""
    return _valid(FolderRecord, read_json(out / FILE, TrainingError), out / FILE)


def _valid(kind: type[Kind], value: Any, file: Path) -> Kind:
    """``value``, which was read from ``file``, as a record; raises TrainingError."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problem = one_line(error, "the training")
        raise TrainingError(f"{file} is damaged: {problem}; restore it, or choose another folder") from error


def claim(out: Path, settings: Mapping[str, Any], facts: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Begin, resume or extend the training with these settings in ``out``; returns its status: new, running or
    complete. A training that ended before it saved anything (a wrong setting, an early kill) counts as new; one that is
    extended is running. ``facts`` are recorded beside the settings. Raises UsageError: the folder holds another
    training, which cannot be extended, or files and no ``train.json``; SaveError: the folder cannot be created or
    written."""
    if not (out / FILE).exists():
        refuse_other_files(out, ())
        ensure_folder(out)
        _write(out, "running", settings, facts)
        return "new"
    if (record := _begun(out)) is None:
        _write(out, "running", settings, facts)
        return "new"
    now = json.loads(json.dumps(settings))
    if not _refuse_other(out, record, now):
        return record.status
    log.info("extending the training in %s from %d to %d steps", out, steps(record), _steps(now))
    _write(out, "running", settings, facts)
    return "running"


def refuse_other(out: Path, given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse what :func:`claim` refuses, as far as it is seen by some of the settings; raises as it."""
    if existing(out / FILE) is None:
        refuse_other_files(out, ())
    elif (record := _begun(out)) is not None:
        before = record.settings.model_dump()
        _refuse_other(out, record, {**before, **given, "options": {**(before.get("options") or {}), **options}})


def _begun(out: Path) -> FolderRecord | None:
    """The record of a training that has saved something; None of one that ended before."""
    record = read(out)
    saved = record.status == "complete" or any(out.glob("checkpoint-*")) or (out / lineage.FILE).exists()
    return record if saved else None


def _refuse_other(out: Path, record: FolderRecord, settings: Mapping[str, Any]) -> bool:
    """Raise UsageError unless the training with these settings is the recorded one, or extends it; does it?"""
    before, now = _with_options(record.settings.model_dump()), _with_options(settings)
    for name in sorted({*before, *now} - _NAMES - _LENGTH, key=lambda name: (name in _DERIVED, name)):
        if before.get(name) != now.get(name):
            raise UsageError(
                f"{out} holds another training: {name} was {_short(before.get(name))}, now {_short(now.get(name))}; "
                "choose another --output-path, or give the same settings to resume"
            )
    if _steps(before) == _steps(now):
        return False
    _check_extension(out, now, _steps(before), _steps(now))
    return True


def steps(record: FolderRecord) -> int | None:
    """Number of optimizer steps of a recorded training; None in a record without the settings that determine it."""
    return _steps(record.settings.model_dump())


def status(out: Path, settings: Mapping[str, Any]) -> str:
    """The status of the training in ``out``, for processes other than the first."""
    try:
        record = read(out)
    except TrainingError:
        return "new"
    # The first process may not have recorded an extension yet.
    extended = _steps(record.settings.model_dump()) != _steps(settings)
    return "running" if extended else record.status


def is_trained(out: Path, settings: Mapping[str, Any]) -> bool:
    """Did this training end in ``out``, and not only a shorter one? Raises CheckpointError, TrainingError."""
    record = lineage.read(out)
    if record is None:
        return False
    recorded = _valid(DefiningSettings, record.get("settings") or {}, out / lineage.FILE)
    return _steps(recorded.model_dump()) == _steps(settings)


def missing(out: Path) -> list[str]:
    """The parts that the final checkpoint in ``out`` lacks."""
    files = set() if existing(out) is None else {file.name for file in out.glob("*")}
    found = {
        WEIGHTS: any(name.endswith(".safetensors") for name in files),
        "config.json": not files.isdisjoint({"config.json", "adapter_config.json"}),
        lineage.FILE: lineage.FILE in files,
    }
    return [name for name, is_there in found.items() if not is_there]


def check_resumable(out: Path, missing: Sequence[str]) -> None:
    """Raise TrainingError if a finished training without parts of its checkpoint has no earlier one to resume from."""
    lost = f"{out} holds this training without its {', '.join(missing)}"
    if not any(out.glob(f"checkpoint-*/{lineage.FILE}")):
        raise TrainingError(
            f"{lost}, so that nothing can be evaluated or trained further; choose another --output-path, or remove the "
            "folder to train again"
        )
    log.warning("%s; resuming from the last checkpoint-*", lost)


def finish(out: Path, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Mark the training complete."""
    _write(out, "complete", settings, facts)


def _write(out: Path, status: str, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    atomic_write_json(out / FILE, {"status": status, "settings": dict(settings), **facts})


def _with_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings by their present names, those of the method included."""
    every = {**settings, **(settings.get("options") or {}), "options": None}
    return {RENAMED.get(name, name): value for name, value in every.items()}


def _steps(settings: Mapping[str, Any]) -> int | None:
    """Number of optimizer steps; None in a record without the settings that determine it."""
    epochs, items, batch = (settings.get(name) for name in ("num_train_epochs", "items", "batch"))
    if epochs is None or items is None or batch is None:
        return None
    return optimizer_steps(settings.get("max_steps"), epochs, items, batch)


def _check_extension(out: Path, settings: Mapping[str, Any], before: int | None, now: int | None) -> None:
    """Raise UsageError unless a training of ``before`` steps can be extended to ``now``: the learning rate of a step
    must not depend on the number of all steps."""
    schedule, warmup = settings.get("lr_scheduler_type"), settings.get("warmup_steps") or 0
    problem = ""
    if before is None or now is None or now < before:
        problem = "a training can be extended, but not shortened"
    elif schedule not in ("constant", "constant_with_warmup"):
        problem = f"with lr_scheduler_type={schedule} every learning rate depends on the number of all steps"
    elif schedule == "constant_with_warmup" and 0 < warmup < 1:
        problem = f"warmup_steps={warmup} is a fraction of all steps, and the warm-up would be another"
    if problem:
        raise UsageError(
            f"{out} holds a training of {before} steps, now {now}: {problem}; choose another --output-path, or give "
            f"max_steps={before} (a training that starts with lr_scheduler_type=constant, or constant_with_warmup and "
            "warmup_steps of 1 or more, can be extended later)"
        )


def _short(value: Any) -> str:
    text = " ".join(json.dumps(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
