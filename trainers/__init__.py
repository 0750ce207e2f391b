"""Trainer plugins: one registered name a method (see ``protocols.Trainer``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "dare_bench.trainers":
    raise ImportError(f"import dare_bench.trainers, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """This version trains from ``scripts/`` alone: no method is registered yet, plugins may add theirs."""
