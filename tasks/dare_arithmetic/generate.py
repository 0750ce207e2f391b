"""Generates two-digit additions and subtractions. Train and test never share a pair of operands.

A pair {a, b} is held out by a hash, together with a+b, b+a, a-b and b-a, so a test item cannot be answered from the
reversed sum.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from dare_bench.tasks import training

SEED = 20262
TEST_ITEMS = 300
TRAIN_SAMPLE = 200
LOW, HIGH = 10, 99

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
