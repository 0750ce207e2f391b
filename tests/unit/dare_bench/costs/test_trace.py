"""Traced operations and memory against those that PyTorch really counts and holds, on the bundled checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import dare_bench
from dare_bench.costs import trace
from dare_bench.costs.trace import Trace, answering, find, parameters, traced
from dare_bench.diffusion.forward import Inputs
from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.protocols import AdapterSettings
from dare_bench.types import Request

TINY = ["tiny-llada-base", "tiny-dream-base", "tiny-sdar-base", "tiny-llada2-base"]


def packed(rows: int, tokens: int) -> Inputs:
    """All tokens of some rows, a third of them scored."""
    ids = torch.arange(rows * tokens) % 30
    return Inputs(ids, ids % tokens, Plan((tokens,) * rows), torch.arange(0, rows * tokens, 3), ids[::3])


def model_of(name: str, **arch: Any) -> Any:
    model = copy(find(name))
    model.network = copy(model.network)
    model.network.arch = replace(model.network.arch, **arch)
    return model


def training(model: Any, dtype: torch.dtype, adapter: AdapterSettings | None, given: Inputs, **how: bool) -> Trace:
    return traced(model, dtype, given.plan, len(given.at_N), losses=True, adapter=adapter, **how)


def saved_bytes(network: Any, given: Inputs, autocast: bool) -> int:
    """Bytes of the tensors that a forward keeps for its backward, besides the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    casting = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), casting:
        network.train()(**given.arguments())
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    ("model", "dtype", "lora", "bf16"),
    [
        ("tiny-llada-base", "float32", False, False),
        ("tiny-llada2-base", "float32", False, True),
        ("tiny-sdar-base", "bfloat16", True, False),
    ],
)
def test_the_memory_of_an_update_is_what_pytorch_saves_and_what_the_backward_adds(
    model: str, dtype: str, lora: bool, bf16: bool
) -> None:
    """At its peak an update holds all saved tensors but the last ones, gradients, and the temporaries of a layer."""
    loaded, given = dare_bench.load(model, device="cpu", dtype=dtype).loaded, packed(8, 128)
    if lora:
        loaded.add_adapter(AdapterSettings())
    saved = saved_bytes(loaded.network, given, bf16)
    gradients = sum(w.nbytes for w in loaded.network.parameters() if w.requires_grad)
    adapter = AdapterSettings() if lora else None
    found = training(find(model), getattr(torch, dtype), adapter, given, autocast=bf16, backward=True)
    assert 0.9 * saved < found.peak < 1.25 * saved + gradients
    trained = sum(w.numel() for w in loaded.network.parameters() if w.requires_grad)
    assert parameters(find(model), adapter)[1] == trained


@pytest.mark.parametrize("model", TINY)
def test_operations_are_those_that_pytorch_counts(model: str) -> None:
    """With the same attention; grouped products, which PyTorch's counter does not know, are counted by hand: the last
    layer computes only the scored tokens."""
    loaded, given = dare_bench.load(model, device="cpu", dtype="float32").loaded, packed(4, 96)
    loaded.network.attention = BACKENDS["padded"]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        loaded.network(**given.arguments())
    counted, moe = counter.get_total_flops(), loaded.network.arch.moe
    if moe is not None:
        tokens = (sum(moe.layers) - 1) * len(given.tokens_U) + len(given.at_N)
        counted += 2 * tokens * moe.top_k * 3 * moe.width * loaded.network.arch.width
    found = training(find(model), torch.float32, None, given)
    assert found.flop == counted


def test_two_depths_stand_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a deep network; and the same by tracing every layer of it."""
    deep, every, given = model_of("tiny-llada-base", layers=7), model_of("tiny-llada-base", layers=7), packed(8, 96)
    assert trace.depths(deep.network.arch) == (3, 4)
    ways = ({"backward": True}, {"backward": True, "checkpointing": True}, {})
    two = [training(deep, torch.float32, None, given, autocast=True, **how) for how in ways]
    monkeypatch.setattr(trace, "depths", lambda arch: (arch.layers, arch.layers))
    for how, of_two in zip(ways, two, strict=True):
        whole = training(every, torch.float32, None, given, autocast=True, **how)
        assert (of_two.flop, of_two.moved) == (whole.flop, whole.moved), how
        assert of_two.peak == pytest.approx(whole.peak, rel=0.01), how


def test_checkpointing_trades_operations_for_memory_and_lora_needs_fewer() -> None:
    model, given = model_of("tiny-llada-base", layers=12), packed(8, 96)

    def found(adapter: AdapterSettings | None = None, **how: bool) -> Trace:
        return training(model, torch.float32, adapter, given, **{"backward": True, **how})

    plain, recomputed, scored = found(), found(checkpointing=True), found(backward=False)
    assert plain.flop == pytest.approx(3 * scored.flop, rel=0.05)
    assert recomputed.flop == pytest.approx(4 * scored.flop, rel=0.1)
    assert scored.peak < recomputed.peak < plain.peak / 2
    assert found(scattered=True).peak <= plain.peak
    assert 2 * scored.flop < found(AdapterSettings(r=1)).flop < 2.5 * scored.flop, "the backward of attention is whole"


def test_a_cached_block_reads_what_is_before_it() -> None:
    model = find("tiny-sdar-base")
    alone, behind = (traced(model, torch.float32, Plan((4,) * 4), 16, cached=cached) for cached in (0, 100))
    arch = model.network.arch
    assert behind.flop - alone.flop == 4 * arch.layers * 4 * 4 * 100 * arch.heads * arch.head_dim
    assert behind.moved > alone.moved and behind.peak > alone.peak


def test_an_8b_is_traced_at_its_published_size_and_known_operations() -> None:
    """A forward of L tokens: 2 x 6.98e9 x L + 4 x 32 x 4096 x L^2, less the last layer for most tokens."""
    model = find("GSAI-ML/LLaDA-8B-Instruct")
    assert parameters(model, AdapterSettings()) == (8_015_581_184, 83_886_080)
    by_hand = 2 * 6.98e9 * 556 + 4 * 32 * 4096 * 556**2
    request = Request("", "generate", [0] * 300, decoding={"gen_length": 256, "steps": 256, "block_length": 16})
    forwards, mean = answering(model, torch.bfloat16, 1, request)
    assert forwards == 256 and mean.flop == pytest.approx(by_hand, rel=0.03)
