"""A hash of data is of what the rows teach, and stays what recorded trainings have."""

from dataclasses import fields, replace

import pytest

from dare_bench.training.data import read_data
from dare_bench.training.rows import Example, PreferencePair, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.types import RewardPrompt


@pytest.mark.parametrize(
    ("row", "taught"),
    [
        (Example("2+2=", "4", "a:1"), {"prompt", "answer"}),
        (PreferencePair("2+2=", "4", "5", "a:1"), {"prompt", "chosen", "rejected"}),
        (RewardPrompt("2+2=", "4", "math", "a:1", {"n": 1}), {"prompt", "truth", "task", "extra"}),
    ],
)
def test_the_hash_is_of_the_prompt_its_answers_and_what_the_reward_reads(row, taught):
    for field in fields(row):
        other = {"extra": {"n": 2}, "key": 7}.get(field.name, "other")
        assert (digest([replace(row, **{field.name: other})]) != digest([row])) == (field.name in taught), field.name


@pytest.mark.parametrize(
    ("task", "seed", "recorded"),
    [("dare_sort", 0, "1897e350bf36"), ("dare_sort", 1, "7f9571c13550"), ("dare_countdown3", 2, "6fa3af7b62e2")],
)
def test_committed_trainings_have_todays_hash(task, seed, recorded, tmp_path):
    """The sampling keys of docs/rl-runs are derived from the same text."""
    spec = TrainSpec(method="cj_grpo", model="tiny-llada-sort-base", task=task, seed=seed, output_path=str(tmp_path))
    assert read_data(spec, "prompts").hash.startswith(recorded)
