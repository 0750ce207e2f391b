"""Mathematical answers are compared within a time limit, in a process that can be killed.

Comparing two formulas can take for ever: ``10^{10^{10}}`` is short to write and its digits fill a disk. lm-eval's
scorers bound themselves with SIGALRM, which is not looked at inside one long C call and needs the main thread.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from dare_bench.errors import DataError
from dare_bench.harness.common.scoring_process import worker
from dare_bench.harness.common.worker_process import Guard

Verdict = Literal["correct", "incorrect", "no answer"]


def equal(gold: str, answer: str, seconds: float = 10.0) -> Verdict:
    """Does ``answer`` (a response, or the answer alone) state the value ``gold`` (LaTeX or plain)? By math-verify.

    Raises:
        ItemTimeout: the comparison takes longer than ``seconds``. ItemError: it crashed.
        DataError: ``gold`` holds nothing that can be compared.
    """
    verdict = _math_guard().call("equal", gold, answer, seconds=seconds)
    if verdict == "no gold":
        raise DataError(f"the reference answer {gold[:80]!r} holds no formula, number or text to compare with")
    known: Verdict = verdict
    return known


def states_formula(answer: str, seconds: float = 10.0) -> bool:
    """Does math-verify find anything to compare in ``answer``? Raises ItemTimeout and ItemError as :func:`equal`."""
    return bool(_math_guard().call("found", answer, seconds=seconds))


@functools.cache
def _math_guard() -> Guard:
    import math_verify  # noqa: F401  (a second of imports, inherited by every worker)

    return worker({"equal": _equal, "found": _found})


def _found(answer: str) -> bool:
    from math_verify import parse

    return bool(parse(answer, parsing_timeout=None))  # its alarm is off: the guard has the limit


def _equal(gold: str, answer: str) -> str:
    from math_verify import parse, verify

    stated = gold if re.search(r"\$|\\boxed|\\\(|\\\[", gold) else f"${gold}$"
    wanted, given = parse(stated, parsing_timeout=None), parse(answer, parsing_timeout=None)
    if not wanted:
        return "no gold"
    if not given:
        return "no answer"
    return "correct" if verify(wanted, given, timeout_seconds=None) else "incorrect"
