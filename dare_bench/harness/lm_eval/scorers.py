"""The function that scores a task of lm-eval, and whether it compares formulas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dare_bench.harness.common.time_limits import uses_algebra
from dare_bench.harness.lm_eval.task_index import lm_eval_folder

FORMULA_SCORERS = frozenset(
    {
        "agieval/utils.py",
        "aime/utils.py",
        "hendrycks_math/utils.py",
        "hrm8k/default/utils.py",
        "hrm8k/en/utils.py",
        "leaderboard/math/utils.py",
        "minerva_math/utils.py",
        "putnam_axiom/utils.py",
        "score/math/math_grader.py",
        "score/math/utils_math.py",
        "score/non_greedy_summarizer.py",
    }
)
"""Scorers of lm-eval 0.4.13 that read or compare formulas, by their file below its task folder. A test compares this
with the files of the installed lm-eval that name a computer algebra package or boxed answers."""

PHRASE_SCORERS = frozenset({"leaderboard/math/utils.py", "minerva_math/utils.py"})
"""Those that score twice: ``exact_match`` on a set phrase, which they read by ``get_unnormalized_answer``, and another
metric by math-verify. A test compares this with the installed lm-eval."""


def scorer_of(task: Any) -> Callable[..., Any] | None:
    """The custom scoring function of an lm-eval task, if it has one."""
    function = getattr(task.config, "process_results", None)
    if not callable(function):
        function = getattr(type(task), "process_results", None)
        if not callable(function) or function.__module__.startswith("lm_eval.api."):
            return None
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__code__") else None


def is_mathematical(task: Any) -> bool:
    """Does the task's scorer read or compare formulas? lm-eval's by :data:`FORMULA_SCORERS`, others by the imports
    of their module."""
    scorer = scorer_of(task) if getattr(task, "OUTPUT_TYPE", None) == "generate_until" else None
    if scorer is None:
        return False
    file = scorer_file(scorer)
    return uses_algebra(scorer.__globals__) if file is None else file in FORMULA_SCORERS


def scorer_file(scorer: Callable[..., Any]) -> str | None:
    """The file of a scorer below lm-eval's task folder; None if it is somewhere else."""
    file = Path(scorer.__code__.co_filename)
    return file.relative_to(lm_eval_folder()).as_posix() if file.is_relative_to(lm_eval_folder()) else None
