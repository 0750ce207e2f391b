"""Training data as text and as token ids: examples, preference pairs, prompts with a reference answer. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dare_bench.types import Prompt, RewardPrompt

Kind = Literal["examples", "pairs", "prompts"]
"""The kind of rows that a training method reads."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer. ``where`` identifies the row in messages (``file.jsonl:12``)."""

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


Item = Example | PreferencePair | RewardPrompt


_HASHED = {
    Example: ("prompt", "answer"),
    PreferencePair: ("prompt", "chosen", "rejected"),
    RewardPrompt: ("prompt", "truth", "task", "extra"),
}
"""What a row teaches: the prompt, its answers, and what its reward reads. Other fields are not hashed."""


def content(row: Item) -> str:
    """A row as canonical JSON: equal for equal rows of all file formats. Hashes of data and keys of random numbers are
    derived from it, so a recorded training is repeated only while this text stays as it is."""
    values = {name: getattr(row, name) for name in _HASHED[type(row)]}
    if isinstance(row, RewardPrompt):
        values["key"] = 0  # a constant: it is in the hashes of all recorded trainings with rewards
    return json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def digest(rows: Iterable[Item]) -> str:
    """SHA-256 of the contents of rows, in order."""
    return hashlib.sha256(b"".join(content(row).encode() + b"\n" for row in rows)).hexdigest()


@dataclass(frozen=True)
class Data:
    """Rows of one kind, the hash of their contents, and the name of their source. ``canvas``: number of tokens that
    answers are decoded into, if the source specifies it (the tasks of dare-bench do)."""

    kind: Kind
    rows: tuple[Item, ...]
    hash: str
    name: str
    canvas: int | None = None


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A prompt and its answer as token ids, which in a step of a training has the EOS tokens that fill its canvas.
    ``key`` is derived from the content, so that the noise of a row does not depend on its position; ``where`` names the
    row in messages."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    where: str
    key: int
    cut: bool = False
    """Was the answer truncated? No EOS belongs after it then."""


@dataclass(frozen=True)
class Tokens:
    """Data as token ids: an example is one row, a pair two (the preferred one first). ``canvas``: number of tokens that
    answers are decoded into, if the source specifies it. ``limit``: maximum tokens of a row; None: the model's context.
    """

    kind: Kind
    items: tuple[tuple[TokenRow, ...], ...]
    hash: str
    name: str
    canvas: int | None = None
    records: tuple[RewardPrompt, ...] = ()
    """Of kind ``prompts``: each item's prompt as text, with what its reward needs."""
    limit: int | None = None
    validation: Tokens | None = None
    """Rows for the validation loss."""
