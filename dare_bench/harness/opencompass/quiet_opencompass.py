"""OpenCompass without its talk: its warnings become notes of the run, its progress bars are off."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_LIMIT = 12


class _ToNotes(logging.Handler):
    """The first line of each warning, once, up to a dozen."""

    def __init__(self, notes: list[str] | None) -> None:
        super().__init__(logging.WARNING)
        self._notes, self._left = notes, _LIMIT

    def emit(self, record: logging.LogRecord) -> None:
        first = record.getMessage().strip().split("\n")[0][:200]
        note = f"OpenCompass: {first}"
        if self._notes is not None and first and note not in self._notes and self._left:
            self._left -= 1
            self._notes.append(note)


@contextlib.contextmanager
def quiet(notes: list[str] | None = None) -> Iterator[None]:
    """Within it OpenCompass's log shows nothing: its warnings go to ``notes`` where given, each once, the first dozen.

    Python's warnings are ignored too, because importing OpenCompass gives dozens of them. With the logger
    ``dare_bench`` at DEBUG it talks as always.
    """
    if logging.getLogger("dare_bench").isEnabledFor(logging.DEBUG):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets
        from opencompass.utils.logging import get_logger

        # OpenCompass's logger is no child of Python's root: it has its own handlers and level.
        logger = get_logger()
        handlers, level = logger.handlers, logger.level
        hidden = datasets.are_progress_bars_disabled()
        logger.handlers = [_ToNotes(notes)]
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            logger.handlers = handlers
            logger.setLevel(level)
            if not hidden:
                datasets.enable_progress_bars()
