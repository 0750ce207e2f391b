"""Attention backends compute the same values and gradients for every plan."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from shutil import which
from types import SimpleNamespace

import flash_stand_in
import golden
import pytest
import torch

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.errors import UsageError
from dare_bench.model_adapters.backbone.attention import BACKENDS, pick_attention
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.flex import FlexAttention
from dare_bench.model_adapters.backbone.varlen import FlashKernel, TorchKernel, VarlenAttention, find_kernel

CHANNELS, SLOTS, LAYERS = 8, 300, 2
CPU = torch.device("cpu")

OTHERS = {
    "padded": BACKENDS["padded"],
    "flex": BACKENDS["flex"],
    "varlen": VarlenAttention(TorchKernel(flash_stand_in.varlen_attn)),
    "varlen-pages": VarlenAttention(TorchKernel(flash_stand_in.varlen_attn, pages=True)),
    "flash": VarlenAttention(FlashKernel(flash_stand_in.flash_attn_varlen_func)),
}
WITH_GRADIENTS = {name: backend for name, backend in OTHERS.items() if name != "flex"}


@dataclass(frozen=True)
class Case:
    """A plan by its fields; ``reads``: how many slots of the cache each row reads."""

    lengths: tuple[int, ...]
    fields: dict
    reads: tuple[int, ...] = ()
    steady: bool = False

    def plan(self, store):
        picked = torch.Generator().manual_seed(1)
        slots = tuple(1 + torch.randperm(SLOTS - 1, generator=picked)[:count] for count in self.reads)
        if len(slots) > 1:
            slots = (*slots[:-1], torch.cat([slots[0][:2], slots[-1]])[: self.reads[-1]].unique())  # a shared prefix
        none = torch.zeros(0, dtype=torch.long)
        cached = Cached(store, slots, none, none, self.steady) if self.reads else None
        return Plan(self.lengths, cached=cached, **self.fields)


CASES = {
    "one row": Case((13,), {}),
    "rows of one length": Case((6, 6, 6), {}),
    "rows of mixed length": Case((3, 5, 5, 130, 1), {}),
    "guided copies": Case((4, 9, 4, 9), {}),
    "block-causal": Case((4, 9, 12), {"block_length": 4}),
    "block-causal, one block a row": Case((4, 3, 4), {"block_length": 4}),
    "two copies": Case((16, 8, 24), {"block_length": 4, "copies": 2}),
    "two copies, bidirectional": Case((8, 6), {"copies": 2}),
    "windows": Case((4, 4, 4), {"starts": (8, 8, 8)}, (20, 20, 20)),
    "steady windows": Case((4, 4, 7), {"starts": (8, 12, 0)}, (20, 150, 7), steady=True),
    "windows beside whole rows": Case((4, 9, 9), {"starts": (8, 0, 0)}, (20, 0, 0)),
    "a cache that nobody reads": Case((4, 9), {}, (0, 0)),
    "block-causal windows": Case((4, 8, 8), {"block_length": 4, "starts": (8, 16, 4)}, (8, 16, 4)),
}
HEADS = {"plain heads": (2, 2), "grouped heads": (4, 2)}


def filled_store(kv_heads):
    arch = SimpleNamespace(kv_heads=kv_heads, head_dim=CHANNELS, layers=LAYERS)
    store = KVStore(arch, SLOTS // 2, CPU, torch.float32)
    store.grow(SLOTS)
    for stored in (*store.keys, *store.values):
        stored.copy_(torch.randn(stored.shape))
    return store


def inputs(case, heads):
    torch.manual_seed(0)
    store = filled_store(heads[1])
    plan = case.plan(store)
    q, k, v = (torch.randn(plan.tokens, count, CHANNELS) for count in (heads[0], heads[1], heads[1]))
    return plan, q, k, v


def computed(backend, plan, q, k, v, at=None):
    """The results for two layers, twice each (a plan may keep what it gathered), as one tensor."""
    plan = replace(plan)  # what a plan keeps is made anew
    selected = None if at is None else backend.select(plan, at)
    q = q if at is None else q[at]
    return torch.stack(
        [backend.attend(q * (1 + i), k - i, v + i, plan, selected, layer) for i in range(2) for layer in range(LAYERS)]
    )


@pytest.fixture(autouse=True)
def quiet():
    """FlexAttention warns that it is slow when it is not compiled."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@torch.no_grad()
def test_same_values(case, heads):
    plan, q, k, v = inputs(case, heads)
    few = torch.arange(1, plan.tokens, 3)[: plan.tokens // 2 + 1]
    want, want_few = computed(BACKENDS["sdpa"], plan, q, k, v), computed(BACKENDS["sdpa"], plan, q, k, v, few)
    assert (want - want.mean(0)).abs().max() > 0.1
    assert torch.allclose(want_few, computed(BACKENDS["sdpa"], plan, *(q, k, v))[:, few], atol=1e-5)
    for name, backend in OTHERS.items():
        assert (computed(backend, plan, q, k, v) - want).abs().max() <= 1e-5, name
        assert (computed(backend, plan, q, k, v, few) - want_few).abs().max() <= 1e-5, name
