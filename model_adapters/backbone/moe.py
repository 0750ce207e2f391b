"""Mixture of experts: a router picks each token's experts; all experts of a layer are two tensors.

Published checkpoints store experts one by one. They are stacked when a file is loaded and split when one is saved, so
files keep their published names while one grouped product computes all experts.

Shape letters: T tokens, D width, E experts, K experts a token, M expert width, S = T K chosen pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, grouped_mm, linear, silu

from dare_bench.diffusion.plan import Plan
from dare_bench.diffusion.sequence_parallel import SequenceGroup
from dare_bench.model_adapters.backbone.arch import MoE

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}
"""By the name in ``Arch.activation``."""


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, without an operation where nothing changes."""
    return x if x.dtype == dtype else x.to(dtype)


def published(state: Mapping[str, Any]) -> dict[str, Any]:
    """A network's weights (tensors, or what stands for them) under the names of a published file: stacked experts one
    by one, as views. Those of a layer's ``experts`` outside of ``mlp`` are published as they are (DiffusionGemma)."""
    weights: dict[str, Any] = {}
    for name, weight in state.items():
        stem, _, leaf = name.rpartition(".")
        if not (stem.endswith("mlp.experts") and weight.ndim == 3):
            weights[name] = weight
            continue
        for e, expert in enumerate(weight):
            if leaf == "down_proj":
                weights[f"{stem}.{e}.down_proj.weight"] = expert
            else:
                gate, up = expert.chunk(2)
                weights |= {f"{stem}.{e}.gate_proj.weight": gate, f"{stem}.{e}.up_proj.weight": up}
    return weights


def published_shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of :func:`published`."""
    return {name: tuple(weight.shape) for name, weight in published(state).items()}


class Router(nn.Linear):
    """Each expert's value for each token before softmax or sigmoid, [T, E] in float32.

    float32: the product itself in float32 too, whatever the model's dtype.
    """

    def __init__(self, width: int, experts: int, float32: bool) -> None:
        super().__init__(width, experts, bias=False)
        self.float32 = float32

    def forward(self, x_TD: Tensor) -> Tensor:
        kind = torch.float32 if self.float32 else x_TD.dtype
        return as_dtype(linear(as_dtype(x_TD, kind), as_dtype(self.weight, kind)), torch.float32)


class Experts(nn.Module):
    """All gated experts of a layer: ``gate_up_proj`` [E, 2M, D], ``down_proj`` [E, D, M]."""

    def __init__(self, moe: MoE, width: int, activation: str = "silu") -> None:
        super().__init__()
        self.count, self.activation = moe.experts, activation
        self.gate_up_proj = nn.Parameter(torch.empty(moe.experts, 2 * moe.width, width))
        self.down_proj = nn.Parameter(torch.empty(moe.experts, width, moe.width))

    def forward(self, x_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        """The weighted sum of each token's experts, [T, D]: sorted by expert, so one grouped product computes all."""
        k = expert_TK.shape[1]
        expert_S, order_S = expert_TK.view(-1).sort(stable=True)
        every_E = torch.arange(self.count, device=x_TD.device)
        ends_E = torch.searchsorted(expert_S, every_E, right=True, out_int32=True)
        x_SD = x_TD[order_S // k]
        gate, up = _each(x_SD, _tensor(self.gate_up_proj), ends_E).chunk(2, dim=-1)
        out_SD = _each(ACTIVATIONS[self.activation](gate) * up, _tensor(self.down_proj), ends_E)
        out = out_SD[order_S.argsort()].view(*expert_TK.shape, -1) * weight_TK[..., None]
        return as_dtype(out.sum(1), x_TD.dtype)


def _tensor(weight: Tensor | nn.Module) -> Tensor:
    """Of experts that were quantized, the matrices multiplied out."""
    return weight if isinstance(weight, Tensor) else weight()


@torch.library.custom_op("dare_bench::grouped_mm", mutates_args=())
def _compiled_grouped_mm(x_SD: Tensor, weight_EDM: Tensor, offs: Tensor) -> Tensor:
    """``grouped_mm`` for torch.compile, whose own shape function takes bfloat16 alone. Without gradients."""
    return grouped_mm(x_SD, weight_EDM, offs=offs)


@_compiled_grouped_mm.register_fake
def _(x_SD: Tensor, weight_EDM: Tensor, offs: Tensor) -> Tensor:
    return x_SD.new_empty(x_SD.shape[0], weight_EDM.shape[2])


def grouped_kernel(widths: Iterable[int], device: torch.device, dtype: torch.dtype) -> bool:
    """Has PyTorch one kernel for all experts of these widths on this GPU? Elsewhere the host waits for their sizes."""
    even = all(width % 8 == 0 for width in widths)
    return even and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10)


def _each(x_SD: Tensor, weight_EMD: Tensor, ends_E: Tensor) -> Tensor:
    """Rows of expert e, which end at ``ends_E[e]``, times its matrix: [S, M]. The grouped kernel does not support
    float64, and rows must be multiples of 16 bytes; otherwise the experts are computed one at a time."""
    odd = any(size * x_SD.element_size() % 16 for size in weight_EMD.shape[1:])
    if x_SD.dtype != torch.float64 and not odd:
        product = _compiled_grouped_mm if torch.compiler.is_compiling() else grouped_mm
        return product(x_SD, weight_EMD.transpose(1, 2), offs=ends_E)
    parts, start = [], 0
    for e, end in enumerate(ends_E.tolist()):
        parts.append(linear(x_SD[start:end], weight_EMD[e]))
        start = end
    return torch.cat(parts)


@dataclass(frozen=True)
class Pools:
    """``block_T`` numbers the ``blocks`` whose tokens share a pool of experts. With a sequence-parallel group the
    tokens of a block are those of all ranks, and null tokens have a block of their own."""

    block_T: Tensor
    blocks: int
    sequence: SequenceGroup | None = None

    @classmethod
    def of(cls, plan: Plan, moe: MoE, device: torch.device) -> Pools:
        """The blocks of a pack, or of this rank's part of it."""
        block_T = plan.blocks(moe.pool_block, device)
        blocks = int(block_T.max()) + 1 if len(block_T) else 0
        if plan.sequence is None:
            return cls(block_T, blocks)
        return cls(plan.sequence.own(block_T, null=blocks), blocks + 1, plan.sequence)


def route(
    raw_TE: Tensor, bias_E: Tensor | None, moe: MoE, dtype: torch.dtype, pools: Pools | None = None
) -> tuple[Tensor, Tensor]:
    """Each token's experts [T, K] and their weights [T, K] from the router's values; weights in ``dtype``, the model's,
    unless the family has weights in float32. ``pools``: the tokens that choose from the same experts.

    Sources: Qwen3MoeTopKRouter (softmax), LLaDA2MoeGate of inclusionAI/LLaDA2.0-mini (sigmoid, groups, bias), its block
    routing in LLaDA2.2-flash as described in sgl-project/sglang pull request 31768.
    """
    value_TE = raw_TE.softmax(-1) if moe.score == "softmax" else raw_TE.sigmoid()
    rank_TE = value_TE if bias_E is None else value_TE + as_dtype(bias_E, torch.float32)
    if pools is not None:
        rank_TE = _in_pools(rank_TE, pools, moe.pool)
    elif moe.groups > 1:
        rank_TE = _best_groups(rank_TE, moe)
    weight_TK, expert_TK = rank_TE.topk(moe.top_k, dim=-1)
    if moe.bias == "choice":
        weight_TK = value_TE.gather(1, expert_TK)
    if moe.renormalize and moe.top_k > 1:
        weight_TK = weight_TK / (weight_TK.sum(-1, keepdim=True) + 1e-20)
    weight_TK = weight_TK if moe.scale == 1.0 else weight_TK * moe.scale
    return expert_TK, weight_TK if moe.float32 else as_dtype(weight_TK, dtype)


def _in_pools(rank_TE: Tensor, pools: Pools, pool: int) -> Tensor:
    """-inf outside the ``pool`` experts of each block with the highest value at any of its tokens."""
    block_T = pools.block_T
    best_BE = rank_TE.new_full((pools.blocks, rank_TE.shape[1]), float("-inf"))
    best_BE.scatter_reduce_(0, block_T[:, None].expand_as(rank_TE), rank_TE.detach(), "amax")
    if pools.sequence is not None:
        best_BE = pools.sequence.largest(best_BE)
    keep_BE = torch.zeros_like(best_BE, dtype=torch.bool)
    keep_BE.scatter_(1, best_BE.topk(pool, dim=-1).indices, True)
    return rank_TE.masked_fill(~keep_BE[block_T], float("-inf"))


def _best_groups(rank_TE: Tensor, moe: MoE) -> Tensor:
    """-inf outside the ``top_groups`` groups whose two best experts sum highest."""
    table = rank_TE.view(len(rank_TE), moe.groups, -1)
    group_TG = table.topk(min(2, table.shape[-1]), dim=-1).values.sum(-1)
    drop = torch.ones_like(group_TG, dtype=torch.bool)
    drop.scatter_(1, group_TG.topk(moe.top_groups, dim=-1).indices, False)
    return table.masked_fill(drop[..., None], float("-inf")).view_as(rank_TE)
