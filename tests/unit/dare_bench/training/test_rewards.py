"""Rewards by the name in each prompt: order, options, what a faulty reward is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dare_bench.errors import TrainingError, UsageError
from dare_bench.registry import Registration, registry
from dare_bench.training.rewards import check_rewards, rewards
from dare_bench.types import Reward, RewardPrompt

CALLS: list[tuple[list[str], dict[str, Any]]] = []
SORT = RewardPrompt("sort 321021=", "011223", "dare_sort", "f:1", {"digits": "321021"})
SUM = RewardPrompt("q", "#### 7", "gsm8k", "f:2")


def faulty(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """The text is the value; ``drop`` leaves one out."""
    CALLS.append((list(texts), dict(options)))
    return [Reward(float(text), 0.5 if text == "3" else 1.0) for text in texts][options.get("drop", 0) :]


@pytest.fixture
def registered(monkeypatch):
    entries = {("reward", "faulty"): Registration("reward", "faulty", f"{__name__}:faulty", "a test")}
    monkeypatch.setattr(registry(), "_entries", registry()._entries | entries)
    monkeypatch.setattr(Registration, "load", lambda entry: faulty if entry.name == "faulty" else LOAD(entry))
    CALLS.clear()


LOAD = Registration.load
FAULTY = RewardPrompt("q", "t", "faulty", "f:3")


def test_rewards_of_several_tasks_come_back_in_order():
    texts = ["011223", "7", "112203", "8", "it is 7"]
    scored = rewards([SORT, SUM, SORT, SUM, SUM], texts, {})
    assert [r.accuracy for r in scored] == [1, 1, 0, 0, 1]
    assert rewards([], [], {}) == []


def test_a_reward_is_called_once_for_all_its_answers(registered):
    rewards([FAULTY, SORT, FAULTY], ["1", "011223", "2"], {"faulty": {"a": 1}, "dare_sort": {"format_weight": 0.5}})
    assert CALLS == [(["1", "2"], {"a": 1})]


def test_options_hold_for_all_rewards_or_for_one_by_name():
    wrong = "112203"
    assert rewards([SORT], [wrong], {"format_weight": 0.25})[0].value == 0.25
    own = {"dare_sort": {"format_weight": 0.5}, "gsm8k": {"scheme": "d1"}}
    assert [r.value for r in rewards([SORT, SUM], [wrong, "7"], own)] == [0.5, 2.0]
    with pytest.raises(
        UsageError, match="'format_weight' is not a field of the reward 'gsm8k'; its options are scheme"
    ):
        rewards([SORT, SUM], [wrong, "7"], {"format_weight": 0.25})
    with pytest.raises(UsageError, match="the options of the reward 'dare_sort' are 3; expected a mapping"):
        rewards([SORT], [wrong], {"dare_sort": 3})


def test_random_values_are_a_control_that_knows_nothing_of_the_answer():
    prompts = [replace(SORT, key=number) for number in range(400)]
    options = {"random": True, "format_weight": 0.25}
    right = rewards(prompts, ["011223"] * 400, options)
    assert {r.accuracy for r in right} == {1.0}
    assert {r.value for r in right} == {0.0, 1.0}
    assert 150 < sum(r.value for r in right) < 250
    wrong = rewards(prompts[::-1], ["332110"] * 400, options)[::-1]
    assert [r.value for r in wrong] == [r.value for r in right], "neither the text nor the order matters"
    assert {r.accuracy for r in wrong} == {0.0}


def test_an_unknown_reward_is_an_error_that_lists_the_known_ones():
    unknown = RewardPrompt("q", "t", "riddles", "rows.jsonl:4")
    with pytest.raises(UsageError, match=r"rows\.jsonl:4: there is no reward 'riddles'; known: code, .*dare_sort"):
        rewards([SORT, unknown], ["", ""], {})


def test_records_and_options_are_checked_before_a_training(registered):
    check_rewards([SORT, SUM], {})
    with pytest.raises(UsageError, match="riddles"):
        check_rewards([SORT, RewardPrompt("q", "t", "riddles", "rows.jsonl:4")], {})


def test_requirements_are_checked_once_for_each_reward_with_its_options(registered, monkeypatch):
    seen: list[dict[str, Any]] = []

    def check(options: Mapping[str, Any]) -> None:
        seen.append(dict(options))
        if options.get("strict"):
            raise UsageError("the reward 'faulty' needs a compiler")

    entry = Registration("reward", "faulty", f"{__name__}:faulty", "a test", {"requires": f"{__name__}:check"})
    monkeypatch.setattr(registry(), "_entries", registry()._entries | {("reward", "faulty"): entry})
    loaded = {f"{__name__}:faulty": lambda prompts, texts, options: [Reward(0.0, 0.0)] * len(texts)}
    monkeypatch.setattr(
        Registration,
        "load",
        lambda entry, part=None: check if part == "requires" else loaded.get(entry.target) or LOAD(entry),
    )
    check_rewards([SORT, FAULTY, FAULTY], {"random": True, "faulty": {"level": 2}})
    assert seen == [{"level": 2}]
    with pytest.raises(UsageError, match="the reward 'faulty' needs a compiler"):
        check_rewards([SORT, FAULTY], {"faulty": {"strict": True}})


def test_every_reward_that_runs_code_of_an_answer_states_its_requirements():
    stated = {entry.name: entry.about.get("requires") for entry in registry().entries("reward")}
    assert {name for name, target in stated.items() if target} >= {
        "math", "math500", "code", "humaneval", "humanevalplus", "mbpp"
    }  # fmt: skip
    for entry in registry().entries("reward"):
        if target := stated[entry.name]:
            assert callable(replace(entry, target=target).load())


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "3"])
def test_a_reward_that_is_no_number_is_an_error_with_its_row(registered, text):
    with pytest.raises(TrainingError, match=r"f:3: the reward .faulty. returned Reward\(value=.*expected a finite"):
        rewards([SORT, FAULTY], ["", text], {})
    assert not math.isnan(rewards([FAULTY], ["-2"], {})[0].value)


def test_a_reward_that_leaves_answers_out_is_an_error(registered):
    with pytest.raises(TrainingError, match="'faulty' returned 1 rewards for 2 answers to f:3; return one for each"):
        rewards([FAULTY, FAULTY], ["1", "2"], {"drop": 1})


def test_every_registered_reward_scores_an_empty_answer_with_nothing_right():
    records: dict[str, tuple[str, dict[str, Any]]] = {
        "dare_sudoku": ("", {"puzzle": "." * 16, "solution": "1" * 16}),
        "dare_arithmetic": ("", {"a": 1, "op": "+", "b": 2, "answer": 3}),
        "dare_countdown3": ("", {"numbers": [1, 2, 3], "target": 6}),
        "dare_countdown4": ("", {"numbers": [1, 2, 3], "target": 6}),
        "dare_sort": ("", {"digits": "123321"}),
        "countdown": ("6", {"numbers": [1, 2, 3]}),
        "sudoku": ("1324421324313142", {"puzzle": "0304400304310140"}),
        "gsm8k": ("7", {}),
        **dict.fromkeys(("math", "math500"), ("7", {})),
        **dict.fromkeys(("code", "humaneval", "humanevalplus", "mbpp"), ("assert f() == 1", {})),
    }
    ours = [entry.name for entry in registry().entries("reward") if entry.origin.startswith("dare_bench.")]
    assert sorted(records) == ours
    prompts = [RewardPrompt("q", truth, name, "f:1", extra) for name, (truth, extra) in records.items()]
    assert {(r.value, r.accuracy) for r in rewards(prompts, [""] * len(prompts), {})} == {(0.0, 0.0)}
