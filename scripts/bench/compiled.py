"""Compiled steps (``load(..., compile=True)``) against the same steps run operation by operation.

    python scripts/bench/compiled.py [--runs 5] [--threads 1] [--quick]

Weights are random, in LLaDA's layout with hidden size 512. Eight prompts of different length are answered together,
with a fixed schedule in one block, padded attention and static shapes. Compiling, in the first run, is not timed. The
script fails if the tokens differ. With --quick, steps are traced, but not compiled.
"""

from __future__ import annotations

from functools import partial

import torch
from models import Tokens, generate, native_model
from timing import alternate, options

from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.frames import Frames, compiled
from dare_bench.model_adapters.llada import FAMILY, LLaDAConfig, LLaDAModelLM
from dare_bench.model_adapters.native import NativeModel
from dare_bench.types import ModelSpec

VOCAB, MASK = 4096, 4095
ROWS = 8


def build(width: int, layers: int) -> NativeModel:
    torch.manual_seed(0)
    config = LLaDAConfig(
        d_model=width,
        n_layers=layers,
        n_heads=width // 64,
        mlp_hidden_size=3 * width,
        vocab_size=VOCAB,
        embedding_size=VOCAB,
        max_sequence_length=1024,
        mask_token_id=MASK,
        eos_token_id=MASK - 1,
    )
    network = LLaDAModelLM(config)
    network.attention = BACKENDS["padded"]
    spec = ModelSpec("llada", MASK, (MASK - 1,), None, MASK - 1, VOCAB, 1024, "bidirectional", None)
    return native_model(FAMILY, network, spec)


def answer(model: NativeModel, frames: Frames | None, steps: int) -> Tokens:
    model.frames = frames
    prompts = [[(7 * i + j) % 1000 for j in range(20 + 9 * i)] for i in range(ROWS)]
    return generate(model, prompts, {"gen_length": steps, "steps": steps, "block_length": steps}, ROWS)


def main() -> None:
    args = options(__doc__)
    width, layers, steps = (64, 1, 2) if args.quick else (512, 6, 16)
    model = build(width, layers)
    frames = Frames(model.network, partial(compiled, backend="eager" if args.quick else "inductor"))
    answer(model, frames, steps)
    timing = alternate(lambda: answer(model, None, steps), lambda: answer(model, frames, steps), args.runs)
    assert timing.slow_value == timing.fast_value, "the tokens differ"
    print(f"compiled steps, {ROWS} rows, hidden size {width}, {args.threads} thread(s): {timing.spread()}")


if __name__ == "__main__":
    main()
