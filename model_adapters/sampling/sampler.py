"""A way of decoding, composed of policies: what a family's decoding fields mean to the loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, Protocol

from torch import Tensor

from dare_bench.model_adapters.sampling.attention import AttentionPolicy, Row
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.stopping import StoppingPolicy
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.tokens import TokenPolicy


class LogitsRule(Protocol):
    """A rule that changes logits before tokens are proposed; it reads the canvases on the host."""

    def changed(self, logits_NV: Tensor, positions: Positions, canvas_T: Tensor, rows: Sequence[Row]) -> Tensor:
        """Other logits. ``canvas_T``: the concatenated canvases of ``rows``."""


@dataclass(frozen=True)
class Sampler:
    """How a row is decoded: the lengths of response and block, and the policies of each forward.

    Blocks are counted from the first response token; where attention is block-causal from column 0, so the first block
    may hold prompt tokens (not with a clean prefix, or where they are counted from the end of the prompt).
    """

    gen_length: int
    block_length: int
    strategy: Strategy
    tokens: TokenPolicy = field(default_factory=TokenPolicy)
    attention: AttentionPolicy = field(default_factory=AttentionPolicy)
    stopping: StoppingPolicy = field(default_factory=StoppingPolicy)
    reference: ReferencePolicy = field(default_factory=ReferencePolicy)
    whole_blocks: bool = True
    """Is the last block as long as the others, even if that is longer than the response?"""
    lead: tuple[int, ...] = ()
    """What stands in the place of an empty prompt, and begins its answer."""
    approximate: bool = False
    """Not the family's published sampler: tier A."""
    logits_rule: LogitsRule | None = None
    inputs: Callable[[Sequence[Any]], Any] | None = None
    """Makes of rows what their forwards are given besides canvases (``device.NetworkInputs``)."""
    draft_steps: int = 0
    """Steps that a forward may verify besides its own."""
    record_trajectory: bool = False
    record_predictions: bool = False
    record_near_tie: bool = False

    @property
    def draws(self) -> bool:
        """Does this sampler use random numbers?"""
        return self.inputs is not None or not self.tokens.greedy or self.strategy.score.random

    @property
    def replays(self) -> bool:
        """Does it use the published code's random numbers?"""
        return self.reference.replay and self.draws

    @cached_property
    def decision(self) -> Hashable:
        """Rows with an equal value are decided by the same tensor operations."""
        return self.strategy.decision, self.tokens, self.reference, self.logits_rule

    @property
    def passes_per_forward(self) -> int:
        return 2 if self.attention.cfg_scale > 0 else 1

    def origin(self, prompt: int) -> int:
        """The first column of block 0, after a prompt of that many tokens."""
        on_grid = self.attention.causal and not (self.attention.clean_prefix or self.attention.from_prompt)
        return prompt // self.block_length * self.block_length if on_grid else prompt

    def canvas_length(self, prompt: int) -> int:
        """Columns of prompt and response, in whole blocks if ``whole_blocks``."""
        if not self.whole_blocks:
            return prompt + self.gen_length
        origin = self.origin(prompt)
        return origin + ceil((prompt + self.gen_length - origin) / self.block_length) * self.block_length

    def blocks(self, prompt: int) -> int:
        """Number of blocks decoded after a prompt of that many tokens."""
        return ceil((self.canvas_length(prompt) - self.origin(prompt)) / self.block_length)

    def most_forwards(self, prompt: int) -> int:
        """Maximum forwards of a row, unless the model predicts the mask token itself."""
        return self.blocks(prompt) * self.strategy.most_forwards(self.block_length) * self.passes_per_forward
