"""What is learned from, before it is tokens: examples, preference pairs, prompts with a reference answer. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
class Pair:
    """A prompt and two answers, the first preferred."""

    prompt: Prompt
    chosen: str
    rejected: str
    where: str


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt whose answers are rewarded: what is right, by which task's rule, and what else the row says."""

    prompt: Prompt
    truth: str
    task: str
    where: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """Rows of one kind, the hash of their contents, and what they are called in records.

    ``canvas``: tokens of the room that answers are decoded into, where the source says so (our own tasks do).
    """

    kind: Kind
    rows: tuple[Example | Pair | Question, ...]
    hash: str
    name: str
    canvas: int | None = None
