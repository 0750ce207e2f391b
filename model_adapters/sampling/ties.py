"""Near ties: could the rounding of floating-point numbers have changed a decision?

A decision is made again on logits that move by at most ``TIE``, in the directions that turn a choice: the token of a
position against those before it, those after it, and all others, and the positions that were written against those that
were not. It needs no second forward, and knows nothing of the strategy.

Shape letters: N open positions, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.model_adapters.answer_text import through_eos
from dare_bench.model_adapters.sampling.decide import DecisionGroup
from dare_bench.model_adapters.sampling.logits import Nudge, against_others
from dare_bench.model_adapters.sampling.records import FAR, Decision, Offer, Positions
from dare_bench.model_adapters.sampling.state import RowState

CERTAIN = 1e-3
"""A position is certain if its token has at least 1 minus this probability. The order of two certain positions does not
matter: both are written, and by Bonferroni's inequality neither can make the other uncertain, as far as a model's
conditional probabilities are consistent."""


def near_ties(group: DecisionGroup, offer: Offer, decision: Decision) -> Tensor:
    """Rows for which the decision is another one on moved logits, bool [R]."""
    token_N, greedy = offer.token_N, group.sampler.tokens.greedy
    up_N = torch.where(decision.written_N, -1.0, 1.0)
    nudges = [Nudge(token_N, -up_N, up_N, -up_N), Nudge(token_N, -1.0, 1.0, -1.0), *against_others(token_N, greedy)]
    near_R = torch.zeros_like(group.positions.key_R, dtype=torch.bool)
    for nudge in nudges:
        near_R |= _differ(decision, group.again(nudge), group.positions)
    return near_R


def _differ(a: Decision, b: Decision, positions: Positions) -> Tensor:
    """Rows that are decided otherwise, but for the order of certain positions, bool [R]."""
    swap_R = positions.count(a.written_N) == positions.count(b.written_N)
    certain_N = (torch.minimum(a.confidence_N, b.confidence_N) > 1 - CERTAIN) & swap_R[positions.row_N]
    other_N = a.written_N & b.written_N & (a.token_N != b.token_N)
    differ_R = positions.count(other_N | ((a.written_N != b.written_N) & ~certain_N)) > 0
    return differ_R if a.ended_R is None or b.ended_R is None else differ_R | (a.ended_R != b.ended_R)


@dataclass(eq=False)
class NearTies:
    """Which rows had a near tie that can change their answers, [R]: ``near_R``. In a row that is cut at an EOS
    (``cut_R``) without editing, no choice after an EOS without masks before it can: ``end_R`` is the position of the
    first EOS, else far behind the answer."""

    eos_ids: Sequence[int]
    near_R: Tensor
    cut_R: Tensor
    end_R: Tensor

    @classmethod
    def of(cls, rows: Sequence[RowState], by_row: Callable[..., Tensor], eos_ids: Sequence[int]) -> NearTies:
        """Those of rows so far, on the host. ``by_row`` makes a table of a value and a dtype for each."""
        policies = [(row.sampler.strategy, row.sampler.stopping) for row in rows]
        cut = (not strategy.edits and (stopping.early_stop or stopping.cut_at_eos) for strategy, stopping in policies)
        answers = [row.canvas[len(row.prompt) :].tolist() for row in rows]
        ends = [through_eos(answer, row.sampler.stopping.eos_ids) for answer, row in zip(answers, rows, strict=True)]
        return cls(
            eos_ids,
            near_R=by_row((row.near_tie for row in rows), torch.bool),
            cut_R=by_row(cut, torch.bool),
            end_R=by_row(FAR if end is None else end - 1 for end in ends),
        )

    def observe(self, groups: Sequence[DecisionGroup], offers: Sequence[Offer], decisions: Sequence[Decision]) -> None:
        """Note the near ties of a forward; nothing is changed if memory runs out."""
        records = list(zip(groups, offers, decisions, strict=True))
        near = [near_ties(*record) for record in records]
        for (group, _, decision), near_R in zip(records, near, strict=True):
            positions = group.positions
            mask_R = positions.first(positions.live(positions.masked_N & (positions.position_N >= 0)))
            self.near_R |= ~(self.cut_R & (self.end_R < mask_R)) & near_R
            self.note_ends(positions, decision)

    def note_ends(self, positions: Positions, decision: Decision) -> None:
        """Note where answers end after a decision."""
        is_end_N = torch.zeros_like(positions.masked_N)
        for eos in self.eos_ids:
            is_end_N |= decision.after_N == eos
        first_R = positions.first(is_end_N & (positions.position_N >= 0))
        self.end_R.copy_(torch.minimum(self.end_R, first_R))
