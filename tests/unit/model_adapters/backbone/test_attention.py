"""Attention backends compute the same values and gradients for every plan."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from shutil import which
from types import SimpleNamespace

import flash_stand_in
import golden
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.errors import UsageError
from dare_bench.model_adapters.backbone import attention, flex
from dare_bench.model_adapters.backbone.attention import BACKENDS, pick_attention
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.flex import FlexAttention
from dare_bench.model_adapters.backbone.varlen import FlashKernel, TorchKernel, VarlenAttention, find_kernel

CHANNELS, SLOTS, LAYERS = 16, 300, 2
CALLS = ((0, 0), (0, 1), (1, 0))
"""Index of the inputs, and the layer, of each call."""
CPU = torch.device("cpu")

OTHERS = {
    "padded": BACKENDS["padded"],
    "flex": FlexAttention(),
    "varlen": VarlenAttention(TorchKernel(flash_stand_in.grouped)),
    "varlen-pages": VarlenAttention(TorchKernel(flash_stand_in.grouped, pages=True)),
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
CASES_OF_HEADS = {
    "plain heads": ("rows of mixed length", "block-causal windows", "steady windows"),
    "grouped heads": tuple(CASES),
}


def filled_store(kv_heads, device=CPU, dtype=torch.float32):
    shape = SimpleNamespace(kv_heads=kv_heads, head_dim=CHANNELS)
    arch = SimpleNamespace(layers=LAYERS, attention=lambda layer: shape)
    store = KVStore(arch, SLOTS // 2, device, dtype)
    store.grow(SLOTS)
    for stored in (*store.keys, *store.values):
        stored.copy_(torch.randn(stored.shape).bfloat16())
    return store


def inputs(case, heads, device=CPU, dtype=torch.float32):
    """The plan of a case, and queries, keys and values, which bfloat16 holds exactly."""
    torch.manual_seed(0)
    plan = case.plan(filled_store(heads[1], device, dtype))
    shapes = [(plan.tokens, count, CHANNELS) for count in (heads[0], heads[1], heads[1])]
    return plan, *(torch.randn(shape).bfloat16().to(device, dtype) for shape in shapes)


def computed(backend, plan, q, k, v, at=None):
    """The results for two layers, and for the first one again (a plan may keep what it gathered), as one tensor."""
    plan = replace(plan)  # what a plan keeps is made anew
    selected = None if at is None else backend.select(plan, at)
    q = q if at is None else q[at]
    return torch.stack([backend.attend(q * (1 + i), k - i, v + i, plan, selected, layer) for i, layer in CALLS])


@pytest.mark.parametrize(("heads", "name"), [(h, name) for h, names in CASES_OF_HEADS.items() for name in names])
@torch.no_grad()
def test_same_values(heads, name):
    plan, q, k, v = inputs(CASES[name], HEADS[heads])
    few = torch.arange(1, plan.tokens, 3)[: plan.tokens // 2 + 1]
    want, want_few = computed(BACKENDS["sdpa"], plan, q, k, v), computed(BACKENDS["sdpa"], plan, q, k, v, few)
    assert (want - want.mean(0)).abs().max() > 0.1
    assert torch.allclose(want_few, computed(BACKENDS["sdpa"], plan, *(q, k, v))[:, few], atol=1e-5)
    for name, backend in OTHERS.items():
        assert (computed(backend, plan, q, k, v) - want).abs().max() <= 1e-5, name
        assert (computed(backend, plan, q, k, v, few) - want_few).abs().max() <= 1e-5, name


@pytest.mark.parametrize("name", ["rows of mixed length", "block-causal", "two copies", "windows"])
def test_same_gradients(name):
    plan, *leaves = inputs(CASES[name], HEADS["grouped heads"])
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def gradients(backend, at):
        out = computed(backend, plan, *leaves, at)
        return torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum(), leaves)

    for at in (None, torch.arange(0, plan.tokens, 2)):
        want = gradients(BACKENDS["sdpa"], at)
        assert all(gradient.abs().max() > 0.01 for gradient in want)
        for other, backend in WITH_GRADIENTS.items():
            for got, expected in zip(gradients(backend, at), want, strict=True):
                assert (got - expected).abs().max() <= 1e-5, other


def test_flex_has_no_gradients_on_a_cpu():
    plan, q, k, v = inputs(CASES["one row"], HEADS["plain heads"])
    with pytest.raises(UsageError, match="attention='flex' computes no gradients on a CPU; train with sdpa or padded"):
        FlexAttention().attend(q.requires_grad_(), k, v, plan, None, 0)


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="PyTorch compiles for a CPU with g++, which is not installed")
@torch.no_grad()
@torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True})  # as in test_frames.py
def test_flex_compiled():
    plan, q, k, v = inputs(CASES["block-causal windows"], HEADS["grouped heads"])
    want = computed(BACKENDS["sdpa"], plan, q, k, v)
    assert (computed(FlexAttention(compiled=True), plan, q, k, v) - want).abs().max() <= 1e-5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen computes on CUDA only, and there is no GPU")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@torch.no_grad()
def test_same_values_on_a_gpu(case):
    """The kernels themselves, in bfloat16, against float32 on the CPU."""
    device, half = torch.device("cuda"), torch.bfloat16
    want = computed(BACKENDS["sdpa"], *inputs(case, HEADS["grouped heads"]))
    arguments = inputs(case, HEADS["grouped heads"], device, half)
    for name in ("sdpa", "padded", "flex", *(["varlen"] if find_kernel() else [])):
        got = computed(pick_attention(name, device, half, CHANNELS), *arguments).cpu().float()
        assert (got - want).abs().max() <= 0.02 * want.abs().max(), name


@pytest.mark.parametrize("family", golden.FAMILIES)
@torch.no_grad()
def test_same_logits(family, monkeypatch):
    """Of every family's network, where few logits are wanted."""
    network = golden.model(family).network
    lengths = (5, 12, 12, 90)
    plan = Plan(lengths, network.arch.block_length)
    torch.manual_seed(0)
    tokens, at = torch.randint(1, 60, (plan.tokens,)), torch.arange(2, plan.tokens, 7)
    want = network(tokens, plan=plan, logits_at=at).logits
    bound = 1e-5 * max(1.0, float(want.abs().max()))
    for name, backend in OTHERS.items():
        monkeypatch.setattr(network, "attention", backend)
        assert (network(tokens, plan=replace(plan), logits_at=at).logits - want).abs().max() <= bound, name


@pytest.mark.parametrize(
    ("family", "decoding"),
    [
        ("llada", {"gen_length": 8, "steps": 4, "block_length": 4, "cache": "dual"}),
        ("llada", {"gen_length": 8, "steps": 4, "cfg_scale": 1.0}),
        ("sdar", {"gen_length": 8, "cache": "exact"}),
    ],
)
def test_same_answers(family, decoding, monkeypatch):
    """While rows come and go, and their caches grow."""
    model = golden.model(family)
    prompts = [[5, 6, 7], [9] * 9, [3, 1, 4, 1, 5, 9]]

    def answers():
        return [answer.tokens for answer in model.generate(prompts, max_rows=2, **decoding)]

    want = answers()
    for name, backend in OTHERS.items():
        monkeypatch.setattr(model.network, "attention", backend)
        assert answers() == want, name


class Operations(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class OneOperation:
    """A kernel as it is counted on a GPU: it is launched once."""

    pages: bool = False

    def __call__(self, q, k, v, rows=None, **options):
        return q.clone()


def operations(network, rows, cached):
    """Of a forward over rows of different length, or over steady windows with caches of different length."""
    lengths, counts, none = tuple(range(33 - rows, 33)), range(5, 5 + rows), torch.zeros(0, dtype=torch.long)
    plan = Plan(lengths, network.arch.block_length)
    if cached:
        store = KVStore(network.arch, 40, CPU, torch.float32)
        slots = tuple(torch.arange(1, 1 + count) for count in counts)
        plan = Plan((4,) * rows, cached=Cached(store, slots, none, none, steady=True))
    tokens, positions = torch.arange(plan.tokens) % 50, plan.positions()
    network(tokens, positions, plan)  # prepares the plan
    with Operations() as mode:
        network(tokens, positions, plan)
    return mode.count


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2"])
@torch.no_grad()
def test_operations_do_not_grow_with_rows(family, cached, monkeypatch):
    network = golden.model(family).network
    # PyTorch does not trace FlexAttention while operations are counted.
    monkeypatch.setattr(flex, "_kernel", lambda *_: OneOperation())
    counted = {name: VarlenAttention(OneOperation(pages)) for name, pages in (("varlen", False), ("pages", True))}
    for name, backend in {"padded": BACKENDS["padded"], "flex": FlexAttention(), **counted}.items():
        monkeypatch.setattr(network, "attention", backend)
        one, many = operations(network, 1, cached), operations(network, 32, cached)
        assert many <= 1.3 * one, name


def test_own_keys_are_appended_in_place():
    store = filled_store(2)
    before, own = store.keys[1].clone(), torch.randn(6, 2, CHANNELS)
    keys, values = store.with_own(1, own[:5], own[1:])
    assert torch.equal(keys, torch.cat([before, own[:5]])) and torch.equal(values[SLOTS:], own[1:])
    assert keys.data_ptr() == store.keys[1].data_ptr()
    again, _ = store.with_own(1, own[1:], own[1:])
    assert again.data_ptr() == keys.data_ptr() and torch.equal(again[SLOTS:], own[1:])
    store.grow(SLOTS + 7)
    assert store.slots == len(store.keys[1]) == len(store.values[0]) == SLOTS + 7
    grown, _ = store.with_own(1, own, own)
    assert torch.equal(grown, torch.cat([before, torch.zeros(7, 2, CHANNELS), own]))


def test_the_backend_is_picked_by_name_and_device(monkeypatch):
    gpu, half = torch.device("cuda:0"), torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "find_kernel", lambda: TorchKernel(flash_stand_in.grouped))

    def named(*arguments):
        return pick_attention(*arguments).name

    assert [named(name, CPU, torch.float32, 64) for name in ("auto", "sdpa", "padded", "flex")] == [
        "sdpa", "sdpa", "padded", "flex",
    ]  # fmt: skip
    assert [named("auto", gpu, dtype, 64) for dtype in (half, torch.float16, torch.float32)] == [
        "varlen", "varlen", "padded",
    ]  # fmt: skip
    assert named("auto", gpu, half, 20) == "padded" and named("varlen", gpu, half, 128) == "varlen"
    for arguments, message in (
        (("varlen", CPU, half, 64), "attention='varlen' computes on CUDA only, the device is cpu; use padded or flex"),
        (("varlen", gpu, torch.float32, 64), "computes in float16 or bfloat16, the dtype is float32"),
        (("varlen", gpu, half, 20), "takes heads of 8, 16, ... 256 channels, the model's have 20"),
        (("fast", CPU, half, 64), "attention='fast' is not known; allowed: auto, sdpa, padded, flex, varlen"),
        ((None, CPU, half, 64), "attention=None is not known"),
    ):
        with pytest.raises(UsageError, match=message):
            pick_attention(*arguments)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert named("auto", gpu, half, 64) == "padded"


def test_the_kernel_is_pytorchs_own_else_that_of_flash_attn(monkeypatch):
    assert isinstance(find_kernel(), TorchKernel)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    monkeypatch.setitem(sys.modules, "flash_attn", flash_stand_in)
    assert find_kernel() == FlashKernel(flash_stand_in.flash_attn_varlen_func)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert find_kernel() is None
