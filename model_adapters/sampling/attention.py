"""How a row attends, and what its forwards read from and write to a cache.

Shape letters: E cache slots, L columns of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.pages import RowPages


class RowSampler(Protocol):
    """What caches and rules of logits read of a row's sampler (``sampler.Sampler``)."""

    @property
    def attention(self) -> AttentionPolicy: ...
    @property
    def gen_length(self) -> int: ...
    @property
    def block_length(self) -> int: ...


class Row(Protocol):
    """What they read of a row (``state.RowState``)."""

    prompt: Sequence[int]
    given: Sequence[int] | None
    canvas: Tensor
    mask_id: int
    opened: bool
    pages: RowPages
    begin: int
    steps: list[int]

    def window(self) -> tuple[int, int]: ...
    @property
    def sampler(self) -> RowSampler: ...
    @property
    def stop(self) -> int: ...
    @property
    def forwards(self) -> int: ...
    @property
    def opens_by_state_before(self) -> bool: ...


class CachePolicy:
    """No cache: every forward computes all columns that the row attends to. Other policies derive from this class."""

    used: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    """Are pages committed once and shared by rows with a common prompt prefix?"""
    approximate: ClassVar[bool] = False
    block_alone: ClassVar[bool] = False
    """Do the later forwards of a block compute only the block?"""
    follows_canvas: ClassVar[bool] = False
    """Do windows depend on the written tokens, so that each forward has a pack of its own?"""

    def window(self, row: Row) -> tuple[int, int]:
        """The columns that the next forward computes."""
        return 0, row.stop if row.sampler.attention.causal else len(row.canvas)

    def hidden(self, row: Row) -> int:
        """The first columns that guidance hides: the prompt."""
        return len(row.prompt)

    def writes(self, row: Row) -> tuple[int, int]:
        """The columns whose keys and values the next forward stores."""
        return 0, 0

    def reads(self, row: Row) -> Tensor:
        """Cache slots that the next forward reads, int64 [E]."""
        return row.pages.slots[:0]


NO_CACHE = CachePolicy()


@dataclass(frozen=True)
class AttentionPolicy:
    """How a row attends.

    ``causal``: block-causal attention on blocks that count from column 0; otherwise bidirectional.
    ``predicts_next``: the state at i predicts token i + 1; "first": only before blocks. ``cfg_scale``: of guidance.
    ``clean_prefix``, with ``causal``: tokens before a block attend causally, and blocks begin behind the prompt.
    ``from_prompt``, with ``causal``: blocks are counted from the end of the prompt, whose first block may be short.
    ``first_any_time``, with ``causal`` and ``predicts_next``: any forward of a block may write its first token, so each
    computes the state before it. ``guide_keeps``: ids that guidance shows to both halves. ``guides_canvas``: the
    unconditional half is not shown what was given of the canvas either. ``unseen``, with ``from_prompt`` and the exact
    cache: ids that later blocks do not attend to, and that take no position, once their block is finished.
    """

    causal: bool = False
    predicts_next: bool | Literal["first"] = False
    cache: CachePolicy = NO_CACHE
    cfg_scale: float = 0.0
    clean_prefix: bool = False
    from_prompt: bool = False
    first_any_time: bool = False
    guide_keeps: tuple[int, ...] = ()
    guides_canvas: bool = False
    unseen: tuple[int, ...] = ()

    def guide_hides(self, row: Row) -> Tensor:
        """The columns that the unconditional half of guidance is shown as masks, bool [L]."""
        hidden_L = torch.arange(len(row.canvas)) < self.cache.hidden(row)
        if self.guides_canvas and row.given is not None:
            hidden_L[len(row.prompt) : len(row.prompt) + len(row.given)] = torch.tensor(row.given) != row.mask_id
        return hidden_L & ~torch.isin(row.canvas, torch.tensor(self.guide_keeps, dtype=torch.long))
