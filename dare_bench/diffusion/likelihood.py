"""Estimators of log p(target | context) for masked diffusion, as weighted sets of masks.

All estimate the same bound, ELBO = E_{k~U{1..n}} (n/k) sum_{i in M, |M|=k uniform} log p(x_i | rest visible) (LLaDA,
arXiv 2502.09992, eq. 6). An estimator says which masks to look at and how to weigh them; the model turns masks into
losses; ``combine`` turns losses into a value and its standard error.

Shape letters: M masks (draws), n target tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dare_bench.errors import DecodingError

Estimator = Literal["auto", "exact", "reference"]
EXACT_LIMIT = 7
"""Longest target that is enumerated: 2^7 - 1 = 127 masks, no more than the reference's 128 draws, and no noise."""


@dataclass(frozen=True)
class Draws:
    """Masks to evaluate. ``round_size`` groups draws that share one random offset; 0 marks an exact enumeration."""

    masks_Mn: Tensor
    weights_M: Tensor
    round_size: int
    estimator: str


def enumerate_masks(n: int) -> Draws:
    """Every non-empty mask of n tokens with its exact weight 1 / (k C(n, k)); raises DecodingError for long targets."""
    if n > EXACT_LIMIT:
        raise DecodingError(
            f"estimator='exact' enumerates 2^n masks; the target has n={n} tokens, allowed are up to {EXACT_LIMIT}: "
            "use 'reference' or 'auto'"
        )
    codes = torch.arange(1, 1 << n)
    masks = (codes[:, None] >> torch.arange(n)) & 1 == 1
    sizes = masks.sum(1).tolist()
    weights = torch.tensor([1.0 / (k * comb(n, k)) for k in sizes], dtype=torch.float64)
    return Draws(masks, weights, 0, "exact")


def stratified_counts(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Masked-token counts of one round, int64 [size]: a random start, then even steps around 1..n.

    The arithmetic stays in float32 tensors: rounding in float64 gives other integers at some steps
    (LLaDA get_log_likelihood.py, forward_process).
    """
    k = int(torch.randint(1, n + 1, (), generator=generator))
    counts = torch.round(torch.linspace(float(k), k + (size - 1) * (n / size), steps=size)).long()
    return (counts - 1) % n + 1


def reference_masks(n: int, mc_num: int, batch_size: int, generator: torch.Generator) -> Draws:
    """The published Monte Carlo law with its own draws: ``mc_num / batch_size`` rounds of ``batch_size`` masks.

    Source: ML-GSAI/LLaDA get_log_likelihood.py. ``mc_num % batch_size`` must be 0 (DecodingError).
    """
    if mc_num < 1 or batch_size < 1 or mc_num % batch_size:
        raise DecodingError(
            f"mc_num={mc_num} must be a positive multiple of batch_size={batch_size}; for one draw give batch_size=1"
        )
    rounds, counts_all = [], []
    for _ in range(mc_num // batch_size):
        counts = stratified_counts(n, batch_size, generator)
        mask = torch.arange(n).expand(batch_size, n) < counts[:, None]
        orders = torch.stack([torch.randperm(n, generator=generator) for _ in range(batch_size)])
        rounds.append(mask.gather(1, orders))
        counts_all.append(counts)
    counts_M = torch.cat(counts_all)
    weights = (n / counts_M.double()) / mc_num
    return Draws(torch.cat(rounds), weights, batch_size, "reference")


def likelihood_settings(fields: dict[str, Any], cfg: bool) -> dict[str, Any]:
    """Validated settings: ``estimator, mc_num, batch_size`` and, where the family has it, ``cfg_scale``."""
    known: dict[str, Any] = {"estimator": "auto", "mc_num": 128, "batch_size": 16}
    if cfg:
        known["cfg_scale"] = 0.0
    for name, value in fields.items():
        if name not in known:
            raise DecodingError(f"likelihood field {name!r} is not known here; fields are {', '.join(known)}")
        if value is not None:
            known[name] = value
    if known["estimator"] not in get_args(Estimator):
        raise DecodingError(
            f"estimator={known['estimator']!r} is not known; estimators are {', '.join(get_args(Estimator))}"
        )
    for name in ("mc_num", "batch_size"):
        if isinstance(known[name], bool) or not isinstance(known[name], int):
            raise DecodingError(f"{name}={known[name]!r} must be a whole number")
    if known["mc_num"] < 1 or known["batch_size"] < 1 or known["mc_num"] % known["batch_size"]:
        raise DecodingError(
            f"mc_num={known['mc_num']} must be a positive multiple of batch_size={known['batch_size']}; "
            "for one draw give batch_size=1"
        )
    return known


def draw(n: int, settings: dict[str, Any], seed: int) -> Draws:
    """The masks for a target of n tokens. ``auto``: exact up to 7 tokens, else the reference's draws.

    ``seed`` starts a generator of this target's own, so values do not depend on order or batch; targets of one document
    share it, hence the masks where their lengths agree.
    """
    kind = settings["estimator"]
    if kind == "exact" or (kind == "auto" and n <= EXACT_LIMIT):
        return enumerate_masks(n)
    generator = torch.Generator().manual_seed(seed)
    return reference_masks(n, settings["mc_num"], settings["batch_size"], generator)


def combine(draws: Draws, loss_M: Tensor) -> tuple[float, float]:
    """(log-likelihood, standard error) in nats from the summed masked losses of each draw, [M].

    The error comes from the spread of round means where there are several rounds (draws inside a round share their
    offset), else from the spread of the draws; it is 0 for an enumeration and for a one-token target, where every
    draw is the same mask.
    """
    terms = draws.weights_M * loss_M.double()
    value = -float(terms.sum())
    m = len(terms)
    if draws.round_size == 0 or draws.masks_Mn.shape[1] == 1:
        return value, 0.0
    rounds = m // draws.round_size
    means = (terms * m).view(rounds, draws.round_size).mean(1) if rounds > 1 else terms * m
    if len(means) == 1:
        return value, float("nan")
    return value, float(means.std()) / sqrt(len(means))
