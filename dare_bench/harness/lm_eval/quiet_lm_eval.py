"""How lm-eval works for us: its warnings become notes of the run, its bars are off."""

from __future__ import annotations

import contextlib
import functools
import logging
import subprocess
from collections.abc import Iterator
from typing import Any

from dare_bench.harness.common.log_notes import NotesHandler, no_progress_bars, wants_details
from dare_bench.harness.common.replaced import replaced

# These only repeat what the user asked for, or what we note ourselves.
_ECHOES = (
    "generation_kwargs:",
    "Overwriting default num_fewshot",
    "num_fewshot has been set to 0",
    "No `generation_kwargs` specified",
    "is defined, but ",
    "Custom kwargs can be passed",
)


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
    if wants_details():
        yield
        return
    import lm_eval.api.task as task_module
    from lm_eval import evaluator

    logger, handler = logging.getLogger("lm_eval"), NotesHandler("lm-eval", notes, _ECHOES)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        with (
            no_progress_bars(),
            replaced(logger, propagate=False),
            replaced(task_module, tqdm=functools.partial(task_module.tqdm, disable=True)),
            replaced(
                evaluator,
                get_git_commit_hash=_commit,
                add_env_info=lambda storage: storage.update(_environment()),
            ),
        ):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
