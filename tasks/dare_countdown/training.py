"""Training rows of ``dare_countdown3`` and ``dare_countdown4``, none held out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from dare_bench.tasks.dare_countdown import utils
from dare_bench.tasks.dare_countdown.generate import HIGH, LOW, Item, held_out, solutions, train_items
from dare_bench.tasks.training import TrainingData

TARGETS = 8
"""Problems made of one set of four numbers."""


def of_four(seed: int) -> Iterator[Item]:
    """Problems of four numbers, several for each set of numbers: the search for their solutions takes a millisecond."""
    rng = random.Random(seed)
    while True:
        numbers = [rng.randint(LOW, HIGH) for _ in range(4)]
        reached = solutions(tuple(sorted(numbers)))
        for target in rng.sample(sorted(reached), min(TARGETS, len(reached))):
            if not held_out(numbers, target):
                yield {"numbers": numbers, "target": target, "solution": reached[target]}


def wrong(doc: Item, rng: random.Random) -> str:
    """An expression of the same numbers with another value."""
    reached = solutions(tuple(sorted(doc["numbers"])))
    return reached[rng.choice([value for value in sorted(reached) if value != doc["target"]])]


THREE = TrainingData(14, 20_000, partial(train_items, count=3), utils.prompt, utils.answer, wrong)
FOUR = TrainingData(18, 10_000, of_four, utils.prompt, utils.answer, wrong)
