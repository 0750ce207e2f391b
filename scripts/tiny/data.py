"""Training batches and test items of our own tasks, as token ids. Training never sees a held-out item."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

from dare_bench.diffusion.canvas import response
from dare_bench.seeds import key


@dataclass(frozen=True)
class Task:
    """Where a task's functions live and how long its canvas is (its ``max_gen_toks``)."""

    folder: str
    gen_length: int
    numbers: int | None = None

    @property
    def arguments(self) -> tuple[int, ...]:
        return () if self.numbers is None else (self.numbers,)

    def module(self, name: str) -> Any:
        return importlib.import_module(f"dare_bench.tasks.{self.folder}.{name}")

    def train(self, seed: int) -> Iterator[dict[str, Any]]:
        return self.module("generate").train_items(seed, *self.arguments)

    def test(self) -> list[dict[str, Any]]:
        return self.module("generate").test_items(*self.arguments)


TASKS = {
    "dare_sudoku": Task("dare_sudoku", 20),
    "dare_arithmetic": Task("dare_arithmetic", 4),
    "dare_countdown3": Task("dare_countdown", 14, 3),
    "dare_countdown4": Task("dare_countdown", 18, 4),
}


Row = tuple[list[int], list[int]]
"""Prompt ids, response ids."""


def rows(tokenizer: Tokenizer, eos: int, name: str, seed: int, step: int, count: int, grid: int = 1) -> list[Row]:
    """``count`` training rows of a task at a step: a function of (seed, task, step). A row ends on the ``grid`` of
    blocks, filled with EOS, because that is where the canvas ends when it is decoded."""
    task = TASKS[name]
    utils = task.module("utils")
    made = []
    for item in islice(task.train(key("tiny data", seed, name, step)), count):
        prompt, answer = tokenizer.encode(utils.prompt(item)).ids, tokenizer.encode(utils.answer(item)).ids
        length = task.gen_length + -(len(prompt) + task.gen_length) % grid
        made.append((prompt, response(answer, length, eos, "eos_supervised")))
    return sorted(made, key=lambda row: len(row[0]))  # equal lengths side by side attend as one dense batch


def batch_rows(tokenizer: Tokenizer, eos: int, mix: dict[str, int], seed: int, step: int, grid: int = 1) -> list[Row]:
    """All rows of one step."""
    return [row for name, count in mix.items() for row in rows(tokenizer, eos, name, seed, step, count, grid)]
