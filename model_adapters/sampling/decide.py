"""The decision after a forward: tokens, and the positions to write.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import COUNTER, Draws
from dare_bench.model_adapters.sampling.published import Drawn
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.ties import Nudge, near_ties
from dare_bench.model_adapters.sampling.tokens import propose


def decide(
    kinds: Sequence[Sampler],
    groups: Sequence[Tensor],
    logits_NV: Tensor,
    positions: Positions,
    rows: Sequence[RowState],
) -> Decision:
    """Tokens and positions by each row's sampler. Rows with equal ``Sampler.decision`` are decided together: those of
    one of ``kinds``, whose positions are one of ``groups`` (indices). ``rows``: where published random numbers are
    replayed."""
    if len(kinds) == 1:
        return decide_alike(kinds[0], logits_NV, positions, _draws(kinds[0], logits_NV, positions, rows))
    token_N, confidence_N = torch.zeros_like(positions.row_N), torch.zeros_like(positions.row_N, dtype=torch.float64)
    logprob_N, score_N = torch.zeros_like(confidence_N), torch.zeros_like(confidence_N)
    written_N, near_R = torch.zeros_like(positions.masked_N), torch.zeros_like(positions.deterministic_R)
    ended_R, finite = torch.zeros_like(near_R), torch.ones_like(near_R[0])
    for sampler, group_N in zip(kinds, groups, strict=True):
        if len(group_N):
            at = positions.only(group_N)
            part = decide_alike(sampler, logits_NV[group_N], at, _draws(sampler, logits_NV, at, rows))
            token_N[group_N], written_N[group_N] = part.token_N, part.written_N
            confidence_N[group_N], logprob_N[group_N] = part.confidence_N.double(), part.logprob_N
            score_N[group_N] = part.score_N.double()
            finite = finite & part.finite
            ended_R = ended_R if part.ended_R is None else ended_R | part.ended_R
            near_R = near_R if part.near_R is None else near_R | part.near_R
    return Decision(token_N, confidence_N, logprob_N, score_N, written_N, finite, ended_R, near_R)


def _draws(sampler: Sampler, logits_NV: Tensor, positions: Positions, rows: Sequence[RowState]) -> Draws:
    """The source of a sampler's random numbers."""
    if not sampler.replays:
        return COUNTER
    return Drawn.of(sampler.reference.noise, sampler.decision, positions, rows, logits_NV.shape[1])


def decide_alike(sampler: Sampler, logits_NV: Tensor, positions: Positions, draws: Draws = COUNTER) -> Decision:
    """The decision for rows with one ``Sampler.decision``."""
    policy, strategy = sampler.tokens, sampler.strategy

    def offered(nudge: Nudge | None = None) -> Offer:
        return strategy.score.order(
            propose(logits_NV, policy, strategy.score, positions, draws, nudge), positions, draws
        )

    offer = offered()
    if not sampler.record_near_tie:
        return strategy.select(offer, positions)
    before = deepcopy(positions.memories)

    def again(nudge: Nudge) -> Decision:
        return strategy.select(offered(nudge), replace(positions, memories=deepcopy(before)))

    decision = strategy.select(offer, positions)
    return replace(decision, near_R=near_ties(decision, offer.token_N, positions, again, policy.greedy))
