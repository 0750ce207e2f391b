"""The reward of MATH: formulas compared by math-verify, in the sandboxed process for harness code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from dare_bench.errors import UsageError
from dare_bench.harness.common.scoring_process import check_enclosed, worker
from dare_bench.harness.rewards.gsm8k import read_number
from dare_bench.reward_parts import MAX_TEXT, RewardOptions, last_boxed, read_options, tagged
from dare_bench.sandbox.worker_process import ItemError, ItemTimeout, WorkerProcess
from dare_bench.types import Reward, RewardPrompt

MAX_FORMULA = 1000
"""Characters of an answer that are compared."""
SECONDS = 10.0
"""Limit for the comparison of two formulas; one that takes longer counts as different."""


class MathOptions(RewardOptions):
    """``scheme``: ``exact``, 1 for an equal formula; ``d1`` (arXiv 2504.12216), 2 for an equal formula, and 1 for
    ``\\boxed`` between answer tags, 0.75 for tags without it, 0.5 for ``\\boxed`` without tags, else 0.25.
    ``unsafe_no_sandbox``: compare formulas with the user's rights if no sandbox works."""

    scheme: Literal["exact", "d1"] = "exact"
    unsafe_no_sandbox: bool = False


def formula(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """The formula of an answer is its last ``\\boxed``, else the text between answer tags; without both it is wrong;
    raises UsageError.

    Terms: ``correctness``; ``boxed``, an answer has ``\\boxed``; ``answered``, it has answer tags.
    """
    chosen = read_options(MathOptions, options, "math")
    rewards = []
    for prompt, text in zip(prompts, texts, strict=True):
        text = text[-MAX_TEXT:]
        boxed, answer = last_boxed(text), tagged(text)
        said = boxed if boxed is not None else answer
        right = float(said is not None and equal(said, prompt.truth, chosen.unsafe_no_sandbox))
        terms = {"correctness": right, "boxed": float(boxed is not None), "answered": float(answer is not None)}
        rewards.append(Reward(2 * right + d1_format(answer, boxed) if chosen.scheme == "d1" else right, right, terms))
    return rewards


def check(options: Mapping[str, Any]) -> None:
    """Refuse a training whose formulas could not be compared; raises UsageError."""
    unsafe = read_options(MathOptions, options, "math").unsafe_no_sandbox
    _import_math_verify()
    if not unsafe:
        _check_sandbox()


def d1_format(answer: str | None, boxed: str | None) -> float:
    """d1's format reward for MATH."""
    if answer is not None:
        return 1.0 if last_boxed(answer) is not None else 0.75
    return 0.5 if boxed is not None else 0.25


def equal(said: str, truth: str, unsafe: bool = False) -> bool:
    """Are two formulas (LaTeX) equal? Equal texts and plain numbers are compared here, others in the worker. The truth
    may be a solution with its result in ``\\boxed``."""
    inner = last_boxed(truth)
    truth = truth if inner is None else inner
    if not said or len(said) > MAX_FORMULA:
        return False
    if _squeezed(said) == _squeezed(truth):
        return True
    numbers = read_number(said.strip(" $")), read_number(truth.strip(" $"))
    if None not in numbers:
        return numbers[0] == numbers[1]
    if not unsafe:
        _check_sandbox()
    try:
        return bool(_worker().call("verified", said, truth))
    except (ItemTimeout, ItemError):
        return False


def _squeezed(text: str) -> str:
    return "".join(text.split()).strip("$")


def _check_sandbox() -> None:
    check_enclosed("the reward 'math'", "math_verify", "set its option unsafe_no_sandbox")


def _import_math_verify() -> None:
    try:
        importlib.import_module("math_verify")
    except ImportError as error:
        raise UsageError(
            "the reward 'math' needs math-verify; install it with: pip install 'dare-bench[eval]'"
        ) from error


@cache
def _worker() -> WorkerProcess:
    """The process that compares formulas; it is kept from call to call, and replaced after a timeout."""
    _import_math_verify()  # before the fork, so that each new worker has it
    process = worker({"verified": _verified})
    process.seconds = SECONDS
    return process


def _verified(response: str, truth: str) -> bool:
    from math_verify import parse, verify

    answer, expected = (parse(rf"\boxed{{{text}}}") for text in (response, truth))
    return bool(verify(expected, answer))
