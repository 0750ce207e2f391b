"""Hide the progress bars of transformers, and messages of libraries that a user cannot act on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Inside, transformers shows no progress bars; the previous setting is restored afterwards."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Inside, these loggers report errors only."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
