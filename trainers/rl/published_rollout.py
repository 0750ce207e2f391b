"""How published code samples completions: the defaults of a rollout's decoding fields (sources: docs/algorithms.md).

Published code samples canvases of one length. On another length, a forward writes as many tokens, and a block is the
largest divisor of the canvas that is not longer than the published one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.types import ModelSpec

BLOCKS = frozenset({"llada", "llada_moe", "illada"})
"""Families with bidirectional attention whose own sampler decodes in blocks."""
STEPS = BLOCKS | {"dream", "open_dcoder"}
"""Families whose field ``steps`` counts the forwards of the whole canvas."""
CUTS = frozenset({"top_k", "top_p"})
"""Fields that cut the distribution: they hold for every strategy, and a served engine takes them."""


@dataclass(frozen=True)
class PublishedRollout:
    """The decoding fields that published code gives. What it leaves out is as the family samples by default.

    Args:
        forwards: of the sampler for each token of the canvas; None: not published.
        block_length: of the families that have blocks; None: one block.
        temperature: by family, where it is not the default of the method's option.
        fields: by family, fields besides.
    """

    forwards: float | None = None
    block_length: int | None = None
    temperature: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def resolved(self, spec: ModelSpec, canvas: int, given: Mapping[str, Any], cuts_only: bool) -> dict[str, Any]:
        """The fields for a canvas, under those that are given.

        Args:
            cuts_only: whether something else than the family's own strategy decides when tokens are written.
        """
        own = self.fields.get(spec.family, {})
        if cuts_only or given.get("strategy") is not None:
            return {**{name: value for name, value in own.items() if name in CUTS}, **given}
        return {**self._schedule(spec.family, canvas, given.get("block_length")), **own, **given}

    def _schedule(self, family: str, canvas: int, given: Any) -> dict[str, int]:
        """Steps and block length; ``given``: the block length that the user gives, which may be invalid."""
        if self.forwards is None or family not in STEPS:
            return {}
        block = divisor(canvas, self.block_length or canvas) if family in BLOCKS else canvas
        blocks = canvas // (given if isinstance(given, int) and 0 < given <= canvas else block)
        steps = blocks * max(1, round(self.forwards * canvas / blocks))
        return {"steps": steps, "block_length": block} if family in BLOCKS else {"steps": steps}


def divisor(canvas: int, most: int) -> int:
    """The largest divisor of a canvas that is at most ``most``; the canvas itself if that is below half of it."""
    largest = next(length for length in range(min(most, canvas), 0, -1) if canvas % length == 0)
    return largest if 2 * largest >= min(most, canvas) else canvas


D1_ROLLOUT = PublishedRollout(1 / 2, 32)
"""128 steps on 256 tokens in blocks of 32: the scripts of d1, and their copies."""
DARE_ROLLOUT = PublishedRollout(
    1 / 2,
    32,
    temperature={"dream": 0.2, "sdar": 1.0},
    fields={"dream": {"top_p": 0.95}, "sdar": {"top_k": 50, "confidence_threshold": 0.9}},
)
"""The recipes of DARE for mathematics. Its prefix cache, which is approximate, is left out: ``cache=prefix``."""
