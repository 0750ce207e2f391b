"""Choice of tokens: logits of open positions -> proposed tokens, confidences, scores.

Computed in chunks of positions, so that there is never a float64 tensor of all positions and the vocabulary.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.sampling.filters import keep
from dare_bench.model_adapters.sampling.scores import PositionScore
from dare_bench.model_adapters.sampling.ties import Nudge

CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class TokenPolicy:
    """How a position's token is chosen: argmax at temperature 0 or top_k 1, else a draw."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    top_p_first: bool = False
    confidence_of: Literal["plain", "tempered", "kept"] = "plain"
    """The distribution of the confidence: softmax(logits) | at temperature | also after top-k and top-p."""
    suppressed: tuple[int, ...] = ()
    """Ids whose logits are -inf before a token is chosen."""
    uncounted: tuple[int, ...] = ()
    """Ids whose logits are -inf after the token is chosen, when its confidence is computed."""
    confidence_float64: bool = False
    alternatives: int = 0
    """The number of most probable tokens of each position that the strategy sees."""
    greedy_first: bool = False
    """The first token of a block is the argmax at any temperature."""
    cooled_to: float | None = None
    """The temperature falls to this in equal steps: it would reach it after ``cooling_steps`` forwards of a block."""
    cooling_steps: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    def temperatures(self, step_N: Tensor) -> Tensor | float:
        """The temperature of positions after ``step_N`` forwards of their blocks, float32 [N, 1], or that of all."""
        if self.cooled_to is None or self.cooled_to == self.temperature:
            return self.temperature
        left_N = (self.cooling_steps - step_N).clamp(min=1) / self.cooling_steps
        return (self.cooled_to + (self.temperature - self.cooled_to) * left_N)[:, None]


@dataclass(frozen=True)
class OpenPositions:
    """The open positions of one forward, the rows one after another.

    ``position_N`` counts from the first response token; ``masked_N`` is False where a written token may be replaced
    (editing). Of all rows of the batch: the ``key_R`` of a row's random numbers, forwards of the block (``step_R``) and
    of the row (``turn_R``) so far, positions due by schedule, first column of the block, and length of the canvas.
    """

    row_N: Tensor
    column_N: Tensor
    position_N: Tensor
    current_N: Tensor
    masked_N: Tensor
    key_R: Tensor
    step_R: Tensor
    turn_R: Tensor
    quota_R: Tensor
    begin_R: Tensor
    lengths: Sequence[int]
    score_N: Tensor | None = None
    """If a strategy remasks: the score with which a written token was chosen, float64; inf where it was given."""
    memories: Sequence[Any] = ()
    """By row, what a strategy that remembers keeps of its block."""
    live_N: Tensor | None = None
    """In forwards of static shape: False at positions that are not open now. None: all are open."""
    slot_N: Tensor | None = None
    """Counts the positions of each row; None: not counted yet."""
    width: int = 0
    """The most positions of a row, where they are counted."""

    @property
    def rows(self) -> int:
        return len(self.key_R)

    def live(self, which_N: Tensor) -> Tensor:
        """``which_N`` at open positions, else False."""
        return which_N if self.live_N is None else which_N & self.live_N

    def count(self, which_N: Tensor) -> Tensor:
        """The number of positions of each row where ``which_N`` is True, int64 [R]."""
        return torch.zeros_like(self.key_R).scatter_add_(0, self.row_N, which_N.long())

    def counted(self) -> OpenPositions:
        """These positions with ``slot_N`` and ``width``."""
        if self.slot_N is not None:
            return self
        count_R = torch.bincount(self.row_N, minlength=self.rows)
        place_N = torch.arange(len(self.row_N), device=self.row_N.device)
        first_R = torch.full_like(self.key_R, len(self.row_N)).scatter_reduce_(0, self.row_N, place_N, "amin")
        return replace(self, slot_N=place_N - first_R[self.row_N], width=max(int(count_R.max()), 1))

    @property
    def is_first_N(self) -> Tensor:
        """True at the first position of a block."""
        return self.column_N == self.begin_R[self.row_N]

    @property
    def in_block_N(self) -> Tensor:
        """False before the block."""
        return self.column_N >= self.begin_R[self.row_N]

    def only(self, which_N: Tensor) -> OpenPositions:
        names = ("row_N", "column_N", "position_N", "current_N", "masked_N", "score_N", "live_N", "slot_N")
        tensors = {name: getattr(self, name) for name in names}
        chosen: dict[str, Any] = {name: x_N if x_N is None else x_N[which_N] for name, x_N in tensors.items()}
        return replace(self, **chosen)

    def uniform(self, draw: Draw, which: slice = slice(None)) -> Tensor:
        """Uniform random numbers of this forward, float64 [N]."""
        row_N = self.row_N[which]
        return uniform(self.key_R[row_N], draw, self.turn_R[row_N], self.position_N[which])


@dataclass(frozen=True)
class Proposal:
    """For every open position: the proposed token, its confidence (float32 or float64), the log probability of the
    distribution that drew it (float64, nats; 0 for a greedy choice), and the score that ranks it."""

    token_N: Tensor
    confidence_N: Tensor
    logprob_N: Tensor
    score_N: Tensor
    finite: Tensor
    """False, [], if any position has no finite largest logit."""
    best_NK: Tensor | None = None
    """The K most probable tokens of each position, if the policy asks for them."""
    best_confidence_NK: Tensor | None = None
    """Their confidences."""


PER_POSITION = ("token_N", "confidence_N", "logprob_N", "score_N")
BEST = ("best_NK", "best_confidence_NK")


def propose(
    logits_NV: Tensor,
    policy: TokenPolicy,
    score: PositionScore,
    positions: OpenPositions,
    *,
    noise: Any = None,
    nudge: Nudge | None = None,
) -> Proposal:
    """The proposed tokens of all open positions.

    Args:
        noise: the published code's random numbers, if they are replayed (``reference.TokenNoise``).
        nudge: moves the logits first.
    """
    rows = max(1, CHUNK_ELEMENTS // logits_NV.shape[1])
    temperature = policy.temperatures(positions.step_R[positions.row_N])
    parts = []
    for i in range(0, max(1, logits_NV.shape[0]), rows):
        cut = slice(i, i + rows)
        uniform_N = None if policy.greedy or noise is not None else positions.uniform(Draw.TOKEN, cut)
        at = temperature[cut] if isinstance(temperature, Tensor) else temperature
        part_NV = logits_NV[cut] if nudge is None else nudge.of(logits_NV[cut], cut)
        part = _propose(part_NV, policy, at, score, uniform_N, noise and noise.only(cut))
        if policy.greedy_first and not policy.greedy:
            part = _greedy_first(part, part_NV, positions.is_first_N[cut])
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in PER_POSITION}
    if policy.alternatives:
        tensors |= {name: torch.cat([getattr(part, name) for part in parts]) for name in BEST}
    finite = torch.stack([part.finite for part in parts]).all()
    return Proposal(**tensors, finite=finite)


def _propose(
    logits_NV: Tensor,
    policy: TokenPolicy,
    temperature: Tensor | float,
    score: PositionScore,
    uniform_N: Tensor | None,
    noise: Any,
) -> Proposal:
    best: dict[str, Any] = {}
    if policy.alternatives:
        best["best_NK"] = logits_NV.topk(policy.alternatives, -1).indices
    logits_NV = _without(logits_NV.float(), policy.suppressed)
    best_N, token_N = logits_NV.max(-1)
    finite = torch.isfinite(best_N).all()  # a NaN makes the maximum NaN
    tempered_NV = logits_NV / temperature if policy.temperature > 0 else logits_NV
    kept_NV = tempered_NV
    if policy.temperature > 0 or policy.confidence_of == "kept":
        kept_NV = keep(tempered_NV, policy.top_k, policy.top_p, policy.top_p_first)
    logprob_N = torch.zeros_like(best_N, dtype=torch.float64)
    if noise is not None and not policy.greedy:
        token_N, logprob_N = noise.tokens(logits_NV, kept_NV, policy.temperature)
    elif not policy.greedy:
        assert uniform_N is not None
        token_N, logprob_N = inverse_cdf(kept_NV, uniform_N)
    # The published code removes these from the softmax after the token was chosen: a removed token has confidence 0.
    source_NV = {"plain": logits_NV, "tempered": tempered_NV, "kept": kept_NV}[policy.confidence_of]
    dtype = torch.float64 if policy.confidence_float64 else torch.float32
    probability_NV = torch.softmax(_without(source_NV, policy.uncounted), -1, dtype=dtype)
    confidence_N = probability_NV.gather(1, token_N[:, None])[:, 0]
    score_N = score.of(probability_NV, confidence_N)
    if best:
        best["best_confidence_NK"] = probability_NV.gather(1, best["best_NK"])
    return Proposal(token_N, confidence_N, logprob_N, score_N, finite, **best)


def _greedy_first(proposal: Proposal, logits_NV: Tensor, is_first_N: Tensor) -> Proposal:
    """The proposal with the argmax at the first positions of blocks, which are written whatever their scores are."""
    return replace(
        proposal,
        token_N=torch.where(is_first_N, logits_NV.argmax(-1), proposal.token_N),
        logprob_N=torch.where(is_first_N, 0.0, proposal.logprob_N),
    )


def inverse_cdf(logits_NV: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """A draw from softmax(logits) by one uniform for each position, and its log probability in nats."""
    probability = torch.softmax(logits_NV.double(), -1)
    cdf = probability.cumsum(-1)
    cdf /= cdf[:, -1:].clone()
    token = torch.searchsorted(cdf, uniform_N[:, None], right=True).clamp_(max=cdf.shape[1] - 1)
    return token[:, 0], probability.gather(1, token)[:, 0].log()


def _without(logits_NV: Tensor, ids: Sequence[int]) -> Tensor:
    if not ids:
        return logits_NV
    logits_NV = logits_NV.clone()
    for token in ids:  # a list of them as an index would be copied to the device in each forward
        logits_NV[:, token].fill_(float("-inf"))
    return logits_NV


def check_finite(best_N: Tensor) -> None:
    """Raise ModelOutputError unless the largest logits are finite; a NaN in a row makes its maximum NaN."""
    if not bool(torch.isfinite(best_N).all()):
        bad = best_N[~torch.isfinite(best_N)][0].item()
        raise ModelOutputError(
            f"the network gave {bad} as its largest logit at {int((~torch.isfinite(best_N)).sum())} position(s); "
            "logits must be finite: check the weights (dare-bench validate) and the dtype"
        )
