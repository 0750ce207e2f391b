"""lm-eval without its log: its warnings become notes of the run, its progress bars are off."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

from dare_bench.harness.common.log_notes import is_verbose, silenced
from dare_bench.harness.common.replaced import replaced

# These only repeat the user's settings, or what we note ourselves.
_IGNORED = (
    "generation_kwargs:",
    "Overwriting default num_fewshot",
    "num_fewshot has been set to 0",
    "No `generation_kwargs` specified",
    "is defined, but ",
    "Custom kwargs can be passed",
)


@contextlib.contextmanager
def without_environment() -> Iterator[None]:
    """Inside, lm-eval does not describe the machine and the folder, for which it starts a dozen programs in the current
    folder (``python -m pip``, ``git``); our results have another description."""
    from lm_eval import evaluator

    def leave_out(results: dict[str, Any]) -> None:
        del results["git_hash"]

    with replaced(evaluator, get_git_commit_hash=lambda: None, add_env_info=leave_out):
        yield


@contextlib.contextmanager
def quiet(notes: list[str]) -> Iterator[None]:
    """Inside, lm-eval's warnings go to ``notes`` (each once, the first dozen), and it draws no progress bars.

    With the logger ``dare_bench`` at DEBUG it logs as usual.
    """
    if is_verbose():
        yield
        return
    import lm_eval.api.task as task_module

    with (
        silenced(logging.getLogger("lm_eval"), "lm-eval", notes, _IGNORED),
        replaced(task_module, tqdm=functools.partial(task_module.tqdm, disable=True)),
    ):
        yield
