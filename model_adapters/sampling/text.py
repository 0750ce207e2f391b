"""From response tokens to text: cut at the first EOS, then at the first stop string, then without special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def through_eos(tokens: Sequence[int], eos_ids: Sequence[int]) -> int | None:
    """Index just after the first EOS, or None."""
    ends = set(eos_ids)
    return next((i + 1 for i, token in enumerate(tokens) if token in ends), None)


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the earliest stop string begins, or None. Empty strings never stop."""
    found = [at for s in stop if s and (at := text.find(s)) >= 0]
    return min(found) if found else None


def stop_is_final(text: str, stop: Sequence[str]) -> bool:
    """Is a stop string complete in ``text``, and can nothing that follows move the cut to an earlier place?

    An earlier cut would need another stop string that begins before this one and is still unfinished at the end.
    """
    cut = first_stop(text, stop)
    if cut is None:
        return False
    return not any(
        s.startswith(text[start:]) for s in stop if s for start in range(max(0, len(text) - len(s) + 1), cut)
    )


def response_text(
    tokenizer: Any, tokens: Sequence[int], eos_ids: Sequence[int], stop: Sequence[str], keep_after_eos: bool
) -> tuple[str, bool]:
    """The text that is scored, and whether a stop string cut it.

    ``keep_after_eos`` reproduces LLaDA's own evaluation (eval_llada.py), which reads on after EOS.
    """
    if not keep_after_eos:
        end = through_eos(tokens, eos_ids)
        tokens = tokens if end is None else tokens[: end - 1]
    ids = list(tokens)
    cut = None
    if stop:
        full = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        cut = first_stop(full, stop)
    if cut is None:
        return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False), False
    text = full[:cut]
    for special in tokenizer.all_special_tokens:
        text = text.replace(special, "")
    return text, True
