"""Rewards by the name in each prompt, and a reward of the user's own: what it is given, what it may return, what is
said when it raises or hangs."""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dare_bench.errors import TrainingError, UsageError
from dare_bench.registry import Registration, registry
from dare_bench.training.reward_functions import identity, take_functions
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


CHAT = ({"role": "user", "content": "q"},)
ROWS = [RewardPrompt("q", "7", "", "f:1", {"answer": "7"}), RewardPrompt(CHAT, "8", "", "f:2", {"answer": "8"})]
TEXTS = ["7", "nine"]


def scored(function, seconds=60.0, rows=ROWS, texts=TEXTS):
    return rewards(rows, texts, {}, weights={"mine": 1.0}, functions={"mine": function}, seconds=seconds)


# -- what it returns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "half",
    [
        0.5, Fraction(1, 2), np.float32(0.5), np.array(0.5), torch.tensor(0.5), torch.tensor([0.5], requires_grad=True),
        torch.tensor(0.5, dtype=torch.bfloat16), Reward(torch.tensor(0.5), None, {"part": np.float64(0.5)}),
    ],
)  # fmt: skip
def test_numbers_of_every_library_become_floats_of_python(half):
    one, none = scored(lambda prompts, texts, options: [half, None])
    assert one.value == 0.5 and type(one.value) is float and one.accuracy is None
    assert none.value is None
    json.dumps([one.value, dict(one.terms)])


@pytest.mark.parametrize("all_of", [np.array([1, 0]), torch.tensor([[1.0], [0.0]]), (1, 0), iter([1, 0])])
def test_arrays_and_iterators_are_lists(all_of):
    assert [reward.value for reward in scored(lambda *_: all_of)] == [1.0, 0.0]


def test_a_bool_is_an_accuracy_too():
    assert scored(lambda *_: [True, np.False_]) == [Reward(1.0, 1.0), Reward(0.0, None)]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (0.5, "'mine' returned 0.5, a float; expected a list"),
        (torch.tensor(0.5), "'mine' returned 0.5, a float; expected a list"),
        (None, "'mine' returned None, a NoneType; expected a list"),
        ([1.0], "'mine' returned 1 rewards for 2 answers to f:1, f:2"),
        ([1.0, math.nan], "f:2: the reward 'mine' returned nan; expected a finite number"),
        ([1.0, "1"], "f:2: the reward 'mine' returned '1'; expected a finite number"),
        ([[1.0, 2.0], 1], r"f:1: the reward 'mine' returned \[1.0, 2.0\]"),
        ([10**400, 1], "f:1: the reward 'mine' returned 1000"),
        ([Reward(1.0, 0.5), 1], r"f:1: the reward 'mine' returned Reward\(value=1.0, accuracy=0.5"),
        ([Reward(1.0, 1.0, {"a": math.inf}), 1], r"f:1: the reward 'mine' returned Reward"),
        ([Reward(1.0, 1.0, [1]), 1], r"f:1: the reward 'mine' returned Reward"),
    ],
)
def test_other_results_are_named(returned, said):
    with pytest.raises(TrainingError, match=said) as caught:
        scored(lambda *_: returned)
    assert "\n" not in str(caught.value)


# -- what it is given --------------------------------------------------------------------------------------------------


def test_a_function_of_trl_gets_columns_and_messages():
    seen = {}

    def function(completions, answer, **columns):
        seen.update(columns, completions=completions, answer=answer)
        return [0.0, None]

    scored(function)
    assert seen == {
        "prompts": ["q", [{"role": "user", "content": "q"}]],
        "completions": ["7", [{"role": "assistant", "content": "nine"}]],
        "answer": ["7", "8"],
        "truth": ["7", "8"],
    }

    def of_truth(prompts, completions, truth):
        return [float(a == b) for a, b in zip(completions, truth, strict=True)]

    assert [reward.value for reward in scored(of_truth)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda texts: [0.0] * len(texts),
            r"'mine' takes \(texts\) \(too many positional arguments\); expected f\(pro",
        ),
        (lambda completions, label: [], r"missing a required argument: 'label'\).* columns .*: .*truth, answer"),
    ],
)
def test_a_function_with_other_parameters_is_refused_before_a_training(function, said):
    with pytest.raises(UsageError, match=said):
        check_rewards(ROWS, {}, weights={"mine": 1.0}, functions={"mine": function})


def test_no_reward_of_the_users_is_called_before_there_are_answers(monkeypatch):
    calls = []

    def judge(prompts, texts, options):
        calls.append(texts)
        return [0.0] * len(texts)

    check_rewards(ROWS, {}, weights={"mine": 1.0}, functions={"mine": judge})
    monkeypatch.setattr(
        registry(), "_entries", registry()._entries | {("reward", "judge"): Registration("reward", "judge", "a:b", "x")}
    )
    load = Registration.load
    monkeypatch.setattr(Registration, "load", lambda entry: judge if entry.name == "judge" else load(entry))
    row = RewardPrompt("q", "t", "judge", "f:1")
    check_rewards([row], {})
    assert calls == []
    assert rewards([row], ["x"], {})[0].value == 0.0 and calls == [["x"]]


# -- what is said when it raises ---------------------------------------------------------------------------------------


def parsed(text):
    return json.loads(text)


def raising(prompts, texts, options):
    return [float(parsed(text)) for text in texts]


def test_an_exception_names_the_reward_the_prompt_and_the_lines_of_the_user():
    with pytest.raises(TrainingError) as caught:
        scored(raising)
    said = str(caught.value)
    assert said.startswith("f:2 (answer 'nine'): the reward 'mine' raised JSONDecodeError: Expecting value")
    assert f"{__file__}:{raising.__code__.co_firstlineno + 1}, in raising: return [float(parsed(text))" in said
    assert f"{__file__}:{parsed.__code__.co_firstlineno + 1}, in parsed: return json.loads(text)" in said
    assert "decoder.py" not in said and "/reward_calls.py" not in said and "\n" not in said
    assert isinstance(caught.value.__cause__, json.JSONDecodeError), "the whole traceback, for --debug"


def test_an_exception_of_several_answers_together_names_all_prompts():
    def together(prompts, texts, options):
        raise ValueError("two") if len(texts) > 1 else SystemExit  # alone it raises too

    def only_together(prompts, texts, options):
        if len(texts) > 1:
            raise SystemExit(3)
        return [0.0]

    with pytest.raises(TrainingError, match=r"^f:1 \(answer '7'\): the reward 'mine' raised ValueError: two; "):
        scored(together)
    with pytest.raises(TrainingError, match=r"^f:1, f:2: the reward 'mine' raised SystemExit: 3; "):
        scored(only_together)


def test_ctrl_c_is_no_fault_of_the_reward():
    def interrupted(prompts, texts, options):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(interrupted)


# -- how long it takes -------------------------------------------------------------------------------------------------

LATE = r"'mine' took longer than reward_timeout=0.05 seconds for 2 answers to f:1, f:2; mend it, or give it more time"


def waiting(prompts, texts, options):
    threading.Event().wait()


def insisting(prompts, texts, options):
    while True:
        try:
            waiting(prompts, texts, options)
        except Exception:
            continue


def spinning(prompts, texts, options):
    caught = 0
    while caught < 1:
        try:
            while True:
                pass
        except:  # noqa: E722 - as some code of users has it
            caught += 1
    waiting(prompts, texts, options)


@pytest.mark.parametrize("function", [waiting, insisting, spinning])
def test_a_reward_that_hangs_ends_with_its_name(function):
    with pytest.raises(TrainingError, match=LATE):
        scored(function, seconds=0.05)


def test_a_reward_that_hangs_in_another_thread_is_left_behind():
    with ThreadPoolExecutor(1) as pool, pytest.raises(TrainingError, match=LATE):
        pool.submit(scored, lambda *_: threading.Event().wait(5), seconds=0.05).result()
    with ThreadPoolExecutor(1) as pool:
        assert [reward.value for reward in pool.submit(scored, lambda *_: [1, 0]).result()] == [1.0, 0.0]


def test_the_limit_leaves_alarms_and_timeouts_to_the_reward():
    def with_an_alarm(prompts, texts, options):
        import signal

        with pytest.raises(InterruptedError):
            before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError))
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                threading.Event().wait()
            finally:
                signal.signal(signal.SIGALRM, before)
        raise TimeoutError("of its own")

    with pytest.raises(TrainingError, match="raised TimeoutError: of its own"):
        scored(with_an_alarm)


# -- several rewards ---------------------------------------------------------------------------------------------------


def short(prompts, texts, options):
    return [1.0 if len(text) < 4 else None for text in texts]


def right(prompts, texts, options):
    return [text == prompt.truth for prompt, text in zip(prompts, texts, strict=True)]


def test_several_rewards_are_added_with_their_weights():
    functions = take_functions(fields := {"reward": [short, right, "gsm8k"], "reward_weights": [0.5, 2, 0]})
    assert fields == {"reward_weights": {"short": 0.5, "right": 2, "gsm8k": 0}}
    result = rewards(ROWS, TEXTS, {}, weights=fields["reward_weights"], functions=functions)
    assert result[0] == Reward(2.5, 1.0, {"short": 1.0, "right": 1.0, "gsm8k": 1.0})
    assert result[1] == Reward(0.0, 0.0, {"right": 0.0, "gsm8k": 0.0}), "what cannot be scored is ignored"
    (one, none) = rewards(ROWS, TEXTS, {}, weights={"short": 2.0}, functions={"short": short})
    assert one == Reward(2.0, None) and none == Reward(None, None)


def test_functions_have_names_and_weights():
    assert take_functions(fields := {"reward": short}) == {"short": short} and fields == {
        "reward_weights": {"short": 1}
    }
    assert take_functions({"reward": {"a": short, "b": short}, "reward_weights": {"a": 1, "b": 2}}).keys() == {"a", "b"}
    assert take_functions(options := {"reward": {"format_weight": 0.5}}) == {} and "reward" in options
    for reward, weights, said in (
        ([short, short], None, "two rewards have one name"),
        ([short, right], [1.0], "are not those of the rewards short, right"),
        ({"gsm8k": short}, None, "there is a registered reward 'gsm8k' too"),
        ([short, 3], None, "reward=3 is not a function"),
    ):
        with pytest.raises(UsageError, match=said):
            take_functions({"reward": reward, "reward_weights": weights})


def test_a_function_is_identified_by_its_name_and_source():
    assert identity(short).startswith(f"{__name__}.short (sha256:") and identity(short) == identity(short)

    def other(prompts, texts, options):
        return [0.0] * len(texts)

    other.__qualname__, other.__module__ = "short", __name__
    assert identity(other) != identity(short), "another body"
    strict, loose = (functools.partial(short, options={"limit": limit}) for limit in (1, 2))
    assert len({identity(strict), identity(loose), identity(short)}) == 3
    assert "Callable" in identity(type("Callable", (), {"__call__": lambda *_: []})())
