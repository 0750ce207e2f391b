"""The lengths of canvases that a checkpoint was trained on, as its ``lineage.json`` records them."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from dare_bench.errors import CheckpointError
from dare_bench.reading import existing, read_json


class _Record(BaseModel):
    canvas_lengths: tuple[int, int] | None = None


def unseen_length(folder: Path | None, length: object) -> str | None:
    """A warning if the checkpoint in ``folder`` is to decode a canvas of ``length`` tokens that its training has not
    seen; None if it has, or if nothing is recorded (an evaluation reports a damaged file)."""
    if folder is None or not isinstance(length, int) or existing(folder / "lineage.json") is None:
        return None
    try:
        seen = _Record.model_validate(read_json(folder / "lineage.json", CheckpointError)).canvas_lengths
    except (CheckpointError, ValidationError):
        return None
    if seen is None or seen[0] <= length <= seen[1]:
        return None
    return (
        f"gen_length={length}, and this checkpoint was trained on canvases of {seen[0]} to {seen[1]} tokens: answers "
        "may be empty or cut; decode within that, or train it further on such canvases (--canvas-length)"
    )
