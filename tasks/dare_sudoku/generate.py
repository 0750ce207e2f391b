"""Makes 4x4 sudoku puzzles with one solution. Train and test never share a solution grid.

There are 288 solution grids. A seeded shuffle gives ``TEST_GRIDS`` of them to the test set; puzzles for training come
from the others alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import permutations

from dare_bench.tasks.dare_sudoku.utils import EMPTY, SIDE, solves

SEED = 20261
TEST_GRIDS = 60
TEST_ITEMS = 250
TRAIN_SAMPLE = 200
"""Training puzzles kept in the repository, for few-shot examples; training scripts make their own without end."""
CLUES = (6, 7, 8, 9, 10)

Item = dict[str, str]


@cache
def all_grids() -> tuple[str, ...]:
    """The 288 solution grids, sorted."""
    lines = ["".join(p) for p in permutations("1234")]
    blank = EMPTY * SIDE * SIDE
    found = []
    for first in lines:
        for second in lines:
            if {*first[:2], *second[:2]} != set("1234"):
                continue
            halves = (third + fourth for third in lines for fourth in lines)
            found += [first + second + rest for rest in halves if solves(blank, first + second + rest)]
    return tuple(sorted(found))


@cache
def split_grids() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(train grids, test grids)."""
    grids = list(all_grids())
    random.Random(SEED).shuffle(grids)
    return tuple(grids[TEST_GRIDS:]), tuple(grids[:TEST_GRIDS])


@cache
def _bits(grid: str) -> int:
    """A grid as 64 bits, one hot a cell, so that "fits the clues" is one comparison."""
    return sum(1 << (4 * i + int(c) - 1) for i, c in enumerate(grid))


@cache
def _all_bits() -> tuple[int, ...]:
    return tuple(map(_bits, all_grids()))


def unique(solution: str, cells: list[int]) -> bool:
    """Do the clues at ``cells`` leave ``solution`` as the only one of all 288 grids?"""
    mask = sum(15 << (4 * i) for i in cells)
    clues = _bits(solution) & mask
    return sum(bits & mask == clues for bits in _all_bits()) == 1


def puzzle(rng: random.Random, solution: str) -> str:
    """A puzzle with 6-10 clues: cells are drawn again until only ``solution`` fits them."""
    count = rng.choice(CLUES)
    while True:
        cells = rng.sample(range(SIDE * SIDE), count)
        if unique(solution, cells):
            return "".join(c if i in cells else EMPTY for i, c in enumerate(solution))


def _items(seed: int, grids: tuple[str, ...]) -> Iterator[Item]:
    rng = random.Random(seed)
    while True:
        solution = rng.choice(grids)
        yield {"puzzle": puzzle(rng, solution), "solution": solution}


def train_items(seed: int) -> Iterator[Item]:
    """Puzzles without end, on train grids only; the same seed gives the same puzzles."""
    return _items(seed, split_grids()[0])


def test_items() -> list[Item]:
    """The committed test set: different puzzles, every test grid nearly equally often."""
    rng = random.Random(SEED)
    grids = split_grids()[1]
    found: dict[str, Item] = {}
    while len(found) < TEST_ITEMS:
        solution = grids[len(found) % len(grids)]
        made = puzzle(rng, solution)
        found.setdefault(made, {"puzzle": made, "solution": solution})
    return list(found.values())


def files() -> dict[str, list[Item]]:
    """Name -> rows of the committed data."""
    source = train_items(SEED)
    return {"test.jsonl": test_items(), "train.jsonl": [next(source) for _ in range(TRAIN_SAMPLE)]}
