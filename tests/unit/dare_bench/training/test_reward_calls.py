"""A reward of the user's own: what it is given, what it may return, what is said when it raises or hangs."""

from __future__ import annotations

import functools
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch

from dare_bench.errors import TrainingError, UsageError
from dare_bench.registry import Registration, registry
from dare_bench.training.reward_functions import identity, take_functions
from dare_bench.training.rewards import check_rewards, rewards
from dare_bench.types import Reward, RewardPrompt

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
