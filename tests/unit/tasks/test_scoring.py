"""Our own tasks: what counts as right, rewards by the same scores (also of DARE's and d1's countdown and sudoku),
and that no answer can hurt the one who scores it."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dare_bench.tasks
from dare_bench.errors import DataError, UsageError
from dare_bench.registry import registry
from dare_bench.tasks.dare_arithmetic import utils as arithmetic
from dare_bench.tasks.dare_countdown import utils as countdown
from dare_bench.tasks.dare_sort import utils as sort
from dare_bench.tasks.dare_sudoku import utils as sudoku
from dare_bench.tasks.rewards import TaskReward
from dare_bench.training.rewards import check_rewards, rewards
from dare_bench.types import Reward, RewardPrompt

BOARD = {"puzzle": ".3.44..3.431.14.", "solution": "1324421324313142"}


@pytest.mark.parametrize(
    ("said", "exact", "cells"),
    [
        ("1324\n4213\n2431\n3142", 1.0, 1.0),
        ("1324 4213 | 2431 3142\n", 1.0, 1.0),
        ("1324421324313142", 1.0, 1.0),
        ("1324\n4213\n2431\n3143", 0.0, 6 / 7),  # one wrong cell
        ("1423\n2314\n3241\n4132", 0.0, None),  # a valid board that ignores the clues
        ("1324\n4213\n2431\n314", 0.0, 6 / 7),  # one cell short
        ("1324\n4213\n2431\n31422", 0.0, 1.0),  # one too many
        ("Board: 1324 4213 2431 3142", 0.0, None),
        ("", 0.0, 0.0),
        ("1" * 10**6, 0.0, None),
    ],
)
def test_sudoku_scores(said, exact, cells):
    puzzle = dict(BOARD)
    assert sum(c == "." for c in puzzle["puzzle"]) == 7
    got = sudoku.score(puzzle, [said])
    assert got["exact_match"] == exact
    if cells is not None:
        assert got["cell_accuracy"] == pytest.approx(cells)


def test_another_valid_solution_counts_where_the_puzzle_allows_it():
    assert sudoku.score({"puzzle": "." * 16, "solution": "1" * 16}, ["1234 3412 2143 4321"])["exact_match"] == 1.0


@pytest.mark.parametrize(
    ("said", "exact", "digits"),
    [
        ("107", 1.0, 1.0),
        (" 107\n", 1.0, 1.0),
        ("+107", 1.0, 1.0),
        ("0107", 1.0, 1.0),
        ("117", 0.0, 2 / 3),
        ("07", 0.0, 1 / 3),
        ("1107", 0.0, 3 / 4),
        ("-107", 0.0, 3 / 4),
        ("107.0", 0.0, 0.0),
        ("١٠٧", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("9" * 10**6, 0.0, 0.0),
    ],
)
def test_arithmetic_scores(said, exact, digits):
    got = arithmetic.score({"a": 49, "op": "+", "b": 58, "answer": 107}, [said])
    assert got == {"exact_match": exact, "digit_accuracy": pytest.approx(digits)}


@pytest.mark.parametrize(
    ("said", "exact", "form"),
    [
        ("17+7-1", 1.0, 1.0),
        (" 7 - 1 + 17 \nand more", 1.0, 1.0),
        ("17+7-1=23", 1.0, 1.0),
        ("17+(7-1)", 1.0, 1.0),
        ("17*7-1", 0.0, 1.0),
        ("17/(7-1)", 0.0, 1.0),
        ("17+7-1*1", 0.0, 0.0),  # a number twice
        ("17+7", 0.0, 0.0),  # a number missing
        ("23", 0.0, 0.0),
        ("17+7+-1", 0.0, 0.0),  # no signs, binary operators alone
        ("17+7-1)", 0.0, 0.0),
        ("(17+7-1", 0.0, 0.0),
        ("17//7-1", 0.0, 0.0),
        ("1 7+7-1", 0.0, 0.0),
        ("17/0+7", 0.0, 0.0),
        ("17+7−1", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_countdown_scores(said, exact, form):
    doc = {"numbers": [17, 1, 7], "target": 23, "solution": "17+7-1"}
    assert countdown.score(doc, [said]) == {"exact_match": exact, "format": form}


@pytest.mark.parametrize(
    ("said", "exact", "form"),
    [
        ("113459", 1.0, 1.0),
        (" 113459\n", 1.0, 1.0),
        ("314159", 0.0, 1.0),  # not sorted
        ("11345", 0.0, 0.0),
        ("1134599", 0.0, 0.0),
        ("113458", 0.0, 0.0),
        ("1 1 3 4 5 9", 0.0, 0.0),
        ("113459.", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("113459" * 10**6, 0.0, 0.0),
        (" " * 10**6 + "113459", 0.0, 0.0),
    ],
)
def test_sort_scores(said, exact, form):
    assert sort.score({"digits": "314159"}, [said]) == {"exact_match": exact, "format": form}


def test_fractions_on_the_way_are_exact():
    doc = {"numbers": [3, 3, 8, 8], "target": 24}
    assert countdown.score(doc, ["8/(3-8/3)"])["exact_match"] == 1.0


@pytest.mark.parametrize(
    "said",
    [
        "30**100**93",
        "9" * 10**6,
        "(" * 10**6,
        "(" * 30 + "1" + ")" * 30,
        "1+" * 10**6 + "1",
        "999999*999999*999999",
        "1/999999/999999",
        "__import__('os').system('true')",
        "9" * 64,
        "\x00" * 50,
        "1" + " " * 10**6 + "+1",
        "²+³",
    ],
)
def test_hostile_answers_are_refused_at_once(said):
    doc = {"numbers": [1, 2, 3], "target": 6}
    start = time.process_time()  # of this process alone: others may be busy
    assert countdown.score(doc, [said]) == {"exact_match": 0.0, "format": 0.0}
    assert time.process_time() - start < 0.5


@given(st.text(max_size=200) | st.text(alphabet="0123456789+-*/() =\n", max_size=80))
def test_any_text_gets_a_score(said):
    for module, doc in (
        (countdown, {"numbers": [1, 2, 3], "target": 6}),
        (sudoku, BOARD),
        (arithmetic, {"a": 49, "op": "+", "b": 58, "answer": 107}),
        (sort, {"digits": "314159"}),
    ):
        assert all(0.0 <= value <= 1.0 for value in module.score(doc, [said]).values())


def expressions():
    """(text, exact value, numbers) of random expressions, written with full parentheses."""
    leaf = st.integers(1, 20).map(lambda n: (str(n), Fraction(n), [n]))

    def combine(inner):
        return st.tuples(inner, st.sampled_from("+-*/"), inner).map(grow).filter(lambda made: made is not None)

    def grow(parts):
        (a, x, m), op, (b, y, n) = parts
        if op == "/" and y == 0:
            return None
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else x}[op]
        return f"({a}{op}{b})", value, m + n

    return st.recursive(leaf, combine, max_leaves=5)


@given(expressions())
def test_the_parser_agrees_with_exact_arithmetic(made):
    text, value, numbers = made
    if text.count("(") > 4:
        return
    assert countdown.evaluate(text) == (value, numbers)


def test_precedence_and_associativity():
    assert countdown.evaluate("20-5-3")[0] == 12
    assert countdown.evaluate("20/5/2")[0] == 2
    assert countdown.evaluate("2+3*4")[0] == 14
    assert countdown.evaluate("(2+3)*4")[0] == 20


OWN = ("dare_sudoku", "dare_arithmetic", "dare_countdown3", "dare_countdown4", "dare_sort")
PUZZLE, SOLUTION = "0304400304310140", "1324421324313142"
HOSTILE = ("", " ", "<answer></answer>", "30**100**93", "9" * 10**6, "(" * 10**5, "\x00", "\ud800", "<answer>" * 10**4)


def prompts(task: str, count: int = 20, seed: int = 3) -> list[RewardPrompt]:
    rows = registry().get("training_data", task).load().rows(count, seed)
    return [RewardPrompt(row["prompt"], row["answer"], task, f"{task}:{i}", row["doc"]) for i, row in enumerate(rows)]


def one(task: str, truth: str, text: str, options: dict[str, Any] | None = None, **extra: Any) -> Reward:
    return rewards([RewardPrompt("q", truth, task, "f.jsonl:7", extra)], [text], options or {})[0]


@pytest.mark.parametrize("task", OWN)
def test_a_solution_gets_one_and_a_plausible_mistake_nothing(task):
    given_prompts = prompts(task)
    right = rewards(given_prompts, [p.truth for p in given_prompts], {})
    assert [(r.value, r.accuracy) for r in right] == [(1.0, 1.0)] * len(given_prompts)
    pairs = registry().get("training_data", task).load().pairs(20, 3)
    wrong = rewards(given_prompts, [pair["rejected"] for pair in pairs], {})
    assert [(r.value, r.accuracy) for r in wrong] == [(0.0, 0.0)] * len(given_prompts)


@pytest.mark.parametrize("task", OWN)
def test_partial_credit_is_the_weighted_metric_and_no_accuracy(task):
    given_prompts = prompts(task)
    pairs = registry().get("training_data", task).load().pairs(20, 3)
    scored = rewards(given_prompts, [pair["rejected"] for pair in pairs], {"format_weight": 0.3})
    (name,) = scored[0].terms.keys() - {"correctness"}
    assert [r.value for r in scored] == pytest.approx([0.3 * r.terms[name] for r in scored])
    assert any(r.value > 0 for r in scored) and all(r.value <= 0.3 and r.accuracy == 0 for r in scored)
    exact = rewards(given_prompts, [p.truth for p in given_prompts], {"format_weight": 0.3})
    assert {r.value for r in exact} == {1.0}


def test_an_answer_ends_where_it_ends_in_the_evaluation():
    """``until`` of each task's yaml cuts an answer when it is evaluated; a reward sees the text up to EOS."""
    folder = Path(dare_bench.tasks.__file__).parent
    for task in OWN:
        (file,) = folder.glob(f"dare_*/{task}.yaml")
        until = yaml.load(file.read_text().replace("!function ", ""), yaml.SafeLoader)["generation_kwargs"]["until"]
        reward: TaskReward = registry().get("reward", task).load()
        assert [reward.stop] == until
        asked = prompts(task, 1)
        assert rewards(asked, [asked[0].truth + until[0] + "and more"], {})[0].accuracy == 1


@pytest.mark.parametrize("task", OWN)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_answers_to_our_tasks_get_little_at_once(task, text):
    start = time.process_time()
    (scored,) = rewards(prompts(task, 1), [text], {"format_weight": 0.5})
    assert scored.accuracy == 0 and 0 <= scored.value <= 0.5 and time.process_time() - start < 1.0


@settings(deadline=None)
@given(st.text(max_size=80) | st.text(alphabet="0123456789+-*/()=\n <>answer", max_size=80))
def test_any_text_gets_a_finite_reward(text):
    tagged = f"<answer>{text}</answer>"
    for task in OWN:
        (scored,) = rewards(prompts(task, 1), [text], {"format_weight": 0.5})
        assert math.isfinite(scored.value) and scored.accuracy in (0, 1)
    for scheme in ("exact", "d1", "dare"):
        assert 0 <= one("countdown", "23", tagged, {"scheme": scheme}, numbers=[1, 2, 3]).value <= 1
    assert 0 <= one("sudoku", SOLUTION, tagged, puzzle=PUZZLE).value <= 1


def test_a_record_that_is_no_document_is_an_error_with_its_row():
    with pytest.raises(DataError, match=r"f\.jsonl:7: \{'digit': '1'\} is not a document of dare_sort"):
        one("dare_sort", "1", "1", digit="1")


def test_unknown_and_invalid_options_are_named():
    with pytest.raises(
        UsageError, match=r"'format' is not a field of the reward 'dare_sort'; its options are format_w"
    ):
        rewards(prompts("dare_sort", 1), ["1"], {"format": 1})
    with pytest.raises(UsageError, match=r"format_weight=1\.5: .*less than 1"):
        rewards(prompts("dare_sort", 1), ["1"], {"format_weight": 1.5})
    with pytest.raises(UsageError, match=r"format_weight=nan"):
        rewards(prompts("dare_sort", 1), ["1"], {"format_weight": math.nan})


# -- DARE's and d1's countdown -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "accuracy", "d1", "dare"),
    [
        ("<reasoning>x</reasoning>\n<answer>\n17+7-1\n</answer>", 1, 1, 1, 1),
        ("<answer>1</answer> better: <answer>7-1+17</answer>", 1, 1, 1, 1),  # the last one counts
        ("<answer>17+7-1</answer><answer>17*7-1</answer>", 0, 0, 0.1, 0.1),  # the right numbers, another value
        ("<answer>23</answer>", 0, 0, 0, 0.1),
        ("<answer>17+7-1*1</answer>", 0, 0, 0, 0.1),  # a number twice
        ("<answer>30**100**93</answer>", 0, 0, 0, 0.1),
        ("<answer>(17+7-1).__class__</answer>", 0, 0, 0, 0.1),
        ("<answer></answer>", 0, 0, 0, 0.1),
        ("17+7-1", 0, 0, 0, 0),
        ("<answer>17+7-1", 0, 0, 0, 0),
        ("</answer>17+7-1<answer>", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_countdown_and_its_schemes(text, value, accuracy, d1, dare):
    for scheme, expected in (("exact", value), ("d1", d1), ("dare", dare)):
        scored = one("countdown", "23", text, {"scheme": scheme}, numbers="[17, 1, 7]")
        assert (scored.value, scored.accuracy) == (expected, accuracy), scheme
    assert one("countdown", "23", text, numbers=[17, 1, 7]).value == value


@pytest.mark.parametrize("extra", [{}, {"numbers": "17"}, {"numbers": "[1.5]"}, {"numbers": []}, {"numbers": [True]}])
def test_countdown_needs_numbers(extra):
    with pytest.raises(DataError, match=r"f\.jsonl:7: numbers=.* needs a list of whole numbers"):
        one("countdown", "23", "", **extra)


def test_countdown_needs_a_target():
    with pytest.raises(DataError, match="truth 'x'"):
        one("countdown", "x", "", numbers=[1, 2])


# -- DARE's and d1's sudoku --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share", "accuracy"),
    [
        (f"<answer>\n{SOLUTION}\n</answer>", 1, 1),
        ("<answer>1324\n4213\n2431\n3142</answer>", 1, 1),
        ("<answer>[1 3 2 4 4 2 1 3 2 4 3 1 3 1 4 2]</answer>", 1, 1),
        (f"<answer>{SOLUTION[:-1]}3</answer>", 6 / 7, 0),
        (f"<answer>{SOLUTION[:8]}</answer>", 4 / 7, 0),
        (f"<answer>{SOLUTION}1</answer>", 1, 0),  # the cells are right, but it is no board
        (f"<answer>{'1' + '4' + SOLUTION[2:]}</answer>", 1, 0),  # a given digit was changed
        (SOLUTION, 0, 0),
        ("<answer></answer>", 0, 0),
    ],
)
def test_sudoku_is_the_share_of_cells_and_accuracy_the_board(text, share, accuracy):
    scored = one("sudoku", SOLUTION, text, puzzle=PUZZLE)
    assert (scored.value, scored.accuracy) == (pytest.approx(share), accuracy)
    assert one("sudoku", SOLUTION, text, {"exact": True}, puzzle=PUZZLE).value == accuracy


@pytest.mark.parametrize("puzzle", [None, "123", SOLUTION, "4" + PUZZLE[1:], "0" * 15 + "x"])
def test_sudoku_needs_a_puzzle_that_the_truth_solves(puzzle):
    with pytest.raises(DataError, match=r"f\.jsonl:7: puzzle=.* needs a 4x4 puzzle"):
        check_rewards([RewardPrompt("q", SOLUTION, "sudoku", "f.jsonl:7", {"puzzle": puzzle})], {})
