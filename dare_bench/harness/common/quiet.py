"""A harness without its log: its warnings become notes of the run, and its progress bars are off. Attributes of other
packages' modules, replaced temporarily."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

_MAX_NOTES = 12


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Inside, ``owner`` (a module or an object) has these attributes; they are restored afterwards."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class _NotesHandler(logging.Handler):
    """Appends the first line of each warning to ``notes`` (None drops them), once each, up to a dozen, after the
    harness's name; without those that contain one of the texts ``ignored``."""

    def __init__(self, harness: str, notes: list[str] | None, ignored: Sequence[str]) -> None:
        super().__init__(logging.WARNING)
        self._harness, self._notes, self._ignored, self._left = harness, notes, ignored, _MAX_NOTES

    def emit(self, record: logging.LogRecord) -> None:
        first = record.getMessage().strip().split("\n")[0][:200]
        note = f"{self._harness}: {first}"
        if self._notes is None or not first or note in self._notes or any(text in first for text in self._ignored):
            return
        if self._left:
            self._left -= 1
            self._notes.append(note)


@contextlib.contextmanager
def silenced(
    logger: logging.Logger, harness: str, notes: list[str] | None, ignored: Sequence[str] = ()
) -> Iterator[None]:
    """Inside, the harness's ``logger`` writes nothing but :class:`_NotesHandler`'s notes, and the datasets library
    draws no progress bars. With the logger ``dare_bench`` at DEBUG, all is as usual."""
    if is_verbose():
        yield
        return
    import datasets

    disabled, level = datasets.are_progress_bars_disabled(), logger.level
    datasets.disable_progress_bars()
    try:
        with replaced(logger, handlers=[_NotesHandler(harness, notes, ignored)], propagate=False):
            logger.setLevel(logging.WARNING)
            yield
    finally:
        logger.setLevel(level)
        if not disabled:
            datasets.enable_progress_bars()


def is_verbose() -> bool:
    """Is the logger ``dare_bench`` at DEBUG? A harness then logs and draws as usual."""
    return logging.getLogger("dare_bench").isEnabledFor(logging.DEBUG)
