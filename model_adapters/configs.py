"""Checks of published configurations: what this network cannot do is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_bench.errors import CheckpointError


def refuse(config: Any, name: str, supported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointError for a field with a value outside ``supported`` (a missing field is the first value)."""
    for field, allowed in supported.items():
        value = getattr(config, field, allowed[0])
        if value not in allowed:
            raise CheckpointError(f"{name} config has {field}={value!r}; supported: {', '.join(map(repr, allowed))}")


def require_counts(config: Any, name: str, fields: Iterable[str]) -> None:
    """Raise CheckpointError unless each field is a whole number of at least 1."""
    for field in fields:
        value = getattr(config, field, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{name} config has {field}={value!r}; it must be a whole number of at least 1")


def head_dim(config: Any, name: str) -> int:
    """The config's ``head_dim``, else width over heads; raises CheckpointError where that does not divide."""
    given = getattr(config, "head_dim", None)
    if given:
        return int(given)
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        raise CheckpointError(f"{name} config has hidden_size={width}, not divisible by num_attention_heads={heads}")
    return int(width // heads)
