"""Refuses tasks that need nltk's ``punkt_tab`` where it is not installed."""

from __future__ import annotations

from collections.abc import Iterable

from dare_bench.errors import UsageError
from dare_bench.harness.common import punkt
from dare_bench.harness.lm_eval.task_index import TaskEntry
from dare_bench.reading import read_source


def check_punkt(entries: Iterable[TaskEntry]) -> None:
    """Refuse tasks whose code asks for ``punkt_tab`` where nltk does not find it (``NLTK_DATA`` adds a folder).

    Raises:
        UsageError: it is not there, or nltk is not; the message has the command that installs it.
    """
    if asking := next((entry.name for entry in entries if _asks(entry)), None):
        punkt.check(f"task {asking!r}")


def _asks(entry: TaskEntry) -> bool:
    """Does the code beside the task's file ask for it?"""
    if entry.path is None:
        return False
    return any("punkt_tab" in read_source(file, UsageError) for file in entry.path.parent.glob("*.py"))
