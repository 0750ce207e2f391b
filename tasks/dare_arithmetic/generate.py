"""Makes two-digit additions and subtractions. Train and test never share a pair of operands, in either order.

A pair {a, b} is held out by a hash, together with a+b, b+a, a-b and b-a: a model cannot answer a test item from the
same sum turned round.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

SEED = 20262
TEST_SHARE = 10
"""One pair in ten is held out."""
TEST_ITEMS = 300
TRAIN_SAMPLE = 200
LOW, HIGH = 10, 99

Item = dict[str, int | str]


def held_out(a: int, b: int) -> bool:
    """Does the pair {a, b} belong to the test set?"""
    low, high = sorted((a, b))
    digest = hashlib.blake2b(f"{SEED}:{low}:{high}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % TEST_SHARE == 0


def _items(seed: int, test: bool) -> Iterator[Item]:
    rng = random.Random(seed)
    while True:
        a, b, op = rng.randint(LOW, HIGH), rng.randint(LOW, HIGH), rng.choice("+-")
        if held_out(a, b) == test:
            yield {"a": a, "op": op, "b": b, "answer": a + b if op == "+" else a - b}


def train_items(seed: int) -> Iterator[Item]:
    """Items without end, on train pairs only; the same seed gives the same items."""
    return _items(seed, test=False)


def test_items() -> list[Item]:
    """The committed test set: different items on held-out pairs."""
    found: dict[tuple[object, ...], Item] = {}
    for item in _items(SEED, test=True):
        found.setdefault(tuple(item.values()), item)
        if len(found) == TEST_ITEMS:
            break
    return list(found.values())


def files() -> dict[str, list[Item]]:
    """Name -> rows of the committed data."""
    source = train_items(SEED)
    return {"test.jsonl": test_items(), "train.jsonl": [next(source) for _ in range(TRAIN_SAMPLE)]}
