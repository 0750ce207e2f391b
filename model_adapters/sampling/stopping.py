"""When a row stops, and where its answer is truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
