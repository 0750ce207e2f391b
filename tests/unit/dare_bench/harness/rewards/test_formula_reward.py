"""The reward of MATH: equal formulas, compared in a process that can be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from require import lacks, need_package

from dare_bench.errors import UsageError
from dare_bench.harness.rewards import formula as module
from dare_bench.harness.rewards.formula import formula
from dare_bench.sandbox.forked import why_not_enclosed
from dare_bench.types import Reward, RewardPrompt


@pytest.fixture
def compared():
    need_package("math_verify")
    if (reason := why_not_enclosed()) is not None:
        lacks("namespaces", f"does not work: {reason}")


def score(truth: str, text: str, **options: object) -> Reward:
    return formula([RewardPrompt("q", truth, "math", "f:1")], [text], options)[0]


@pytest.mark.parametrize(
    ("truth", "said", "right"),
    [
        (r"\frac{1}{2}", "0.5", 1),
        (r"2\sqrt{3}", r"\sqrt{12}", 1),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)", 1),
        ("x+1", "1+x", 1),
        ("x+1", "x+2", 0),
        (r"\frac{1}{2}", r"\frac{" * 100, 0),
        ("6", "__import__('os').system('touch PWNED')", 0),
    ],
)
def test_formulas_that_differ_as_text_are_compared_in_the_worker(compared, tmp_path, monkeypatch, truth, said, right):
    monkeypatch.chdir(tmp_path)
    assert score(truth, rf"so \boxed{{{said}}}.").accuracy == right
    assert not Path("PWNED").exists()


def test_a_comparison_without_end_is_wrong_and_the_next_one_works(compared, monkeypatch):
    assert score(r"\frac{1}{2}", r"\boxed{0.5}").accuracy == 1
    monkeypatch.setattr(module._worker(), "seconds", 2.0)
    start = time.monotonic()
    assert score(r"9^{9^{9^{9}}}", r"\boxed{\sqrt{9^{9^{9^{9}}}}^2}").accuracy == 0
    assert time.monotonic() - start < 15
    assert score(r"\frac{1}{2}", r"\boxed{0.5}").accuracy == 1


def never(*_: object) -> None:
    raise AssertionError("the worker is not needed")


@pytest.mark.parametrize(
    ("truth", "text", "right"),
    [
        ("7", r"\boxed{7}", 1),
        ("7", r"\boxed{1} and \boxed{ 7 }", 1),
        ("7", r"\boxed{7.0}", 1),
        ("7", r"\boxed{8}", 0),
        (r"\frac{1}{2}", r"\boxed{\frac{1} {2}}", 1),
        (r"so it is $\boxed{\frac{1}{2}}$.", r"\boxed{\frac{1}{2}}", 1),
        ("7", "<answer>7</answer>", 1),
        ("7", "the answer is 7", 0),  # neither boxed nor in tags
        ("7", r"\boxed{7", 0),
        ("7", r"\boxed{}", 0),
        ("7", "", 0),
        ("7", rf"\boxed{{{'x' * 2000}}}", 0),
    ],
)
def test_equal_texts_and_numbers_need_no_worker(monkeypatch, truth, text, right):
    monkeypatch.setattr(module, "_worker", never)
    assert (score(truth, text).value, score(truth, text).accuracy) == (right, right)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"<answer>\boxed{7}</answer>", 3.0),
        ("<answer>7</answer>", 2.75),
        (r"\boxed{7}", 2.5),
        ("7", 0.25),
        (r"<answer>\boxed{8}</answer>", 1.0),
    ],
)
def test_the_parts_of_d1(text, value):
    assert score("7", text, scheme="d1").value == value


def test_its_requirements_are_checked_without_an_answer(monkeypatch):
    need_package("math_verify")
    monkeypatch.setattr("dare_bench.harness.common.scoring_process.why_not_enclosed", lambda: "no namespaces")
    with pytest.raises(UsageError, match=r"the reward 'math' is scored by code .*no namespaces.*unsafe_no_sandbox"):
        module.check({"scheme": "d1"})
    module.check({"unsafe_no_sandbox": True})
    with pytest.raises(UsageError, match="'sceme' is not a field of the reward 'math'"):
        module.check({"sceme": "d1"})
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UsageError, match=r"the reward 'math' needs math-verify; install it with: pip install"):
        module.check({"unsafe_no_sandbox": True})


def test_without_a_sandbox_it_is_refused_unless_allowed(monkeypatch):
    need_package("math_verify")
    monkeypatch.setattr("dare_bench.harness.common.scoring_process.why_not_enclosed", lambda: "no namespaces")
    with pytest.raises(UsageError, match=r"the reward 'math' is scored by code .*no namespaces.*unsafe_no_sandbox"):
        score(r"\frac{1}{2}", r"\boxed{0.5}")
    module._worker.cache_clear()
    assert score(r"\frac{1}{2}", r"\boxed{0.5}", unsafe_no_sandbox=True).accuracy == 1
    module._worker.cache_clear()
