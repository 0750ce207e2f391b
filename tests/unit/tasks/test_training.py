"""The training splits of our own tasks: different rows by seed, right and wrong answers, nothing that is tested on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dare_bench.tasks
from dare_bench.errors import UnknownNameError, UsageError
from dare_bench.registry import registry
from dare_bench.tasks.dare_arithmetic import generate as arithmetic
from dare_bench.tasks.dare_arithmetic import utils as arithmetic_utils
from dare_bench.tasks.dare_countdown import generate as countdown
from dare_bench.tasks.dare_countdown import utils as countdown_utils
from dare_bench.tasks.dare_sort import generate as sort
from dare_bench.tasks.dare_sort import utils as sort_utils
from dare_bench.tasks.dare_sudoku import generate as sudoku
from dare_bench.tasks.dare_sudoku import utils as sudoku_utils
from dare_bench.tasks.training import TrainingData
from dare_bench.training.columns import KEEP
from dare_bench.training.data import read_data
from dare_bench.training.files import open_file
from dare_bench.training.rows import Example, PreferencePair
from dare_bench.training.spec import TrainSpec
from dare_bench.types import RewardPrompt

UTILS: dict[str, Any] = {
    "dare_sudoku": sudoku_utils,
    "dare_arithmetic": arithmetic_utils,
    "dare_countdown3": countdown_utils,
    "dare_countdown4": countdown_utils,
    "dare_sort": sort_utils,
}
TESTS: dict[str, Any] = {
    "dare_sudoku": sudoku.test_items,
    "dare_arithmetic": arithmetic.test_items,
    "dare_countdown3": lambda: countdown.test_items(3),
    "dare_countdown4": lambda: countdown.test_items(4),
    "dare_sort": sort.test_items,
}
N = 1500
LARGER = {"dare_countdown3_1000": "dare_countdown3"}
"""Tasks with a larger test set, and the task that has their training split."""


def source(name: str) -> Any:
    return registry().get("training_data", name).load()


def asked(name: str, **fields: Any) -> TrainSpec:
    return TrainSpec(method="m", model="x", output_path="o", task=name, **fields)


def test_every_task_of_ours_has_a_training_split():
    yamls = {file.stem: file for file in Path(dare_bench.tasks.__file__).parent.glob("dare_*/*.yaml")}
    generated = [name for name in registry().names("training_data") if isinstance(source(name), TrainingData)]
    assert sorted([*generated, *LARGER]) == sorted(yamls) == sorted([*UTILS, *LARGER])
    for name, file in yamls.items():
        written = [line.split(":")[1] for line in file.read_text().splitlines() if "max_gen_toks" in line]
        assert [source(LARGER.get(name, name)).canvas] == list(map(int, written)), name


def test_gsm8k_is_a_name_of_the_hubs_data(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[2] / "data" / "bench" / "gsm8k" / "train.jsonl"
    opened: list[tuple[str, str]] = []

    def open_hub(name: str, split: str) -> Any:
        opened.append((name, split))
        return open_file(file, KEEP)

    monkeypatch.setattr("dare_bench.training.data.open_hub", open_hub)
    for kind, row in (("prompts", RewardPrompt), ("examples", Example)):
        named = read_data(asked("gsm8k", rows=2), kind)
        local = read_data(asked("gsm8k").model_copy(update={"task": None, "data": str(file), "rows": 2}), kind)
        assert named.rows == local.rows and named.hash == local.hash and named.name == "openai/gsm8k:main"
        assert len(named.rows) == 2 and all(isinstance(item, row) for item in named.rows)
    assert opened == [("openai/gsm8k:main", "train")] * 2
    with pytest.raises(UsageError, match="this method learns from preferences"):
        read_data(asked("gsm8k"), "pairs")


@pytest.mark.parametrize("name", UTILS)
def test_rows_are_right_different_and_fit_the_canvas(name):
    rows = source(name).rows(N, 5)
    assert len(rows) == N == len({row["prompt"] for row in rows})
    for row in rows:
        assert row["prompt"] == UTILS[name].prompt(row["doc"])
        assert UTILS[name].score(row["doc"], [row["answer"]])["exact_match"] == 1
        assert len(row["answer"]) <= source(name).canvas  # a character is at most one token


@pytest.mark.parametrize("name", UTILS)
def test_pairs_prefer_the_solution_to_a_plausible_wrong_answer(name):
    pairs = source(name).pairs(N, 5)
    assert len(pairs) == N
    for pair, row in zip(pairs, source(name).rows(N, 5), strict=True):
        assert (pair["prompt"], pair["chosen"]) == (row["prompt"], row["answer"])
        scored = UTILS[name].score(row["doc"], [pair["rejected"]])
        assert scored["exact_match"] == 0
        assert len(pair["rejected"]) <= source(name).canvas
        if name == "dare_sudoku":
            board = pair["rejected"].replace("\n", "")
            assert set(board) <= set("1234") and len(board) == 16
            assert all(clue in (".", cell) for clue, cell in zip(row["doc"]["puzzle"], board, strict=True))
        elif name == "dare_arithmetic":
            assert abs(int(pair["rejected"]) - row["doc"]["answer"]) <= 10
        elif name.startswith("dare_countdown"):
            assert scored["format"] == 1  # the same numbers, another value
        else:
            assert len(pair["rejected"]) == 6


@pytest.mark.parametrize("name", UTILS)
def test_rows_follow_the_seed_and_fewer_are_the_first(name):
    built = source(name).rows(300, 1)
    assert source(name).rows(300, 1) == built and source(name).rows(40, 1) == built[:40]
    assert source(name).rows(300, 2) != built
    assert source(name).pairs(300, 1)[:40] == source(name).pairs(40, 1)
    assert [pair["rejected"] for pair in source(name).pairs(300, 2)] != [
        p["rejected"] for p in source(name).pairs(300, 1)
    ]


@pytest.mark.parametrize("name", UTILS)
def test_no_test_item_is_trained_on(name):
    trained = {row["prompt"] for row in source(name).rows(source(name).default, 0)}
    assert len(trained) > 9_000
    assert trained.isdisjoint(UTILS[name].prompt(item) for item in TESTS[name]())


def test_held_out_grids_operands_and_problems_are_never_trained_on():
    grids = set(sudoku.split_grids()[1])
    solved = {row["doc"]["solution"] for row in source("dare_sudoku").rows(5000, 3)}
    assert not solved & grids and len(solved) == len(sudoku.split_grids()[0])
    docs = [row["doc"] for row in source("dare_arithmetic").rows(20_000, 3)]
    assert not any(arithmetic.held_out(doc["a"], doc["b"]) for doc in docs)
    docs = [row["doc"] for n in (3, 4) for row in source(f"dare_countdown{n}").rows(3000, 3)]
    assert not any(countdown.held_out(doc["numbers"], doc["target"]) for doc in docs)
    assert not any(sort.held_out(row["doc"]["digits"]) for row in source("dare_sort").rows(5000, 3))


def test_a_task_that_runs_out_gives_all_it_has():
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100) if not arithmetic.held_out(a, b)]
    assert len(source("dare_arithmetic").rows(10**9, 0)) == 2 * len(pairs) == 14_566


def test_every_countdown_problem_has_a_wrong_answer():
    triples = [(a, b, c) for a in range(1, 21) for b in range(a, 21) for c in range(b, 21)]
    assert min(len(countdown.solutions(numbers)) for numbers in triples) > 1


def test_read_data_takes_a_task():
    data = read_data(asked("dare_sudoku", rows=30, seed=4), "examples")
    built = source("dare_sudoku").rows(30, 4)
    assert data.rows[7] == Example(built[7]["prompt"], built[7]["answer"], "dare_sudoku:8")
    assert (len(data.rows), data.canvas, data.name) == (30, 20, "dare_sudoku")
    assert data.hash == read_data(asked("dare_sudoku", rows=30, seed=4), "examples").hash
    assert data.hash != read_data(asked("dare_sudoku", rows=30, seed=5), "examples").hash
    pair = read_data(asked("dare_arithmetic", rows=3), "pairs").rows[0]
    assert isinstance(pair, PreferencePair) and pair.chosen != pair.rejected
    question = read_data(asked("dare_countdown3", rows=3), "prompts").rows[0]
    assert isinstance(question, RewardPrompt) and question.task == "dare_countdown3" and "target" in question.extra
    assert len(read_data(asked("dare_arithmetic"), "examples").rows) == 14_566


def test_a_task_without_a_training_split_is_named_with_the_closest():
    with pytest.raises(UnknownNameError, match="unknown training data 'dare_sudok'; closest: dare_sudoku"):
        read_data(asked("dare_sudok"), "examples")


def test_a_task_that_makes_no_pairs_says_so(monkeypatch):
    class Rows:
        canvas, default = 4, 2

        def rows(self, count: int, seed: int) -> list[dict[str, str]]:
            return [{"prompt": "p", "answer": str(i)} for i in range(count)]

    monkeypatch.setattr("dare_bench.tasks.dare_sudoku.generate.DATA", Rows())
    assert len(read_data(asked("dare_sudoku"), "examples").rows) == 2
    with pytest.raises(UsageError, match="dare_sudoku has no preference pairs"):
        read_data(asked("dare_sudoku"), "pairs")
