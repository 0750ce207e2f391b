"""The reward of HumanEval and MBPP: programs that pass the tests of their prompt, run in sandboxes, several at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from dare_bench import sandbox
from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.code_eval import TIMEOUT, CodeRunner, with_setup
from dare_bench.reading import parse_json
from dare_bench.reward_parts import MAX_TEXT, PartialCredit, question, read_options
from dare_bench.types import Reward, RewardPrompt

FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
BEGIN, DONE = "[BEGIN]", "[DONE]"
"""The marks around programs in the few-shot examples of MBPP."""
CODE_START = re.compile(r"^(?:from |import |def |class |@)", re.MULTILINE)
FUNCTION = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)


class CodeOptions(PartialCredit):
    """``timeout``: seconds of wall time for the tests of one answer. ``unsafe_no_sandbox``: run programs with the
    user's rights if no sandbox works. The format of an answer is right if it has a fenced block."""

    timeout: float = Field(TIMEOUT, gt=0, le=3600)
    unsafe_no_sandbox: bool = False


@dataclass(frozen=True)
class _Problem:
    """``tests``: Python text; ``entry``: the function that they test, if they say; ``given``: the program in the
    prompt, which an answer may continue or contain."""

    tests: str
    entry: str | None
    given: str


def program(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """1 for a program that passes all tests. The truth holds the tests: Python text that may define
    ``check(candidate)`` (HumanEval; it is called once, with the function that the prompt asks for), or a JSON list of
    assertions (MBPP); raises DataError or UsageError.

    Terms: ``correctness``; ``format``, the answer has a fenced block.
    """
    chosen = read_options(CodeOptions, options, "code")
    problems, texts = [_problem(prompt) for prompt in prompts], [text[:MAX_TEXT] for text in texts]
    with closing(CodeRunner()) as runner:
        runner.unsafe = chosen.unsafe_no_sandbox
        pairs = [_pair(problem, text) for problem, text in zip(problems, texts, strict=True)]
        for pair in pairs:
            if pair is not None:
                runner.prepare(*pair, chosen.timeout)
        passed = [pair is not None and runner.verdict(*pair, chosen.timeout).status == "passed" for pair in pairs]
    fenced = [FENCED.search(text) is not None for text in texts]
    return [chosen.reward(right, form) for right, form in zip(passed, fenced, strict=True)]


def check(options: Mapping[str, Any]) -> None:
    """Refuse a training whose programs could not be run; raises UsageError."""
    if not read_options(CodeOptions, options, "code").unsafe_no_sandbox and sandbox.isolation() == "none":
        raise UsageError(
            f"the reward 'code' runs programs that the model writes, and nothing isolates them here; "
            f"{sandbox.InstallHint}, or set its option unsafe_no_sandbox"
        )


def _problem(prompt: RewardPrompt) -> _Problem:
    text = question(prompt.prompt)
    start = CODE_START.search(text)
    given = text[start.start() :].rstrip() + "\n" if start else ""
    tests, entry = _tests(prompt), prompt.extra.get("entry_point")
    if re.search(r"^def check\(", tests, re.MULTILINE):
        entry = entry if isinstance(entry, str) else next(reversed(FUNCTION.findall(given)), None)
        if entry is None:
            raise DataError(
                f"{prompt.where}: the tests define check(candidate), but no entry_point or prompt names the function"
            )
        if not re.search(r"^check\(", tests, re.MULTILINE):
            tests += f"\ncheck({entry})\n"
    return _Problem(with_setup(prompt.extra, tests), entry, given)


def _tests(prompt: RewardPrompt) -> str:
    """The tests as Python text; raises DataError."""
    tests = prompt.truth
    if tests.lstrip()[:1] in ("[", "{"):
        try:
            listed = parse_json(tests)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(test, str) for test in listed):
            raise DataError(
                f"{prompt.where}: the truth {tests!r:.60} is not a list of assertions; the reward 'code' runs Python "
                "tests, not pairs of input and output"
            )
        tests = "\n".join(listed)
    if not tests.strip():
        raise DataError(f"{prompt.where}: the truth is empty; the reward 'code' needs tests")
    return tests


def _pair(problem: _Problem, text: str) -> tuple[str, str] | None:
    """(solution, tests); None for an answer without a program."""
    code = code_of(text, problem.entry)
    if not code.strip():
        return None
    if problem.entry is None or problem.entry not in FUNCTION.findall(problem.given):
        return code, problem.tests
    if problem.entry not in FUNCTION.findall(code):
        return problem.given + code, problem.tests  # a continuation of the function in the prompt
    before = re.split(rf"^(?:async )?def {re.escape(problem.entry)}\b", problem.given, flags=re.MULTILINE)[0]
    return f"{before}\n{code}", problem.tests


def code_of(text: str, entry: str | None) -> str:
    """The program in an answer: the last fenced block that defines ``entry``, else the first one, else the text between
    [BEGIN] and [DONE], else the text up to [DONE]."""
    if blocks := FENCED.findall(text):
        defining = [block for block in blocks if entry is not None and entry in FUNCTION.findall(block)]
        return str(defining[-1] if defining else blocks[0])
    code = text.partition(BEGIN)[2] if BEGIN in text else text
    code = code.partition(DONE)[0]
    bare = code.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] == "'" else code
