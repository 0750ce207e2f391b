"""Checkpoints of a training: complete with ``lineage.json``, which is written last. transformers silently continues
without the optimizer's state; here, what is missing, damaged or cannot be written is an error that names it."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, TypeAdapter, ValidationError
from safetensors import SafetensorError
from transformers import TrainerState

from dare_bench.config import one_line
from dare_bench.errors import CheckpointError, SaveError, TrainingError
from dare_bench.reading import read_json
from dare_bench.trainers.objective import Metrics, summed

LINEAGE = "lineage.json"
STATE = "trainer_state.json"
SUMS = "unlogged.json"
"""The sums of metrics since the last entry of the log."""
MAX_STATE = 1 << 20, 64 << 10
"""Maximum size of the state in bytes, and what each step adds to it: its entries of the log."""
_FOLDER = re.compile(r"checkpoint-(\d+)$")
_READ_ERRORS = (
    CheckpointError, OSError, RuntimeError, ValueError, TypeError, KeyError, EOFError, pickle.UnpicklingError,
)  # fmt: skip
_SUMS = TypeAdapter(dict[str, tuple[FiniteFloat, FiniteFloat]])
_FULL = 1 << 20
"""Free bytes below which a failed write is explained by a full disk."""


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    step: int
    loss: float = 0.0


class _Callbacks(BaseModel):
    model_config = ConfigDict(extra="allow")

    TrainerControl: dict[str, Any]


class _State(BaseModel):
    """What transformers computes with in its ``TrainerState``; no checkpoint of ours is its "best" one."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    global_step: int
    max_steps: int
    epoch: float
    log_history: Annotated[list[_Entry], FailFast()]
    stateful_callbacks: _Callbacks
    logging_steps: int = Field(1, ge=1)
    eval_steps: int = Field(1, ge=1)
    save_steps: int = Field(1, ge=1)
    train_batch_size: int | None = Field(None, ge=1)
    total_flos: float = 0
    num_input_tokens_seen: int = 0
    best_global_step: None = None
    best_model_checkpoint: None = None


def checkpoints(out: Path) -> dict[int, Path]:
    """The complete checkpoints in ``out`` by step, in order."""
    return {step: folder for step, folder in sorted(_folders(out)) if (folder / LINEAGE).is_file()}


def step_of(checkpoint: Path) -> int:
    """The step of ``checkpoint-N``, N."""
    return int(checkpoint.name.rpartition("-")[2])


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, ``lineage.json`` first: what a kill leaves must not count as complete."""
    (checkpoint / LINEAGE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def copy_model(checkpoint: Path, out: Path) -> None:
    """Replace the model that was written to ``out`` by that of a checkpoint of the same training."""
    for file in checkpoint.iterdir():
        if file.name not in (LINEAGE, STATE) and (out / file.name).is_file():
            shutil.copyfile(file, out / file.name)


def remove_incomplete(out: Path) -> None:
    """Remove what kills have left in ``out``."""
    for _, folder in _folders(out):
        if not (folder / LINEAGE).is_file():
            remove(folder)


def check_complete(folder: Path) -> None:
    """Raise TrainingError if a file that an uninterrupted training depends on is missing or cannot be read."""
    required = {
        STATE: STATE,
        "scheduler.pt": "scheduler.pt",
        "optimizer*": "optimizer.pt",
        "rng_state*": "rng_state.pth",
    }
    missing = [name for pattern, name in required.items() if not any(folder.glob(pattern))]
    if missing:
        raise _damaged(folder, f"{', '.join(missing)} is missing")
    with reading_checkpoint(folder):
        limit = MAX_STATE[0] + MAX_STATE[1] * step_of(folder)
        fields = read_json(folder / STATE, CheckpointError, limit=limit)
        if (step := _State.model_validate(fields).global_step) != step_of(folder):
            raise ValueError(f"its global_step in {STATE} is {step}")
        TrainerState(**fields)


def write_sums(folder: Path, parts: Sequence[Metrics]) -> None:
    """Write the sums of metrics since the last entry of the log, from those of all processes."""
    (folder / SUMS).write_text(json.dumps(summed(parts)))


def read_sums(folder: Path) -> dict[str, tuple[float, float]]:
    """The sums of metrics since the last entry of the log; none in a checkpoint of an earlier version."""
    if not (folder / SUMS).exists():
        return {}
    with reading_checkpoint(folder):
        return _SUMS.validate_python(read_json(folder / SUMS, CheckpointError))


@contextlib.contextmanager
def reading_checkpoint(folder: Path | str | None) -> Iterator[None]:
    """Turn errors of reading the checkpoint into a TrainingError that names it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except _READ_ERRORS as error:
        if folder is None:
            raise
        if isinstance(error, CheckpointError | ValidationError):
            problem = str(error) if isinstance(error, CheckpointError) else one_line(error, STATE)
        else:  # of a library, with advice that does not apply
            problem = str(error).splitlines()[0][:150]
        raise _damaged(Path(folder), f"it cannot be read: {problem}") from error


@contextlib.contextmanager
def writing_checkpoint(folder: Path) -> Iterator[None]:
    """Turn errors of writing the checkpoint into a SaveError that names it (torch and safetensors raise other errors,
    not all with a reason)."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        full = shutil.disk_usage(folder.parent).free < _FULL
        reason = "no space left on device" if full else str(error).splitlines()[0][:150]
        remedy = "free some space" if full else "fix that"
        raise SaveError(f"cannot write {folder}: {reason}; {remedy} and run the same command again") from error


def _damaged(folder: Path, reason: str) -> TrainingError:
    return TrainingError(f"{folder} is damaged ({reason}); remove it to resume from the previous checkpoint")


def _folders(out: Path) -> list[tuple[int, Path]]:
    return [(int(match[1]), path) for path in out.glob("checkpoint-*") if (match := _FOLDER.search(path.name))]
