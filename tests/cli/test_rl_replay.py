"""``dare-bench rl replay``: the rollout of a step, made again from a checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from calls import refused_early
from require import need_package

from dare_bench.errors import TrainingError, UsageError

need_package("accelerate")
FIELDS: dict[str, Any] = {
    "method": "cj_grpo",
    "model": "tiny-llada-base",
    "task": "dare_arithmetic",
    "rows": 50,
    "num_generations": 4,
    "num_iterations": 2,
    "reward": {"format_weight": 0.5},
    "rollout": {"steps": 4},
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "per_device_train_batch_size": 8,
    "sync_ref_model": True,
    "ref_model_sync_steps": 2,
    "max_steps": 6,
    "save_steps": 1,
    "report_to": (),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], list[Any]]:
    """A training of three rollouts, with what it sampled and the settled weights of every update."""
    from dare_bench.trainers.forwards import StepLoss
    from dare_bench.trainers.rl.rollout import Rollouts
    from dare_bench.training.run import train

    rollouts, losses = [], []
    with pytest.MonkeyPatch.context() as patch:
        sample, begin = Rollouts.sample, StepLoss.__init__

        def recorded(self: Any, number: int) -> Any:
            rollouts.append(sample(self, number))
            return rollouts[-1]

        def begun(self: Any, *args: Any) -> None:
            losses.append(self)
            begin(self, *args)

        patch.setattr(Rollouts, "sample", recorded)
        patch.setattr(StepLoss, "__init__", begun)
        out = tmp_path_factory.mktemp("replay") / "out"
        train(**FIELDS, output_path=str(out))
    assert len(rollouts) == 3 and len(losses) == 6
    return out, rollouts, [loss.settled for loss in losses]


@pytest.mark.parametrize("step", [1, 4])
def test_a_replay_is_what_was_trained_on(trained: Any, step: int) -> None:
    """Token for token, with rewards, advantages and the weight of each token; the second step of a rollout too."""
    from dare_bench.training.setup import replay

    out, rollouts, weights = trained
    result = replay(out, step)
    rollout = rollouts[(step - 1) // 2]
    replayed = [c for group in result["groups"] for c in group]
    assert [c["tokens"] for c in replayed] == [c.tokens for c in rollout.completions]
    assert [c["text"] for c in replayed] == rollout.texts
    assert [c["reward"] for c in replayed] == rollout.rewards
    assert [c["advantage"] for c in replayed] == rollout.advantage
    # Without an advantage and with the reference's own weights, what the KL penalty leaves is a rounding error.
    settled = sorted(weight for weight in weights[step - 1].weight_N.tolist() if abs(weight) > 1e-7)
    kept = sorted(weight for c in replayed for weight in c["weights"] if abs(weight) > 1e-7)
    assert kept == pytest.approx(settled, rel=1e-4, abs=1e-9)
    assert len(settled) > 10
    if step == 1:  # later, the KL penalty has weights of its own
        assert all(w * c["advantage"] > 0 for c in replayed for w in c["weights"] if abs(w) > 1e-6)
    assert [len(group) for group in result["groups"]] == [4, 4]
    assert (result["rollout"], result["iteration"]) == divmod(step - 1, 2)
    assert all(replayed[0]["pieces"])


def test_a_training_with_evaluations_on_the_way_is_replayed(trained: Any, tmp_path: Path) -> None:
    from dare_bench.training.setup import replay

    out = shutil.copytree(trained[0], tmp_path / "out")
    record = json.loads((out / "train.json").read_text())
    known = {"eval_every": 2, "metric_for_best_model": "dare_arithmetic/exact_match", "load_best_model_at_end": True}
    record["spec"] |= {"eval": {"tasks": "dare_arithmetic"}, **known}
    (out / "train.json").write_text(json.dumps(record))
    (first, *_), *_ = replay(out, 1)["groups"]
    assert first["tokens"] == trained[1][0].completions[0].tokens


def test_random_rewards_are_replayed_and_no_function_of_prompt_and_text(tmp_path: Path) -> None:
    from dare_bench.trainers.rl.rollout import Rollouts
    from dare_bench.training.run import train
    from dare_bench.training.setup import replay

    rollouts = []
    with pytest.MonkeyPatch.context() as patch:
        sample = Rollouts.sample
        patch.setattr(Rollouts, "sample", lambda self, number: rollouts.append(sample(self, number)) or rollouts[-1])
        fields = {"reward": {"random": True}, "num_iterations": 1, "max_steps": 2, "rows": 1, "temperature": 0.01}
        train(**{**FIELDS, **fields, "output_path": str(tmp_path / "out")})
    replayed = [c for group in replay(tmp_path / "out", 2)["groups"] for c in group]
    assert [c["reward"] for c in replayed] == rollouts[1].rewards
    (text,) = {text for rollout in rollouts for text in rollout.texts}
    assert text and {reward for rollout in rollouts for reward in rollout.rewards} == {0.0, 1.0}
    assert rollouts[0].rewards != rollouts[1].rewards, "the same answers to the same prompt, and new coins"


def test_other_rollouts_are_other_completions(trained: Any) -> None:
    """The comparison above can fail."""
    _, rollouts, _ = trained
    assert [c.tokens for c in rollouts[0].completions] != [c.tokens for c in rollouts[1].completions]


def test_a_rollout_without_its_weights_is_refused(trained: Any, tmp_path: Path) -> None:
    from dare_bench.training.setup import replay

    out = tmp_path / "out"
    shutil.copytree(trained[0], out)
    shutil.rmtree(out / "checkpoint-2")
    with pytest.raises(UsageError, match=r"has no checkpoint-2, and no table .*replayed: 1 to 2, 5 to 6; .*steps 2"):
        replay(out, 4)
    with pytest.raises(UsageError, match=r"step 7: the training in .* has the steps 1 to 6"):
        replay(out, 7)
    record = json.loads((out / "train.json").read_text())
    record["settings"]["data_hash"] = "other"
    (out / "train.json").write_text(json.dumps(record))
    with pytest.raises(TrainingError, match=r"the data of .* is not what it was trained from"):
        replay(out, 1)
    del record["spec"]
    (out / "train.json").write_text(json.dumps(record))
    with pytest.raises(TrainingError, match="no settings to replay from"):
        replay(out, 1)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("settings", "batch"), 10**12, r"settings\.batch=1000000000000: must be less than or equal to 1048576"),
        (("settings", "batch"), float("nan"), r"settings\.batch=nan: must be a whole number"),
        (("settings", "batch"), 0, r"settings\.batch=0: must be greater than or equal to 1"),
        (("settings", "max_steps"), 10**12, r"settings\.max_steps=1000000000000: must be less than"),
        (("settings", "options"), "text", r"settings\.options='text': must be a mapping"),
        (("spec", "max_steps"), 10**12, r"max_steps=1000000000000: must be less than"),
        (("spec", "num_train_epochs"), 1e12, r"num_train_epochs=1000000000000\.0: must be less than"),
        (("spec", "options", "num_iterations"), 10**12, r"num_iterations=1000000000000: must be at most 4096"),
        (("spec", "options", "epsilon"), float("inf"), r"epsilon=inf: must be a finite number"),
    ],
)
def test_numbers_of_others_are_refused_before_they_are_computed_with(
    trained: Any, tmp_path: Path, place: tuple[str, ...], value: Any, said: str
) -> None:
    from dare_bench.training.setup import replay

    record = json.loads((trained[0] / "train.json").read_text())
    *inner, name = place
    fields = record
    for key in inner:
        fields = fields[key]
    fields[name] = value
    (tmp_path / "train.json").write_text(json.dumps(record))
    with pytest.raises((UsageError, TrainingError), match=said):
        replay(tmp_path, 1)


def test_the_command_prints_groups_and_json(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dare_bench.cli.rl import replay

    out = tmp_path / "out"
    shutil.copytree(trained[0], out)
    shutil.rmtree(out / "checkpoint-3")
    replay(str(out), 4, groups=1, model=None, html=None, json=False)
    printed = capsys.readouterr().out
    assert "sampled from checkpoint-2; weights of tokens need checkpoint-3, which was not kept" in printed
    assert len(re.findall(r"reward \S+ +advantage", printed)) == 4 and "1 of 2 groups" in printed
    replay(str(out), 3, groups=1, model=None, html=str(tmp_path / "page.html"), json=True)
    record = json.loads(capsys.readouterr().out)
    page = (tmp_path / "page.html").read_text()
    assert "Rollout of step 3" in page and page.count('class="answer"') == 4, "one of two groups"
    assert all(c["prompt_text"] in page for c in record["groups"][0]) and len(re.findall("data-v=", page)) > 4
    completions = [c for group in record["groups"] for c in group]
    assert [c["tokens"] for c in completions] == [list(c.tokens) for c in trained[1][1].completions]
    assert all(len(c["weights"]) == len(c["tokens"]) == len(c["pieces"]) for c in completions)


def test_a_step_that_was_not_kept_is_refused_before_torch_is_imported(trained: Any, tmp_path: Path) -> None:
    shutil.copytree(trained[0], tmp_path / "out")
    for step in (2, 3):
        shutil.rmtree(tmp_path / f"out/checkpoint-{step}")
    says = (
        "step 4: its rollout was sampled with the weights after step 2, and out has no checkpoint-2, and no table has "
        "its completions; steps that can be replayed: 1 to 2, 5 to 6"
    )
    refused_early([("rl replay out --step 4", says)], tmp_path)


def test_the_steps_that_can_be_replayed() -> None:
    from dare_bench.trainers.rl.completions_table import replayable

    assert replayable(7, 3, {0, 3}) == "1 to 6"
    assert replayable(7, 3, {0, 1, 6}) == "1 to 3, 7"
    assert replayable(2, 1, set()) == "none"
    assert replayable(2, 1, {0}) == "1"
    assert replayable(10**9, 2, {4, 3, 0, 10**9}) == "1 to 2, 5 to 6", "found from what is kept, not from the steps"
