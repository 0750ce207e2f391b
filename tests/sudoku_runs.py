"""Real runs of the bundled sudoku task, answered by the toy model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_model import ToyModel

from dare_bench.engine.evaluate import evaluate
from dare_bench.runs.reader import Run


def make_sudoku(
    out: Path,
    solves: Callable[[int], bool] = lambda doc: True,
    *,
    limit: int = 4,
    seed: int | None = None,
    **fields: Any,
) -> Run:
    """A run below ``out`` that solves the documents that ``solves`` says. ``fields`` are those of the model."""
    from dare_bench.tasks.dare_sudoku import utils

    rows = [json.loads(line) for line in (Path(utils.__file__).parent / "test.jsonl").read_text().splitlines()]

    def reply(request: Any) -> str:
        doc = int(request.doc_id)
        return utils.answer(rows[doc]) if solves(doc) else "1234\n" * 4

    given: dict[str, Any] = {"tasks": "dare_sudoku", "limit": limit, "output_path": str(out)}
    if seed is not None:
        given["seeds"] = seed
    return evaluate(model=ToyModel(reply=reply, **fields), progress=False, **given)
