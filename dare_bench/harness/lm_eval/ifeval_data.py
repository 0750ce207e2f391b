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
    asking = [entry.name for entry in entries if _asks(entry)]
    if asking and not punkt.found():
        raise UsageError(
            f"task {asking[0]!r} needs nltk's sentence model punkt_tab, which is not installed; install it with:"
            f" {punkt.INSTALL} (offline: unpack punkt_tab.zip into tokenizers/ of a folder that NLTK_DATA names)"
        )


def _asks(entry: TaskEntry) -> bool:
    """Does the code beside the task's file ask for it?"""
    if entry.path is None:
        return False
    return any("punkt_tab" in read_source(file, UsageError) for file in entry.path.parent.glob("*.py"))
