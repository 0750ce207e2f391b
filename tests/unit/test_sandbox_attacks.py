# ruff: noqa: F811  (fixtures are imported)
"""Nothing that generated code tries gets it a pass that it has not earned, at each level that works here."""

from __future__ import annotations

import pytest
from sandbox_fakes import DIG, FAKES, HONEST_TESTS, TESTS
from sandboxes import attack, level, nothing_left  # noqa: F401

from dare_bench.sandbox.verdict import Level

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("name", FAKES)
def test_no_trick_fakes_a_pass(level: Level, name: str) -> None:
    verdict = attack(level, FAKES[name], TESTS.get(name, HONEST_TESTS))
    assert verdict.status in ("failed", "crashed", "timeout"), verdict


def test_each_trick_does_what_it_says(level: Level) -> None:
    """A program that fails for a slip of its own would show nothing."""
    slips = ("SyntaxError", "IndentationError", "NameError", "ModuleNotFoundError", "UnboundLocalError")
    for name, solution in FAKES.items():
        verdict = attack(level, solution, TESTS.get(name, HONEST_TESTS))
        assert not any(slip in verdict.stdout_tail for slip in slips), (name, verdict)


def test_the_right_answer_passes(level: Level) -> None:
    assert attack(level, "def f(x):\n    return x + 1\n", HONEST_TESTS).status == "passed"


def test_no_frame_leads_to_a_secret(level: Level) -> None:
    """Neither the secret nor the body of a text is in reach."""
    verdict = attack(level, DIG, "f(1)\nlong = [value for value in found if len(value) >= 16]\nassert not long, long")
    assert verdict.status == "passed", verdict
