"""Generates solvable countdown problems. Train and test never share (set of numbers, target), by a hash of both.

Solutions are searched over positive whole numbers. The answer of an item is the first solution in a fixed order of
search, so equal problems have equal answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from dare_bench.tasks import training
from dare_bench.tasks.dare_countdown import utils

SEED = 20263
TEST_ITEMS = 250
LARGER_TEST = 1000
TRAIN_SAMPLE = 200
LOW, HIGH = 1, 20
LOW_TARGET, HIGH_TARGET = 1, 99
TARGETS = 8
"""Problems made of one set of four numbers."""

Item = dict[str, Any]
Term = tuple[int, str, int]
"""Value, text, binding strength: 0 a sum, 1 a product, 2 a number."""


def join(left: Term, right: Term) -> Iterator[Term]:
    """The ways to combine two terms, with parentheses only where they are needed."""

    def wrap(term: Term, least: int) -> str:
        return term[1] if term[2] >= least else f"({term[1]})"

    big, small = (left, right) if left[0] >= right[0] else (right, left)
    yield big[0] + small[0], f"{wrap(big, 0)}+{wrap(small, 0)}", 0
    if big[0] > small[0]:
        yield big[0] - small[0], f"{wrap(big, 0)}-{wrap(small, 1)}", 0
    yield big[0] * small[0], f"{wrap(big, 1)}*{wrap(small, 1)}", 1
    if big[0] % small[0] == 0:
        yield big[0] // small[0], f"{wrap(big, 1)}/{wrap(small, 2)}", 1


def values(terms: Sequence[Term]) -> Iterator[Term]:
    """Every value that can be computed from all terms, in a fixed order."""
    if len(terms) == 1:
        yield terms[0]
        return
    for i in range(len(terms)):
        for j in range(i + 1, len(terms)):
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            for joined in join(terms[i], terms[j]):
                yield from values([joined, *rest])


@lru_cache(maxsize=20000)
def solutions(numbers: tuple[int, ...]) -> dict[int, str]:
    """Target -> first solution, for all targets in range; ``numbers`` sorted."""
    first: dict[int, str] = {}
    for value, text, _ in values([(n, str(n), 2) for n in numbers]):
        if LOW_TARGET <= value <= HIGH_TARGET:
            first.setdefault(value, text)
    return first


def held_out(numbers: Sequence[int], target: int) -> bool:
    """Does the problem belong to the test set? The order of the numbers does not matter."""
    return training.held_out(f"{SEED}:{sorted(numbers)}:{target}")


def _items(seed: int, count: int, test: bool) -> Iterator[Item]:
    rng = random.Random(seed)
    while True:
        numbers = [rng.randint(LOW, HIGH) for _ in range(count)]
        reached = solutions(tuple(sorted(numbers)))
        if not reached:
            continue
        target = rng.choice(sorted(reached))
        if held_out(numbers, target) == test:
            yield {"numbers": numbers, "target": target, "solution": reached[target]}


def train_items(seed: int, count: int) -> Iterator[Item]:
    """An infinite stream of problems of ``count`` numbers, none held out; the same seed gives the same problems."""
    return _items(seed, count, test=False)


def test_items(count: int, size: int = TEST_ITEMS) -> list[Item]:
    """The committed test set: problems that differ in numbers or target, not only in order. A larger one begins with
    the smaller one."""
    items = _items(SEED + count, count, test=True)
    return list(training.distinct(items, lambda item: (*sorted(item["numbers"]), item["target"]), size))


def files() -> dict[str, list[Item]]:
    """Name -> rows of the committed data."""
    rows: dict[str, list[Item]] = {}
    for count in (3, 4):
        rows[f"test{count}.jsonl"] = test_items(count)
        rows[f"train{count}.jsonl"] = list(islice(train_items(SEED, count), TRAIN_SAMPLE))
    rows["test3_1000.jsonl"] = test_items(3, LARGER_TEST)
    return rows


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


THREE = training.TrainingData(14, 20_000, partial(train_items, count=3), utils.prompt, utils.answer, wrong)
FOUR = training.TrainingData(18, 10_000, of_four, utils.prompt, utils.answer, wrong)
