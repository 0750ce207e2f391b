"""Our sampler against the plain one (``naive.py``): same process, same weights, same tokens; ratios, not seconds.

    python scripts/bench/sampler.py [--runs 5] [--threads 2] [--quick]

Weights are random, in LLaDA's layout with about 1.4 M parameters (minutes on two cores): speed does not depend on their
values. It depends on the length of answers, so that is set: the first two tokens of a prompt encode the column from
which EOS is predicted, log-normal with a median of 40% of gen_length. Both samplers call the same network, so the
script fails if their tokens differ. Useful tokens are those up to the first EOS.
"""

from __future__ import annotations

import math
import random
import statistics

import torch
from models import Tokens, generate, native_model
from naive import decode
from timing import alternate, options

from dare_bench.model_adapters.backbone import NetworkOutput, Plan
from dare_bench.model_adapters.llada import FAMILY, LLaDAConfig, LLaDAModelLM
from dare_bench.model_adapters.native import NativeModel
from dare_bench.types import LoopStats, ModelSpec

VOCAB, MASK, EOS, BASE = 1024, 1023, 1022, 100
GEN, BLOCK = 128, 32


class PlantedEnd(torch.nn.Module):
    """Adds to the logit of EOS from the column that the first two tokens of a row encode. Both samplers call this."""

    def __init__(self, network: LLaDAModelLM) -> None:
        super().__init__()
        self.network, self.config = network, network.config

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor | None = None,
        plan: Plan | None = None,
        logits_at: torch.Tensor | None = None,
    ) -> NetworkOutput:
        out = self.network(tokens, positions, plan, logits_at).logits
        if plan is None:
            column = torch.arange(tokens.shape[1])
            end = int(tokens[0, 0]) * BASE + int(tokens[0, 1])
            out[0, column >= end, EOS] += 50.0
            return NetworkOutput(logits=out)
        lengths = torch.tensor(plan.lengths)
        starts = lengths.cumsum(0) - lengths
        ends = tokens[starts] * BASE + tokens[starts + 1]
        row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[logits_at]
        out[:, EOS] += 50.0 * (positions[logits_at] >= ends[row])
        return NetworkOutput(logits=out)


def build(layers: int) -> NativeModel:
    torch.manual_seed(0)
    config = LLaDAConfig(
        d_model=128, n_heads=4, n_layers=layers, mlp_hidden_size=344, vocab_size=VOCAB, embedding_size=VOCAB,
        max_sequence_length=4096, init_std=0.05,
    )  # fmt: skip
    network = LLaDAModelLM(config).eval()
    size = sum(p.numel() for p in network.parameters())
    spec = ModelSpec("llada", MASK, (EOS,), None, EOS, VOCAB, 4096, parameters=size)
    return native_model(FAMILY, network, spec, PlantedEnd(network))


def prompts(count: int, low: int, high: int, seed: int) -> Tokens:
    """Prompts of ``low`` to ``high`` tokens that encode the ends of their answers."""
    rng = random.Random(seed)
    result = []
    for _ in range(count):
        length = rng.randint(low, high)
        answer = min(GEN, max(1, round(rng.lognormvariate(math.log(0.4 * GEN), 0.5))))
        end = length + answer - 1
        result.append([end // BASE, end % BASE, *[rng.randrange(200, 1000) for _ in range(length - 2)]])
    return result


def ours(model: NativeModel, items: Tokens, rows: int, stop: bool) -> tuple[Tokens, LoopStats]:
    stats = LoopStats()
    return generate(model, items, {"gen_length": GEN, "block_length": BLOCK, "early_stop": stop}, rows, stats), stats


def cut(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def compare(name: str, model: NativeModel, items: Tokens, rows: int, stop: bool, runs: int) -> None:
    """Alternate both samplers ``runs`` times and print the median ratio; exits with an error if tokens differ."""

    def plain() -> Tokens:
        return [decode(lambda x: model.network(x).logits, [p], MASK, GEN, BLOCK, BLOCK)[0] for p in items]

    with torch.no_grad():
        model.network(torch.tensor([items[0]]))
    ours(model, items[:1], rows, stop)
    timing = alternate(plain, lambda: ours(model, items, rows, stop), runs)
    expected, (tokens, stats) = timing.slow_value, timing.fast_value
    if tokens != ([cut(t) for t in expected] if stop else expected):
        raise SystemExit(f"{name}: tokens differ from the plain sampler's; the comparison is void")
    useful = sum(len(cut(t)) for t in expected)
    before, after = (useful / statistics.median(seconds) for seconds in (timing.slow, timing.fast))
    occupancy = f", occupancy {stats.occupancy:.2f}" if stats.occupancy else ""
    print(
        f"{name}: {timing.spread()}, {runs} runs; useful tokens/s {before:.0f} -> {after:.0f}; "
        f"{useful} useful of {len(items) * GEN}{occupancy}",
        flush=True,
    )


def main() -> None:
    args = options(__doc__)
    model = build(layers=1 if args.quick else 6)
    few, many, longest = (1, 2, 60) if args.quick else (2, 32, 300)
    print(f"LLaDA layout, {model.spec.parameters / 1e6:.1f} M random parameters, float32, {args.threads} threads,")
    print(f"gen_length {GEN}, block_length {BLOCK}, greedy; same tokens required (with stop: up to the first EOS)")
    single = prompts(few, longest, longest, seed=1)
    compare("batch 1, no stop", model, single, 1, False, args.runs)
    compare("batch 1, stop at EOS", model, single, 1, True, args.runs)
    mixed = prompts(many, 30, longest, seed=2)
    compare(f"{many} mixed prompts, stop at EOS", model, mixed, 16, True, args.runs)


if __name__ == "__main__":
    main()
