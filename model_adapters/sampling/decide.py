"""The decision after a forward: tokens, and the positions to write.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import Draws
from dare_bench.model_adapters.sampling.logits import Nudge
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.tokens import propose


@dataclass(frozen=True)
class DecisionGroup:
    """The open positions of rows with an equal ``Sampler.decision``, which are decided together. ``at_N``: their
    indices among all open positions (None: they are all). ``memories``: what a strategy that remembers kept of each
    row's block before this forward."""

    sampler: Sampler
    logits_NV: Tensor
    positions: Positions
    draws: Draws
    at_N: Tensor | None = None
    memories: Sequence[Any] = ()

    def propose(self, nudge: Nudge | None = None) -> Offer:
        """What the forward offers; ``nudge`` moves the logits first."""
        score = self.sampler.strategy.score
        offer = propose(self.logits_NV, self.sampler.tokens, score, self.positions, self.draws, nudge)
        return score.order(offer, self.draws)

    def select(self, offer: Offer) -> Decision:
        """What is written."""
        return self.sampler.strategy.select(offer)

    def again(self, nudge: Nudge) -> Decision:
        """What would have been written on moved logits."""
        group = replace(self, positions=replace(self.positions, memories=deepcopy(self.memories)))
        return group.select(group.propose(nudge))


def joined(groups: Sequence[DecisionGroup], decisions: Sequence[Decision], positions: Positions) -> Decision:
    """The decisions of all groups as one."""
    if len(decisions) == 1 and groups[0].at_N is None:
        return decisions[0]
    token_N, confidence_N = torch.zeros_like(positions.row_N), torch.zeros_like(positions.row_N, dtype=torch.float64)
    written_N, after_N = torch.zeros_like(positions.masked_N), positions.current_N.clone()
    score_N = confidence_N.clone()
    logprob_N = None if all(part.logprob_N is None for part in decisions) else confidence_N.clone()
    ended_R = torch.zeros_like(positions.deterministic_R)
    carried = {name: x_N.clone() for name, x_N in positions.carried.items()}
    for group, part in zip(groups, decisions, strict=True):
        at_N = group.at_N
        token_N[at_N], written_N[at_N], after_N[at_N] = part.token_N, part.written_N, part.after_N
        confidence_N[at_N], score_N[at_N] = part.confidence_N.double(), part.score_N.double()
        if logprob_N is not None and part.logprob_N is not None:
            logprob_N[at_N] = part.logprob_N
        ended_R = ended_R if part.ended_R is None else ended_R | part.ended_R
        for name, x_N in part.carried.items():
            carried[name][at_N] = x_N
    return Decision(token_N, confidence_N, score_N, written_N, after_N, logprob_N, ended_R, carried)
