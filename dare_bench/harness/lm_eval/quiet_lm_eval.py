"""How lm-eval works for us: its warnings become notes of the run, its bars are off."""

from __future__ import annotations

import contextlib
import functools
import logging
import subprocess
from collections.abc import Iterator
from typing import Any

_LIMIT = 12
# These only repeat what the user asked for, or what we note ourselves.
_ECHOES = (
    "generation_kwargs:",
    "Overwriting default num_fewshot",
    "num_fewshot has been set to 0",
    "No `generation_kwargs` specified",
    "is defined, but ",
    "Custom kwargs can be passed",
)


class _ToNotes(logging.Handler):
    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._notes, self._seen = notes, 0

    def emit(self, record: logging.LogRecord) -> None:
        first = record.getMessage().strip().split("\n")[0][:200]
        note = f"lm-eval: {first}"
        if any(echo in first for echo in _ECHOES) or note in self._notes:
            return
        self._seen += 1
        if self._seen <= _LIMIT:
            self._notes.append(note)


def learn_facts() -> None:
    """Find out what lm-eval's results say of this machine and folder, for a process that may not look any more."""
    _commit()
    _environment()


@functools.cache
def _commit() -> str | None:
    """lm-eval's ``git_hash``, without git's complaint on stderr where there is no repository."""
    try:
        found = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=True)
    except (subprocess.CalledProcessError, OSError):
        return None
    return found.stdout.strip()


@functools.cache
def _environment() -> dict[str, Any]:
    """lm-eval's own facts on the machine. They start a dozen programs (three seconds), so once a process is enough."""
    from lm_eval.loggers.utils import add_env_info

    facts: dict[str, Any] = {}
    add_env_info(facts)
    return facts


@contextlib.contextmanager
def quiet(notes: list[str]) -> Iterator[None]:
    """Within it lm-eval's warnings go to ``notes`` (each once, the first dozen) and it draws no progress bars.

    With the logger ``dare_bench`` at DEBUG it talks as always.
    """
    if logging.getLogger("dare_bench").isEnabledFor(logging.DEBUG):
        yield
        return
    import datasets
    import lm_eval.api.task as task_module
    from lm_eval import evaluator

    logger, handler = logging.getLogger("lm_eval"), _ToNotes(notes)
    level, propagate, bar = logger.level, logger.propagate, task_module.tqdm
    hidden = datasets.are_progress_bars_disabled()
    commit, environment = evaluator.get_git_commit_hash, evaluator.add_env_info
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    task_module.tqdm = functools.partial(bar, disable=True)
    datasets.disable_progress_bars()
    evaluator.get_git_commit_hash = _commit
    evaluator.add_env_info = lambda storage: storage.update(_environment())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        task_module.tqdm = bar
        evaluator.get_git_commit_hash, evaluator.add_env_info = commit, environment
        if not hidden:
            datasets.enable_progress_bars()
