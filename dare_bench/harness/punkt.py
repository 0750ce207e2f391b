"""IFEval splits sentences with nltk's ``punkt_tab`` model, which is no part of the nltk package. Without it the task is
refused before a model is opened: a score with another splitter would be another score."""

from __future__ import annotations

from collections.abc import Iterable

from dare_bench.errors import UsageError
from dare_bench.harness.task_index import TaskEntry
from dare_bench.reading import read_source

INSTALL = "python -m nltk.downloader punkt_tab"
_RESOURCE = "tokenizers/punkt_tab/english"


def check_punkt(entries: Iterable[TaskEntry]) -> None:
    """Refuse tasks whose code asks for ``punkt_tab`` where nltk does not find it (``NLTK_DATA`` adds a folder).

    Raises:
        UsageError: it is not there, or nltk is not; the message has the command that installs it.
    """
    asking = [entry.name for entry in entries if _asks(entry)]
    if asking and not found():
        raise UsageError(
            f"task {asking[0]!r} needs nltk's sentence model punkt_tab, which is not installed; install it with:"
            f" {INSTALL} (offline: unpack punkt_tab.zip into tokenizers/ of a folder that NLTK_DATA names)"
        )


def _asks(entry: TaskEntry) -> bool:
    """Does the code beside the task's file ask for it?"""
    if entry.path is None:
        return False
    return any("punkt_tab" in read_source(file, UsageError) for file in entry.path.parent.glob("*.py"))


def found() -> bool:
    try:
        import nltk
    except ImportError:
        return False
    try:
        nltk.data.find(_RESOURCE)
    except LookupError:
        return False
    return True
