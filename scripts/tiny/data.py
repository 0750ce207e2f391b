"""Training rows of our own tasks as JSONL. Training never sees a held-out item."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from recipe import Recipe
from tokenizer import EOS
from tokenizers import Tokenizer

from dare_bench.seeds import key


@dataclass(frozen=True)
class TaskRows:
    """Where a task's functions live and how long its canvas is (its ``max_gen_toks``)."""

    folder: str
    gen_length: int
    numbers: int | None = None

    def module(self, name: str) -> Any:
        return importlib.import_module(f"dare_bench.tasks.{self.folder}.{name}")

    def items(self, seed: int) -> Iterator[dict[str, Any]]:
        """Training documents without end; the same seed gives the same ones."""
        return self.module("generate").train_items(seed, *(() if self.numbers is None else (self.numbers,)))


TASKS = {
    "dare_sudoku": TaskRows("dare_sudoku", 20),
    "dare_arithmetic": TaskRows("dare_arithmetic", 4),
    "dare_countdown3": TaskRows("dare_countdown", 14, 3),
    "dare_countdown4": TaskRows("dare_countdown", 18, 4),
}


def rows(recipe: Recipe, tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    """The rows of all steps. An answer is filled with EOS to its task's canvas, one token short: training ends every
    answer with one EOS by itself. The row ends on the grid of blocks, because that is where decoding ends."""
    streams = {name: TASKS[name].items(key("tiny data", recipe.seed, name)) for name in recipe.rows}
    grid = recipe.block_length or 1
    for _ in range(recipe.steps):
        for name, count in recipe.rows.items():
            task = TASKS[name]
            utils = task.module("utils")
            for item in islice(streams[name], count):
                prompt, answer = utils.prompt(item), utils.answer(item)
                start, said = len(tokenizer.encode(prompt).ids), len(tokenizer.encode(answer).ids)
                length = max(task.gen_length, said + 1)
                length += -(start + length) % grid
                yield {"prompt": prompt, "answer": answer + EOS * (length - said - 1)}


def write_rows(recipe: Recipe, tokenizer: Tokenizer, file: Path) -> None:
    """Write :func:`rows` as JSONL."""
    with file.open("w") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows(recipe, tokenizer))
