"""Replay a step of a training by reinforcement learning: open the training as it was, and have its method replay it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dare_bench.errors import TrainingError, UsageError
from dare_bench.registry import registry
from dare_bench.training import folder
from dare_bench.training.setup import open_training
from dare_bench.training.spec import train_spec

_CONTENT = {"base_content": "the starting checkpoint", "base_adapter": "the starting adapter", "data_hash": "the data",
            "reference_content": "the reference"}  # fmt: skip
"""Recorded hashes, and of what they are."""


def replay(out: Path, step: int, model: str | None = None) -> tuple[Any, Callable[[int], str]]:
    """Replay a step (counted from 1) of the training in ``out``.

    Args:
        model: where the starting checkpoint is now, if it was moved.

    Returns:
        What the method replayed (``trainers.rl.replay.Replay``), and the text of a token.

    Raises:
        UsageError: a method without rollouts, no such step, or one that cannot be replayed.
        TrainingError: the folder has no settings, or its data or starting checkpoint have changed.
    """
    if not (out / folder.FILE).is_file():
        raise UsageError(
            f"{str(out)!r} is not the output folder of a training (it has no {folder.FILE}); give its --output-path"
        )
    record = folder.read(out)
    fields, before = record.spec, record.settings
    if fields is None or before.batch is None:
        raise TrainingError(f"{out / folder.FILE} has no settings to replay from; train again with this version")
    alone = {"report_to": (), "fsdp": False, "sequence_parallel_size": 1, "eval": {}, "output_path": str(out)}
    spec = train_spec(**{**fields, **alone, **({"model": model} if model else {})})
    kind = registry().get("trainer", spec.method).load()
    if not hasattr(kind, "replay"):
        raise UsageError(
            f"{out} was trained by {spec.method}, which samples nothing; replay is for methods with rollouts"
        )
    opened = open_training(spec.with_defaults(kind), kind)
    recorded = before.model_dump()
    for name, what in _CONTENT.items():
        if opened.settings.get(name) != recorded.get(name):
            raise TrainingError(
                f"{what} of {out} is not what it was trained from ({name}); restore it, or give --model"
            )
    opened.add_adapter()
    replayed = opened.method.replay(
        opened.spec, opened.model.loaded, opened.data, out, opened.services, step, before.batch
    )
    decode = getattr(opened.model.loaded.tokenizer, "decode", None)
    return replayed, lambda token: f"<{token}>" if decode is None else str(decode([token]))
