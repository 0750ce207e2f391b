"""Data of the tasks here, generated from a seed: distinct items, and training splits without test items; and names of
the hub's data sets."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Doc = Mapping[str, Any]
Item = TypeVar("Item")
TEST_SHARE = 10
"""One problem in ten is held out for the test set of its task."""
PATIENCE = 2000
"""Consecutive repeats after which a stream of items is exhausted."""


def held_out(text: str) -> bool:
    """Does a problem belong to the test set, by a hash of its text?"""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % TEST_SHARE == 0


def distinct(items: Iterable[Item], key: Callable[[Item], Hashable], count: int) -> Iterator[Item]:
    """The first ``count`` items with different keys; fewer if ``items`` ends or repeats :data:`PATIENCE` in a row."""
    seen: set[Hashable] = set()
    repeats = 0
    for item in items:
        if len(seen) == count or repeats == PATIENCE:
            return
        repeats = repeats + 1 if (value := key(item)) in seen else 0
        if not repeats:
            seen.add(value)
            yield item


@dataclass(frozen=True)
class HubData:
    """A registered ``training_data`` target: ``owner/name`` or ``owner/name:config`` of the hub, with the rows of its
    training split and their mean lengths, for estimates."""

    data: str
    count: int
    prompt_tokens: int
    answer_tokens: int


GSM8K = HubData("openai/gsm8k:main", 7473, 63, 125)


@dataclass(frozen=True)
class TrainingData:
    """A registered ``training_data`` target.

    Attributes:
        canvas: tokens an answer is decoded into: ``max_gen_toks`` of the task's yaml.
        default: the default number of rows (about three seconds to generate).
        items: seed -> training documents, infinite or all that exist; the same seed gives the same documents.
        prompt, answer: of a document, as in the lm-eval task.
        wrong: a plausible wrong answer to a document, drawn with the given generator.
    """

    canvas: int
    default: int
    items: Callable[[int], Iterable[Doc]]
    prompt: Callable[[Any], str]
    answer: Callable[[Any], str]
    wrong: Callable[[Any, random.Random], str]

    def rows(self, count: int, seed: int) -> list[dict[str, Any]]:
        """The first ``count`` documents with different prompts, or all: ``prompt``, ``answer``, ``doc``."""
        documents = distinct(self.items(seed), self.prompt, count)
        return [{"prompt": self.prompt(doc), "answer": self.answer(doc), "doc": dict(doc)} for doc in documents]

    def pairs(self, count: int, seed: int) -> list[dict[str, Any]]:
        """The same documents as preferences: ``prompt``, ``chosen`` (the solution), ``rejected`` (a wrong answer)."""
        pairs = []
        for row in self.rows(count, seed):
            wrong = self.wrong(row["doc"], random.Random(f"{seed} {row['prompt']}"))
            pairs.append({"prompt": row["prompt"], "chosen": row["answer"], "rejected": wrong})
        return pairs
