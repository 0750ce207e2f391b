"""Rows with a reference answer that a reward checks: DARE's RL files, and public benchmarks in their published columns.
A row of a benchmark becomes one user turn; its fields travel to the reward in ``extra``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dare_bench.errors import brief
from dare_bench.registry import registry
from dare_bench.reward_parts import last_boxed
from dare_bench.training import turns
from dare_bench.training.rows import Item
from dare_bench.training.turns import Malformed, column, text
from dare_bench.types import RewardPrompt

Columns = Mapping[str, Any]
CODE_FIELDS = ("entry_point", "test_list", "test_imports", "test_setup_code", "code")
"""Columns of HumanEval and MBPP that their reward reads, besides the tests."""


def dare_rl(row: Columns, where: str) -> list[Item]:
    """DARE's and verl's RL parquet. The reward is ``data_source`` if there is one of that name, else
    ``extra_info.task``: in DARE's files the task of countdown and sudoku is ``math``, like that of GSM8K."""
    extra = turns.fields(row["extra_info"], "extra_info") if row.get("extra_info") is not None else {}
    truth = column(row, "reward_model.ground_truth")
    if isinstance(truth, list | dict):
        truth = json.dumps(truth, ensure_ascii=False)
    elif isinstance(truth, int | float) and not isinstance(truth, bool):
        truth = str(truth)
    source, task = row.get("data_source"), extra.get("task")
    if task is None or source in registry().names("reward"):
        name = text(column(row, "data_source"), "data_source")
    else:
        name = text(task, "extra_info.task")
    return [
        RewardPrompt(
            turns.prompt(_without_begin(column(row, "prompt")), "prompt"),
            text(truth, "reward_model.ground_truth"),
            name,
            where,
            {k: v for k, v in extra.items() if k != "task" and v is not None},  # parquet fills absent fields with None
        )
    ]


def any_prompt(row: Columns, where: str) -> list[Item]:
    """A prompt for rewards that are given with weights. They read the row's other columns."""
    others = {name: value for name, value in row.items() if name != "prompt"}
    return [RewardPrompt(turns.prompt(column(row, "prompt"), "prompt"), "", "", where, others)]


def _without_begin(prompt: Any) -> Any:
    """DARE's MBPP prompts end with an assistant turn ``[BEGIN]``, the first word of the answer: it is left out."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    begun = isinstance(last, dict) and last.get("role") == "assistant" and str(last.get("content")).strip() == "[BEGIN]"
    return prompt[:-1] if begun else prompt


def _item(question: str, truth: str, reward: str, where: str, **extra: Any) -> list[Item]:
    return [RewardPrompt((turns.user(question),), truth, reward, where, extra)]


def gsm8k(row: Columns, where: str) -> list[Item]:
    """A question, and a solution that ends with ``#### NUMBER``."""
    answer = text(column(row, "answer"), "answer")
    number = answer.rpartition("####")[2].strip()
    if "####" not in answer or not number:
        raise Malformed(f"answer is {brief(answer[-60:])}; expected a solution that ends with '#### NUMBER'")
    return _item(text(column(row, "question"), "question"), number, "gsm8k", where)


def math(row: Columns, where: str) -> list[Item]:
    """A problem with its ``answer``, or with a ``solution`` whose result is in ``\\boxed``."""
    problem = text(column(row, "problem"), "problem")
    if (answer := row.get("answer")) is not None:
        return _item(problem, text(str(answer) if type(answer) is int else answer, "answer"), "math", where)
    solution = text(column(row, "solution"), "solution")
    if not (result := last_boxed(solution)):
        raise Malformed(f"solution is {brief(solution[-60:])}; expected a result in \\boxed, or an 'answer'")
    return _item(problem, result, "math", where)


def countdown(name: str) -> Callable[[Columns, str], list[Item]]:
    """The numbers (column ``name``) and their target."""

    def read(row: Columns, where: str) -> list[Item]:
        numbers, target = column(row, name), column(row, "target")
        if not isinstance(numbers, list) or not numbers or any(type(number) is not int for number in numbers):
            raise Malformed(f"{name} is {brief(numbers)}; expected a list of whole numbers")
        if type(target) is not int:
            raise Malformed(f"target is {brief(target)}; expected a whole number")
        return _countdown(numbers, target, where)

    return read


def _countdown(numbers: list[int], target: int, where: str) -> list[Item]:
    question = (
        f"Make {target} from {', '.join(map(str, numbers))}. Use every number exactly once, with +, -, *, / and "
        "parentheses. Write the expression, without an equals sign, between <answer> and </answer>."
    )
    return _item(question, str(target), "countdown", where, numbers=numbers)


def sudoku(puzzle_name: str, solution_name: str) -> Callable[[Columns, str], list[Item]]:
    """A 4x4 puzzle (0: empty) and its solution, 16 digits each, in these columns."""

    def read(row: Columns, where: str) -> list[Item]:
        given, solution = (text(column(row, name), name) for name in (puzzle_name, solution_name))
        return _sudoku(given, solution, where)

    return read


def _sudoku(puzzle: str, solution: str, where: str) -> list[Item]:
    cells = ["".join(board.split()) for board in (puzzle, solution)]
    for name, board, digits in zip(("puzzle", "solution"), cells, ("01234", "1234"), strict=True):
        if len(board) != 16 or set(board) - set(digits):
            raise Malformed(f"the {name} is {brief(board)}; expected 16 digits from {digits[0]} to 4")
    question = (
        "Solve this 4x4 sudoku: every row, column and 2x2 box holds the digits 1 to 4; 0 is an empty cell.\n"
        + "\n".join(cells[0][i : i + 4] for i in range(0, 16, 4))
        + "\nWrite the 16 digits of the solved board between <answer> and </answer>."
    )
    return _item(question, cells[1], "sudoku", where, puzzle=cells[0])


def puzzle(row: Columns, where: str) -> list[Item]:
    """The test files of d1 and Dream: ``input`` and ``output`` of countdown (``30,100,93`` and ``23``) or of a 4x4
    sudoku (two boards of digits)."""
    given, result = (text(column(row, name), name).strip() for name in ("input", "output"))
    if len("".join(given.split())) == 16 and "".join(given.split()).isdecimal():
        return _sudoku(given, result, where)
    try:
        return _countdown([int(number) for number in given.split(",")], int(result), where)
    except ValueError:
        raise Malformed(
            f"input is {brief(given)} and output {brief(result)}; expected numbers and a target (30,100,93 and 23), or "
            "two boards of 16 digits"
        ) from None


def humaneval(row: Columns, where: str) -> list[Item]:
    """The beginning of a function, to be continued, and a program that defines ``check(candidate)``."""
    question = "Complete this Python function.\n\n" + text(column(row, "prompt"), "prompt")
    return _item(question, text(column(row, "test"), "test"), "code", where, **_code_fields(row))


def mbpp(name: str) -> Callable[[Columns, str], list[Item]]:
    """A description (column ``name``) and a list of assertions, which the prompt shows."""

    def read(row: Columns, where: str) -> list[Item]:
        tests = column(row, "test_list")
        if not isinstance(tests, list) or not tests or any(not isinstance(test, str) for test in tests):
            raise Malformed(f"test_list is {brief(tests)}; expected a list of assertions")
        description = text(column(row, name), name)
        question = f"{description}\nThe Python program must pass these tests:\n\n" + "\n".join(tests)
        return _item(question, json.dumps(tests), "code", where, **_code_fields(row))

    return read


def _code_fields(row: Columns) -> dict[str, Any]:
    return {name: row[name] for name in CODE_FIELDS if row.get(name) is not None}
