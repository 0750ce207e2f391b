"""Decoding with cached keys and values against computing them again in every step: same process, same weights.

    python scripts/bench/cached.py [--runs 5] [--threads 2] [--quick]

Exact: block-causal decoding (SDAR's layout) with the cache against the whole prefix again, on the same schedule; the
tokens must be identical, and the bench fails if they are not. Approximate: LLaDA's layout with Fast-dLLM's dual cache
and four tokens a step against the plain sampler at one token a step; other tokens come out, and how many agree is
printed. The plain samplers are in ``plain.py``; at batch 8 they too take all rows in one forward (prompts have one
length).

Weights are random, about 7 M parameters: speed does not depend on their values, except that 4 tokens per step are
scheduled here, and not the result of a confidence threshold on real text. Their standard deviation separates the logits
so far that no token can change by a tie in float32.
"""

from __future__ import annotations

import random
import statistics
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from plain import Timing, Tokens, alternate, decode, generate, native_model
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
class CacheCase:
    """``k``: tokens per step of our sampler and of the plain block-causal one; the plain LLaDA sampler writes one.
    Sizes of network and answer; the default has 7 M parameters."""

    kind: Literal["exact", "dual"]
    rows: int
    prompt: int
    k: int
    width: int = 256
    layers: int = 8
    vocab: int = 2048
    gen: int = 64

    @property
    def causal(self) -> bool:
        return self.kind == "exact"


CASES = (
    CacheCase("exact", 1, 192, 1),
    CacheCase("exact", 8, 192, 1),
    CacheCase("exact", 1, 512, 1),
    CacheCase("exact", 8, 512, 4),
    CacheCase("dual", 1, 64, 4),
    CacheCase("dual", 8, 64, 4),
    CacheCase("dual", 1, 192, 4),
)
QUICK = (CacheCase("exact", 2, 32, 4, 32, 2, 64, 32), CacheCase("dual", 2, 32, 4, 32, 2, 64, 32))


def build(case: CacheCase) -> NativeModel:
    """A random network with a fixed seed: SDAR's for ``exact``, LLaDA's for ``dual``."""
    torch.manual_seed(1)
    mask, inner, shared = case.vocab - 1, case.width * 11 // 4, {"vocab_size": case.vocab}
    sizes = {"hidden_size": case.width, "intermediate_size": inner, "num_hidden_layers": case.layers}
    sdar = {**sizes, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": case.width // 4}
    llada = {"d_model": case.width, "n_heads": 4, "n_layers": case.layers, "mlp_hidden_size": inner}
    network: LLaDAModelLM | SDARForCausalLM
    if case.causal:
        network = SDARForCausalLM(SDARConfig(**sdar, **shared, initializer_range=STD, block_size=BLOCK))
    else:
        network = LLaDAModelLM(LLaDAConfig(**llada, **shared, embedding_size=case.vocab, init_std=STD))
    with torch.no_grad():
        network.get_output_embeddings().weight *= 4
    parameters = sum(p.numel() for p in network.parameters())
    block = BLOCK if case.causal else None
    spec = ModelSpec(case.kind, mask, (), None, None, case.vocab, 4096, block_length=block, parameters=parameters)
    return native_model(SDAR if case.causal else LLADA, network, spec)


def ours(model: NativeModel, case: CacheCase, prompts: Tokens) -> Tokens:
    fields: dict[str, Any] = {"gen_length": case.gen, "block_length": BLOCK}
    if case.causal:
        fields |= {"remasking_strategy": "low_confidence_static", "denoising_steps": BLOCK // case.k}
    else:
        fields |= {"steps": case.gen // case.k, "cache": "dual"}
    return generate(model, prompts, fields, case.rows)


def plain(model: NativeModel, case: CacheCase, prompts: Tokens) -> Tokens:
    def logits_of(x: Tensor) -> Tensor:
        return model.network(x, plan=Plan.rows(*x.shape, block_length=BLOCK if case.causal else None)).logits

    steps = BLOCK // case.k if case.causal else BLOCK
    return decode(logits_of, prompts, model.spec.mask, case.gen, BLOCK, steps, block_causal=case.causal)


def agreement(timing: Timing) -> float:
    """The share of the tokens that are those of the plain sampler."""
    rows = zip(timing.slow_value, timing.fast_value, strict=True)
    return statistics.mean(a == b for x, y in rows for a, b in zip(x, y, strict=True))


def compare(model: NativeModel, case: CacheCase, runs: int) -> Timing:
    """Alternate both samplers; exits with an error if the exact cache changed a token."""
    rng = random.Random(case.prompt)
    prompts = [[rng.randrange(case.vocab - 1) for _ in range(case.prompt)] for _ in range(case.rows)]
    for sampler in (plain, ours):  # warm up on one block
        sampler(model, replace(case, gen=BLOCK), prompts)
    timing = alternate(lambda: plain(model, case, prompts), lambda: ours(model, case, prompts), runs)
    if case.causal and timing.slow_value != timing.fast_value:
        raise SystemExit(f"{case}: {agreement(timing):.1%} of the tokens are the plain sampler's; all must be")
    return timing


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one run, to check that the script works")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"float32, {args.threads} threads, answers in blocks of {BLOCK}; exact: block-causal; dual: approximate")
    print(f"{'cache':<6}{'batch':>5}{'prompt':>8}{'k/step':>7}  {'tokens/s':<16}{'ratio':<36}  same")
    for case in QUICK if args.quick else CASES:
        timing = compare(build(case), case, 1 if args.quick else args.runs)
        before, after = (case.rows * case.gen / statistics.median(s) for s in (timing.slow, timing.fast))
        print(
            f"{case.kind:<6}{case.rows:>5}{case.prompt:>8}{case.k:>7}  {before:>6.0f} -> {after:<6.0f}"
            f"{timing.spread():<36}{agreement(timing):>6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
