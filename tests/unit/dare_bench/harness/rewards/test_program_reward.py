"""The reward of programs: their tests run in sandboxes, once, and several at a time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from require import lacks

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.rewards.program import check, code_of, program
from dare_bench.sandbox import isolation
from dare_bench.types import Reward, RewardPrompt

GIVEN = 'from typing import List\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n'
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n"
BODY = "    return 2 * x\n"


@pytest.fixture
def sandboxed():
    if isolation() == "none":
        lacks("bubblewrap", "and namespaces do not work")


def score(texts: list[str], truth: str = CHECK, prompt: str = GIVEN, options: Any = None, **extra: Any) -> list[Reward]:
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
    scored = score(texts, options={"format_weight": 0.25})
    assert [r.accuracy for r in scored] == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert [r.value for r in scored] == [1, 1, 1, 1, 1, 0.25, 0.25, 0.25, 0, 0]


def test_check_is_called_once_with_the_function_of_the_prompt(sandboxed):
    counting = "n = []\ndef check(candidate):\n    n.append(1)\n    assert len(n) == 1\n    assert candidate(2) == 4\n"
    assert score([BODY], counting)[0].accuracy == 1
    assert score([BODY], counting + "\ncheck(double)\n")[0].accuracy == 1
    assert score(["def twice(x):\n    return 2 * x\n"], prompt="Write twice.", entry_point="twice")[0].accuracy == 1


def test_a_list_of_assertions(sandboxed):
    tests = json.dumps(["assert area(2) == math.pi * 4", "assert sum([1]) == 1"])
    texts = [
        "[BEGIN]\n'import math as m\ndef area(r):\n    return m.pi * r * r'\n[DONE] x",
        "def area(r):\n    return 3 * r * r\n",
    ]
    row = {"prompt": "Write area.", "test_imports": ["import math"]}
    assert [r.accuracy for r in score(texts, tests, **row)] == [1, 0]
    assert score(texts, tests, prompt="Write area.")[0].accuracy == 0, "the tests need the import of the row"


def test_programs_run_at_the_same_time(sandboxed):
    slow = [f"def double(x):\n    import time\n    time.sleep(1.5)\n    return 2 * x  # {i}\n" for i in range(2)]
    check = "def check(candidate):\n    assert candidate(2) == 4\n"
    start = time.monotonic()
    score([BODY], check)
    once = time.monotonic() - start
    start = time.monotonic()
    assert [r.accuracy for r in score(slow, check)] == [1, 1]
    assert time.monotonic() - start < 3.0 + once


def test_a_program_without_end_is_wrong(sandboxed):
    texts = ["```python\ndef double(x):\n    while True: pass\n```", BODY]
    assert [r.accuracy for r in score(texts, options={"timeout": 3})] == [0, 1]


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
        score([BODY])
    assert score([""])[0].accuracy == 0, "nothing to run"


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
        score([""], truth, prompt)


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
