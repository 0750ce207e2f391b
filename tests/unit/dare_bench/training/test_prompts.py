"""Rows with a reference answer: DARE's RL files, the columns of public benchmarks, and the reward that scores them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import training_samples as samples
from training_samples import lines, read

from dare_bench.errors import DataError
from dare_bench.training.rewards import rewards
from dare_bench.types import RewardPrompt

PUZZLE, SOLUTION = "0304400304310140", "1324421324313142"
CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"
ROWS: dict[str, tuple[dict[str, Any], str, str, dict[str, Any]]] = {
    "gsm8k": ({"question": "3+4?", "answer": "3+4=<<3+4=7>>7\n#### 7"}, "7", "gsm8k", {}),
    "math": ({"problem": "p", "solution": r"so $\boxed{\frac{1}{2}}$.", "level": 1}, r"\frac{1}{2}", "math", {}),
    "math500": ({"problem": "p", "solution": r"\boxed{1}", "answer": "2"}, "2", "math", {}),
    "aime": ({"problem": "p", "answer": 204}, "204", "math", {}),
    "countdown": ({"numbers": [44, 15], "target": 29, "solution": "44-15"}, "29", "countdown", {"numbers": [44, 15]}),
    "countdown-d1": ({"nums": [44, 15], "target": 29}, "29", "countdown", {"numbers": [44, 15]}),
    "countdown-test": ({"input": "30,100,93", "output": "23"}, "23", "countdown", {"numbers": [30, 100, 93]}),
    "sudoku-dream": ({"input": "0304\n4003\n0431\n0140", "output": SOLUTION}, SOLUTION, "sudoku", {"puzzle": PUZZLE}),
    "sudoku": ({"puzzle": PUZZLE, "solution": SOLUTION}, SOLUTION, "sudoku", {"puzzle": PUZZLE}),
    "sudoku-d1": ({"Puzzle": PUZZLE, "Solution": SOLUTION}, SOLUTION, "sudoku", {"puzzle": PUZZLE}),
    "humaneval": ({"prompt": "def f(x):\n", "test": CHECK, "entry_point": "f"}, CHECK, "code", {"entry_point": "f"}),
    "mbpp": (
        {"text": "Add one.", "test_list": ["assert f(1) == 2"], "test_setup_code": ""},
        '["assert f(1) == 2"]',
        "code",
        {"test_list": ["assert f(1) == 2"], "test_setup_code": ""},
    ),
    "mbpp-sanitized": (
        {"prompt": "Add one.", "test_list": ["assert f(1) == 2"], "test_imports": ["import math"]},
        '["assert f(1) == 2"]',
        "code",
        {"test_list": ["assert f(1) == 2"], "test_imports": ["import math"]},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_benchmark_row_is_a_user_turn_with_its_reward(tmp_path, name):
    row, truth, task, extra = ROWS[name]
    (prompt,) = read(lines(tmp_path, [row]), "prompts").rows
    assert isinstance(prompt, RewardPrompt)
    assert (prompt.truth, prompt.task, prompt.extra) == (truth, task, extra)
    (turn,) = prompt.prompt
    assert turn["role"] == "user"  # type: ignore[index]
    rewards([prompt], [""], {})


def dare(task: str | None, source: str, truth: str = "7", **extra: Any) -> dict[str, Any]:
    about = {"index": 0, **extra} | ({} if task is None else {"task": task})
    reward = {"style": "rule", "ground_truth": truth}
    return {"data_source": source, "prompt": samples.asked("?"), "reward_model": reward, "extra_info": about}


@pytest.mark.parametrize(
    ("row", "reward"),
    [
        (dare("math", "gsm8k"), "gsm8k"),
        (dare("math", "countdown", numbers="[3, 4]"), "countdown"),
        (dare("math", "sudoku", SOLUTION, puzzle=PUZZLE), "sudoku"),
        (dare("math", "math"), "math"),
        (dare("math", "aime2024"), "math"),
        (dare("code", "mbpp", '["assert f(1) == 2"]'), "mbpp"),
        (dare(None, "gsm8k"), "gsm8k"),
        (dare("dare_sort", "ours", digits="123456"), "dare_sort"),
    ],
)
def test_dares_rows_are_scored_by_their_source_else_by_their_task(tmp_path, row, reward):
    """DARE's files give countdown and sudoku the task ``math``."""
    (prompt,) = read(lines(tmp_path, [row]), "prompts").rows
    assert isinstance(prompt, RewardPrompt) and prompt.task == reward
    rewards([prompt], [""], {})


def test_the_begun_answer_of_dares_mbpp_is_left_out(tmp_path):
    turns = [*samples.asked("a"), *samples.answered("[BEGIN] x [DONE]"), *samples.asked("b")]
    row = dare("code", "mbpp") | {"prompt": [*turns, *samples.answered("[BEGIN]\n")]}
    assert read(lines(tmp_path, [row]), "prompts").rows[0].prompt == tuple(turns)
    with pytest.raises(DataError, match="prompt ends with a turn of 'assistant'"):
        read(lines(tmp_path, [row | {"prompt": [*turns, *samples.answered("Well")]}]), "prompts")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": "seven"}, "answer is 'seven'; expected a solution that ends with '#### NUMBER'"),
        ({"problem": "p", "solution": "one half"}, r"solution is 'one half'; expected a result in \\boxed"),
        ({"numbers": "3 4", "target": 7}, "numbers is '3 4'; expected a list of whole numbers"),
        ({"numbers": [3, 4], "target": "7"}, "target is '7'; expected a whole number"),
        ({"nums": [3, True], "target": 7}, r"nums is \[3, True\]"),
        ({"input": "3;4", "output": "7"}, "input is '3;4' and output '7'; expected numbers and a target"),
        ({"puzzle": PUZZLE, "solution": "1" * 15}, "the solution is '111111111111111'; expected 16 digits from 1 to 4"),
        ({"Puzzle": "5" + PUZZLE[1:], "Solution": SOLUTION}, "the puzzle is '5304.*expected 16 digits from 0 to 4"),
        ({"text": "t", "test_list": "assert True"}, "test_list is 'assert True'; expected a list of assertions"),
    ],
)
def test_malformed_benchmark_rows(tmp_path, row, message):
    with pytest.raises(DataError, match=rf"rows\.jsonl:1: {message}"):
        read(lines(tmp_path, [row]), "prompts")


# -- CSV ---------------------------------------------------------------------------------------------------------------


def test_d1s_csv_keeps_leading_zeros_and_line_numbers(tmp_path):
    file = tmp_path / "train.csv"
    file.write_bytes(f"\ufeffPuzzle,Solution\r\n{PUZZLE},{SOLUTION}\r\n\r\n{PUZZLE},{SOLUTION}\r\n".encode())
    rows = read(file, "prompts").rows
    assert [row.where for row in rows] == [f"{file}:2", f"{file}:4"]
    assert all(isinstance(row, RewardPrompt) and row.extra == {"puzzle": PUZZLE} for row in rows)
    assert (
        read(file, "prompts").hash
        == read(lines(tmp_path, [{"Puzzle": PUZZLE, "Solution": SOLUTION}] * 2), "prompts").hash
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prompt,answer\na,b\nc\n", r"train\.csv:3: 1 values; expected 2, as in the first line"),
        (b"prompt,prompt\na,b\n", "column 'prompt' occurs more than once"),
        (b"prompt,answer\na,\xff\n", r"train\.csv:2: not UTF-8: byte 0xff"),
        (b'prompt,answer\n"a,b\n', r"train\.csv:1: cannot be read any further \(Error: unexpected end of data"),
        (b"prompt,answer\n", "holds no rows"),
        (b"", "holds no rows"),
        (b"prompt,answer\n" + b"x" * (1 << 25), "longer than 16,777,216 bytes"),
    ],
)
def test_malformed_csv(tmp_path, content, message):
    file = tmp_path / "train.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(file)


def test_a_csv_cell_may_have_line_breaks(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('prompt,answer\n"a\nb","c, ""d"""\n')
    (row,) = read(file).rows
    assert (row.prompt, row.answer) == ("a\nb", 'c, "d"')  # type: ignore[union-attr]


# -- whole data sets ---------------------------------------------------------------------------------------------------

BENCH = os.environ.get("DARE_BENCH_DATA")


@pytest.mark.skipif(BENCH is None, reason="DARE_BENCH_DATA names no folder of whole data sets")
@pytest.mark.parametrize(
    ("name", "count", "answer"),
    [
        ("gsm8k/test", 1319, "answer"),
        ("math500/test", 500, "solution"),
        ("sudoku4x4/test", 500, "solution"),
        ("countdown/test", 256, None),
    ],
)
def test_reference_solutions_of_whole_benchmarks_are_right(name, count, answer):
    file = Path(str(BENCH)) / f"{name}.jsonl"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    prompts = [row for row in read(file, "prompts").rows if isinstance(row, RewardPrompt)]
    assert len(prompts) == count
    rewards(prompts, [""] * len(prompts), {})
    if answer is not None:
        solutions = [json.loads(line)[answer] for line in file.read_text().splitlines()]
        texts = [f"<answer>{text}</answer>" if "sudoku" in name else text for text in solutions]
        assert {reward.accuracy for reward in rewards(prompts, texts, {})} == {1.0}
