"""Estimators of log p(target | context) for masked diffusion, as weighted sets of masks.

Masked diffusion bounds it by ELBO = E_{k~U{1..n}} (n/k) sum_{i in M, |M|=k uniform} log p(x_i | rest visible) (LLaDA,
arXiv 2502.09992, eq. 6). Block diffusion bounds it by the sum of the bounds of all blocks, each given the clean tokens
before it (arXiv 2503.09573). An estimator chooses masks and their weights; the model computes the losses of masks;
``combine`` turns losses into a value and its deviations: the root of their sum of squares is the standard error, and
the differences of the deviations of two targets with the same seed are those of the difference of their values.

Shape letters: M masks (draws), n tokens that a set of masks spans, N draws over all blocks, B blocks, R deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb, gcd, sqrt
from typing import Any, Literal

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.errors import DecodingError

Estimator = Literal["auto", "exact", "reference", "fast", "adaptive"]
EXACT_LIMIT = 7
"""Longest target that is enumerated: 2^7 - 1 = 127 masks, fewer than the reference's 128 draws, without noise."""


@dataclass(frozen=True)
class MaskDraws:
    """Masks to evaluate, over n consecutive tokens of context + target.

    ``round_size`` groups draws that share one random offset; 0 marks a sum without randomness. ``start`` is the index
    of the first of the n tokens, counted from the first target token (negative: masks extend into the context).
    ``scored_Mn`` are the masked tokens whose losses are summed; None: all of them.
    """

    masks_Mn: Tensor
    weights_M: Tensor
    round_size: int
    estimator: str
    start: int = 0
    scored_Mn: Tensor | None = None

    @property
    def scores_Mn(self) -> Tensor:
        """The tokens whose losses count, boolean [M, n]."""
        return self.masks_Mn if self.scored_Mn is None else self.scored_Mn


def enumerate_masks(n: int) -> MaskDraws:
    """Every non-empty mask of n tokens with its exact weight 1 / (k C(n, k)); raises DecodingError for long targets."""
    if n > EXACT_LIMIT:
        raise DecodingError(
            f"estimator='exact' enumerates 2^n masks; the target has n={n} tokens, and at most {EXACT_LIMIT} are "
            "allowed: use 'reference' or 'auto'"
        )
    codes = torch.arange(1, 1 << n)
    masks = (codes[:, None] >> torch.arange(n)) & 1 == 1
    sizes = masks.sum(1).tolist()
    weights = torch.tensor([1.0 / (k * comb(n, k)) for k in sizes], dtype=torch.float64)
    return MaskDraws(masks, weights, 0, "exact")


def stratified_counts(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Masked-token counts of one round, int64 [size]: a random start, then even steps modulo n. The arithmetic stays in
    float32: rounding in float64 gives other integers at some steps (LLaDA get_log_likelihood.py, forward_process)."""
    k = int(torch.randint(1, n + 1, (), generator=generator))
    counts = torch.round(torch.linspace(float(k), k + (size - 1) * (n / size), steps=size)).long()
    return (counts - 1) % n + 1


def check_rounds(mc_num: int, batch_size: int) -> None:
    """Raise DecodingError unless ``mc_num`` is a positive multiple of ``batch_size``."""
    if mc_num < 1 or batch_size < 1:
        raise DecodingError(f"mc_num={mc_num} and batch_size={batch_size} must be at least 1")
    if mc_num % batch_size:
        more = mc_num + batch_size - mc_num % batch_size
        raise DecodingError(
            f"mc_num={mc_num} must be a multiple of batch_size={batch_size}; give batch_size={gcd(mc_num, batch_size)} "
            f"or mc_num={more}"
        )


def reference_masks(n: int, mc_num: int, batch_size: int, generator: torch.Generator) -> MaskDraws:
    """The published Monte Carlo estimator with the published draws: ``mc_num / batch_size`` rounds of ``batch_size``
    masks. Source: ML-GSAI/LLaDA get_log_likelihood.py. ``mc_num % batch_size`` must be 0 (DecodingError)."""
    check_rounds(mc_num, batch_size)
    rounds, counts_all = [], []
    for _ in range(mc_num // batch_size):
        counts = stratified_counts(n, batch_size, generator)
        mask = torch.arange(n).expand(batch_size, n) < counts[:, None]
        orders = torch.stack([torch.randperm(n, generator=generator) for _ in range(batch_size)])
        rounds.append(mask.gather(1, orders))
        counts_all.append(counts)
    counts_M = torch.cat(counts_all)
    weights = (n / counts_M.double()) / mc_num
    return MaskDraws(torch.cat(rounds), weights, batch_size, "reference")


def bernoulli_masks(
    context: int,
    target: int,
    span: range,
    mc_num: int,
    batch_size: int,
    eps: float,
    generator: torch.Generator,
) -> MaskDraws:
    """Dream's Monte Carlo estimator with the published draws: levels t spread over each round, every token masked
    independently with probability p = (1 - eps) t + eps, losses over p.

    Masks cover the columns ``span`` of context + target, but numbers are drawn for all columns. Column 0 (BOS) and the
    last one (EOS) are never masked. A draw that masks nothing adds 0. There are ``max(mc_num // batch_size, 1)``
    rounds of ``batch_size`` draws. Source: DreamLM/Dream eval/eval.py, _forward_process and _eval_target_nll_mc.
    """
    rounds = max(mc_num // batch_size, 1)
    masks, levels = [], []
    for _ in range(rounds):
        offset = torch.rand(1, generator=generator)
        p_M = (1 - eps) * ((offset + torch.arange(batch_size).float() / batch_size) % 1) + eps
        masked = torch.rand((batch_size, context + target), generator=generator) < p_M[:, None]
        masked[:, 0] = masked[:, -1] = False
        masks.append(masked[:, span.start : span.stop])
        levels.append(p_M.double())
    weights_M = 1.0 / torch.cat(levels) / (rounds * batch_size)
    return MaskDraws(torch.cat(masks), weights_M, batch_size, "reference", span.start - context)


def chain_masks(n: int, backwards: bool = False, start: int = 0) -> MaskDraws:
    """The chain rule in one order, n masks: draw j masks the tokens from j on (``backwards``: up to j) and scores only
    token j. Source: DreamLM/Dream eval/eval.py, _eval_target_nll_ar."""
    every = torch.ones((n, n), dtype=torch.bool)
    masks = every.tril() if backwards else every.triu()
    return MaskDraws(masks, torch.ones(n, dtype=torch.float64), 0, "reference", start, torch.eye(n, dtype=torch.bool))


def block_spans(context: int, target: int, block_length: int) -> list[range]:
    """The target's tokens by block, counted from its first: blocks begin at multiples of ``block_length`` from column 0
    of context + target, so the first and the last may hold fewer tokens of the target."""
    first, last = context // block_length, (context + target - 1) // block_length
    edges = [0, *[b * block_length - context for b in range(first + 1, last + 1)], target]
    return [range(low, high) for low, high in pairwise(edges)]


def enumerate_blocks(spans: Sequence[range], block_length: int) -> list[MaskDraws]:
    """Every non-empty mask of every block; raises DecodingError if a block has too many target tokens."""
    most = max(map(len, spans))
    if most > EXACT_LIMIT:
        raise DecodingError(
            f"estimator='exact' enumerates 2^s masks of each block; with block_length={block_length} a block holds "
            f"s={most} target tokens, and at most {EXACT_LIMIT} are allowed: use 'reference' or 'auto', or a smaller "
            "block_length"
        )
    return [replace(enumerate_masks(len(span)), start=span.start) for span in spans]


def stratified_levels(draws: int, blocks: int, offset: float | Tensor) -> Tensor:
    """Noise levels of all (draw, block) cells, float64 [N, B]: one grid over all cells, shifted by ``offset`` in [0,
    1). Cells are counted draw by draw, so the levels of each block are also an even grid. Rows are sorted by level.
    Source: EBPO (LLaDA2.1 report, arXiv 2602.08676)."""
    cells = draws * blocks
    levels_NB = ((torch.arange(cells, dtype=torch.float64) / cells + offset) % 1.0).view(draws, blocks)
    return levels_NB[levels_NB[:, 0].argsort()]


def level_counts(levels: Tensor, size: int | Tensor) -> Tensor:
    """Masked tokens of a block of ``size`` (one for all, or one a level) at noise levels u:
    min(floor(u size) + 1, size), which is uniform on 1..size."""
    return ((levels * size).floor().long() + 1).clamp(max=size)


def block_masks(spans: Sequence[range], mc_num: int, key: int) -> list[MaskDraws]:
    """``mc_num`` draws of every block: k of its s tokens masked, weight s / k. Draws are counter-based: masks depend
    only on (key, draw, index in the target) and the number of blocks."""
    key_ = torch.tensor(key)
    levels_NB = stratified_levels(mc_num, len(spans), uniform(key_, Draw.NOISE_LEVEL, 0, 0))
    parts = []
    for b, span in enumerate(spans):
        s = len(span)
        counts_N = level_counts(levels_NB[:, b], s)
        lots_Ns = uniform(key_, Draw.MASK, torch.arange(mc_num)[:, None], torch.arange(span.start, span.stop))
        masks_Ns = lots_Ns.argsort(1).argsort(1) < counts_N[:, None]
        parts.append(MaskDraws(masks_Ns, s / counts_N.double() / mc_num, mc_num, "reference", span.start))
    return parts


def draw(n: int, settings: dict[str, Any], seed: int) -> MaskDraws:
    """The masks for a target of n tokens. ``auto``: exact up to 7 tokens, else the reference's draws. ``seed`` seeds a
    generator for this target, so values do not depend on order or batch; targets of one document have the same seed,
    hence the same masks if their lengths agree."""
    kind = settings["estimator"]
    if kind == "exact" or (kind == "auto" and n <= EXACT_LIMIT):
        return enumerate_masks(n)
    generator = torch.Generator().manual_seed(seed)
    return reference_masks(n, settings["mc_num"], settings["batch_size"], generator)


def combine(draws: MaskDraws, loss_M: Tensor) -> tuple[float, Tensor]:
    """(log-likelihood, its deviations [R]) in nats from the summed masked losses of each draw, [M]. Deviations are
    those of round means if there are several rounds (the draws of a round share their offset), else of draws. There are
    none for an enumeration and for a one-token target, where all draws are the same mask."""
    terms = draws.weights_M * loss_M.double()
    value = -float(terms.sum())
    m = len(terms)
    if draws.round_size == 0 or draws.masks_Mn.shape[1] == 1:
        return value, terms[:0]
    rounds = m // draws.round_size
    means = (terms * m).view(rounds, draws.round_size).mean(1) if rounds > 1 else terms * m
    return value, mean_deviations(-means)


def mean_deviations(values_R: Tensor) -> Tensor:
    """The deviations of the mean of R independent values; NaN for a single one, whose error is unknown."""
    r = len(values_R)
    return (values_R - values_R.mean()) / sqrt(r * (r - 1)) if r > 1 else values_R * float("nan")


def combine_blocks(parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, Tensor]:
    """(log-likelihood, its deviations [R]) in nats from the summed masked losses of each block's draws, [M] a block.

    Draws are sorted by noise level, and deviations are successive differences, which do not count the variance that the
    even grid of levels removes (Wolter, Introduction to Variance Estimation, ch. 8). There are none for enumerations
    and if every block holds one target token, since all draws are then equal.
    """
    terms = [part.weights_M * loss.double() for part, loss in zip(parts, losses, strict=True)]
    value = -sum(float(term_M.sum()) for term_M in terms)
    if all(part.round_size == 0 or part.masks_Mn.shape[1] == 1 for part in parts):
        return value, torch.zeros(0, dtype=torch.float64)
    m = len(losses[0])
    terms_M = m * torch.stack(terms).sum(0)
    return value, -terms_M.diff() / sqrt(2 * m * (m - 1)) if m > 1 else terms_M * float("nan")


def folded(deviations_R: Tensor, most: int = 16) -> Tensor:
    """At most ``most`` deviations with the same root of the sum of squares, of sums with fixed random signs: products
    of two targets' deviations keep their expected value."""
    if len(deviations_R) <= most:
        return deviations_R
    rows = -(-len(deviations_R) // most)
    signs_R = torch.randint(2, (rows * most,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    sums = torch.zeros_like(signs_R)
    sums[: len(deviations_R)] = deviations_R
    sums = (sums * signs_R).view(rows, most).sum(0)
    return sums * (deviations_R.norm() / sums.norm()) if bool(sums.any()) else sums
