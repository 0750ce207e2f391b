"""Attention of a pack by kernels for rows of different length (FlashAttention, arXiv 2205.14135): one call for all
rows, nothing padded, on CUDA only.

These kernels take no mask: a query attends to all keys of its row. Plans whose rows attend otherwise (several blocks of
a block-causal row, two copies) are computed by the backend ``padded``. Cached keys and values are read where they are
stored if the kernel takes pages of one slot, as FlashAttention 3 does. FlashAttention 2 takes multiples of 256 slots;
for it they are packed together with the rows' own, once for a steady plan.

Shape letters: T packed tokens, N queries, S slots, J keys, R rows, K key heads, C head channels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dare_bench.diffusion.plan import Plan, Store
from dare_bench.model_adapters.backbone.padded import PaddedAttention

MOST_CHANNELS = 256
"""Channels of a head that FlashAttention takes at most; they must be a multiple of 8."""


@dataclass(frozen=True, eq=False)
class Segments:
    """The rows of a plan as the kernels take them.

    ``first_q`` and ``first_k`` are where the queries and keys of each row begin, and their total (int32 [R + 1]);
    ``most_q`` and ``most_k`` bound their number in a row. With a cache, keys are tokens of the store followed by the
    pack. Either they stay there, and ``table_RJ`` (int32) has the tokens of each row, ``count_R`` (int32) of them. Or
    the tokens ``token_J`` are packed, where those of the pack itself are at ``own_T``; ``kept`` holds the packed keys
    and values of a steady plan.
    """

    first_q: Tensor
    first_k: Tensor
    most_q: int
    most_k: int
    table_RJ: Tensor | None = None
    count_R: Tensor | None = None
    token_J: Tensor | None = None
    own_T: Tensor | None = None
    kept: dict[int, tuple[Tensor, Tensor]] | None = None

    def packed(self, store: Store, layer: int, k_TKC: Tensor, v_TKC: Tensor) -> tuple[Tensor, Tensor]:
        """Cached keys and values and the rows' own by row, each [J, K, C]."""
        if self.kept is not None and layer in self.kept:
            assert self.own_T is not None
            for packed, own in zip(self.kept[layer], (k_TKC, v_TKC), strict=True):
                packed.index_copy_(0, self.own_T, own)
            return self.kept[layer]
        k, v = store.with_own(layer, k_TKC, v_TKC)
        packed_k, packed_v = k[self.token_J], v[self.token_J]
        if self.kept is not None:
            self.kept[layer] = packed_k, packed_v
        return packed_k, packed_v


class Kernel(Protocol):
    """``pages``: does it read keys through a table of pages of one slot (without gradients)?"""

    @property
    def pages(self) -> bool: ...

    def __call__(self, q_NHC: Tensor, k_JKC: Tensor, v_JKC: Tensor, rows: Segments) -> Tensor: ...


@dataclass(frozen=True)
class TorchKernel:
    """``torch.nn.attention.varlen.varlen_attn`` (torch 2.10 or newer). ``pages``: FlashAttention 3 is active in it."""

    function: Callable[..., Any]
    pages: bool = False

    def __call__(self, q_NHC: Tensor, k_JKC: Tensor, v_JKC: Tensor, rows: Segments) -> Tensor:
        # FlashAttention 3 would otherwise split the keys of a row depending on the other rows.
        more: dict[str, Any] = {"num_splits": 1} if self.pages else {}
        first_k: Tensor | None = rows.first_k
        if rows.table_RJ is not None:
            k_JKC, v_JKC, first_k = k_JKC[:, None], v_JKC[:, None], None
            more |= {"seqused_k": rows.count_R, "block_table": rows.table_RJ}
        bounds = rows.first_q, first_k, rows.most_q, rows.most_k
        out: Tensor = self.function(q_NHC, k_JKC, v_JKC, *bounds, **more)
        return out


@dataclass(frozen=True)
class FlashKernel:
    """``flash_attn_varlen_func`` of the package flash-attn 2."""

    function: Callable[..., Any]
    pages: ClassVar[bool] = False

    def __call__(self, q_NHC: Tensor, k_JKC: Tensor, v_JKC: Tensor, rows: Segments) -> Tensor:
        out: Tensor = self.function(q_NHC, k_JKC, v_JKC, rows.first_q, rows.first_k, rows.most_q, rows.most_k)
        return out


class VarlenAttention:
    """One call of ``kernel`` for all rows."""

    name = "varlen"
    static_shapes = True

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.padded = kernel, PaddedAttention()

    def select(self, plan: Plan, at_N: Tensor) -> Any:
        """The rows with the selected queries alone."""
        if not plan.unmasked:
            return self.padded.select(plan, at_N)
        rows = self._rows(plan, at_N.device)
        return replace(rows, first_q=torch.searchsorted(at_N, rows.first_q.long(), out_int32=True))

    def attend(self, q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, selected: Any, layer: int) -> Tensor:
        if not plan.unmasked:
            return self.padded.attend(q, k_TKC, v_TKC, plan, selected, layer)
        rows: Segments = self._rows(plan, q.device) if selected is None else selected
        if (cached := plan.reading) is None:
            return self.kernel(q, k_TKC, v_TKC, rows)
        placed = cached.store.with_own if rows.table_RJ is not None else partial(rows.packed, cached.store)
        return self.kernel(q, *placed(layer, k_TKC, v_TKC), rows)

    def _rows(self, plan: Plan, device: torch.device) -> Segments:
        in_place = self.kernel.pages and not torch.is_grad_enabled()
        return plan.once(("varlen", device, in_place), lambda: segments(plan, device, in_place))


def segments(plan: Plan, device: torch.device, in_place: bool = False) -> Segments:
    """The rows of a plan, with all of their tokens as queries. ``in_place``: with a table of the cached keys, instead
    of an order in which they are packed."""
    cached = plan.reading
    own_R = torch.tensor(plan.lengths)
    read_R = torch.zeros_like(own_R) if cached is None else torch.tensor([len(s) for s in cached.slots])
    both_R = own_R + read_R
    rows = Segments(_firsts(own_R, device), _firsts(both_R, device), int(own_R.max()), int(both_R.max()))
    if cached is None:
        return rows
    row_J = torch.arange(len(both_R)).repeat_interleave(both_R)
    column_J = torch.arange(len(row_J)) - (both_R.cumsum(0) - both_R)[row_J]
    own_J = column_J >= read_R[row_J]
    token_J = torch.empty_like(row_J)
    token_J[~own_J] = torch.cat(cached.slots).cpu()
    token_J[own_J] = cached.store.slots + torch.arange(plan.tokens)
    if in_place:
        table_RJ = torch.zeros((len(both_R), rows.most_k), dtype=torch.int32)
        table_RJ[row_J, column_J] = token_J.int()
        return replace(rows, table_RJ=table_RJ.to(device), count_R=both_R.int().to(device))
    own_T = own_J.nonzero()[:, 0].to(device)
    return replace(rows, token_J=token_J.to(device), own_T=own_T, kept={} if cached.steady else None)


def _firsts(count_R: Tensor, device: torch.device) -> Tensor:
    """Where each row begins, and the end of the last one: int32 [R + 1]."""
    return torch.nn.functional.pad(count_R.cumsum(0), (1, 0)).int().to(device)


def find_kernel() -> Kernel | None:
    """PyTorch's own kernel, else that of flash-attn; None if neither is installed."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        pass
    else:
        if "enable_gqa" not in inspect.signature(varlen_attn).parameters:  # torch 2.10 and 2.11 always do
            return TorchKernel(varlen_attn)
        pages = torch.nn.attention.current_flash_attention_impl() == "FA3"
        return TorchKernel(partial(varlen_attn, enable_gqa=True), pages)
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    return FlashKernel(flash_attn_varlen_func)


def why_not(device: torch.device, dtype: torch.dtype, channels: int) -> str | None:
    """Why these kernels cannot compute a network of that dtype and that many channels a head; None: they can."""
    if device.type != "cuda":
        return f"computes on CUDA only, the device is {device}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"computes in float16 or bfloat16, the dtype is {str(dtype).removeprefix('torch.')}"
    if channels % 8 or channels > MOST_CHANNELS:
        return f"takes heads of 8, 16, ... {MOST_CHANNELS} channels, the model's have {channels}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"needs an NVIDIA GPU of compute capability 8.0 or newer, {device} is older"
    if find_kernel() is None:
        return "needs torch 2.10 or newer, or the package flash-attn 2"
    return None
