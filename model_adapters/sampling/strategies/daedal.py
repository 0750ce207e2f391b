"""The canvas grows where the model needs room.

Shape letters: N open positions, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import Carried
from dare_bench.model_adapters.sampling.strategies.published import PaperSettings
from dare_bench.model_adapters.sampling.strategies.whole import WholeAnswer

INSERTED = "daedal_inserted"
"""Masks to be inserted behind a position; below 0: that many EOS."""


class Daedal(WholeAnswer):
    """A canvas that begins with ``initial_gen_length`` masks and grows up to ``gen_length`` (DAEDAL; approximate).

    First, ``expansion_factor`` masks are appended while EOS has a mean probability below ``eos_confidence_threshold``
    at the last ``eos_check_tokens`` positions that predict it (missing ones count as 0), and then half as many EOS.
    After that, in the first block with masks: the positions with a confidence above ``high_conf_threshold`` are
    written, at least one; while EOS has less than ``expand_eos_confidence_threshold``, the least confident of the
    others, if it is below ``low_conf_threshold``, becomes ``expansion_factor`` masks. What moves beyond ``gen_length``
    is lost.
    """

    name = "daedal"
    source = "DAEDAL, arXiv 2508.00819, Li-Jinsong/DAEDAL models/LLaDA_DAEDAL.py generate"
    rule = "confident ones, on a canvas that grows"
    edits = True
    grows = True
    alternatives = 2
    published = (
        PaperSettings(
            ("llada",),
            ("GSM8K", "MATH", "HumanEval", "MBPP"),
            {},
            {"gen_length": 2048, "block_length": 32},
            "the published prompts end with '<reasoning> ' after the chat template",
        ),
    )

    initial_gen_length: int = Field(default=64, ge=1)
    high_conf_threshold: float = Field(default=0.9, ge=0, le=1)
    low_conf_threshold: float = Field(default=0.1, ge=0, le=1)
    expansion_factor: int = Field(default=8, ge=1)
    eos_confidence_threshold: float = Field(default=0.5, ge=0, le=1)
    expand_eos_confidence_threshold: float = Field(default=0.9, ge=0, le=1)
    eos_check_tokens: int = Field(default=32, ge=2)

    _most: int = PrivateAttr(default=1)

    def for_model(self, eos_ids: Sequence[int], length: int, answer: int) -> Self:
        copy = super().for_model(eos_ids, length, answer)
        copy._most = answer
        return copy

    def carries(self, vocab: int) -> Mapping[str, Carried]:
        return {INSERTED: Carried(0, torch.long)}

    def opening(self, answer: list[int]) -> list[int]:
        return answer[: self.initial_gen_length]

    def grown(self, row: Mapping[str, Tensor]) -> dict[int, int | list[int]]:
        inserted_L = row[INSERTED]
        at = inserted_L.nonzero()[:, 0].tolist()
        return {i: n if n > 0 else [self._eos_ids[0]] * -n for i, n in zip(at, inserted_L[at].tolist(), strict=True)}

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        row_N, answer_N = positions.row_N, positions.live(positions.position_N >= 0)
        length_R = positions.count(answer_N)
        room_R = self._most - length_R
        masked_N = answer_N & positions.masked_N
        growing_R = (positions.count(masked_N) == length_R) & (room_R > 0)
        sure_R = self._eos_confidence(offer)
        last_N = answer_N & (positions.position_N == length_R[row_N] - 1)
        appended_R = torch.where(
            sure_R < self.eos_confidence_threshold,
            room_R.clamp(max=self.expansion_factor),
            -room_R.clamp(max=self.eos_check_tokens // 2),
        )
        written_N, token_N, low_N = self._denoise(offer)
        expands_R = (sure_R < self.expand_eos_confidence_threshold) & (room_R > 0)
        expanded_N = torch.where(low_N & expands_R[row_N], self.expansion_factor - 1, 0)
        inserted_N = torch.where(growing_R[row_N], torch.where(last_N, appended_R[row_N], 0), expanded_N)
        return offer.write(written_N & ~growing_R[row_N], token_N=token_N, carried={INSERTED: inserted_N})

    def _eos_confidence(self, offer: Offer) -> Tensor:
        """The mean probability of EOS at the last positions that predict it; missing ones count as 0. [R]"""
        positions = offer.positions
        assert offer.best_NK is not None and offer.best_confidence_NK is not None
        is_eos_N = positions.live(self.is_eos(offer.best_NK[:, 0]) & (positions.position_N >= 0))
        last_N = is_eos_N & (rank(positions.position_N.double(), positions, is_eos_N).rank_N < self.eos_check_tokens)
        counted_N = torch.where(last_N, offer.best_confidence_NK[:, 0], 0.0)
        sum_R = counted_N.new_zeros(positions.rows).scatter_add_(0, positions.row_N, counted_N)
        return sum_R / self.eos_check_tokens

    def _denoise(self, offer: Offer) -> tuple[Tensor, Tensor, Tensor]:
        """The positions that are written and their tokens, and the least confident one of each row's others, if it is
        below the lower threshold: [N] each."""
        positions = offer.positions
        assert offer.best_NK is not None
        current_N, is_mask_N = self.current(positions), offer.token_N == positions.mask_id
        token_N = torch.where(is_mask_N, offer.best_NK[:, 1], offer.token_N)
        written_N = current_N & ~is_mask_N & (offer.confidence_N > self.high_conf_threshold)
        some_R = positions.count(written_N) > 0
        order_N = torch.where(is_mask_N, offer.confidence_N - 2, offer.confidence_N)
        best_N = current_N & (rank(order_N, positions, current_N).rank_N == 0)
        written_N = torch.where(some_R[positions.row_N], written_N, best_N)
        left_N = current_N & ~written_N
        low_N = left_N & (offer.confidence_N < self.low_conf_threshold)
        return written_N, token_N, low_N & (rank(-offer.confidence_N, positions, left_N).rank_N == 0)

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        grows_R = positions.count(decision.carried[INSERTED] != 0) > 0
        return grows_R | super().finished(positions, decision)
