"""Classifier-free guidance: guided rows occur in the pack a second time, with masked prompts.

Shape letters: T packed tokens, N open positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.sampling.packing import Pack

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.state import RowState


def guided(cond_NV: Tensor, uncond_NV: Tensor, scale: float | Tensor) -> Tensor:
    """``u + (scale + 1)(c - u)`` (LLaDA generate.py)."""
    return uncond_NV + (scale + 1.0) * (cond_NV - uncond_NV)


def _with_rows(plan: Plan, lengths: Sequence[int]) -> Plan:
    """The plan with appended rows, which are complete and read nothing from the cache."""
    starts, cached = plan.starts, plan.cached
    if starts is not None:
        starts = (*starts, *[0] * len(lengths))
    if cached is not None:
        nothing = torch.zeros(0, dtype=torch.long)
        cached = replace(cached, slots=(*cached.slots, *[nothing] * len(lengths)))
    return Plan((*plan.lengths, *lengths), starts=starts, cached=cached)


class GuidedCopies:
    """The unconditional copies of a pack whose rows are complete canvases, in the batch's order."""

    def __init__(self, rows: Sequence[RowState], pack: Pack, mask_id: int, device: torch.device) -> None:
        scales = [row.sampler.attention.cfg_scale for row in rows]
        self.mask_id = mask_id
        self.scale_R = torch.tensor(scales, dtype=torch.float32, device=device)
        self.row_T = pack.tokens.row_T
        self.guided_T = (self.scale_R > 0)[pack.tokens.row_T].nonzero()[:, 0]
        self.copy_T = torch.full_like(pack.tokens.row_T, -1)
        self.copy_T[self.guided_T] = len(pack.tokens.row_T) + torch.arange(len(self.guided_T), device=device)
        prompt = [torch.tensor(list(row.prompt), dtype=torch.long) != mask_id for row in rows]
        rest = [torch.zeros(len(row.canvas) - len(row.prompt), dtype=torch.bool) for row in rows]
        hidden = torch.cat([part for pair in zip(prompt, rest, strict=True) for part in pair]).to(device)
        self.hidden_T = hidden[self.guided_T if pack.index_T is None else pack.index_T[self.guided_T]]
        lengths = [len(rows[i].canvas) for i in pack.tokens.row_T.unique_consecutive().tolist() if scales[i] > 0]
        self.plan = _with_rows(pack.plan, lengths)
        self.column_T = torch.cat([pack.column_T, pack.column_T[self.guided_T]])

    def logits(self, network: Any, tokens_T: Tensor, index_N: Tensor) -> Tensor:
        """Guided logits at ``at_N``, [N, V]; plain logits for rows without guidance."""
        unknown = tokens_T[self.guided_T].masked_fill(self.hidden_T, self.mask_id)
        copies = self.copy_T[index_N]
        has_copy = copies >= 0
        logits = network(
            torch.cat([tokens_T, unknown]), self.column_T, self.plan, logits_at=torch.cat([index_N, copies[has_copy]])
        ).logits
        cond, uncond = logits[: len(index_N)].clone(), logits[len(index_N) :]
        scale = self.scale_R[self.row_T[index_N]][has_copy][:, None]
        cond[has_copy] = guided(cond[has_copy].float(), uncond.float(), scale).to(cond.dtype)
        return cond
