"""The training split of one of our own tasks: different rows made by a seed, never a test item."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Doc = Mapping[str, Any]
PATIENCE = 2000
"""So many repeats in a row, and a stream of items has nothing new."""


@dataclass(frozen=True)
class TrainingData:
    """A registered ``training_data`` target.

    Attributes:
        canvas: tokens an answer is decoded into: ``max_gen_toks`` of the task's yaml.
        default: rows taken when none are asked for (made in about three seconds).
        items: seed -> training documents, without end or all there are; the same seed gives the same ones.
        prompt, answer: of a document, as lm-eval asks and is answered.
        wrong: a document's plausible wrong answer, by the given generator.
    """

    canvas: int
    default: int
    items: Callable[[int], Iterable[Doc]]
    prompt: Callable[[Any], str]
    answer: Callable[[Any], str]
    wrong: Callable[[Any, random.Random], str]

    def rows(self, count: int, seed: int) -> list[dict[str, Any]]:
        """The first ``count`` different documents: ``prompt``, ``answer``, ``doc``. Fewer where no more exist."""
        return [
            {"prompt": prompt, "answer": self.answer(doc), "doc": dict(doc)} for prompt, doc in self._some(count, seed)
        ]

    def pairs(self, count: int, seed: int) -> list[dict[str, Any]]:
        """The same documents as preferences: ``prompt``, ``chosen`` (the solution), ``rejected`` (a wrong answer)."""
        return [
            {
                "prompt": prompt,
                "chosen": self.answer(doc),
                "rejected": self.wrong(doc, random.Random(f"{seed} {prompt}")),
            }
            for prompt, doc in self._some(count, seed)
        ]

    def _some(self, count: int, seed: int) -> Iterator[tuple[str, Doc]]:
        seen: set[str] = set()
        repeats = 0
        for doc in self.items(seed):
            if len(seen) == count or repeats == PATIENCE:
                return
            prompt = self.prompt(doc)
            repeats = repeats + 1 if prompt in seen else 0
            if not repeats:
                seen.add(prompt)
                yield prompt, doc
