"""Which open positions are written: scores of open positions -> a choice a row, for all rows at once.

Ties go to the lowest index (a stable descending sort): ``torch.topk`` leaves their order open, and CPU and CUDA differ.
One kind of tie the published results do depend on; see ``published_choice``.

Shape letters: N open positions of all rows in order, R rows, W most open positions of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.margins import Doubt, of_limits, of_sums, of_swap, of_threshold
from dare_bench.model_adapters.sampling.rule import Rule


@dataclass(frozen=True)
class Ranked:
    """Scores of every row, best first, and the way back; what the scores are worth in logits, where that is recorded
    (see :class:`Doubt`)."""

    sorted_RW: Tensor
    rank_N: Tensor
    count_R: Tensor
    slope_RW: Tensor | None = None
    blur_RW: Tensor | None = None
    certain_RW: Tensor | None = None


def rank(score_N: Tensor, row_N: Tensor, rows: int, doubt: Doubt | None = None) -> Ranked:
    """Sort each row's scores. Positions of a row stand together. Rows without open positions are all -inf."""
    count_R = torch.bincount(row_N, minlength=rows)
    place_N = torch.arange(len(row_N), device=row_N.device)
    first_R = torch.full((rows,), len(row_N), device=row_N.device).scatter_reduce_(0, row_N, place_N, "amin")
    column_N = place_N - first_R[row_N]
    width = max(int(count_R.max()), 1)
    table_RW = score_N.new_full((rows, width), float("-inf"))
    table_RW[row_N, column_N] = score_N
    sorted_RW, order_RW = table_RW.sort(dim=1, descending=True, stable=True)
    rank_RW = torch.empty_like(order_RW)
    rank_RW.scatter_(1, order_RW, torch.arange(width, device=row_N.device).expand(rows, width))
    rank_N = rank_RW[row_N, column_N]
    if doubt is None:
        return Ranked(sorted_RW, rank_N, count_R)
    slope_RW, blur_RW = (torch.zeros((rows, width), dtype=torch.float64, device=row_N.device) for _ in range(2))
    slope_RW[row_N, rank_N] = doubt.slope_N.double()
    blur_RW[row_N, rank_N] = doubt.blur_N.double()
    certain_RW = torch.zeros((rows, width), dtype=torch.bool, device=row_N.device)
    certain_RW[row_N, rank_N] = doubt.certain_N
    return Ranked(sorted_RW, rank_N, count_R, slope_RW, blur_RW, certain_RW)


def take_quota(ranked: Ranked, quota_R: Tensor) -> tuple[Tensor, Tensor]:
    """The best ``quota`` of each row (all, where fewer are open). Returns (how many, gap at the cut), [R]."""
    n_R = torch.minimum(quota_R, ranked.count_R)
    return n_R, of_swap(ranked, n_R)


def take_above(ranked: Ranked, threshold: float) -> tuple[Tensor, Tensor]:
    """The best always, the others where the score is at least ``threshold`` (Fast-dLLM get_transfer_index)."""
    over_RW = ranked.sorted_RW >= threshold
    n_R = torch.minimum(over_RW.sum(1).clamp(min=1), ranked.count_R)
    return n_R, of_threshold(ranked, threshold, torch.ones_like(n_R), ranked.count_R, n_R)


def take_factor(ranked: Ranked, factor: float) -> tuple[Tensor, Tensor]:
    """Fast-dLLM's factor rule: position n (from 1) of the sorted scores must reach ``1 - factor / (n + 1)``.

    The first always does. The published count is the index of the first that fails, one more where that index is 0 or
    the last: so the last one is taken too when only it fails (get_transfer_index_dynamic; kept, the ids depend on it).
    """
    _rows, width = ranked.sorted_RW.shape
    n = torch.arange(1, width + 1, device=ranked.sorted_RW.device, dtype=torch.float64)
    limit_W = 1.0 - factor / (n + 1)
    limit_W[0] = -1.0
    fails_RW = ranked.sorted_RW.double() < limit_W
    last_R = ranked.count_R - 1
    index_W = torch.arange(width, device=fails_RW.device)
    fails_RW &= index_W <= last_R[:, None]
    first_R = torch.where(fails_RW, index_W, width).min(1).values
    n_R = torch.where(first_R < width, first_R, last_R)
    n_R = torch.minimum(n_R + ((n_R == 0) | (n_R == last_R)), ranked.count_R)
    return n_R, of_limits(ranked, limit_W, n_R)


def take_surer(ranked: Ranked, threshold: float, quota_R: Tensor) -> tuple[Tensor, Tensor]:
    """All that are surer than the threshold if they are at least the quota, else the quota (SDAR generate.py
    low_confidence_dynamic, LLaDA2 generate)."""
    over_R = (ranked.sorted_RW > threshold).sum(1)
    n_R = torch.where(over_R >= quota_R, over_R, torch.minimum(quota_R, ranked.count_R))
    return n_R, of_threshold(ranked, threshold, quota_R, ranked.count_R, n_R)


def take_left(ranked: Ranked, quota_R: Tensor) -> tuple[Tensor, Tensor]:
    """The open positions among the first open one and the ``quota - 1`` after it; scores are negated columns
    (SDAR generate.py sequential, writing masked positions only)."""
    n_R = (ranked.sorted_RW > ranked.sorted_RW[:, :1] - quota_R[:, None]).sum(1)
    return torch.minimum(n_R, ranked.count_R), torch.full_like(n_R, float("inf"), dtype=torch.float64)


def take_entropy(ranked: Ranked, bound: float) -> tuple[Tensor, Tensor]:
    """From the lowest entropy on, while the entropies taken before sum to at most ``bound``; scores are negated
    entropies (the EB sampler, arXiv 2505.24857, as in SGLang's EBSampling)."""
    spent_RW = (-ranked.sorted_RW).nan_to_num(posinf=0.0).cumsum(1) + ranked.sorted_RW.nan_to_num(neginf=0.0)
    index_W = torch.arange(spent_RW.shape[1], device=spent_RW.device)
    open_RW = index_W < ranked.count_R[:, None]
    n_R = ((spent_RW <= bound) & open_RW).sum(1)
    return n_R, of_sums(ranked, spent_RW, bound, n_R)


def take_carry(ranked: Ranked, threshold: float, most_R: Tensor) -> tuple[Tensor, Tensor]:
    """Of the best ``most``: the first always, the others where they reach the threshold (Fast-dLLM's Dream,
    confidence_threshold: what a step rejects is added to the next one's quota)."""
    n_R = torch.minimum(take_above(ranked, threshold)[0], most_R)
    return n_R, of_threshold(ranked, threshold, torch.ones_like(n_R), most_R, n_R)


def take(ranked: Ranked, rule: Rule, quota_R: Tensor) -> tuple[Tensor, Tensor]:
    """How many of each row's best positions are written, [R] int64, and the margin of that, [R] float64 (of the scores
    themselves where nobody said what these are worth)."""
    if rule.how_many == "threshold":
        return take_above(ranked, rule.threshold)
    if rule.how_many == "factor":
        return take_factor(ranked, rule.factor)
    if rule.how_many == "dynamic":
        return take_surer(ranked, rule.threshold, quota_R)
    if rule.how_many == "sequential":
        return take_left(ranked, quota_R)
    if rule.how_many == "entropy_bound":
        return take_entropy(ranked, rule.entropy_bound)
    if rule.how_many == "carry":
        return take_carry(ranked, rule.threshold, quota_R)
    return take_quota(ranked, quota_R)


def ties_at(ranked: Ranked, n_R: Tensor, score: float) -> list[int]:
    """Rows whose cut goes through positions that all have exactly this score."""
    inside_R, last_R, following_R = _around_cut(ranked, n_R)
    return (inside_R & (last_R == score) & (following_R == score)).nonzero()[:, 0].tolist()


def published_choice(score_n: Tensor, column_n: Tensor, length: int, n: int) -> Tensor:
    """The ``n`` positions that the published code takes in one row: ``torch.topk`` on the CPU over the whole canvas.

    Only for ties that settings make by design (``Rule.tie_score``): with ``confidence_eos_eot_inf`` several positions
    that want EOS have confidence 0 at once, after top-p several are certain, and which of them comes first is then
    decided by topk alone. The result is a function of this row, so it depends on no neighbour.
    """
    canvas = torch.full((length,), float("-inf"), dtype=score_n.dtype)
    canvas[column_n.cpu()] = score_n.cpu()
    taken = torch.zeros(length, dtype=torch.bool)
    taken[canvas.topk(n).indices] = True
    return taken[column_n.cpu()].to(score_n.device)


def _around_cut(ranked: Ranked, n_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Is there a cut (some taken, some left)? The score of the last taken, and of the first left out; all [R]."""
    width = ranked.sorted_RW.shape[1]
    inside_R = (n_R > 0) & (n_R < ranked.count_R)
    last_R = ranked.sorted_RW.gather(1, (n_R - 1).clamp(min=0)[:, None])[:, 0]
    following_R = ranked.sorted_RW.gather(1, n_R.clamp(max=width - 1)[:, None])[:, 0]
    return inside_R, last_R, following_R
