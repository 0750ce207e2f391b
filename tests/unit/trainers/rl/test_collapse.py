"""Detection of collapse on synthetic series and on logs of trainings: what falls while the reward does not, and no
alarm otherwise."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from dare_bench.registry import registry
from dare_bench.trainers.rl.collapse import WINDOW, CollapseDetector, CollapseWarning, warn_of_large_updates
from dare_bench.training.spec import train_spec
from dare_bench.types import ModelSpec

SPEC = ModelSpec("llada", 0, (1,), None, None, 8, 64)
STEPS = 3 * WINDOW
LOGS = json.loads((Path(__file__).parents[3] / "data" / "rl_logs.json").read_text())
"""Logged values of trainings, with their commands (``--logging-steps 1``)."""


def series(start: float, end: float, noise: float, seed: int, steps: int = STEPS) -> list[float]:
    """A line with Gaussian noise."""
    draw = random.Random(seed)
    return [start + (end - start) * i / (steps - 1) + draw.gauss(0, noise) for i in range(steps)]


def warnings(**columns: list[float]) -> list[str]:
    detector = CollapseDetector()
    names = {name: name.replace("__", "/") for name in columns}
    count = len(next(iter(columns.values())))
    return [
        text
        for i in range(count)
        for text in detector.observe({names[n]: columns[n][i] for n in columns} | {"loss": 0})
    ]


@pytest.mark.parametrize(
    ("name", "start", "end"), [("accuracy", 0.5, 0.1), ("reward__format", 0.9, 0.2), ("written_nll", 1.0, 0.05)]
)
def test_a_value_that_falls_while_the_reward_rises_gives_one_warning(name: str, start: float, end: float) -> None:
    (text,) = warnings(reward=series(0.2, 0.9, 0.02, 1), **{name: series(start, end, 0.02, 2)})
    assert f"{name.replace('__', '/')} fell from" in text
    assert "while the reward went from" in text


def test_logs_of_earlier_versions_continue_under_the_new_name() -> None:
    values, reward = series(1.0, 0.05, 0.02, 2), series(0.2, 0.9, 0.02, 1)
    detector, found = CollapseDetector(), list[str]()
    for i, value in enumerate(values):
        found += detector.observe({"reward": reward[i], "entropy" if i < STEPS // 2 else "written_nll": value})
    assert len(found) == 1 and "written_nll fell from" in found[0]


@pytest.mark.parametrize("seed", range(8))
def test_noise_around_constants_gives_no_warning(seed: int) -> None:
    names = ("reward", "accuracy", "written_nll")
    columns = {name: series(0.5, 0.5, 0.2, 10 * seed + i) for i, name in enumerate(names)}
    assert warnings(**columns) == []


def test_constant_series_give_no_warning() -> None:
    assert warnings(reward=[1.0] * STEPS, accuracy=[0.0] * STEPS, written_nll=[0.5] * STEPS) == []


def test_a_training_that_succeeds_gives_no_warning() -> None:
    """The -log p of drawn tokens falls as the policy becomes certain of right answers."""
    reward = series(0.2, 0.9, 0.03, 1)
    assert warnings(reward=reward, accuracy=reward, written_nll=series(1.0, 0.05, 0.02, 2)) == []


def test_a_fall_with_the_reward_is_no_collapse() -> None:
    assert warnings(reward=series(0.9, 0.2, 0.02, 1), accuracy=series(0.9, 0.1, 0.02, 2)) == []


def test_a_training_on_random_rewards_is_found_to_collapse() -> None:
    """Its accuracy falls to 0, and the reward is a coin."""
    log = LOGS["random rewards"]["log"]
    assert sum(log["accuracy"][:4]) / 4 > 0.3 and log["accuracy"][-1] == 0
    found = warnings(**{name.replace("/", "__"): values for name, values in log.items()})
    assert [text.partition(" fell")[0].rpartition(" ")[2] for text in found] == ["accuracy", "reward/format"]


@pytest.mark.parametrize("name", ["rising", "few completions"])
def test_a_training_that_learns_or_stays_where_it_is_gives_no_warning(name: str) -> None:
    """With 32 completions a step the values scatter between 0 and 0.6, and nothing is learned."""
    log = LOGS[name]["log"]
    assert len(log["reward"]) == 100
    assert warnings(**{name.replace("/", "__"): values for name, values in log.items()}) == []


def test_steps_without_a_rollout_do_not_count() -> None:
    detector = CollapseDetector()
    rising, falling = series(0.2, 0.9, 0.02, 1, WINDOW), series(0.9, 0.1, 0.02, 2, WINDOW)
    texts = []
    for reward, accuracy in zip(rising, falling, strict=True):
        texts += detector.observe({"reward": reward, "accuracy": accuracy})
        texts += detector.observe({"loss": 1.0})
    assert len(texts) == 1


def test_a_resumed_training_does_not_repeat_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    rewards, accuracies = series(0.2, 0.9, 0.02, 1), series(0.9, 0.1, 0.02, 2)
    entries = [{"reward": r, "accuracy": a} for r, a in zip(rewards, accuracies, strict=True)]
    caplog.set_level(logging.WARNING, "dare_bench")
    for resumed_at, expected in ((0, 1), (STEPS - 2, 0)):
        caplog.clear()
        callback, state = (
            CollapseWarning(),
            SimpleNamespace(log_history=entries[:resumed_at], is_world_process_zero=True),
        )
        callback.on_train_begin(None, state, None)
        for entry in entries[resumed_at:]:
            callback.on_log(None, state, None, logs=entry)
        assert len(caplog.records) == expected


@pytest.mark.parametrize(
    ("name", "given", "warns"),
    [
        ("cj_grpo", {"learning_rate": 1e-4, "num_iterations": 12}, True),
        ("cj_grpo", {"learning_rate": 1e-4, "num_iterations": 1}, False),
        ("cj_grpo", {"learning_rate": 1e-3, "num_iterations": 1}, True),
        ("spg", {"learning_rate": 1e-4}, True),  # four steps on a rollout
        ("dtreerpo", {"peft": "lora"}, False),  # its own defaults are 3e-5 x 12
        ("dtreerpo", {"peft": "lora", "learning_rate": 1e-4}, True),
    ],
)
def test_large_updates_on_a_rollout_are_named_before_the_training(name, given, warns, caplog):
    kind = registry().get("trainer", name).load()
    options = {field: value for field, value in given.items() if field == "num_iterations"}
    settings = {field: value for field, value in given.items() if field not in options}
    spec = train_spec(method=name, model="m", task="dare_sort", output_path="out", **settings).with_defaults(kind)
    warn_of_large_updates(kind(kind.settle(options, SPEC), SPEC, 8), spec)
    assert ("accuracy may collapse" in caplog.text) == warns
    if options.get("num_iterations") == 12:
        assert "learning_rate=0.0001 x num_iterations=12 is 0.0012 on each rollout" in caplog.text
        assert "learn with 0.0001" in caplog.text and "give --learning-rate 8e-06 or less" in caplog.text
