"""A way of decoding, composed of policies: what a family's decoding fields mean to the loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Protocol

from torch import Tensor

from dare_bench.model_adapters.sampling.attention import AttentionPolicy, Row
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.reference import ReferencePolicy
from dare_bench.model_adapters.sampling.stopping import StoppingPolicy
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.tokens import TokenPolicy


class LogitsRule(Protocol):
    """A rule that changes logits before tokens are proposed; it reads the canvases on the host."""

    def changed(self, logits_NV: Tensor, positions: Positions, canvas_T: Tensor, rows: Sequence[Row]) -> Tensor:
        """Other logits. ``canvas_T``: the concatenated canvases of ``rows``."""
        ...


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
    uniform_noise: bool = False
    """Is the network shown a random token for each open position, and not a mask?"""
    draft_steps: int = 0
    """Steps that a forward may verify besides its own."""
    record_trajectory: bool = False
    record_predictions: bool = False
    record_near_tie: bool = False

    @property
    def draws(self) -> bool:
        """Does this sampler use random numbers?"""
        return self.uniform_noise or not self.tokens.greedy or self.strategy.score.random

    @property
    def replays(self) -> bool:
        """Does it use the published code's random numbers?"""
        return self.reference.replay and self.draws

    @property
    def without_drafts(self) -> str | None:
        """Why no further steps can be drafted; None: they can."""
        if self.strategy.edits or self.strategy.remembers:
            return (
                f"strategy {self.strategy.name!r} writes over tokens or remembers what it did, which cannot be drafted"
            )
        if self.replays or self.uniform_noise:
            return "random numbers of rng='reference' are drawn as the published code makes forwards, without drafts"
        if self.attention.cache.follows_canvas or self.reference.count == "carry":
            return "each forward of this sampler depends on what the one before has left open"
        return None

    @cached_property
    def decision(self) -> Hashable:
        """Rows with an equal value are decided by the same tensor operations."""
        return self.strategy.decision, self.tokens, self.reference, self.record_near_tie, self.logits_rule

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
