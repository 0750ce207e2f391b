"""When a row stops, and where its answer is truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.answer_text import stop_is_final, through_eos


@dataclass(frozen=True)
class StoppingPolicy:
    """When a row stops, and where its answer is truncated."""

    early_stop: bool = False
    stop_in_block: bool = False
    """Also stop inside a block, when an EOS is written that has no mask before it."""
    stop_when_filled: bool = False
    """With ``stop_in_block``: also when the last mask before an EOS is filled."""
    cut_at_eos: bool = False
    """The published sampler returns nothing after the first EOS, early stop or not."""
    keep_text_after_eos: bool = False
    stop: tuple[str, ...] = ()
    eos_ids: tuple[int, ...] = ()

    def is_final(self, tokens: Sequence[int], mask_id: int, tokenizer: Any | None) -> bool:
        """May a row stop after the finished blocks ``tokens``? Exact, because the text is cut at the first EOS (or stop
        string), and everything up to it is final and without masks."""
        if not self.early_stop:
            return False
        end = through_eos(tokens, self.eos_ids)
        if end is not None:
            return mask_id not in tokens[:end]
        if not self.stop or tokenizer is None or mask_id in tokens:
            return False
        text = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return stop_is_final(text, self.stop)

    def ends_inside(self, before_L: Tensor, now_L: Tensor, mask_id: int) -> bool:
        """Does a block hold an EOS without masks before it, which the last forward has written (LLaDA2 generate,
        eos_early_stop) or, with ``stop_when_filled``, an earlier one (Fast-dLLM v2 generate)? ``before_L`` and
        ``now_L``: its tokens before and after the forward."""
        if not self.stop_in_block:
            return False
        is_end_L = torch.isin(now_L, torch.tensor(self.eos_ids, dtype=torch.long))
        new_L = is_end_L if self.stop_when_filled else is_end_L & (now_L != before_L)
        return bool(new_L.any()) and mask_id not in now_L[: int(is_end_L.long().argmax())]
