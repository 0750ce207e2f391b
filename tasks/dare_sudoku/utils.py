"""Prompt, data and scoring of ``dare_sudoku``. Stands alone: lm-eval loads this file by its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIDE = 4
EMPTY = "."
SEPARATORS = str.maketrans("", "", " \t\r\n|/,")
"""What may stand between the cells of an answer."""
MAX_ANSWER = 400
"""Characters of an answer that are read; a board takes 19."""


def dataset(**_: Any) -> dict[str, Any]:
    """The splits that lie beside this file, from any working directory (lm-eval passes its metadata, unused)."""
    from datasets import Dataset

    here = Path(__file__).parent
    return {
        split: Dataset.from_list([json.loads(line) for line in (here / f"{split}.jsonl").read_text().splitlines()])
        for split in ("train", "test")
    }


def rows(cells: str) -> str:
    """16 cells as four lines."""
    return "\n".join(cells[i : i + SIDE] for i in range(0, SIDE * SIDE, SIDE))


def prompt(doc: dict[str, Any]) -> str:
    """The board with its empty cells as dots."""
    return f"sudoku\n{rows(doc['puzzle'])}\n=\n"


def answer(doc: dict[str, Any]) -> str:
    """The solved board, four lines of four digits."""
    return rows(doc["solution"])


def units() -> list[list[int]]:
    """Cell numbers of the four rows, four columns and four 2x2 boxes."""
    every = range(SIDE)
    across = [[r * SIDE + c for c in every] for r in every]
    down = [[r * SIDE + c for r in every] for c in every]
    boxes = [[(r + i) * SIDE + c + j for i in (0, 1) for j in (0, 1)] for r in (0, 2) for c in (0, 2)]
    return across + down + boxes


UNITS = units()


def solves(puzzle: str, cells: str) -> bool:
    """Is ``cells`` a full board of 1-4, each once in every row, column and box, that keeps the puzzle's clues?"""
    if len(cells) != SIDE * SIDE or any(c not in "1234" for c in cells):
        return False
    if any(clue not in (EMPTY, cell) for clue, cell in zip(puzzle, cells, strict=True)):
        return False
    return all(len({cells[i] for i in unit}) == SIDE for unit in UNITS)


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """``exact_match``: solved. ``cell_accuracy``: the share of the empty cells that hold the right digit."""
    cells = results[0][:MAX_ANSWER].translate(SEPARATORS)
    puzzle, solution = doc["puzzle"], doc["solution"]
    empty = [i for i, clue in enumerate(puzzle) if clue == EMPTY]
    right = sum(cells[i : i + 1] == solution[i] for i in empty)
    return {"exact_match": float(solves(puzzle, cells)), "cell_accuracy": right / len(empty)}
