"""Attention of a pack by PyTorch's FlexAttention, one call for all rows and for any plan.

The rule of a plan is computed inside the kernel from a few tables, which are made once a plan; tiles that no row
attends to are skipped. Cached keys and values are read where they are stored, not gathered.

Shape letters: T packed tokens, N queries (all tokens, or the selected ones), S slots of the cache, J = S + T keys,
R rows, I and B tiles of queries and keys, H heads, K key heads, C head channels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import UsageError

TILE = 128
"""Queries and keys of a tile, FlexAttention's own default."""
VARIANTS = 64
"""Compiled variants that PyTorch keeps of attention (each network needs up to four: one query, one tile, more, the
cache) and of a step of the sampler (one for each shape)."""


class FlexAttention:
    """``compiled``: as one kernel, which is compiled at first use; otherwise as several operations, which compute all
    scores. None: compiled where there is a GPU."""

    name = "flex"
    static_shapes = True

    def __init__(self, compiled: bool | None = None) -> None:
        self.compiled = compiled

    def select(self, plan: Plan, at_N: Tensor) -> Any:
        """The block mask of the selected tokens."""
        return block_mask(plan, at_N.device, at_N)

    def attend(self, q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, selected: Any, layer: int) -> Tensor:
        """See :class:`~dare_bench.model_adapters.backbone.attention.Attention`.

        Raises:
            UsageError: gradients on a CPU, for which FlexAttention has none.
        """
        on_cpu = q.device.type == "cpu"
        if on_cpu and (q.requires_grad or k_TKC.requires_grad or v_TKC.requires_grad):
            raise UsageError("attention='flex' computes no gradients on a CPU; train with sdpa or padded, or on a GPU")
        mask = plan.once(("flex", q.device), lambda: block_mask(plan, q.device)) if selected is None else selected
        k, v = k_TKC, v_TKC
        if (cached := plan.reading) is not None:
            k, v = cached.store.with_own(layer, k, v)
        kernel = _kernel(not on_cpu if self.compiled is None else self.compiled, on_cpu)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out: Tensor = kernel(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return out[0].transpose(0, 1)


def block_mask(plan: Plan, device: torch.device, at_N: Tensor | None = None) -> Any:
    """The ``BlockMask`` of a plan for all of its tokens, or for the selected ones."""
    from torch.nn.attention.flex_attention import BlockMask

    row_N = torch.arange(len(plan.lengths), device=device).repeat_interleave(torch.tensor(plan.lengths, device=device))
    code_J, until_N, also_N = _codes(plan, device)
    sees_RJ = torch.zeros((len(plan.lengths), len(code_J)), dtype=torch.bool, device=device)
    sees_RJ[row_N, torch.arange(len(code_J) - len(row_N), len(code_J), device=device)] = True
    if (cached := plan.reading) is not None:
        reader_E = torch.arange(len(plan.lengths)).repeat_interleave(torch.tensor([len(s) for s in cached.slots]))
        sees_RJ[reader_E.to(device), torch.cat(cached.slots).to(device)] = True
    if at_N is not None:
        row_N, until_N, also_N = row_N[at_N], until_N[at_N], also_N[at_N]

    def allowed(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return sees_RJ[row_N[i], j] & ((code_J[j] < until_N[i]) | (code_J[j] == also_N[i]))

    if plan.shadows is not None:
        sees, column_T, is_shadow_T = allowed, plan.positions(device), plan.shadow_tokens(device)
        column_N, shadow_N = (x_T if at_N is None else x_T[at_N] for x_T in (column_T, is_shadow_T))

        def allowed(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            other = is_shadow_T[j] | (column_T[j] != column_N[i])
            return sees(batch, head, i, j) & torch.where(shadow_N[i], other, ~is_shadow_T[j])

    count_I, index_IB = _tiles(row_N, sees_RJ)
    return BlockMask.from_kv_blocks(
        count_I[None, None],
        index_IB[None, None],
        BLOCK_SIZE=TILE,
        mask_mod=allowed,
        seq_lengths=(len(row_N), len(code_J)),
    )


def _codes(plan: Plan, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The rule of a plan inside a row: a query attends to the keys whose code is below its ``until``, and to those
    whose code equals its ``also``.

    The code of a token is its block, that of a noisy copy is larger than any block, and that of cached tokens is
    smaller.
    """
    slots = 0 if plan.reading is None else plan.reading.store.slots
    code_T = torch.zeros(plan.tokens, dtype=torch.long, device=device)
    until_T, also_T = code_T + 1, code_T - 2
    if plan.block_length is not None:
        code_T = plan.grid_columns(device) // plan.block_length
        until_T = code_T + 1
    if plan.block_length is not None and plan.copies == 2:
        half_R = torch.tensor(plan.lengths, device=device) // 2
        halves = torch.tensor([True, False], device=device).repeat(len(half_R))
        noisy_T = halves.repeat_interleave(half_R.repeat_interleave(2))
        until_T = torch.where(noisy_T, code_T, until_T)
        code_T = torch.where(noisy_T, code_T + plan.tokens, code_T)
        also_T = torch.where(noisy_T, code_T, also_T)
    return torch.cat([code_T.new_full((slots,), -1), code_T]), until_T, also_T


def _tiles(row_N: Tensor, sees_RJ: Tensor) -> tuple[Tensor, Tensor]:
    """For each tile of queries: how many tiles of keys its rows see [I], and all tiles of keys, these first [I, B].
    Never as large as queries times keys."""
    rows, keys = sees_RJ.shape
    tiles = -(-keys // TILE)
    seen_RB = torch.nn.functional.pad(sees_RJ, (0, tiles * TILE - keys)).view(rows, tiles, TILE).any(-1)
    member_IR = torch.zeros((-(-len(row_N) // TILE), rows), device=row_N.device)
    member_IR[torch.arange(len(row_N), device=row_N.device) // TILE, row_N] = 1.0
    touched_IB = (member_IR @ seen_RB.float()) > 0
    index_IB = torch.argsort(touched_IB.int(), dim=-1, descending=True, stable=True)
    return touched_IB.sum(-1, dtype=torch.int32), index_IB.int()


@cache
def _kernel(compiled: bool, on_cpu: bool) -> Callable[..., Any]:
    """FlexAttention, imported at first use because the import takes seconds."""
    from torch.nn.attention import flex_attention as module

    allow_variants()
    if not compiled:
        return partial(_quietly, module.flex_attention)
    # With variable sizes, PyTorch 2.13 generates code for CPUs that no compiler accepts.
    kernel: Callable[..., Any] = torch.compile(module.flex_attention, dynamic=not on_cpu)
    return kernel


def allow_variants() -> None:
    """Let PyTorch keep more compiled variants of a function than it does by default."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)


def _quietly(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Without PyTorch's advice to compile it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return kernel(*args, **options)
