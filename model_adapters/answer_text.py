"""The text of an answer: up to the first EOS or stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def through_eos(tokens: Sequence[int], eos_ids: Sequence[int]) -> int | None:
    """Index just after the first EOS, or None."""
    ends = set(eos_ids)
    return next((i + 1 for i, token in enumerate(tokens) if token in ends), None)


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """The index of the earliest stop string, or None. Empty strings never stop."""
    return min((start for s in stop if s and (start := text.find(s)) >= 0), default=None)


def stop_is_final(text: str, stop: Sequence[str]) -> bool:
    """Does ``text`` contain a stop string, and is it certain that no continuation moves the cut to an earlier place?

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
    """The text to score, and whether a stop string truncated it.

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
