"""Positions whose predictions have become stable.

Shape letters: N open positions, R rows, H forwards, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer
from dare_bench.model_adapters.sampling.scores import PositionScore, WithDistribution
from dare_bench.model_adapters.sampling.strategies import Carried
from dare_bench.model_adapters.sampling.strategies.published import PaperSettings
from dare_bench.model_adapters.sampling.strategies.whole import WholeAnswer

SMALL = 1e-12
BEFORE, FORWARDS = "klass_distribution", "klass_forwards"


def _published(family: str, benchmark: str, confidence: float, divergence: float) -> PaperSettings:
    """The paper's settings of a benchmark."""
    answer = {"gen_length": 256, "steps": 256} | ({"block_length": 64} if family == "llada" else {})
    fields = {"conf_threshold": confidence, "kl_threshold": divergence}
    return PaperSettings((family,), (benchmark,), fields, answer)


class Klass(WholeAnswer):
    """The positions of the block with a confidence above ``conf_threshold``, of which the distribution has moved by
    less than ``kl_threshold`` nats in each of the last ``kl_history_length`` forwards; without any, as many of the
    best as the block's schedule says (KLASS; approximate).

    Distributions are followed in all blocks. The first forwards of a block, one less than the history, find none, as
    in the published code for LLaDA. The last planned forward of a block writes what is left, which the published code
    leaves masked; with one step for each token, which is its setting, both are the same.
    """

    name = "klass"
    source = "KLASS, arXiv 2511.05664, shkim0116/KLASS llada_klass.py and dream_klass.py"
    rule = "confident ones whose distribution is stable"
    float64 = True
    keeps = frozenset({"steps"})
    published = (
        _published("llada", "GSM8K", 0.6, 0.015),
        _published("llada", "MATH", 0.6, 0.01),
        _published("llada", "HumanEval", 0.9, 0.01),
        _published("llada", "MBPP", 0.7, 0.01),
        _published("dream", "GSM8K", 0.9, 0.001),
        _published("dream", "MATH", 0.9, 0.005),
        _published("dream", "HumanEval", 0.8, 0.001),
        _published("dream", "MBPP", 0.9, 0.001),
    )

    conf_threshold: float = Field(default=0.9, ge=0, le=1)
    kl_threshold: float = Field(default=0.01, ge=0)
    kl_history_length: int = Field(default=2, ge=1, le=64)
    unmask_strategy: Literal["all", "max_conf", "min_kl"] = "all"
    """Write all of them, or only the one of highest confidence or of lowest last divergence."""

    @property
    def score(self) -> PositionScore:
        return WithDistribution()

    @property
    def divergences(self) -> str:
        """The name of those of the last forwards: rows with other histories share a batch."""
        return f"klass_divergences_{self.kl_history_length}"

    def carries(self, vocab: int) -> Mapping[str, Carried]:
        return {
            BEFORE: Carried(0.0, size=(vocab,)),
            self.divergences: Carried(float("inf"), size=(self.kl_history_length,)),
            FORWARDS: Carried(0, torch.long),
        }

    def select(self, offer: Offer) -> Decision:
        positions, now_NV = offer.positions, offer.probability_NV
        assert now_NV is not None
        before_NV = positions.carried[BEFORE]
        moved_N = (now_NV * ((now_NV + SMALL).log() - (before_NV + SMALL).log())).sum(-1)
        history_NH = torch.cat([positions.carried[self.divergences][:, 1:], moved_N[:, None]], dim=1)
        current_N, forwards_N = self.current(positions), positions.carried[FORWARDS]
        ready_N = current_N & (history_NH < self.kl_threshold).all(1) & (offer.confidence_N > self.conf_threshold)
        ready_N &= forwards_N >= self.kl_history_length - 1
        has_ready_R = positions.count(ready_N) > 0
        if self.unmask_strategy != "all":
            best_N = offer.confidence_N if self.unmask_strategy == "max_conf" else -moved_N
            ready_N &= rank(best_N, positions, ready_N).rank_N == 0
        due_N = rank(offer.score_N, positions, current_N).rank_N < self._due(forwards_N)
        written_N = torch.where(has_ready_R[positions.row_N], ready_N, current_N & due_N)
        carried = {BEFORE: now_NV, self.divergences: history_NH, FORWARDS: forwards_N + current_N}
        return offer.write(written_N, carried=carried)

    def _due(self, forwards_N: Tensor) -> Tensor:
        """Positions that the schedule of a block writes after so many forwards, [N]."""
        base, rest = divmod(self._block_length, self.steps_per_block)
        due_N = base + (forwards_N < rest).long()
        return torch.where(forwards_N + 1 >= self.steps_per_block, self._block_length, due_N)
