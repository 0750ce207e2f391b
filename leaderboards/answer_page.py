"""The answers of ``dare-bench generate`` as a page: prompt, text and facts of each, and the order of its unmasking on
the slider. Different strategies stand side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.analysis.unmasking import unmasking
from dare_bench.leaderboards.rendering import write_page
from dare_bench.leaderboards.sample_document import PageBudget

ASSETS = ("samples.css", "slider.js")


def write_answers(record: Mapping[str, Any], path: str | Path) -> Path:
    """Write answers as a page that needs only the folder ``<name>_files`` beside it.

    Args:
        record: ``model``, a name, and ``turns``, each as ``dare-bench generate --json`` prints it.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    turns = [
        {**turn, "answers": [{**answer, "order": _order(answer["trace"])} for answer in turn["answers"]]}
        for turn in record["turns"]
    ]
    return write_page(path, "answers.html.j2", ASSETS, model=record["model"], turns=turns, budget=PageBudget())


def _order(trace: Mapping[str, Any] | None) -> Any:
    return None if trace is None else unmasking(trace)
