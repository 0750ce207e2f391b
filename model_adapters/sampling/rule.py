"""One way of decoding, as data. Families translate their users' fields into a Rule; the loop knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

HowMany = Literal["quota", "threshold", "factor", "dynamic", "sequential", "entropy_bound", "carry", "bernoulli"]
Which = Literal["confidence", "random", "margin", "entropy", "order"]
Cache = Literal["none", "exact", "prefix", "dual"]


@dataclass(frozen=True)
class Rule:
    """How a row is decoded.

    how many: ``quota``: a fixed schedule; ``threshold``, ``factor``: Fast-dLLM, until the block is full; ``dynamic``:
        all surer than the threshold if they are at least the quota, else the quota (SDAR, LLaDA2); ``sequential``: the
        quota from the left; ``entropy_bound``: while the entropy taken on stays below the bound (EB sampler);
        ``carry``: the quota and what earlier steps left, those above the threshold (Fast-dLLM's Dream); ``bernoulli``:
        each position on its own (Dream's origin).
    which: the score by which positions are ranked, highest first (``order``: from the left).
    token: argmax at temperature 0 or top_k 1, else a draw.
    """

    gen_length: int
    block_length: int
    steps_per_block: int
    grid: Literal["response", "absolute"] = "response"
    """Where blocks are counted from: the first response token, or column 0 (the first block may hold prompt tokens)."""
    causal: bool = False
    """Block-causal attention on that grid; otherwise a row sees all of itself."""
    predicts_next: bool = False
    """The state at position i predicts token i + 1."""
    how_many: HowMany = "quota"
    schedule: Literal["even", "block", "time"] = "even"
    """How a quota spreads over the steps: the masks evenly | the block length evenly | Dream's time grid."""
    which: Which = "confidence"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    top_p_first: bool = False
    confidence_of: Literal["plain", "tempered", "kept"] = "plain"
    """The distribution a confidence is read from: softmax(logits) | at temperature | also after top-k and top-p."""
    order_temperature: float = 0.0
    """Draw the positions too, from softmax(score / this) (Dream's alg_temp)."""
    eps: float = 1e-3
    """The last time of Dream's time grid."""
    threshold: float = 1.0
    factor: float = 1.0
    entropy_bound: float = 0.0
    cfg_scale: float = 0.0
    suppressed: tuple[int, ...] = ()
    """Ids whose logits are -inf before a token is chosen."""
    uncounted: tuple[int, ...] = ()
    """Ids whose logits are -inf after the token is chosen, when its confidence is taken."""
    confidence_float64: bool = False
    cache: Cache = "none"
    commit_first: bool = False
    """The first forward of a block writes its first token alone (Fast-dLLM's Dream)."""
    edit_threshold: float | None = None
    """Also replace written tokens of the block by others that are surer than this (LLaDA2.1)."""
    max_post_steps: int = 0
    """Forwards a full block may be edited for."""
    min_transfer: int = 1
    """Masked positions that a step of an edited block writes at least."""
    reference_draws: bool = False
    draw_law: Literal["gumbel", "block", "masked"] = "gumbel"
    """How the published code draws tokens: Gumbel noise over the canvas | multinomial over the block | multinomial over
    the masked positions."""
    counted: Literal["schedule", "turns", "commit", "carry"] = "turns"
    """How the published code counts forwards: all of its schedule | those made | one more a block and a prefill |
    the schedule and what its last step leaves."""
    approximate: bool = False
    """Not the family's published sampler: tier A."""
    early_stop: bool = False
    stop_in_block: bool = False
    """Also stop inside a block, when an EOS is written that has no mask before it."""
    cut_at_eos: bool = False
    """The published sampler returns nothing after the first EOS, early stop or not."""
    keep_text_after_eos: bool = False
    stop: tuple[str, ...] = ()
    eos_ids: tuple[int, ...] = ()
    record_trajectory: bool = False
    record_margin: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    @property
    def draws(self) -> bool:
        """Does this rule use random numbers?"""
        return not self.greedy or self.which == "random" or self.order_temperature > 0 or self.how_many == "bernoulli"

    @property
    def choice(self) -> tuple[object, ...]:
        """Rows that agree in this decide by the same tensor operations."""
        return (
            self.how_many,
            self.which,
            *((self.steps_per_block, self.eps) if self.how_many in ("carry", "bernoulli") else ()),
            self.temperature,
            self.top_k,
            self.top_p,
            self.top_p_first,
            self.confidence_of,
            self.order_temperature,
            self.threshold,
            self.factor,
            self.entropy_bound,
            self.suppressed,
            self.uncounted,
            self.confidence_float64,
            self.commit_first,
            self.edit_threshold,
            self.reference_draws,
            self.draw_law,
            self.cache,
            self.record_margin,
        )

    @property
    def tie_score(self) -> float | None:
        """A score that several positions have at once by design, so that published results depend on how ``torch.topk``
        orders them: confidence 0 of removed tokens, and certainty after top-k or top-p left one token."""
        if self.how_many != "quota" or self.order_temperature > 0 or self.schedule == "block":
            return None
        if self.uncounted:
            return 0.0 if self.which == "confidence" else None
        if self.confidence_of == "kept" and (self.top_p < 1 or self.top_k > 0):
            return 0.0 if self.which == "entropy" else 1.0
        return None

    @property
    def forwards_per_step(self) -> int:
        return 2 if self.cfg_scale > 0 else 1

    @property
    def until_full(self) -> bool:
        """Does a block end when it is full, rather than when its schedule is done?"""
        return self.schedule == "block" or self.how_many != "quota"

    @property
    def most_steps(self) -> int:
        """Most forwards that a block takes unless the model predicts the mask token itself: every one writes a token, a
        schedule is as long as it is, and a full block is edited for so many."""
        if self.edit_threshold is not None:
            return self.block_length + self.max_post_steps
        if self.how_many in ("threshold", "factor", "entropy_bound", "carry"):
            return self.block_length
        if self.how_many == "bernoulli":
            return self.steps_per_block
        return min(self.steps_per_block, self.block_length)

    @property
    def step_bound(self) -> int:
        """Most forwards in one block: the schedule, or, where a block goes on until it is full, enough that only a
        model which keeps predicting the mask token itself runs into it (the references would never end)."""
        scheduled = self.how_many in ("quota", "bernoulli", "dynamic", "sequential")
        if scheduled and self.edit_threshold is None:
            return self.steps_per_block
        return self.steps_per_block + 2 * self.block_length + self.max_post_steps

    def blocks(self, prompt: int) -> int:
        """Blocks that are decoded for a prompt of so many tokens."""
        if self.grid == "response":
            return self.gen_length // self.block_length
        return -(-(prompt + self.gen_length) // self.block_length) - prompt // self.block_length


def quota_schedule(masks: int, steps: int) -> list[int]:
    """How many positions each step unmasks: ``masks // steps``, the remainder one each to the first steps.

    Source: ML-GSAI/LLaDA generate.py, get_num_transfer_tokens.
    """
    base, rest = divmod(masks, steps)
    return [base + (i < rest) for i in range(steps)]


def time_ratios(steps: int, eps: float) -> torch.Tensor:
    """``1 - s / t`` of every step on the grid from 1 down to eps, 1 in the last: float32 [steps].

    Float32 on purpose: other arithmetic truncates to other integers (Dream generation_utils.py, _sample).
    """
    t = torch.linspace(1, eps, steps + 1)
    ratio = 1 - t[1:] / t[:-1]
    ratio[-1] = 1.0
    return ratio


def time_schedule(masks: int, steps: int, eps: float, first: int = 0) -> list[int]:
    """Dream's schedule: step i unmasks ``int(masks left * (1 - s / t))``, the last one all; from step ``first`` on."""
    quota, left = [], masks
    for ratio in time_ratios(steps, eps)[first:]:
        n = int(torch.tensor(float(left)) * ratio)
        quota.append(n)
        left -= n
    return quota
