"""Generates two-digit additions and subtractions, and rows for training. A pair {a, b} is held out by a hash, together
with a+b, b+a, a-b and b-a, so a test item cannot be answered from the reversed sum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from dare_bench.tasks import training
from dare_bench.tasks.dare_arithmetic import utils

SEED = 20262
TEST_ITEMS = 300
TRAIN_SAMPLE = 200
LOW, HIGH = 10, 99
SLIPS = (-10, -2, -1, 1, 2, 10)
"""Errors of a carry or of counting."""

Item = dict[str, int | str]


def held_out(a: int, b: int) -> bool:
    """Does the pair {a, b} belong to the test set?"""
    low, high = sorted((a, b))
    return training.held_out(f"{SEED}:{low}:{high}")


def _items(seed: int, test: bool) -> Iterator[Item]:
    rng = random.Random(seed)
    while True:
        a, b, op = rng.randint(LOW, HIGH), rng.randint(LOW, HIGH), rng.choice("+-")
        if held_out(a, b) == test:
            yield {"a": a, "op": op, "b": b, "answer": a + b if op == "+" else a - b}


def train_items(seed: int) -> Iterator[Item]:
    """An infinite stream of items on train pairs; the same seed gives the same items."""
    return _items(seed, test=False)


def test_items() -> list[Item]:
    """The committed test set: different items on held-out pairs."""
    return list(training.distinct(_items(SEED, test=True), lambda item: tuple(item.values()), TEST_ITEMS))


def files() -> dict[str, list[Item]]:
    """Name -> rows of the committed data."""
    return {"test.jsonl": test_items(), "train.jsonl": list(islice(train_items(SEED), TRAIN_SAMPLE))}


@lru_cache(maxsize=1)
def items(seed: int) -> tuple[Item, ...]:
    """Every training item once, all 14,566, in the seed's order; those of the last seed are kept."""
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


DATA = training.TrainingData(4, 20_000, items, utils.prompt, utils.answer, wrong)
