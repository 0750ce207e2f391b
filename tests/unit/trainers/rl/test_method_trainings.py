"""Trainings with MDPO and d-TreeRPO through the loop: resume inside a rollout, replay, and what is refused before
one begins."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from require import need_package
from safetensors.torch import load_file

from dare_bench.cli import main
from dare_bench.errors import DareError, TrainingError, UsageError
from dare_bench.loading import load
from dare_bench.training.run import train
from dare_bench.training.setup import replay

need_package("accelerate")
FIELDS = {"method": "mdpo", "model": "tiny-llada-base", "task": "dare_arithmetic", "rows": 64, "num_generations": 4,
          "num_iterations": 3, "temperature": 1.0, "sample_train_steps": 2, "reward": {"format_weight": 0.5},
          "learning_rate": 1e-4, "warmup_steps": 0, "per_device_train_batch_size": 8, "max_steps": 4, "save_steps": 1,
          "logging_steps": 1, "report_to": (), "rollout": {"steps": 4}}  # fmt: skip


def test_a_training_resumed_inside_a_rollout_ends_with_the_same_bits(tmp_path):
    """With a sampler that masks tokens again, and a penalty."""
    fields = {**FIELDS, "rollout": {"strategy": {"name": "rcr", "steps": 2}}, "beta": 0.02}
    whole, out = tmp_path / "whole", tmp_path / "out"
    train(**fields, output_path=str(whole))
    for step in (1, 2):
        shutil.copytree(whole, out)
        for folder in out.glob("checkpoint-*"):
            if int(folder.name.partition("-")[2]) > step:
                shutil.rmtree(folder)
        for file in ("lineage.json", "model.safetensors", "trainer_state.json"):
            (out / file).unlink()
        (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))
        saved = json.loads((out / f"checkpoint-{step}" / "rollout.json").read_text())
        assert all(len(c["predictions"]) == 2 for c in saved[0]["completions"])
        train(**fields, output_path=str(out))
        assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        shutil.rmtree(out)
    state = json.loads((whole / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(set(losses)) == 4, "a training that does not move would pass too"
    assert 0 <= state["log_history"][0]["over_denoising"] <= 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"rollout": {"block_length": 2}},
            r"rollout block_length=2: mdpo scores the whole answer .* omit it, or give 4",
        ),
        ({"rollout": {"predictions": False}}, r"mdpo samples with predictions=True; omit it"),
        (
            {"method": "cj_grpo", "rollout": {"strategy": "rcr"}},
            r"cj_grpo: the sampler rewrites tokens \(strategy 'rcr'",
        ),
        ({"method": "d1", "rollout": {"strategy": "rcr"}}, r"d1: the sampler rewrites tokens \(strategy 'rcr'\)"),
    ],
)
def test_settings_that_cannot_work_are_refused_first(tmp_path, more, said):
    fields = {name: value for name, value in FIELDS.items() if name != "sample_train_steps"}
    with pytest.raises(UsageError, match=said) as caught:
        train(**{**fields, **more}, max_completion_length=4, output_path=str(tmp_path / "out"))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_model_that_records_no_predictions_is_refused(tmp_path, monkeypatch):
    from dare_bench.model_adapters.native import NativeModel

    monkeypatch.setattr(NativeModel, "capabilities", replace(NativeModel.capabilities, predictions=False))
    with pytest.raises(DareError, match=r"mdpo needs a model that can record the answer .*capability 'predictions'"):
        train(**FIELDS, output_path=str(tmp_path / "out"))


def test_a_replay_shows_the_forwards_that_are_trained_on(tmp_path, capsys, caplog):
    """Each with its advantage and what it predicted; the lengths of the prompts are not shown again."""
    train(**{**FIELDS, "max_steps": 1, "num_iterations": 1}, output_path=str(tmp_path / "out"))
    caplog.clear()
    with pytest.raises(SystemExit) as left:
        main(["rl", "replay", str(tmp_path / "out"), "--step", "1", "--json"])
    assert not left.value.code and "tokens of" not in caplog.text
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [len(completion["predictions"]) for group in groups for completion in group] == [2] * 8
    for group in groups:
        for forward in range(2):
            chosen = [completion["predictions"][forward] for completion in group]
            assert sum(each["advantage"] for each in chosen) == pytest.approx(0, abs=1e-6)
            assert all(len(each["masked"]) == len(chosen[0]["masked"]) for each in chosen)
    assert any(each["advantage"] for group in groups for c in group for each in c["predictions"])
    with pytest.raises(SystemExit):
        main(["rl", "replay", str(tmp_path / "out"), "--step", "1"])
    assert capsys.readouterr().out.count("predicted") == 2 * 8


FILTERED = {**FIELDS, "prompt_filter": "over_denoising"}


def over_denoised(rows):
    """The prompts of the data that the starting checkpoint's greedy sampler answers rightly after some forward, and
    wrongly after the last one."""
    from dare_bench import load
    from dare_bench.training.data import read_data
    from dare_bench.training.rewards import rewards
    from dare_bench.training.spec import train_spec

    spec = train_spec(method="mdpo", model="tiny-llada-base", task="dare_arithmetic", rows=rows, output_path="o")
    prompts, model = read_data(spec, "prompts").rows, load("tiny-llada-base", dtype="float32")
    answers = model.generate([prompt.prompt for prompt in prompts], gen_length=4, temperature=0.0, predictions=True)
    kept = set()
    for prompt, answer in zip(prompts, answers, strict=True):
        texts = answer.prediction_texts
        right = [reward.accuracy for reward in rewards([prompt] * len(texts), texts, {})]
        kept |= {prompt.where} if 1.0 in right and right[-1] == 0.0 else set()
    return kept


def test_filtered_prompts_suffer_from_over_denoising_and_are_kept_by_a_resume(tmp_path, monkeypatch, caplog):
    from dare_bench.trainers.rl.rollout import Rollouts

    sampled, filtered = [], []
    sample, answered = Rollouts.sample, Rollouts.answered

    def counted(self, requests):
        filtered.extend(request for _, request in requests if request.decoding["temperature"] == 0.0)
        return answered(self, requests)

    monkeypatch.setattr(Rollouts, "sample", lambda self, number: sampled.append(sample(self, number)) or sampled[-1])
    monkeypatch.setattr(Rollouts, "answered", counted)
    whole, out = tmp_path / "whole", tmp_path / "out"
    with caplog.at_level("INFO", "dare_bench"):
        train(**FILTERED, output_path=str(whole))
    wanted = over_denoised(64)
    assert 1 < len(wanted) < 32 and f"prompt_filter=over_denoising: {len(wanted)} of 64 prompts" in caplog.messages
    assert len(filtered) == 64, "each prompt is answered once"
    trained = {completion.where for rollout in sampled for completion in rollout.completions}
    assert len(trained) > 1 and trained <= wanted

    shutil.copytree(whole, out)
    for name in ("checkpoint-2", "checkpoint-3"):
        shutil.rmtree(out / name)
    for file in ("lineage.json", "model.safetensors", "trainer_state.json"):
        (out / file).unlink()
    (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))
    assert len(json.loads((out / "checkpoint-1" / "prompts.json").read_text())) == len(wanted)
    train(**FILTERED, output_path=str(out))
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert len(filtered) == 64, "the resumed training has them from its checkpoint"


def test_a_replay_is_of_filtered_prompts_too(tmp_path):
    from dare_bench.training.setup import replay

    out = tmp_path / "out"
    train(**{**FILTERED, "num_iterations": 1, "max_steps": 3}, output_path=str(out))
    wanted = over_denoised(64)
    for step in (1, 3):
        assert {row["where"] for group in replay(out, step)["groups"] for row in group} <= wanted


def test_a_filter_needs_the_number_of_steps_and_some_prompt(tmp_path, monkeypatch):
    fields = {name: value for name, value in FILTERED.items() if name != "max_steps"}
    with pytest.raises(UsageError, match=r"prompt_filter=over_denoising: how many prompts .* give --max-steps"):
        train(**fields, output_path=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("dare_bench.trainers.rl.mdpo.is_over_denoised", lambda rewards: False)
    with pytest.raises(TrainingError, match=r"none of 64 prompts has a right answer after some forward"):
        train(**FILTERED, output_path=str(tmp_path / "out"))


WEIGHTS = "model.safetensors"


def trained(out, family="llada", options=None, **fields):
    """Trees of eight leaves of which two are in a step."""
    given = {"num_generations": 8, "tree_branch_factor": 2, "num_iterations": 2, "beta": 0.04, "distillation": 0.1}
    train(
        method="dtreerpo", model=f"tiny-{family}-base", task="dare_arithmetic", rows=64, output_path=str(out),
        options={**given, "reward": {"format_weight": 0.5}, "rollout": {"steps": 4}, **(options or {})},
        **{"per_device_train_batch_size": 16, "max_steps": 2, "logging_steps": 1, "report_to": (),
           "learning_rate": 1e-4, "lr_scheduler_type": "constant", "warmup_steps": 0, **fields},
    )  # fmt: skip
    return [entry for entry in json.loads((out / "trainer_state.json").read_text())["log_history"] if "loss" in entry]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_two_steps_on_a_task(family, tmp_path):
    first, second = trained(tmp_path, family)
    assert 0 < first["informative_groups"] <= 1 and first["accuracy"] <= first["reward"] < 1
    assert first["grad_norm"] > 1e-3 and second["grad_norm"] > 1e-3
    assert first["clip_fraction"] == 0.0 and first["kl"] < 1e-8 and second["kl"] > 1e-6
    assert first["distillation"] > 0 and "reward" not in second
    # Two trees with 4 x 2 + 8 x 2 forwards, as tokens are written one in each; 5 parents are looked at in the update,
    # twice more in the first step for the reference and for the old values of the second.
    assert first["forwards/rollout"] <= 2 * 24 and (family == "dream" or first["forwards/rollout"] == 48)
    assert first["forwards/update"] == second["forwards/update"] <= 10
    assert first["forwards/score"] == 2 * first["forwards/update"] == 2 * second["forwards/score"]
    before = load_file(load(f"tiny-{family}-base", device="cpu").loaded.path / WEIGHTS)
    after = load_file(tmp_path / WEIGHTS)
    assert any(not torch.equal(before[key].float(), after[key].float()) for key in before)
    lineage = json.loads((tmp_path / "lineage.json").read_text())
    assert lineage["method"] == "dtreerpo" and lineage["options"]["tree_branch_factor"] == 2


def test_a_replay_shows_the_nodes_of_each_tree(tmp_path):
    trained(tmp_path, max_steps=2, save_steps=1)
    result = replay(tmp_path, 2, None)
    assert [len(group) for group in result["groups"]] == [12, 12] and result["steps"] == 2
    mask_id = load("tiny-llada-base", device="cpu").loaded.spec.mask_id
    for group in result["groups"]:
        assert all((mask_id in node["tokens"]) == (i < 4) for i, node in enumerate(group))
        assert all(w == 0 for node in group for w, at in zip(node["weights"], node["set_at"], strict=True) if at < 0)
    assert any(w > 0 for group in result["groups"] for node in group for w in node["weights"])


def test_a_family_that_decodes_block_by_block_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"decodes block by block\); use cj_grpo"):
        trained(tmp_path, "sdar")
