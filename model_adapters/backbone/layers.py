"""Norm, rotary positions and one transformer layer, built under the family's published names.

Shape letters: T packed tokens, N selected tokens, D width, H heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from dare_bench.model_adapters.backbone.arch import Arch
from dare_bench.model_adapters.backbone.attention import attend
from dare_bench.model_adapters.backbone.plan import GroupQueries, Plan


class RMSNorm(nn.Module):
    """``w * cast(x32 / rms(x32))``: the norm in float32, the weight in the model's dtype (LLaDA RMSLayerNorm)."""

    def __init__(self, width: int, eps: float, weight: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None

    def forward(self, x: Tensor) -> Tensor:
        y = rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype)
        return y if self.weight is None else y * self.weight


def rotary(positions_T: Tensor, channels: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, C] in float32, in the two-halves (GPT-NeoX) layout."""
    exponent = torch.arange(0, channels, 2, device=positions_T.device, dtype=torch.float32) / channels
    angles = positions_T.float()[:, None] * (1.0 / theta**exponent)[None, :]
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x_THC: Tensor, cos: Tensor, sin: Tensor, in_float32: bool) -> Tensor:
    """Apply rotary positions; in float32 and cast back where the family does so."""
    x = x_THC.float() if in_float32 else x_THC
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return (x * cos + turned * sin).to(x_THC.dtype)


def attach(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put ``module`` at a dotted path, making plain containers on the way."""
    *parents, leaf = path.split(".")
    for name in parents:
        if not hasattr(root, name):
            root.add_module(name, nn.Module())
        root = getattr(root, name)
    root.add_module(leaf, module)


class Layer(nn.Module):
    """``x += Attn(norm(x)); x += FF(norm(x))``. Submodules are looked up by name on every call, so a wrapper that
    replaces one (LoRA, quantisation, FSDP) is what runs."""

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.arch, n = arch, arch.names
        q_width, kv_width = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        attach(self, n.attn_norm, RMSNorm(arch.width, arch.norm_eps, arch.norm_weight))
        attach(self, n.q, nn.Linear(arch.width, q_width, bias=arch.qkv_bias))
        attach(self, n.k, nn.Linear(arch.width, kv_width, bias=arch.qkv_bias))
        attach(self, n.v, nn.Linear(arch.width, kv_width, bias=arch.qkv_bias))
        attach(self, n.o, nn.Linear(q_width, arch.width, bias=arch.bias))
        attach(self, n.ff_norm, RMSNorm(arch.width, arch.norm_eps, arch.norm_weight))
        attach(self, n.gate, nn.Linear(arch.width, arch.ff_width, bias=arch.bias))
        attach(self, n.up, nn.Linear(arch.width, arch.ff_width, bias=arch.bias))
        attach(self, n.down, nn.Linear(arch.ff_width, arch.width, bias=arch.bias))
        self._parts: dict[str, Callable[[Any], Any]] = {
            part: attrgetter(getattr(n, part))
            for part in ("attn_norm", "q", "k", "v", "o", "ff_norm", "gate", "up", "down")
        }

    def part(self, name: str) -> Any:
        return self._parts[name](self)

    def forward(
        self,
        x_TD: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: Plan,
        keep_N: Tensor | None = None,
        queries: list[GroupQueries | None] | None = None,
    ) -> Tensor:
        """[T, D] in; [T, D] out, or [N, D] when only the tokens ``keep_N`` are wanted: then keys and values are
        computed for all, but queries, output and feed-forward for those alone (the last layer needs no more)."""
        a, full = self.arch, self.arch.rope_in_float32
        y_TD = self.part("attn_norm")(x_TD)
        k = rotate(self.part("k")(y_TD).view(-1, a.kv_heads, a.head_dim), cos, sin, full)
        v = self.part("v")(y_TD).view(-1, a.kv_heads, a.head_dim)
        if keep_N is not None:
            x_TD, y_TD, cos, sin = x_TD[keep_N], y_TD[keep_N], cos[keep_N], sin[keep_N]
        q = rotate(self.part("q")(y_TD).view(-1, a.heads, a.head_dim), cos, sin, full)
        mixed = attend(q, k, v, plan, queries)
        x_TD = x_TD + self.part("o")(mixed.reshape(x_TD.shape[0], -1))
        y_TD = self.part("ff_norm")(x_TD)
        return x_TD + self.part("down")(silu(self.part("gate")(y_TD)) * self.part("up")(y_TD))
