"""Generates sequences of six digits, and rows for training. Train and test never share a sequence, by a hash of it.

A sorted sequence is the answer to many prompts, so answers of the test set also occur in training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from dare_bench.tasks import training
from dare_bench.tasks.dare_sort import utils

SEED = 20264
TEST_ITEMS = 1000
TRAIN_SAMPLE = 200
LENGTH = 6

Item = dict[str, str]


def held_out(digits: str) -> bool:
    """Does the sequence belong to the test set?"""
    return training.held_out(f"{SEED}:{digits}")


def _items(seed: int, test: bool) -> Iterator[Item]:
    rng = random.Random(seed)
    while True:
        digits = "".join(rng.choices("0123456789", k=LENGTH))
        if held_out(digits) == test:
            yield {"digits": digits}


def train_items(seed: int) -> Iterator[Item]:
    """An infinite stream of sequences, none held out; the same seed gives the same sequences."""
    return _items(seed, test=False)


def test_items() -> list[Item]:
    """The committed test set: different held-out sequences."""
    return list(training.distinct(_items(SEED, test=True), lambda item: item["digits"], TEST_ITEMS))


def files() -> dict[str, list[Item]]:
    """Name -> rows of the committed data."""
    return {"test.jsonl": test_items(), "train.jsonl": list(islice(train_items(SEED), TRAIN_SAMPLE))}


def wrong(doc: Item, rng: random.Random) -> str:
    """The sorted digits with two different ones exchanged, or with one digit changed if all are equal."""
    digits = list(utils.answer(doc))
    unequal = [i for i in range(1, len(digits)) if digits[i] != digits[i - 1]]
    if unequal:
        i = rng.choice(unequal)
        digits[i - 1], digits[i] = digits[i], digits[i - 1]
    else:
        digits[rng.randrange(len(digits))] = rng.choice([digit for digit in "0123456789" if digit != digits[0]])
    return "".join(digits)


DATA = training.TrainingData(8, 20_000, train_items, utils.prompt, utils.answer, wrong)
