"""Checkpoints to go on from: what of them must be there, and errors that name the folder when one is damaged or cannot
be written.

transformers goes on without a word where the optimizer's state is missing, which is another training.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import TrainerState

from dare_bench.errors import CheckpointError, SaveError, TrainingError

STATE = "trainer_state.json"
_FULL = 1 << 20
"""Free bytes below which a write is taken to have failed for want of space."""


def check_whole(folder: Path) -> None:
    """Raises TrainingError where a checkpoint lacks what an unbroken training would go on with, or cannot be read."""
    needed = {STATE: STATE, "scheduler.pt": "scheduler.pt", "optimizer*": "optimizer.pt", "rng_state*": "rng_state.pth"}
    missing = [name for pattern, name in needed.items() if not any(folder.glob(pattern))]
    if missing:
        raise _remove(folder, f"{', '.join(missing)} is missing")
    with damage_told(folder):
        TrainerState.load_from_json(str(folder / STATE))


@contextlib.contextmanager
def damage_told(folder: Path | str | None) -> Iterator[None]:
    """An error that reading the checkpoint raises, as a TrainingError that names it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (
        CheckpointError,
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        if folder is None:
            raise
        raise _remove(Path(folder), f"it cannot be read: {str(error).splitlines()[0][:150]}") from error


@contextlib.contextmanager
def save_told(folder: Path) -> Iterator[None]:
    """An error that writing the checkpoint raises, as a SaveError that names it.

    torch and safetensors have errors of their own for a write that failed, and not all of them say why.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        full = shutil.disk_usage(folder.parent).free < _FULL
        reason = "no space left on device" if full else str(error).splitlines()[0][:150]
        remedy = "free some space" if full else "fix that"
        raise SaveError(f"cannot write {folder}: {reason}; {remedy} and run the same command again") from error


def _remove(folder: Path, what: str) -> TrainingError:
    return TrainingError(f"{folder} is damaged ({what}); remove it to go on from the checkpoint before it")
