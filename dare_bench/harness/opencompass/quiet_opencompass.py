"""OpenCompass without its log: its warnings become notes of the run, its progress bars are off."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from dare_bench.harness.common.log_notes import is_verbose, silenced


@contextlib.contextmanager
def quiet(notes: list[str] | None = None) -> Iterator[None]:
    """Inside, OpenCompass's log shows nothing: its warnings go to ``notes`` if given, each once, the first dozen.

    Python's warnings are ignored too, because importing OpenCompass causes dozens of them. With the logger
    ``dare_bench`` at DEBUG it logs as usual.
    """
    if is_verbose():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opencompass.utils.logging import get_logger

        with silenced(get_logger(), "OpenCompass", notes):
            yield
