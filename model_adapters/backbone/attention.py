"""Attention backends: how the rows of a plan attend. All of them compute the same values.

``sdpa`` makes one call for each group of rows of equal length and computes nothing that is not needed, which is best on
a CPU. The others make one call for all rows, which is best where the launch of an operation costs more than its work:
``padded`` pads them to the longest one, ``flex`` computes the rule of the plan inside the kernel, and ``varlen`` takes
rows of different length, without a mask.

Shape letters: T packed tokens, N selected queries, H heads, K key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import UsageError
from dare_bench.model_adapters.backbone.flex import FlexAttention
from dare_bench.model_adapters.backbone.padded import PaddedAttention
from dare_bench.model_adapters.backbone.sdpa import GroupedAttention
from dare_bench.model_adapters.backbone.varlen import VarlenAttention, find_kernel, why_not


class Attention(Protocol):
    """A backend. ``name`` is what users select and what results record; ``static_shapes``: the sampler computes all
    positions that may be open in a block, so that shapes stay the same and the host need not wait, rather than only
    those that are open."""

    name: str
    static_shapes: bool

    def select(self, plan: Plan, at_N: Tensor) -> Any:
        """What :meth:`attend` needs to know of the selected tokens ``at_N``, sorted packed indices; computed once for
        a forward."""
        ...

    def attend(self, q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, selected: Any, layer: int) -> Tensor:
        """Softmax attention inside each row and over what it reads from the cache, scaled by C^-0.5.

        ``q`` is [T, H, C], or [N, H, C] for the selected tokens when ``selected`` is given; the result has q's shape.
        """
        ...


BACKENDS: Mapping[str, Attention] = {"sdpa": GroupedAttention(), "padded": PaddedAttention()}
"""The backends that compute every plan on every device, with gradients."""
NAMES = ("auto", *BACKENDS, "flex", "varlen")


def pick_attention(name: Any, device: torch.device, dtype: torch.dtype, channels: int) -> Attention:
    """The backend of that name for a network with ``channels`` channels a head. ``auto``: sdpa on a CPU; on a GPU
    varlen if it can compute the network, else padded.

    Raises:
        UsageError: an unknown name, or varlen where it cannot compute.
    """
    if name not in NAMES:
        raise UsageError(f"attention={name!r} is not known; allowed: {', '.join(NAMES)}")
    if name == "flex":
        return FlexAttention()
    if name == "auto" and device.type == "cpu":
        return BACKENDS["sdpa"]
    if name in BACKENDS:
        return BACKENDS[name]
    reason = why_not(device, dtype, channels)
    if reason is not None and name == "varlen":
        raise UsageError(f"attention='varlen' {reason}; use padded or flex, or leave it out")
    kernel = None if reason is not None else find_kernel()
    return BACKENDS["padded"] if kernel is None else VarlenAttention(kernel)


def attend(
    backend: Attention, q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, selected: Any, layer: int
) -> Tensor:
    """:meth:`Attention.attend`; of a plan with a sequence-parallel group, each rank gives all heads of its own
    tokens."""
    if plan.sequence is None:
        return backend.attend(q, k_TKC, v_TKC, plan, selected, layer)
    q, k_TKC, v_TKC = plan.sequence.by_heads(q, k_TKC, v_TKC, plan.tokens)
    return plan.sequence.by_tokens(backend.attend(q, k_TKC, v_TKC, plan, None, layer))
