"""What is learned from, before it is tokens: examples, preference pairs, prompts with a reference answer. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dare_bench.types import Prompt

Kind = Literal["examples", "pairs", "prompts"]
"""What a training method reads."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and the answer to learn. ``where`` names the row for messages (``file.jsonl:12``)."""

    prompt: Prompt
    answer: str
    where: str


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A prompt and two answers, the first preferred."""

    prompt: Prompt
    chosen: str
    rejected: str
    where: str


@dataclass(frozen=True, slots=True)
class RewardPrompt:
    """A prompt whose answers are rewarded: what is right, by which task's rule, and what else the row says."""

    prompt: Prompt
    truth: str
    task: str
    where: str
    extra: Mapping[str, Any] = field(default_factory=dict)


Item = Example | PreferencePair | RewardPrompt


def content(row: Item) -> str:
    """What a row says, as canonical JSON, without where it stood: equal rows of any file format are equal here."""
    said = {f.name: getattr(row, f.name) for f in fields(row) if f.name != "where"}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def digest(rows: Iterable[Item]) -> str:
    """SHA-256 of what rows say, in order: equal for equal rows from JSONL, parquet or the hub."""
    whole = hashlib.sha256()
    for row in rows:
        whole.update(content(row).encode() + b"\n")
    return whole.hexdigest()


@dataclass(frozen=True)
class Data:
    """Rows of one kind, the hash of their contents, and what they are called in records.

    ``canvas``: tokens of the room that answers are decoded into, where the source says so (our own tasks do).
    """

    kind: Kind
    rows: tuple[Item, ...]
    hash: str
    name: str
    canvas: int | None = None


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A prompt and the answer to learn as token ids, without the EOS behind it. ``key`` says which row this is by its
    content, so that its noise does not depend on where it stands."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    where: str
    key: int
    cut: bool = False
    """The answer goes on in the data: no EOS belongs behind it."""


@dataclass(frozen=True)
class Tokens:
    """Data as token ids, ready for a trainer: an example is one row, a pair two (the preferred one first)."""

    kind: Kind
    items: tuple[tuple[TokenRow, ...], ...]
    hash: str
    name: str
    canvas: int | None = None
