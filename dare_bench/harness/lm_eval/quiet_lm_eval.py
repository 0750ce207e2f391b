"""lm-eval without its log: its warnings become notes of the run, its progress bars are off."""

from __future__ import annotations

import contextlib
import functools
import logging
import subprocess
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


def cache_environment() -> None:
    """Collect what lm-eval's results report about this machine and folder; a sandboxed process could not."""
    _commit()
    _environment()


@functools.cache
def _commit() -> str | None:
    """lm-eval's ``git_hash``, without git's error message on stderr outside a repository."""
    try:
        return subprocess.check_output(["git", "describe", "--always"], stderr=subprocess.DEVNULL, text=True).strip()
    except (subprocess.CalledProcessError, OSError):
        return None


@functools.cache
def _environment() -> dict[str, Any]:
    """lm-eval's own description of the machine: it starts a dozen programs (three seconds), so once a process."""
    from lm_eval.loggers.utils import add_env_info

    environment: dict[str, Any] = {}
    add_env_info(environment)
    return environment


@contextlib.contextmanager
def quiet(notes: list[str]) -> Iterator[None]:
    """Inside, lm-eval's warnings go to ``notes`` (each once, the first dozen), and it draws no progress bars.

    With the logger ``dare_bench`` at DEBUG it logs as usual.
    """
    if is_verbose():
        yield
        return
    import lm_eval.api.task as task_module
    from lm_eval import evaluator

    with (
        silenced(logging.getLogger("lm_eval"), "lm-eval", notes, _IGNORED),
        replaced(task_module, tqdm=functools.partial(task_module.tqdm, disable=True)),
        replaced(evaluator, get_git_commit_hash=_commit, add_env_info=lambda storage: storage.update(_environment())),
    ):
        yield
