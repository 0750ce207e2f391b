"""What a training has cost so far, in the lineage of its checkpoints."""

from __future__ import annotations

import json
import shutil

import pytest
from require import need_package

from dare_bench.runs import lineage
from dare_bench.trainers.loop import Loop
from dare_bench.trainers.phases import Phases
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.training.run import train

need_package("accelerate")


def counts(folder):
    return lineage.counts(json.loads((folder / "lineage.json").read_text()))


@pytest.fixture
def sampled(monkeypatch):
    """The samples of all rollouts, and the numbers of copies of all updates."""
    samples, copies = [], []
    generate, update = PolicyInTraining.generate, Loop.training_step
    monkeypatch.setattr(PolicyInTraining, "generate", lambda *a: samples.extend(made := generate(*a)) or made)
    monkeypatch.setattr(
        Loop,
        "training_step",
        lambda self, model, step, n=None: copies.append(len(step.copies)) or update(self, model, step),
    )
    return samples, copies


def trained(folder, **options):
    return train(
        method="cj_grpo", model="tiny-llada-base", task="dare_arithmetic", rows=64, output_path=str(folder),
        per_device_train_batch_size=8, max_steps=3, save_steps=1, logging_steps=2, report_to=(), learning_rate=3e-4,
        options={"num_generations": 4, "num_iterations": 2, "beta": 0.04, **options},
    )  # fmt: skip


def test_counts_are_those_of_the_sampler_and_survive_a_resume(sampled, tmp_path):
    """The third step begins the second rollout; the log is written, and its counters reset, after the second."""
    samples, copies = sampled
    trained(tmp_path / "whole")
    assert len(samples) == 16 and len(copies) == 3
    steps = [counts(tmp_path / "whole" / name)["forwards"] for name in ("checkpoint-1", "checkpoint-2", "")]
    nfe = [sum(s.answer.nfe for s in part) for part in (samples[:8], samples)]
    assert [step["rollout"] for step in steps] == [nfe[0], nfe[0], nfe[1]]
    assert [step["update"] for step in steps] == [copies[0], sum(copies[:2]), sum(copies)]
    # Without gradients: old values of the second iteration of both rollouts, and the reference in each step.
    assert [step["score"] for step in steps] == [2 * copies[0], 2 * copies[0] + copies[1], 2 * sum(copies) - copies[1]]
    tokens = counts(tmp_path / "whole")["tokens"]
    assert all(tokens[phase] > count for phase, count in steps[-1].items()) and tokens.keys() == steps[-1].keys()

    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "whole" / "checkpoint-1", resumed / "checkpoint-1")
    record = json.loads((tmp_path / "whole" / "train.json").read_text())
    (resumed / "train.json").write_text(json.dumps({**record, "status": "running"}))
    trained(resumed)
    assert len(samples) == 24, "the rollout in use is in the checkpoint"
    assert counts(resumed) == counts(tmp_path / "whole")


def test_a_checkpoint_without_counts_leaves_them_unknown():
    assert lineage.counts({"step": 4}) is None
    assert lineage.counts({"forwards": {"rollout": -1}, "tokens": {}}) is None
    phases = Phases(None)
    with phases.measure("update") as cost:
        cost.forwards += 3
    assert phases.totals(lambda value: [value]) is None


def test_processes_are_added_and_what_came_before_counts_once():
    phases = Phases({"forwards": {"rollout": 5, "update": 7}, "tokens": {"rollout": 50, "update": 70}})
    for _ in range(2):
        with phases.measure("update") as cost:
            cost.forwards, cost.tokens = cost.forwards + 3, cost.tokens + 30
        phases.steps += 1
        phases.take(2)
    assert phases.totals(lambda value: [value, value]) == {
        "forwards": {"rollout": 5, "update": 19},
        "tokens": {"rollout": 50, "update": 190},
    }
