"""Decoding with cached keys and values against computing them again in every step: same process, same weights.

    python scripts/bench/cached.py [--runs 5] [--threads 2] [--quick]

Exact: block-causal decoding (SDAR's layout) with the cache against the whole prefix again, on the same schedule; the
tokens must be identical, and the bench fails if they are not. Approximate: LLaDA's layout with Fast-dLLM's dual cache
and four tokens a step against the plain sampler at one token a step; other tokens come out, and how many agree is
printed. The plain samplers are in ``naive.py``; at batch 8 they too take all rows in one forward (prompts have one
length).

Weights are random, about 7 M parameters: speed does not depend on their values, except that 4 tokens per step are
scheduled here, and not the result of a confidence threshold on real text. Their standard deviation separates the logits
so far that no token can change by a tie in float32.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from models import Tokens, generate, native_model
from naive import decode
from timing import Timing, alternate, options
from torch import Tensor

from dare_bench.model_adapters.backbone import Plan
from dare_bench.model_adapters.llada import FAMILY as LLADA
from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM
from dare_bench.model_adapters.native import NativeModel
from dare_bench.model_adapters.sdar import FAMILY as SDAR
from dare_bench.model_adapters.sdar.network import SDARConfig, SDARForCausalLM
from dare_bench.types import ModelSpec

BLOCK = 16
STD = 0.06
"""Standard deviation of the weights: logits then differ by several units."""


@dataclass(frozen=True)
class CacheSize:
    """Sizes of network and answer; the default has 7 M parameters."""

    width: int = 256
    layers: int = 8
    ff_width: int = 704
    vocab: int = 2048
    gen: int = 64

    @property
    def mask_id(self) -> int:
        return self.vocab - 1


@dataclass(frozen=True)
class CacheCase:
    """``k``: tokens per step of our sampler and of the plain block-causal one; the plain LLaDA sampler writes one."""

    kind: Literal["exact", "dual"]
    rows: int
    prompt: int
    k: int


CASES = (
    CacheCase("exact", 1, 192, 1),
    CacheCase("exact", 8, 192, 1),
    CacheCase("exact", 1, 512, 1),
    CacheCase("exact", 8, 512, 4),
    CacheCase("dual", 1, 64, 4),
    CacheCase("dual", 8, 64, 4),
    CacheCase("dual", 1, 192, 4),
)
QUICK = (CacheCase("exact", 2, 32, 4), CacheCase("dual", 2, 32, 4))


def build(kind: str, size: CacheSize) -> NativeModel:
    """A random network with a fixed seed: SDAR's for ``exact``, LLaDA's for ``dual``."""
    torch.manual_seed(1)
    shared: dict[str, Any] = {"vocab_size": size.vocab, "mask_token_id": size.mask_id}
    network: LLaDAModelLM | SDARForCausalLM
    if kind == "exact":
        network = SDARForCausalLM(
            SDARConfig(
                hidden_size=size.width, intermediate_size=size.ff_width, num_hidden_layers=size.layers,
                num_attention_heads=4, num_key_value_heads=4, head_dim=size.width // 4, max_position_embeddings=4096,
                initializer_range=STD, block_size=BLOCK, **shared,
            )
        )  # fmt: skip
    else:
        network = LLaDAModelLM(
            LLaDAConfig(
                d_model=size.width, n_heads=4, n_layers=size.layers, mlp_hidden_size=size.ff_width,
                embedding_size=size.vocab, max_sequence_length=4096, init_std=STD, **shared,
            )
        )  # fmt: skip
    with torch.no_grad():
        network.get_output_embeddings().weight *= 4
    parameters = sum(p.numel() for p in network.parameters())
    block = BLOCK if kind == "exact" else None
    spec = ModelSpec(kind, size.mask_id, (), None, None, size.vocab, 4096, block_length=block, parameters=parameters)
    return native_model(SDAR if kind == "exact" else LLADA, network, spec)


def fields(case: CacheCase, size: CacheSize) -> dict[str, Any]:
    """The decoding fields of our sampler."""
    lengths = {"gen_length": size.gen, "block_length": BLOCK}
    if case.kind == "exact":
        return {**lengths, "remasking_strategy": "low_confidence_static", "denoising_steps": BLOCK // case.k}
    return {**lengths, "steps": size.gen // case.k, "cache": "dual"}


def ours(model: NativeModel, case: CacheCase, size: CacheSize, prompts: Tokens) -> Callable[[], Tokens]:
    return lambda: generate(model, prompts, fields(case, size), case.rows)


def plain(model: NativeModel, case: CacheCase, size: CacheSize, prompts: Tokens) -> Callable[[], Tokens]:
    causal = case.kind == "exact"

    def logits_of(x: Tensor) -> Tensor:
        return model.network(x, plan=Plan.rows(*x.shape, block_length=BLOCK if causal else None)).logits

    steps = BLOCK // case.k if causal else BLOCK
    return lambda: decode(logits_of, prompts, size.mask_id, size.gen, BLOCK, steps, block_causal=causal)


def agreement(left: Tokens, right: Tokens) -> float:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def compare(model: NativeModel, case: CacheCase, size: CacheSize, runs: int) -> Timing:
    """Alternate both samplers; exits with an error if the exact cache changed a token."""
    rng = random.Random(case.prompt)
    prompts = [[rng.randrange(size.mask_id) for _ in range(case.prompt)] for _ in range(case.rows)]
    for sampler in (plain, ours):  # warm up on one block
        sampler(model, case, replace(size, gen=BLOCK), prompts)()
    timing = alternate(plain(model, case, size, prompts), ours(model, case, size, prompts), runs)
    if case.kind == "exact" and timing.slow_value != timing.fast_value:
        same = agreement(timing.slow_value, timing.fast_value)
        raise SystemExit(f"{case}: {same:.1%} of the tokens are the plain sampler's; all must be")
    return timing


def line(case: CacheCase, size: CacheSize, timing: Timing) -> str:
    """One row of the table."""
    tokens = case.rows * size.gen
    before, after = (tokens / statistics.median(seconds) for seconds in (timing.slow, timing.fast))
    same = agreement(timing.slow_value, timing.fast_value)
    return (
        f"{case.kind:<6}{case.rows:>5}{case.prompt:>8}{case.k:>7}  {before:>6.0f} -> {after:<6.0f}"
        f"{timing.spread():<36}{same:>6.1%}"
    )


def main() -> None:
    args = options(__doc__)
    size = CacheSize(width=32, layers=2, ff_width=64, vocab=64, gen=32) if args.quick else CacheSize()
    models = {kind: build(kind, size) for kind in ("exact", "dual")}
    for kind, text in (("exact", "block-causal, exact cache"), ("dual", "full attention, dual cache (approximate)")):
        print(f"{kind}: {models[kind].spec.parameters / 1e6:.1f} M random parameters, {text}", flush=True)
    print(f"float32, {args.threads} threads, answers of {size.gen} tokens in blocks of {BLOCK}, {args.runs} runs")
    print(f"{'cache':<6}{'batch':>5}{'prompt':>8}{'k/step':>7}  {'tokens/s':<16}{'ratio':<36}  same")
    for case in QUICK if args.quick else CASES:
        print(line(case, size, compare(models[case.kind], case, size, args.runs)), flush=True)


if __name__ == "__main__":
    main()
