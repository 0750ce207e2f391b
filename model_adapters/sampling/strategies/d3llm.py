"""Several blocks are open at the same time.

Shape letters: N open positions, R rows, B blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.scores import NegativeEntropy, PositionScore
from dare_bench.model_adapters.sampling.strategies import Carried
from dare_bench.model_adapters.sampling.strategies.published import PaperSettings
from dare_bench.model_adapters.sampling.strategies.whole import WholeAnswer

OPENED = "d3llm_opened"


class D3llm(WholeAnswer):
    """In all open blocks, the position of the lowest entropy and the others up to ``threshold`` nats; another block
    opens, at most one a forward, when a share of ``block_add_threshold`` of the last open one is written. In the first
    block with masks whose predecessor is written to ``decoded_token_threshold`` at least one position is written
    (d3LLM's multi-block decoding without its cache; approximate).

    ``early_stop``: everything behind the first EOS becomes EOS.
    """

    name = "d3llm"
    source = "d3LLM, arXiv 2601.07568, hao-ai-lab/d3LLM d3llm_llada_generate_util.py generate_multi_block"
    rule = "low entropies in several open blocks"
    edits = True
    float64 = True
    published = tuple(
        PaperSettings(
            ("llada",),
            benchmarks,
            {
                "threshold": threshold,
                "block_add_threshold": add,
                "decoded_token_threshold": decoded,
                "early_stop": True,
            },
            {"gen_length": 256, "block_length": 32},
        )
        for benchmarks, threshold, add, decoded in (
            (("GSM8K", "MATH"), 0.5, 0.1, 0.95),
            (("HumanEval",), 0.5, 1.0, 1.0),
            (("MBPP",), 0.4, 0.1, 0.95),
        )
    )

    threshold: float = Field(default=0.5, ge=0)
    block_add_threshold: float = Field(default=0.5, ge=0, le=1)
    decoded_token_threshold: float = Field(default=0.5, ge=0, le=1)
    early_stop: bool = False

    @property
    def score(self) -> PositionScore:
        return NegativeEntropy()

    def carries(self, vocab: int) -> Mapping[str, Carried]:
        return {OPENED: Carried(0, torch.long)}

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        size_RB = self.by_block(positions.live(positions.position_N >= 0), positions)
        masks_RB = self.by_block(positions.live(positions.masked_N), positions)
        written_RB = 1 - masks_RB / size_RB.clamp(min=1)
        opened_R = self._opened(positions, written_RB, (size_RB > 0).sum(1))
        block_N, row_N = self.block_of(positions), positions.row_N
        candidate_N = positions.live(positions.masked_N & (block_N < opened_R[row_N]))
        written_N = candidate_N & (offer.score_N >= -self.threshold)
        written_N |= candidate_N & (rank(offer.score_N, positions, candidate_N).rank_N == 0)
        active_N = candidate_N & (block_N == self._first_active(masks_RB, written_RB, opened_R)[row_N])
        got_R = positions.count(active_N & written_N) > 0
        best_N = rank(offer.score_N, positions, active_N).rank_N == 0
        written_N |= active_N & best_N & ~got_R[row_N]
        carried = {OPENED: opened_R[row_N]}
        token_N = offer.token_N
        if self.early_stop and self._eos_ids:
            after_N = torch.where(written_N, token_N, positions.current_N)
            first_R = positions.first(positions.live(self.is_eos(after_N) & (positions.position_N >= 0)))
            behind_N = positions.live(positions.position_N > first_R[row_N])
            token_N, written_N = torch.where(behind_N, self._eos_ids[0], token_N), written_N | behind_N
        return offer.write(written_N, token_N=token_N, carried=carried)

    def _opened(self, positions: Positions, written_RB: Tensor, blocks_R: Tensor) -> Tensor:
        """The number of open blocks in this forward, [R]."""
        before_R = torch.ones_like(positions.key_R).scatter_reduce_(
            0, positions.row_N, positions.carried[OPENED], "amax"
        )
        last_R = written_RB.gather(1, before_R[:, None] - 1)[:, 0]
        return torch.minimum(before_R + (last_R >= self.block_add_threshold), blocks_R.clamp(min=1))

    def _first_active(self, masks_RB: Tensor, written_RB: Tensor, opened_R: Tensor) -> Tensor:
        """The first active block that has masks, [R]; behind all blocks if there is none."""
        number_B = torch.arange(masks_RB.shape[1], device=masks_RB.device)
        ready_RB = (
            torch.cat([torch.ones_like(written_RB[:, :1]), written_RB[:, :-1]], 1) >= self.decoded_token_threshold
        )
        active_RB = ready_RB & (masks_RB > 0) & (number_B < opened_R[:, None])
        return torch.where(active_RB, number_B, len(number_B)).amin(1)
