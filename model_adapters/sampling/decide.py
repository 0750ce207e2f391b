"""The decision after a forward: tokens, and the positions to write.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.reference import TokenNoise, replayed_noise
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.ties import Nudge, near_ties
from dare_bench.model_adapters.sampling.tokens import OpenPositions, Proposal, propose

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.step import StepState
from dare_bench.model_adapters.sampling.state import RowState


@dataclass(frozen=True)
class Decision:
    """The decision at the open positions, each with its proposed token and score (see ``Proposal``), also where it is
    not written, or the mask id where a written token is masked again; ``logprob_N`` is NaN where the token is not the
    one that was drawn."""

    token_N: Tensor
    confidence_N: Tensor
    logprob_N: Tensor
    score_N: Tensor
    written_N: Tensor
    finite: Tensor
    """False, [], if a largest logit is NaN or infinite."""
    ended_R: Tensor | None = None
    """Rows whose block ends with this forward, whatever it holds (None: no row)."""
    near_R: Tensor | None = None
    """Rows in which rounding could have changed it; None: not recorded."""


def decide(state: StepState, logits_NV: Tensor, positions: OpenPositions) -> Decision:
    """Tokens and positions by each row's sampler; rows with equal ``Sampler.decision`` are decided together."""
    if len(state.kinds) == 1:
        return decide_alike(state.kinds[0], logits_NV, positions, state.rows, state.mask_id)
    token_N, confidence_N = torch.zeros_like(positions.row_N), torch.zeros_like(positions.row_N, dtype=torch.float64)
    logprob_N, score_N = torch.zeros_like(confidence_N), torch.zeros_like(confidence_N)
    written_N, near_R = torch.zeros_like(positions.row_N, dtype=torch.bool), torch.zeros_like(state.going_R)
    ended_R, finite = torch.zeros_like(state.going_R), torch.ones_like(state.finite)
    for sampler, group_N in zip(state.kinds, state.groups(positions), strict=True):
        if len(group_N):
            part = decide_alike(sampler, logits_NV[group_N], positions.only(group_N), state.rows, state.mask_id)
            token_N[group_N], written_N[group_N] = part.token_N, part.written_N
            confidence_N[group_N], logprob_N[group_N] = part.confidence_N.double(), part.logprob_N
            score_N[group_N] = part.score_N.double()
            finite &= part.finite
            ended_R = ended_R if part.ended_R is None else ended_R | part.ended_R
            near_R = near_R if part.near_R is None else near_R | part.near_R
    return Decision(token_N, confidence_N, logprob_N, score_N, written_N, finite, ended_R, near_R)


def decide_alike(
    sampler: Sampler, logits_NV: Tensor, positions: OpenPositions, rows: Sequence[RowState], mask_id: int
) -> Decision:
    """The decisions of rows with one ``Sampler.decision``."""
    token_noise = order_noise = None
    if sampler.replays:
        noise_NV, order_noise = replayed_noise(sampler.decision, positions, rows, logits_NV.shape[1], logits_NV.device)
        token_noise = None if noise_NV is None else TokenNoise(sampler.reference.noise, noise_NV)
    policy, score = sampler.tokens, sampler.strategy.score

    def proposed(nudge: Nudge | None = None) -> Proposal:
        built = propose(logits_NV, policy, score, positions, noise=token_noise, nudge=nudge)
        return score.order(built, positions, order_noise)

    proposal = proposed()
    if not sampler.record_near_tie:
        return _selected(sampler, proposal, positions, mask_id)
    before = [deepcopy(positions.memories) for _ in range(4)] if sampler.strategy.remembers else []

    def again(nudge: Nudge) -> Decision:
        at = replace(positions, memories=before.pop()) if before else positions
        return _selected(sampler, proposed(nudge), at, mask_id)

    decision = _selected(sampler, proposal, positions, mask_id)
    return replace(decision, near_R=near_ties(decision, proposal.token_N, positions, again, policy.greedy))


def _selected(sampler: Sampler, proposal: Proposal, positions: OpenPositions, mask_id: int) -> Decision:
    """What a strategy decides on a proposal."""
    selection = sampler.strategy.select(proposal, positions)
    token_N = proposal.token_N if selection.token_N is None else selection.token_N
    confidence_N, logprob_N = proposal.confidence_N, proposal.logprob_N
    if selection.token_N is not None and sampler.tokens.temperature > 0:
        other_N = torch.where(token_N == mask_id, 0.0, float("nan"))
        logprob_N = torch.where(token_N == proposal.token_N, logprob_N, other_N)
    if selection.greedy_N is not None and proposal.best_confidence_NK is not None:
        confidence_N = torch.where(selection.greedy_N, proposal.best_confidence_NK[:, 0], confidence_N)
        logprob_N = torch.where(selection.greedy_N, 0.0, logprob_N)
    decision = Decision(
        token_N,
        confidence_N,
        logprob_N,
        proposal.score_N,
        positions.live(selection.written_N),
        proposal.finite,
        selection.ended_R,
    )
    return decision if selection.remasked_N is None else remasked(decision, positions, selection.remasked_N, mask_id)


def remasked(decision: Decision, positions: OpenPositions, where_N: Tensor, mask_id: int) -> Decision:
    """The decision with masks over the written tokens at ``where_N``; their recorded confidence is the score with which
    they were written."""
    assert positions.score_N is not None
    return replace(
        decision,
        token_N=torch.where(where_N, mask_id, decision.token_N),
        confidence_N=torch.where(where_N, positions.score_N, decision.confidence_N.double()),
        logprob_N=torch.where(where_N, 0.0, decision.logprob_N),
        written_N=decision.written_N | where_N,
    )
