"""Limits on tokenizer files. The library that reads them has none: a text of 1,000 characters can become any amount of
memory if a normalizer writes a megabyte for each of them, or if their token has a megabyte of text."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.checkpoint import read_object

MAX_TEXT = 4096
"""Maximum length of a token, pattern or replacement; published tokenizers have up to about 1,000 characters."""
MAX_GROWTH = 64
"""Maximum number of bytes that stand for one character of a text; published tokenizers write up to 33."""
SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
PARTS = ("normalizers", "pretokenizers", "processors", "decoders")
"""Fields with the parts of a sequence."""


def check_tokenizer(path: Path) -> None:
    """Raise CheckpointError for tokenizer files of a folder by which a text could take any amount of memory."""
    settings = read_object(path / "tokenizer_config.json")
    limit = settings.get("model_max_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise CheckpointError(
            f"{path / 'tokenizer_config.json'}: model_max_length={str(limit)[:40]!r}; it must be a number, or null"
        )
    special = {name: value for name, value in settings.items() if "token" in name}
    whole = read_object(path / "tokenizer.json")
    files = {"tokenizer_config.json": special, "tokenizer.json": whole}
    files |= {name: read_object(path / name) for name in ("special_tokens_map.json", "added_tokens.json", "vocab.json")}
    for name, content in files.items():
        if len(text := _longest_text(content)) > MAX_TEXT:
            raise CheckpointError(
                f"{path / name}: {text[:20]!r}... has {len(text):,} characters, more than the limit of {MAX_TEXT:,} "
                "for the texts of a tokenizer; fetch the file again"
            )
    for section in SECTIONS:
        if (growth := _growth(whole.get(section))) > MAX_GROWTH:
            raise CheckpointError(
                f"{path / 'tokenizer.json'}: its {section} writes up to {growth:,} characters or tokens for one, more "
                f"than the limit of {MAX_GROWTH}; fetch the file again"
            )


def _longest_text(value: Any) -> str:
    """The longest text in a JSON value, except tables of characters."""
    layer, longest = [value], ""
    while layer:
        longest = max([longest, *(item for item in layer if isinstance(item, str))], key=len)
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner += item
                inner += [field for name, field in item.items() if name != "precompiled_charsmap"]
            elif isinstance(item, list):
                inner += item
        layer = inner
    return longest


def _growth(part: Any) -> int:
    """The most that a part of a tokenizer may write for one character or token, and at least 1. A part is known by its
    fields, as it may have no type."""
    if not isinstance(part, dict):
        return 1
    written = [len(text) for text in (part.get("content"), part.get("prepend")) if isinstance(text, str)]
    table, template = part.get("precompiled_charsmap"), part.get("single")
    if isinstance(table, str):
        written.append(_longest_entry(table))
    if isinstance(template, list):
        ids = [entry.get("ids") for entry in dict(part.get("special_tokens") or {}).values()]
        written.append(len(template) * max(map(len, ids), default=1))
    growth = max(1, 2 * (part.get("type") == "ByteLevel"), *written)
    for each in (each for name in PARTS for each in part.get(name) or ()):
        if growth > MAX_GROWTH:
            break
        growth *= _growth(each)
    return growth


def _longest_entry(table: str) -> int:
    """The longest text in SentencePiece's table of characters: a trie's length, the trie, and texts that end with 0.

    Raises:
        ValueError: an index leads out of the trie or the texts, at which the library that reads them would abort.
    """
    raw = base64.b64decode(table, validate=True)
    end = 4 + int.from_bytes(raw[:4], "little")
    texts = raw[end:]
    if end > len(raw) or end % 1024 != 4 or end == 4:
        raise ValueError(f"the trie of its precompiled_charsmap ends at byte {end} of {len(raw)}")
    unit_U = np.frombuffer(raw[4:end], "<u4")  # of Darts-clone: an offset, a label, and flags; or a value
    below_U = np.arange(len(unit_U)) ^ (unit_U >> 10 << ((unit_U & 1 << 9) >> 6))
    inner_U = unit_U >> 31 == 0
    inner_U[0] = True  # the root is never read as a value
    if (below_U[inner_U] >= len(unit_U)).any():
        raise ValueError("the trie of its precompiled_charsmap leads out of itself")
    begins = unit_U[below_U[inner_U & (unit_U >> 8 & 1 == 1)]] & (1 << 31) - 1
    if not np.isin(begins, [0, *(np.flatnonzero(np.frombuffer(texts, "u1") == 0) + 1)]).all():
        raise ValueError("the trie of its precompiled_charsmap leads out of its texts")
    return max(map(len, texts.split(b"\0")))
