"""Traced operations and memory against those that PyTorch really counts and holds, on the bundled checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import dare_bench
from dare_bench.costs.checkpoint import Network, find
from dare_bench.costs.trace import Trace, answering, parameters, shapes_in, training
from dare_bench.diffusion.forward import Inputs
from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.protocols import AdapterSettings

TINY = ["tiny-llada-base", "tiny-dream-base", "tiny-sdar-base", "tiny-llada2-base"]
LLADA = "GSAI-ML/LLaDA-8B-Instruct"


def packed(rows: int, tokens: int) -> Inputs:
    """All tokens of some rows, a third of them scored."""
    ids = torch.arange(rows * tokens) % 30
    return Inputs(ids, ids % tokens, Plan((tokens,) * rows), torch.arange(0, rows * tokens, 3), ids[::3])


def network_of(model: str, **arch: Any) -> Network:
    network = find(model)
    return replace(network, arch=replace(network.arch, **arch))


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
    found = training(network_of(model), getattr(torch, dtype), adapter, shapes_in(given), autocast=bf16, backward=True)
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
    found = training(network_of(model), torch.float32, None, shapes_in(given), autocast=False, backward=False)
    assert found.flop == counted


def test_two_depths_stand_for_all_layers() -> None:
    """Of a deep network; and the same by tracing every layer of it."""
    deep, given = network_of("tiny-llada-base", layers=7), packed(8, 96)
    every = type("All", (Network,), {"depths": (7,)})(deep.model, deep.arch)
    assert deep.depths == (3, 4)
    for how in ({}, {"checkpointing": True}, {"backward": False}):
        two, all_of_them = (
            training(network, torch.float32, None, shapes_in(given), **{"autocast": True, "backward": True, **how})
            for network in (deep, every)
        )
        for name in ("flop", "moved"):
            assert getattr(two, name) == getattr(all_of_them, name), (how, name)
        assert two.peak == pytest.approx(all_of_them.peak, rel=0.01), how


def test_checkpointing_trades_operations_for_memory_and_lora_needs_fewer() -> None:
    network, given = network_of("tiny-llada-base", layers=12), packed(8, 96)

    def found(adapter: AdapterSettings | None = None, **how: bool) -> Trace:
        return training(network, torch.float32, adapter, shapes_in(given), autocast=False, **{"backward": True, **how})

    plain, recomputed, scored = found(), found(checkpointing=True), found(backward=False)
    assert plain.flop == pytest.approx(3 * scored.flop, rel=0.05)
    assert recomputed.flop == pytest.approx(4 * scored.flop, rel=0.1)
    assert scored.peak < recomputed.peak < plain.peak / 2
    assert found(scattered=True).peak <= plain.peak
    assert 2 * scored.flop < found(AdapterSettings(r=1)).flop < 2.5 * scored.flop, "the backward of attention is whole"


def test_a_cached_block_reads_what_is_before_it() -> None:
    network = network_of("tiny-sdar-base")
    alone, behind = (answering(network, torch.float32, 4, 4, context, 4) for context in (4, 104))
    width = network.arch.heads * network.arch.head_dim
    assert behind.flop - alone.flop == 4 * network.arch.layers * 4 * 4 * 100 * width
    assert behind.moved > alone.moved and behind.peak > alone.peak


def test_an_8b_is_traced_at_its_published_size_and_known_operations() -> None:
    """A forward of L tokens: 2 x 6.98e9 x L + 4 x 32 x 4096 x L^2, less the last layer for most tokens."""
    network = find(LLADA)
    assert parameters(network, AdapterSettings()) == (8_015_581_184, 83_886_080)
    by_hand = 2 * 6.98e9 * 556 + 4 * 32 * 4096 * 556**2
    assert answering(network, torch.bfloat16, 1, 556, 556, 16).flop == pytest.approx(by_hand, rel=0.03)
