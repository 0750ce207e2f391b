"""Training rows of ``dare_arithmetic``, on train pairs alone. There are 14,566; the seed orders them."""

from __future__ import annotations

import random
from functools import lru_cache

from dare_bench.tasks.dare_arithmetic import utils
from dare_bench.tasks.dare_arithmetic.generate import HIGH, LOW, Item, held_out
from dare_bench.tasks.training import TrainingData

SLIPS = (-10, -2, -1, 1, 2, 10)
"""Errors of a carry or of counting."""


@lru_cache(maxsize=1)
def items(seed: int) -> tuple[Item, ...]:
    """Every training item once; those of the last seed are kept."""
    span = range(LOW, HIGH + 1)
    every: list[Item] = [
        {"a": a, "op": op, "b": b, "answer": a + b if op == "+" else a - b}
        for a in span
        for b in span
        if not held_out(a, b)
        for op in "+-"
    ]
    random.Random(seed).shuffle(every)
    return tuple(every)


def wrong(doc: Item, rng: random.Random) -> str:
    """A number near the right one."""
    return str(int(doc["answer"]) + rng.choice(SLIPS))


DATA = TrainingData(4, 20_000, items, utils.prompt, utils.answer, wrong)
