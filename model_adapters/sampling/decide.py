"""What rows that decide alike write after a forward: tokens, scores, and which positions.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.model_adapters.sampling.choose import Proposal, choose
from dare_bench.model_adapters.sampling.margins import Doubt, distance
from dare_bench.model_adapters.sampling.rows import Row
from dare_bench.model_adapters.sampling.rule import Rule, time_ratios
from dare_bench.model_adapters.sampling.select import published_choice, rank, take, ties_at


@dataclass(frozen=True)
class Chosen:
    """What was decided at the open positions; ``margin_R`` is the smallest margin of a row's choices (inf: none)."""

    token_N: Tensor
    score_N: Tensor
    written_N: Tensor
    margin_R: Tensor


@dataclass(frozen=True)
class Open:
    """The open positions of one forward. Those of a row stand together.

    ``position_N`` counts from the first response token; ``masked_N`` is False where a written token may be replaced
    (editing); ``quota_R``, ``step_R`` and ``turn_R`` are of all rows of the batch.
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

    def only(self, which_N: Tensor) -> Open:
        return Open(
            self.row_N[which_N],
            self.column_N[which_N],
            self.position_N[which_N],
            self.current_N[which_N],
            self.masked_N[which_N],
            self.key_R,
            self.step_R,
            self.turn_R,
            self.quota_R,
            self.begin_R,
        )


def decide(rule: Rule, logits_NV: Tensor, at: Open, rows: Sequence[Row]) -> Chosen:
    """Tokens, scores and what is written, for rows of one ``Rule.choice``."""
    token_noise = order_noise = None
    if rule.reference_draws and rule.draws:
        token_noise, order_noise = _published(rule, at, rows, logits_NV)
    key_N, turn_N = at.key_R[at.row_N], at.turn_R[at.row_N]
    proposal = choose(logits_NV, rule, key_N=key_N, step_N=turn_N, position_N=at.position_N, published_NV=token_noise)
    score_N, doubt = _order(rule, proposal, at, order_noise)
    if rule.edit_threshold is not None:
        return _edited(rule, proposal, score_N, at, len(rows))
    if rule.how_many == "bernoulli":
        ratio_S = time_ratios(rule.steps_per_block, rule.eps).to(score_N.device)
        written_N = score_N < ratio_S[at.step_R[at.row_N]]
        margin_R = _with_tokens(rule, _nothing(len(rows), score_N.device), proposal, written_N, at)
        return Chosen(proposal.token_N, proposal.confidence_N, written_N, margin_R)
    ranked = rank(score_N, at.row_N, len(rows), doubt)
    take_R, margin_R = take(ranked, rule, _quota(rule, at, ranked.count_R))
    written_N = ranked.rank_N < take_R[at.row_N]
    if rule.tie_score is not None:
        for i in ties_at(ranked, take_R, rule.tie_score):
            mine_N = at.row_N == i
            length, n = len(rows[i].canvas), int(take_R[i])
            written_N[mine_N] = published_choice(score_N[mine_N], at.column_N[mine_N], length, n)
    if rule.commit_first:
        opening_N = at.step_R[at.row_N] == 0
        written_N = torch.where(opening_N, at.column_N == at.begin_R[at.row_N], written_N)
        margin_R = torch.where(at.step_R == 0, float("inf"), margin_R)
    margin_R = _with_tokens(rule, torch.where(ranked.count_R > 0, margin_R, float("inf")), proposal, written_N, at)
    return Chosen(proposal.token_N, proposal.confidence_N, written_N, margin_R)


def _nothing(rows: int, device: torch.device) -> Tensor:
    return torch.full((rows,), float("inf"), dtype=torch.float64, device=device)


def _order(rule: Rule, proposal: Proposal, at: Open, noise_N: Tensor | None) -> tuple[Tensor, Doubt | None]:
    """The score by which positions are ranked, and what it is worth."""
    key_N, turn_N = at.key_R[at.row_N], at.turn_R[at.row_N]
    doubt = proposal.doubt
    if rule.which == "order":
        return -at.column_N.double(), doubt
    if rule.which == "random" or rule.how_many == "bernoulli":
        return noise_N if noise_N is not None else uniform(key_N, Draw.ORDER, turn_N, at.position_N), doubt
    if rule.order_temperature == 0:
        return proposal.score_N, doubt
    # A draw without replacement from softmax(score / T): the largest of probability / exponential noise.
    scaled_N = proposal.score_N / rule.order_temperature
    if noise_N is None:
        noise_N = -torch.log(uniform(key_N, Draw.ORDER, turn_N, at.position_N))
        return scaled_N.double() - noise_N.log(), doubt and doubt.scaled(1 / rule.order_temperature)
    rows = at.row_N.max() + 1 if len(at.row_N) else 1
    top_R = scaled_N.new_full((int(rows),), float("-inf")).scatter_reduce_(0, at.row_N, scaled_N, "amax")
    weight_N = (scaled_N - top_R[at.row_N]).exp()
    total_R = scaled_N.new_zeros(int(rows)).scatter_add_(0, at.row_N, weight_N)
    weight_N = weight_N / total_R[at.row_N] / noise_N
    return weight_N, doubt and doubt.scaled(weight_N / rule.order_temperature)


def _quota(rule: Rule, at: Open, count_R: Tensor) -> Tensor:
    """Positions that this step writes. With ``carry``: all but what the later steps of the schedule are due."""
    if rule.how_many != "carry":
        return at.quota_R
    return count_R - at.quota_R * (rule.steps_per_block - 1 - at.step_R).clamp(min=0)


def _with_tokens(rule: Rule, margin_R: Tensor, proposal: Proposal, written_N: Tensor, at: Open) -> Tensor:
    """The smaller of the margins of positions and of tokens."""
    if not rule.record_margin:
        return margin_R
    return margin_R.scatter_reduce(0, at.row_N[written_N], proposal.margin_N[written_N], "amin")


def _edited(rule: Rule, proposal: Proposal, score_N: Tensor, at: Open, rows: int) -> Chosen:
    """LLaDA2.1 generate: masked positions surer than the threshold (at least ``min_transfer``), and written ones whose
    token changes to one that is surer than the editing threshold."""
    assert rule.edit_threshold is not None
    masked = at.masked_N.nonzero()[:, 0]
    doubt = proposal.doubt
    ranked = rank(score_N[masked], at.row_N[masked], rows, doubt and doubt.only(masked))
    take_R, margin_R = take(ranked, rule, at.quota_R)
    other_N = ~at.masked_N & (proposal.token_N != at.current_N)
    written_N = other_N & (score_N > rule.edit_threshold)
    written_N[masked] = ranked.rank_N < take_R[at.row_N[masked]]
    margin_R = torch.where(ranked.count_R > 0, margin_R, float("inf"))
    if doubt is not None:
        away_N = (score_N - rule.edit_threshold).abs()
        near_N = distance(away_N, doubt.slope_N, doubt.blur_N)[other_N]
        margin_R = margin_R.scatter_reduce(0, at.row_N[other_N], near_N, "amin")
    return Chosen(
        proposal.token_N, proposal.confidence_N, written_N, _with_tokens(rule, margin_R, proposal, written_N, at)
    )


def _published(rule: Rule, at: Open, rows: Sequence[Row], logits_NV: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Each row's own stream; a loop over rows, since parity replays them one at a time. Every row of the batch draws,
    also one that has nothing open: the published code does."""
    tokens, orders = [], []
    seen = at.row_N.unique_consecutive().tolist()
    idle = [i for i, row in enumerate(rows) if row.rule.choice == rule.choice and i not in seen]
    for i in [*seen, *idle]:
        made = rows[i].draw_reference(logits_NV.shape[1], rows[i].window(), int(at.quota_R[i]))
        if i in seen:
            tokens.append(made.token_nV)
            orders.append(made.order_n)
    return _joined(tokens, logits_NV.device), _joined(orders, logits_NV.device)


def _joined(parts: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given).to(device) if given else None
