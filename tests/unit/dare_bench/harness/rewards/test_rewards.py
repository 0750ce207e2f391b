"""The rewards of MATH (equal formulas), GSM8K (which number counts) and programs (their tests run in sandboxes)."""

from __future__ import annotations

import json
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from require import lacks, need_package

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.rewards import formula as module
from dare_bench.harness.rewards.formula import formula
from dare_bench.harness.rewards.gsm8k import gsm8k, number_of
from dare_bench.harness.rewards.program import check, code_of, program
from dare_bench.sandbox import isolation
from dare_bench.sandbox.worker_process import why_not_enclosed
from dare_bench.types import Reward, RewardPrompt


@pytest.fixture
def compared():
    need_package("math_verify")
    if (reason := why_not_enclosed()) is not None:
        lacks("namespaces", f"does not work: {reason}")


def formula_score(truth: str, text: str, **options: object) -> Reward:
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
    assert formula_score(truth, rf"so \boxed{{{said}}}.").accuracy == right
    assert not Path("PWNED").exists()


def test_a_comparison_without_end_is_wrong_and_the_next_one_works(compared, monkeypatch):
    assert formula_score(r"\frac{1}{2}", r"\boxed{0.5}").accuracy == 1
    monkeypatch.setattr(module._worker(), "seconds", 2.0)
    start = time.monotonic()
    assert formula_score(r"9^{9^{9^{9}}}", r"\boxed{\sqrt{9^{9^{9^{9}}}}^2}").accuracy == 0
    assert time.monotonic() - start < 15
    assert formula_score(r"\frac{1}{2}", r"\boxed{0.5}").accuracy == 1


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
    assert (formula_score(truth, text).value, formula_score(truth, text).accuracy) == (right, right)


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
    assert formula_score("7", text, scheme="d1").value == value


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
        formula_score(r"\frac{1}{2}", r"\boxed{0.5}")
    module._worker.cache_clear()
    assert formula_score(r"\frac{1}{2}", r"\boxed{0.5}", unsafe_no_sandbox=True).accuracy == 1
    module._worker.cache_clear()


def gsm8k_score(truth: str, text: str, **options: str):
    return gsm8k([RewardPrompt("q", truth, "gsm8k", "f:1")], [text], options)[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16-3-4=<<16-3-4=9>>9 eggs\n#### 18", 18),
        ("#### 18\n#### 20 dollars, not 30", 20),
        (r"so \boxed{18} and then 5", 18),
        (r"\boxed{1} no, \boxed{\$1,234.50}", Fraction("1234.5")),
        ("<answer>\n18\n</answer> (17 before)", 18),
        ("he pays $70,000 for 3 houses: 210,000.", 210_000),
        ("first 3, then 4.", 4),
        ("10-4", 4),
        ("it falls to -4", -4),
        ("18.00", 18),
        ("#### none", None),
        ("####\nthe answer is 3", 3),
        ("no number", None),
        ("", None),
        ("9" * 100, None),
        ("١٨", None),
    ],
)
def test_the_number_of_an_answer(text, number):
    assert number_of(text) == number


def test_equal_values_are_right():
    for text in ("72", "#### 72.0", "$72", r"\boxed{72}", "<answer>072</answer>"):
        assert (gsm8k_score("72", text).value, gsm8k_score("48/2 = 24\n#### 72", text).accuracy) == (1, 1)
    assert gsm8k_score("72", "7.2").accuracy == 0


FULL = "<reasoning>\nfirst\nthen\n</reasoning>\n<answer>\n7\n</answer>\n"


@pytest.mark.parametrize(
    ("text", "value", "accuracy"),
    [
        (FULL, 2 + 4 * 0.5, 1),
        (FULL.replace("7", "8"), 4 * 0.5, 0),
        (FULL.replace("\n", " "), 2 + 0.5 + 0.5, 1),  # the loose format and digits, no line breaks
        (FULL.replace("7", "seven (7)"), 2 + 3 * 0.5, 1),  # no digits alone
        (FULL + "x" * 100, 2 + 0.5 + 0.5 + 0.5 * 0.8, 1),  # text behind costs 0.001 a character
        (FULL + "x" * 5000, 2 + 0.5 + 0.5, 1),  # and never more than the tags give
        ("7", 2, 1),
        ("", 0, 0),
    ],
)
def test_the_parts_of_d1_for_gsm8k(text, value, accuracy):
    scored = gsm8k_score("7", text, scheme="d1")
    assert (scored.value, scored.accuracy) == (pytest.approx(value), accuracy)
    assert gsm8k_score("7", text).value == accuracy
    assert set(scored.terms) == {"correctness", "integer", "soft_format", "strict_format", "tags"}


@pytest.mark.parametrize("text", ["<reasoning>" * 5000, "</reasoning> <answer>" * 3000, "$" * 50_000, "1," * 10**6])
def test_hostile_text_takes_little_time(text):
    start = time.process_time()
    assert gsm8k_score("7", "<reasoning>" + text, scheme="d1").accuracy == 0
    assert time.process_time() - start < 2.0


@given(st.text(max_size=120) | st.text(alphabet="0123456789.,-$#\\boxed{} ", max_size=60))
def test_any_text_gets_a_reward(text):
    assert 0 <= gsm8k_score("7", text, scheme="d1").value <= 4


def test_a_truth_without_a_number_and_unknown_schemes_are_errors():
    with pytest.raises(DataError, match="f:1: the truth 'many' has no number"):
        gsm8k_score("many", "7")
    with pytest.raises(UsageError, match=r"scheme='strict': .*'exact' or 'd1'"):
        gsm8k_score("7", "7", scheme="strict")


GIVEN = 'from typing import List\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n'
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n"
BODY = "    return 2 * x\n"


@pytest.fixture
def sandboxed():
    if isolation() == "none":
        lacks("bubblewrap", "and namespaces do not work")


def program_score(
    texts: list[str], truth: str = CHECK, prompt: str = GIVEN, options: Any = None, **extra: Any
) -> list[Reward]:
    row = RewardPrompt(prompt, truth, "code", "f:1", extra)
    return program([row] * len(texts), texts, options or {})


def test_right_and_wrong_programs(sandboxed):
    texts = [
        f"```python\n{GIVEN}{BODY}```",
        "Here it is:\n```python\ndef double(x):\n    return x + x\n```\nand a test:\n```python\nprint(double(3))\n```",
        BODY,  # it continues the prompt
        "```python\ndef helper(x):\n    return x\n\ndef double(x):\n    return helper(x) * 2\n```",  # helper
        "```python\ndef double(x: List) -> int:\n    return 2 * x\n```",  # needs the import of the prompt
        f"```python\n{GIVEN}    return 3 * x\n```",
        "```python\ndef double(x):\n    raise SystemExit(0)\n```",
        "```python\ndef double(x:\n```",
        "no program",
        "",
    ]
    scored = program_score(texts, options={"format_weight": 0.25})
    assert [r.accuracy for r in scored] == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert [r.value for r in scored] == [1, 1, 1, 1, 1, 0.25, 0.25, 0.25, 0, 0]


def test_check_is_called_once_with_the_function_of_the_prompt(sandboxed):
    counting = "n = []\ndef check(candidate):\n    n.append(1)\n    assert len(n) == 1\n    assert candidate(2) == 4\n"
    assert program_score([BODY], counting)[0].accuracy == 1
    assert program_score([BODY], counting + "\ncheck(double)\n")[0].accuracy == 1
    assert (
        program_score(["def twice(x):\n    return 2 * x\n"], prompt="Write twice.", entry_point="twice")[0].accuracy
        == 1
    )


def test_a_list_of_assertions(sandboxed):
    tests = json.dumps(["assert area(2) == math.pi * 4", "assert sum([1]) == 1"])
    texts = [
        "[BEGIN]\n'import math as m\ndef area(r):\n    return m.pi * r * r'\n[DONE] x",
        "def area(r):\n    return 3 * r * r\n",
    ]
    row = {"prompt": "Write area.", "test_imports": ["import math"]}
    assert [r.accuracy for r in program_score(texts, tests, **row)] == [1, 0]
    assert program_score(texts, tests, prompt="Write area.")[0].accuracy == 0, "the tests need the import of the row"


def test_programs_run_at_the_same_time(sandboxed):
    slow = [f"def double(x):\n    import time\n    time.sleep(1.5)\n    return 2 * x  # {i}\n" for i in range(2)]
    check = "def check(candidate):\n    assert candidate(2) == 4\n"
    start = time.monotonic()
    program_score([BODY], check)
    once = time.monotonic() - start
    start = time.monotonic()
    assert [r.accuracy for r in program_score(slow, check)] == [1, 1]
    assert time.monotonic() - start < 3.0 + once


def test_a_program_without_end_is_wrong(sandboxed):
    texts = ["```python\ndef double(x):\n    while True: pass\n```", BODY]
    assert [r.accuracy for r in program_score(texts, options={"timeout": 3})] == [0, 1]


def test_a_missing_sandbox_is_noticed_without_an_answer(monkeypatch):
    monkeypatch.setattr("dare_bench.sandbox.isolation", lambda: "none")
    with pytest.raises(
        UsageError, match=r"'code' runs programs .*nothing isolates them.*set its option unsafe_no_sand"
    ):
        check({"timeout": 3})
    check({"unsafe_no_sandbox": True})
    monkeypatch.setattr("dare_bench.sandbox.isolation", lambda: "namespaces")
    check({})


def test_without_a_sandbox_it_is_refused(monkeypatch):
    monkeypatch.setattr("dare_bench.sandbox.pool.isolation", lambda: "none")
    with pytest.raises(UsageError, match="generated code was not run: no isolation works here"):
        program_score([BODY])
    assert program_score([""])[0].accuracy == 0, "nothing to run"


@pytest.mark.parametrize(
    ("truth", "prompt", "message"),
    [
        ("", "q", "f:1: the truth is empty"),
        ('[{"input": "1", "output": "2"}]', "q", "not a list of assertions; .* not pairs of input and output"),
        ('{"inputs": ["1"], "outputs": ["2"]}', "q", "not a list of assertions"),
        (CHECK, "Write a function.", "f:1: the tests define check"),
    ],
)
def test_tests_that_cannot_run_are_an_error_of_the_data(truth, prompt, message):
    with pytest.raises(DataError, match=message):
        program_score([""], truth, prompt)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```\n```python\nb\n```", "a\n"),
        ("```py\nx = 1\n```\n```py\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("```python\na", "a"),
        ("[BEGIN]\na\n[DONE]\nb", "\na\n"),
        ("a\n[DONE]", "a\n"),
        ("    return 1\n", "    return 1\n"),
    ],
)
def test_the_program_in_an_answer(text, code):
    assert code_of(text, "f") == code
