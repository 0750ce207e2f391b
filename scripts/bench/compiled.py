"""A denoising step compiled by ``torch.compile(fullgraph=True)`` against the same step run operation by operation.

    python scripts/bench/compiled.py [--runs 5] [--threads 1] [--quick]

Weights are random, in LLaDA's layout with hidden size 512. Eight rows of different length with a fixed schedule, padded
attention and static shapes; compiling is not timed. The script fails if the tokens differ.
"""

from __future__ import annotations

from typing import Any

import torch
from models import native_model
from timing import alternate, options

from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.llada import FAMILY, LLaDAConfig, LLaDAModelLM
from dare_bench.model_adapters.native import NativeModel
from dare_bench.model_adapters.sampling.batch import BatchState
from dare_bench.model_adapters.sampling.buckets import Sizes
from dare_bench.types import ModelSpec, Request

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


def batch(model: NativeModel, steps: int) -> BatchState:
    """Rows at the beginning of their only block."""
    decoding = {"gen_length": steps, "steps": steps, "block_length": steps}
    rows = []
    for i in range(ROWS):
        prompt = [(7 * i + j) % 1000 for j in range(20 + 9 * i)]
        rows.append(model.row(Request(str(i), "generate", prompt, decoding=decoding)))
        rows[-1].next_block(VOCAB)
    state = BatchState(rows, MASK, model.device, sizes=Sizes())
    state.prepare()
    return state


def main() -> None:
    args = options(__doc__)
    width, layers, steps = (64, 1, 2) if args.quick else (512, 6, 16)
    model = build(width, layers)
    state = batch(model, steps)
    compiled = torch.compile(lambda: state.step(model.network), fullgraph=True, dynamic=False)
    start = {name: x.clone() for name, x in vars(state).items() if isinstance(x, torch.Tensor)}

    def decode(step: Any) -> list[int]:
        for name, x in start.items():
            getattr(state, name).copy_(x)
        for _ in range(steps):
            step()
        tokens: list[int] = state.canvas_T.tolist()
        return tokens

    with torch.inference_mode():
        decode(compiled)
        timing = alternate(lambda: decode(lambda: state.step(model.network)), lambda: decode(compiled), args.runs)
    assert timing.slow_value == timing.fast_value, "the tokens differ"
    print(f"a compiled step, {ROWS} rows, hidden size {width}, {args.threads} thread(s): {timing.spread()}")


if __name__ == "__main__":
    main()
