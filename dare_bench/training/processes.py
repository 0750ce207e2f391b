"""Rank and number of processes in the environment of torchrun and accelerate, before a process group exists. Sequence
parallelism divides them: N consecutive processes compute the same rows, each a part of their tokens."""

from __future__ import annotations

import math
import os

from dare_bench.errors import UsageError
from dare_bench.types import ModelSpec


def first_process() -> bool:
    """Is this the first process of all (or the only one)?"""
    return int(os.environ.get("RANK", "0")) == 0


def process_count() -> int:
    """The number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def data_parallel_size(sequence_parallel_size: int, processes: int | None = None) -> int:
    """The number of groups of processes that compute the same rows. ``processes``: all of them (default: those of the
    environment). Raises UsageError: the processes cannot be divided into such groups."""
    count = process_count() if processes is None else processes
    if count % sequence_parallel_size:
        allowed = ", ".join(str(size) for size in range(1, count + 1) if count % size == 0)
        raise UsageError(
            f"sequence_parallel_size={sequence_parallel_size} does not divide the number of processes, {count}; give "
            f"{allowed}, or start a multiple of {sequence_parallel_size} processes with torchrun"
        )
    return count // sequence_parallel_size


def check_heads(spec: ModelSpec, sequence_parallel_size: int) -> None:
    """Raise UsageError unless the attention heads of a model can be divided among the processes of a group. Keys that
    several of them need are repeated, so that only the queries of a key must not be divided unevenly."""
    if sequence_parallel_size == 1:
        return
    if not spec.heads:
        raise UsageError(
            f"sequence_parallel_size={sequence_parallel_size} divides attention heads, and the network of "
            f"{spec.family} does not state their number; omit it"
        )
    if not _divides(spec, sequence_parallel_size):
        allowed = ", ".join(str(size) for size in range(1, spec.heads + 1) if _divides(spec, size))
        keys = f" ({spec.kv_heads} of keys)" if spec.kv_heads != spec.heads else ""
        raise UsageError(
            f"sequence_parallel_size={sequence_parallel_size} does not divide the {spec.heads} attention heads{keys} "
            f"of {spec.family}; give one of {allowed}"
        )


def _divides(spec: ModelSpec, size: int) -> bool:
    return spec.heads % math.lcm(spec.kv_heads or spec.heads, size) == 0
