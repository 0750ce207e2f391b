"""Reproduction of published samplers: their random numbers, counts of forwards, and ties.

LLaDA and Fast-dLLM draw uniform float64 noise over the whole window, then uniform float32 for random remasking. The
others call ``torch.multinomial``, which on the CPU divides probabilities by exponential noise and takes the largest:
SDAR and LLaDA2 over all positions of the block, Fast-dLLM v2 over those of a sub-block, Dream over the masked ones
(``origin`` first draws which are written).

Shape letters: n open positions of the row, N of all rows, R rows, W window length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.stopping import through_eos
from dare_bench.model_adapters.sampling.strategies import Selection, WrappedStrategy
from dare_bench.model_adapters.sampling.tokens import OpenPositions, Proposal

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.state import RowState

NoiseLaw = Literal["gumbel", "block", "sub_block", "masked", "origin", "renoise"]
CountLaw = Literal["schedule", "turns", "commit", "commit_ahead", "carry"]


@dataclass(frozen=True)
class ReferencePolicy:
    """How the published code draws random numbers (used if ``replay``) and counts forwards.

    ``noise``: Gumbel noise over the window | multinomial over the block | over a sub-block, none for the block's first
    token | over the masked positions | the same after a draw of the written ones | over the block, and then random
    tokens for it. ``count``: the whole schedule | the
    forwards made | one more for each block and the prefill | one more for a prefill in the middle of a block and for
    the commit of the last block | the schedule and the positions that its last step leaves.
    """

    replay: bool = False
    noise: NoiseLaw = "gumbel"
    count: CountLaw = "turns"


# -- random numbers ---------


@dataclass(frozen=True)
class TokenNoise:
    """Noise of token draws: uniform float64 for Gumbel, exponential float32 for a multinomial."""

    law: NoiseLaw
    noise_NV: Tensor

    def only(self, which: slice) -> TokenNoise:
        return TokenNoise(self.law, self.noise_NV[which])

    def tokens(self, logits_NV: Tensor, kept_NV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Drawn tokens, from logits or from the filtered logits at this temperature, and their log probabilities in
        nats, float64."""
        if self.law == "gumbel":
            token_N = gumbel_argmax(logits_NV, self.noise_NV, temperature)
            return token_N, _logprob(logits_NV.double() / temperature, token_N)
        probability_NV = kept_NV.softmax(-1)
        if self.law in ("masked", "origin"):  # torch's Categorical normalizes once more
            probability_NV = probability_NV / probability_NV.sum(-1, keepdim=True)
        token_N = (probability_NV / self.noise_NV).argmax(-1)
        return token_N, _logprob(kept_NV.double(), token_N)


def _logprob(logits_NV: Tensor, token_N: Tensor) -> Tensor:
    """log softmax(logits) at one token of each position."""
    return logits_NV.log_softmax(-1).gather(1, token_N[:, None])[:, 0]


def gumbel_argmax(logits_NV: Tensor, uniform_NV: Tensor, temperature: float) -> Tensor:
    """``argmax exp(logits) / (-log U)^T`` in float64: a draw from softmax(logits / T).

    Float64 on purpose: the published form overflows in float32 (LLaDA generate.py, add_gumbel_noise).
    """
    noise = (-torch.log(uniform_NV)) ** temperature
    return (logits_NV.double().exp() / noise).argmax(-1)


Noise = tuple[Tensor | None, Tensor | None]
"""For tokens [n, V] and for the order of positions [n], of the row's open positions."""


def replayed_noise(
    decision: Hashable, positions: OpenPositions, rows: Sequence[RowState], vocab: int, device: torch.device
) -> Noise:
    """Noise from each row's stream, one row at a time. All rows of this decision draw, also those without open
    positions, as in the published code."""
    active = positions.row_N.unique_consecutive().tolist()
    idle = [i for i, row in enumerate(rows) if row.sampler.decision == decision and i not in active]
    drawn = [draw(rows[i], vocab, int(positions.quota_R[i])) for i in [*active, *idle]][: len(active)]
    tokens = [token_nV for token_nV, _ in drawn if token_nV is not None]
    orders = [order_n for _, order_n in drawn if order_n is not None]
    return torch.cat(tokens).to(device) if tokens else None, torch.cat(orders).to(device) if orders else None


def draw(row: RowState, vocab: int, due: int) -> Noise:
    """The noise of one forward. ``due`` is the number of positions that the step will write.

    Sources: LLaDA generate.py, Fast-dLLM generate.py, Dream generation_utils.py, SDAR generate.py, LLaDA2 generate.
    """
    assert row.generator is not None
    return _LAWS[row.sampler.reference.noise](row, row.generator, vocab, due)


def _exponential(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.empty(shape).exponential_(generator=generator)


def _gumbel(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    low, high = row.window()
    column_n, length = row.open_columns() - low, high - low
    token = order = None
    if row.sampler.tokens.temperature > 0:
        if row.sampler.attention.cache.draws_twice and row.opened:  # the first draw is not used
            torch.rand((1, length, vocab), dtype=torch.float64, generator=generator)
        token = torch.rand((1, length, vocab), dtype=torch.float64, generator=generator)[0][column_n]
    if row.sampler.strategy.score.random:
        order = torch.rand((1, length), generator=generator)[0][column_n]
    return token, order


def _block(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    return _exponential((row.sampler.block_length, vocab), generator)[row.open_columns() - row.begin], None


def _sub_block(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    column_n = row.open_columns()
    token = torch.ones((len(column_n), vocab))
    if column_n[0] == row.begin:  # the first token is the argmax
        return token, None
    size: int = row.sampler.strategy.inner.length  # type: ignore[attr-defined]
    low = row.begin + (int(column_n[0]) - row.begin) // size * size
    inside = column_n < low + size
    token[inside] = _exponential((size, vocab), generator)[column_n[inside] - low]
    return token, None


def _renoise(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    token = _exponential((row.sampler.block_length, vocab), generator)
    row.noise = torch.randint(vocab, (row.sampler.block_length,), generator=generator)
    return token[row.open_columns() - row.begin], None


def _masked(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    column_n = row.open_columns()
    token = None if row.sampler.tokens.temperature == 0 else _exponential((len(column_n), vocab), generator)
    if row.sampler.strategy.score.random and due:
        return token, _exponential((1, len(row.canvas)), generator)[0][column_n]
    return token, None


def _origin(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    count = len(row.open_columns())
    order = torch.rand(count, generator=generator)
    if row.sampler.tokens.temperature == 0:
        return None, order
    moved = order < row.sampler.strategy.ratio_S[row.step]  # type: ignore[attr-defined]
    token = torch.ones((count, vocab))
    token[moved] = _exponential((int(moved.sum()), vocab), generator)
    return token, order


_LAWS: Mapping[NoiseLaw, Callable[[RowState, torch.Generator, int, int], Noise]] = {
    "gumbel": _gumbel,
    "block": _block,
    "sub_block": _sub_block,
    "masked": _masked,
    "origin": _origin,
    "renoise": _renoise,
}


# -- counts of forwards ---------


def scheduled_forwards(row: RowState, schedule: Sequence[int]) -> list[int]:
    """The schedule without forwards that would write nothing: trailing ones, and the others too unless their random
    numbers are replayed."""
    last = max((i for i, due in enumerate(schedule) if due), default=-1)
    due = list(schedule[: last + 1])
    forwards = due if row.sampler.replays else [n for n in due if n]
    if row.sampler.reference.count == "turns":
        row.extra_forwards += len(due) - len(forwards)
    return forwards


def leave_block(row: RowState, vocab: int) -> None:
    """Skip the published sampler's forwards in a finished block, which change nothing. Their random numbers are drawn
    and discarded, so that a replayed stream stays aligned."""
    sampler = row.sampler
    planned = sampler.strategy.planned(sampler.block_length)
    if sampler.reference.count == "schedule":
        wasted = planned - row.step
    else:  # Fast-dLLM checks whether the block is full only after a second forward
        wasted = int(sampler.attention.cache.late_exit and row.step == 1 and planned > 1)
        row.extra_forwards += wasted
    if sampler.replays:
        for _ in range(wasted):
            row.step, row.opened = max(row.step, 1), True
            draw(row, vocab, 0)


def count_rejected(rows: Sequence[RowState], step_R: Tensor, masks_R: Tensor) -> None:
    """Fast-dLLM's Dream adds a forward for each position that its last scheduled step rejected."""
    for row, step, masks in zip(rows, step_R.tolist(), masks_R.tolist(), strict=False):  # then null rows
        if row.sampler.reference.count == "carry":
            planned = row.sampler.strategy.planned(row.sampler.block_length)
            row.extra_forwards += masks if step == planned else -int(step > planned)


def published_forwards(row: RowState) -> int:
    """The forwards that the published sampler would have counted for this row; those made where it has no such row."""
    sampler, prompt = row.sampler, len(row.prompt)
    if row.given is not None or row.cut:  # no published sampler starts from a given canvas, or ends in the middle
        turns = row.turns
    elif sampler.reference.count == "schedule":
        turns = sampler.blocks(prompt) * sampler.strategy.planned(sampler.block_length)
    elif sampler.reference.count == "commit":
        turns = row.turn + row.done_blocks + int(prompt >= sampler.block_length)
    elif sampler.reference.count == "commit_ahead":
        prefill = prompt > sampler.block_length and prompt % sampler.block_length > 0
        ended = through_eos(row.response(), sampler.stopping.eos_ids) is not None
        turns = row.turn + int(prefill) + int(not ended)
    else:
        turns = row.turn + row.extra_forwards
    return turns * sampler.forwards_per_turn


# -- ties ---------


class PublishedTies(WrappedStrategy):
    """Among positions with exactly ``tie_score``, write those that ``torch.topk`` selects.

    For ties by design: with ``confidence_eos_eot_inf`` several positions that propose EOS have confidence 0, after
    top-k or top-p several have confidence 1, and only topk decides between them. The result is a function of the row
    alone.
    """

    source: ClassVar[str] = "ML-GSAI/LLaDA generate.py; DreamLM/Dream generation_utils.py"

    tie_score: float

    @property
    def decision(self) -> Hashable:
        return self.tie_score, super().decision

    def select(self, proposal: Proposal, positions: OpenPositions) -> Selection:
        chosen, score_N = self.inner.select(proposal, positions), proposal.score_N
        tied_N, written_N = score_N == self.tie_score, chosen.written_N.clone()
        taken_R, left_R = (
            torch.bincount(positions.row_N[tied_N & which_N], minlength=positions.rows)
            for which_N in (written_N, ~written_N)
        )
        for i in ((taken_R > 0) & (left_R > 0)).nonzero()[:, 0].tolist():
            of_row_N = positions.row_N == i
            count = int(written_N[of_row_N].sum())
            written_N[of_row_N] = topk_choice(
                score_N[of_row_N], positions.column_N[of_row_N], positions.lengths[i], count
            )
        return replace(chosen, written_N=written_N)


def topk_choice(score_n: Tensor, column_n: Tensor, length: int, count: int) -> Tensor:
    """The ``count`` positions of a row that ``torch.topk`` selects on the CPU over the canvas, as in the published
    code."""
    canvas = torch.full((length,), float("-inf"), dtype=score_n.dtype)
    canvas[column_n.cpu()] = score_n.cpu()
    taken = torch.zeros(length, dtype=torch.bool)
    taken[canvas.topk(count).indices] = True
    return taken[column_n.cpu()].to(score_n.device)
