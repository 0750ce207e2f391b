"""Norm, rotary positions and one transformer layer, built under the family's published names.

Shape letters: T packed tokens, N selected tokens, D width, H heads, C head channels.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.backbone.arch import Arch, LayerAttention, MoE, RopeScaling, Yarn
from dare_bench.model_adapters.backbone.attention import Attention, attend
from dare_bench.model_adapters.backbone.moe import ACTIVATIONS, Experts, Pools, Router, as_dtype, route

WHOLE_MODEL = ("embed", "layers", "final_norm", "head")


class RMSNorm(nn.Module):
    """``w * cast(x32 / rms(x32))``: the norm in float32, the weight in the model's dtype (LLaDA RMSLayerNorm)."""

    def __init__(self, width: int, eps: float, weight: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        y = rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype)
        return y if self.weight is None else y * self.weight


def rotary(positions_T: Tensor, layer: LayerAttention, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, C] in the two-halves (GPT-NeoX) layout, as :func:`rotate` takes them: the sines of the first
    half are negated."""
    channels = layer.rotary_width
    exponent = torch.arange(0, channels, 2, device=positions_T.device, dtype=torch.float32) / channels
    frequency = 1.0 / layer.theta**exponent
    if isinstance(layer.scaling, Yarn):
        frequency = stretched(frequency, layer.scaling, layer.theta)
    elif layer.scaling is not None:
        frequency = scaled(frequency, layer.scaling)
    if layer.rotated < channels:
        frequency[layer.rotated // 2 :] = 0.0
    angles = positions_T.float()[:, None] * frequency[None, :]
    cos, sin = angles.cos(), angles.sin()
    cos, sin = torch.cat([cos, cos], dim=-1)[:, None], torch.cat([-sin, sin], dim=-1)[:, None]
    return as_dtype(cos, dtype), as_dtype(sin, dtype)


def scaled(frequency: Tensor, by: RopeScaling) -> Tensor:
    """Rotary frequencies as Llama 3 scales them (transformers, modeling_rope_utils.py)."""
    turns = by.original * frequency / (2 * math.pi)  # of a wave within the original length
    smooth = ((turns - by.low) / (by.high - by.low)).clamp(0, 1)
    return (1 - smooth) * frequency / by.factor + smooth * frequency


def stretched(frequency: Tensor, by: Yarn, theta: float) -> Tensor:
    """Rotary frequencies as YaRN scales them (transformers, modeling_rope_utils.py)."""
    pairs = len(frequency)
    low, high = (
        pairs * math.log(by.original / (turns * 2 * math.pi)) / math.log(theta) for turns in (by.fast, by.slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * pairs - 1)
    number = torch.arange(pairs, device=frequency.device, dtype=torch.float32)
    ramp = ((number - low) / ((high - low) or 0.001)).clamp(0, 1)
    return frequency / by.factor * ramp + frequency * (1 - ramp)


def rotate(x_THC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to the first channels (as many as ``cos`` has), in the dtype of the tables. If these are
    not all, ``x_THC`` itself is changed where no gradient needs it."""
    width = cos.shape[-1]
    part = x_THC if width == x_THC.shape[-1] else x_THC[..., :width]
    x = as_dtype(part, cos.dtype)
    x = (x * cos).add_(x.roll(width // 2, -1).mul_(sin))
    if part is x_THC:
        return as_dtype(x, x_THC.dtype)
    if x.requires_grad:
        return torch.cat([as_dtype(x, x_THC.dtype), x_THC[..., width:]], dim=-1)
    part.copy_(x)
    return x_THC


def attach(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put ``module`` at a dotted path, adding plain containers for its parents."""
    *parents, leaf = path.split(".")
    for name in parents:
        if not hasattr(root, name):
            root.add_module(name, nn.Module())
        root = getattr(root, name)
    root.add_module(leaf, module)


def unwrapped(root: nn.Module, path: str) -> Any:
    """The attribute at a dotted path; of a module that peft has wrapped (a router may hold the experts' bias), that of
    the original."""
    parent, _, leaf = path.rpartition(".")
    module: Any = root.get_submodule(parent)
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return getattr(module, leaf)


class Layer(nn.Module):
    """``x += Attn(norm(x)); x += FF(norm(x))``. Submodules are looked up by name on every call, so a wrapper that
    replaces one (LoRA, quantization, FSDP) is what runs."""

    norm_class: ClassVar[Any] = RMSNorm

    def __init__(self, arch: Arch, index: int = 0) -> None:
        super().__init__()
        self.arch, self.index, n = arch, index, arch.names
        self.kind = own = arch.attention(index)
        q_width, kv_width = arch.heads * own.head_dim, own.kv_heads * own.head_dim
        attach(self, n.attn_norm, self.norm_class(arch.width, arch.norm_eps, arch.norm_weight))
        apart = {n.q: q_width, n.k: kv_width, **({} if own.value_is_key else {n.v: kv_width})}
        for path, out in ({n.qkv: q_width + 2 * kv_width} if n.qkv else apart).items():
            attach(self, path, nn.Linear(arch.width, out, bias=arch.qkv_bias))
        if arch.qk_norm:
            attach(self, n.q_norm, RMSNorm(own.head_dim, arch.norm_eps))
            attach(self, n.k_norm, RMSNorm(own.head_dim, arch.norm_eps))
        attach(self, n.o, nn.Linear(q_width, arch.width, bias=arch.bias or arch.o_bias))
        for path in (n.ff_norm, n.attn_post_norm, n.ff_post_norm):
            if path:
                attach(self, path, self.norm_class(arch.width, arch.norm_eps, arch.norm_weight))
        self.moe = arch.moe if arch.is_moe(index) else None
        if self.moe is None:
            self._attach_ff((n.gate, n.up, n.down), arch.ff_width)
        else:
            self._attach_experts(self.moe)
        self._paths = {part: path.split(".") for part, path in asdict(n).items() if path and part not in WHOLE_MODEL}

    def _attach_ff(self, paths: tuple[str, str, str], width: int) -> None:
        gate, up, down = paths
        bias = self.arch.bias or self.arch.ff_bias
        if gate:
            attach(self, gate, nn.Linear(self.arch.width, width, bias=bias))
        attach(self, up, nn.Linear(self.arch.width, width, bias=bias))
        attach(self, down, nn.Linear(width, self.arch.width, bias=bias))

    def _attach_experts(self, moe: MoE) -> None:
        n = self.arch.names
        attach(self, n.router, Router(self.arch.width, moe.experts, moe.float32))
        attach(self, n.experts, Experts(moe, self.arch.width, self.arch.activation))
        if moe.bias != "none":
            parent, _, leaf = n.expert_bias.rpartition(".")
            attrgetter(parent)(self).register_buffer(leaf, torch.zeros(moe.experts))
        if moe.shared_width:
            self._attach_ff((n.shared_gate, n.shared_up, n.shared_down), moe.shared_width)

    def part(self, name: str) -> Any:
        part: Any = self
        for step in self._paths[name]:
            part = getattr(part, step)
        return part

    def forward(
        self,
        x_TD: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: Plan,
        attention: Attention,
        keep_N: Tensor | None = None,
        selected: Any = None,
        scale_T: Tensor | None = None,
    ) -> Tensor:
        """[T, D] in; [T, D] out, or [N, D] when only the tokens ``keep_N`` are needed: then keys and values are
        computed for all tokens, but queries, output and feed-forward for these alone (enough in the last layer).
        ``selected`` is what ``attention.select`` gave for them; ``scale_T`` multiplies queries."""
        y_ND = self._attended(self.part("attn_norm")(x_TD), cos, sin, plan, attention, keep_N, selected, scale_T)
        x_TD = (x_TD if keep_N is None else x_TD[keep_N]) + self._post_norm("attn_post_norm", y_ND)
        return x_TD + self._post_norm("ff_post_norm", self._feed_forward(x_TD, plan))

    def _attended(
        self,
        y_TD: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: Plan,
        attention: Attention,
        keep_N: Any,
        selected: Any,
        scale_T: Tensor | None = None,
    ) -> Tensor:
        """The projected output of attention, [T, D] or [N, D], for normed states."""
        q, k, v = self._project(y_TD, keep_N)
        k = rotate(k, cos, sin)
        if plan.cached is not None and len(plan.cached.write_at):
            plan.cached.store.write(self.index, plan.cached.write_at, plan.cached.write_to, k, v)
        if keep_N is not None:
            cos, sin = cos[keep_N], sin[keep_N]
        q = rotate(q, cos, sin)
        if scale_T is not None:
            q = q * as_dtype(scale_T if keep_N is None else scale_T[keep_N], q.dtype)[:, None, None]
        mixed = attend(attention, q, k, v, plan, selected, self.index)
        out_ND: Tensor = self.part("o")(mixed.reshape(len(q), -1))
        return out_ND

    def _post_norm(self, part: str, y_TD: Tensor) -> Tensor:
        """Normed, in families with norms behind attention and feed-forward."""
        return self.part(part)(y_TD) if part in self._paths else y_TD

    def _project(self, y_TD: Tensor, keep_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N or T, H, C], keys and values [T, K, C], normed and clipped where the family does so."""
        a, own = self.arch, self.kind
        if a.names.qkv:
            widths = [a.heads * own.head_dim, own.kv_heads * own.head_dim, own.kv_heads * own.head_dim]
            q, k, v = self.part("qkv")(y_TD).split(widths, dim=-1)
            q = q if keep_N is None else q[keep_N]
        else:
            q = self.part("q")(y_TD if keep_N is None else y_TD[keep_N])
            k = self.part("k")(y_TD)
            v = k if own.value_is_key else self.part("v")(y_TD)
        q = q.view(len(q), a.heads, own.head_dim)
        k, v = k.view(len(k), own.kv_heads, own.head_dim), v.view(len(v), own.kv_heads, own.head_dim)
        if a.qk_norm:
            q, k = self.part("q_norm")(q), self.part("k_norm")(k)
        if a.v_norm:
            v = rms_norm(v.float(), (own.head_dim,), None, a.norm_eps).to(v.dtype)
        if a.attention_scale is not None:  # the products are scaled by head_dim^-0.5 again
            q = q * (a.attention_scale * own.head_dim**0.5)
        if a.clip_qkv is not None:
            q, k, v = (x.clamp(-a.clip_qkv, a.clip_qkv) for x in (q, k, v))
        return q, k, v

    def _feed_forward(self, x_TD: Tensor, plan: Plan) -> Tensor:
        y_TD = self.part("ff_norm")(x_TD)
        if self.moe is None:
            return self._gated(y_TD, "gate", "up", "down")
        bias = unwrapped(self, self.arch.names.expert_bias) if self.moe.bias != "none" else None
        pools = Pools.of(plan, self.moe, y_TD.device) if self.moe.pool else None
        expert_TK, weight_TK = route(self.part("router")(y_TD), bias, self.moe, y_TD.dtype, pools)
        out_TD = self.part("experts")(y_TD, expert_TK, weight_TK)
        if self.moe.shared_width:
            out_TD = out_TD + self._gated(y_TD, "shared_gate", "shared_up", "shared_down")
        return out_TD

    def _gated(self, y_TD: Tensor, gate: str, up: str, down: str) -> Tensor:
        activation = ACTIVATIONS[self.arch.activation]
        if gate not in self._paths:
            return self.part(down)(activation(self.part(up)(y_TD)))
        return self.part(down)(activation(self.part(gate)(y_TD)) * self.part(up)(y_TD))
