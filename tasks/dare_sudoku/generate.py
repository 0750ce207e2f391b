"""Generates 4x4 sudoku puzzles with one solution, and rows for training. A seeded shuffle gives ``TEST_GRIDS`` of the
288 solution grids to the test set; puzzles for training come from the others alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import islice, permutations, product

from dare_bench.tasks.dare_sudoku import utils
from dare_bench.tasks.dare_sudoku.utils import EMPTY, SIDE, solves
from dare_bench.tasks.training import TrainingData

SEED = 20261
TEST_GRIDS = 60
TEST_ITEMS = 250
TRAIN_SAMPLE = 200
"""Training puzzles in the repository, for few-shot examples; trainings generate others."""
CLUES = (6, 7, 8, 9, 10)
WRONG_CELLS = (1, 2, 3, 4)
"""Number of wrong cells of a wrong answer."""

Item = dict[str, str]


@cache
def all_grids() -> tuple[str, ...]:
    """The 288 solution grids, sorted."""
    lines = ["".join(p) for p in permutations("1234")]
    blank = EMPTY * SIDE * SIDE
    halves = [a + b for a, b in product(lines, repeat=2) if {*a[:2], *b[:2]} == set("1234")]
    grids = (top + bottom for top, bottom in product(halves, repeat=2))
    return tuple(sorted(grid for grid in grids if solves(blank, grid)))


@cache
def split_grids() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(train grids, test grids)."""
    grids = list(all_grids())
    random.Random(SEED).shuffle(grids)
    return tuple(grids[TEST_GRIDS:]), tuple(grids[:TEST_GRIDS])


@cache
def _bits(grid: str) -> int:
    """A grid as 64 bits, one-hot for each cell, to compare clues by one operation."""
    return sum(1 << (4 * i + int(c) - 1) for i, c in enumerate(grid))


@cache
def _all_bits() -> tuple[int, ...]:
    return tuple(map(_bits, all_grids()))


def unique(solution: str, cells: list[int]) -> bool:
    """Is ``solution`` the only one of all 288 grids that fits the clues at ``cells``?"""
    mask = sum(15 << (4 * i) for i in cells)
    clues = _bits(solution) & mask
    return sum(bits & mask == clues for bits in _all_bits()) == 1


def puzzle(rng: random.Random, solution: str) -> str:
    """A puzzle with 6-10 clues: cells are redrawn until only ``solution`` fits them."""
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
    """An infinite stream of puzzles on train grids; the same seed gives the same puzzles."""
    return _items(seed, split_grids()[0])


def test_items() -> list[Item]:
    """The committed test set: distinct puzzles, all test grids about equally often."""
    rng = random.Random(SEED)
    grids = split_grids()[1]
    solutions: dict[str, str] = {}
    while len(solutions) < TEST_ITEMS:
        solution = grids[len(solutions) % len(grids)]
        solutions.setdefault(puzzle(rng, solution), solution)
    return [{"puzzle": clues, "solution": solution} for clues, solution in solutions.items()]


def files() -> dict[str, list[Item]]:
    """Name -> rows of the committed data."""
    return {"test.jsonl": test_items(), "train.jsonl": list(islice(train_items(SEED), TRAIN_SAMPLE))}


def wrong(doc: Item, rng: random.Random) -> str:
    """The board with some of the empty cells filled wrongly; the clues stay."""
    empty = [i for i, clue in enumerate(doc["puzzle"]) if clue == utils.EMPTY]
    cells = list(doc["solution"])
    for i in rng.sample(empty, rng.choice(WRONG_CELLS)):
        cells[i] = rng.choice([digit for digit in "1234" if digit != doc["solution"][i]])
    return utils.rows("".join(cells))


DATA = TrainingData(20, 20_000, train_items, utils.prompt, utils.answer, wrong)
