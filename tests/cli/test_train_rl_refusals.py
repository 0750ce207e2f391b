"""What reinforcement learning refuses in one line, before anything is evaluated or written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command
import pytest
from require import need_package

from dare_bench.errors import DareError, UsageError

need_package("accelerate")
FIELDS: dict[str, Any] = {
    "method": "cj_grpo",
    "model": "tiny-llada-base",
    "task": "dare_arithmetic",
    "rows": 20,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_steps": 1,
    "report_to": (),
    "eval_on_start": True,
    "eval": {"tasks": "dare_arithmetic", "limit": 1},
}


def train(out: Path, **more: Any) -> Any:
    from dare_bench.training.run import train

    return train(**{**FIELDS, "output_path": str(out), **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        *[
            (
                {"method": method, "model": model},
                rf"{method} needs fully masked completions.* block by block\); use cj_grpo",
            )
            for method in ("d1", "coupled_grpo", "espo")
            for model in ("tiny-sdar-base", "tiny-llada2-base")
        ],
        ({"model": "tiny-llada2-base", "family": "llada2.1"}, r"rewrites tokens .*give --rollout editing=false"),
        ({"model": "tiny-sdar-base", "rollout": {"strategy": {"name": "edit"}}}, "edit"),
        ({"temperature": 0.0}, "temperature=0.0"),
        (
            {"rollout": {"temperatur": 1}},
            "the rollout of cj_grpo: no model family has a decoding field 'temperatur'; closest: temperat",
        ),
        ({"rollout": {"block_length": 3}}, "the rollout of cj_grpo: .*block_length"),
        ({"rollout": {"temperature": 0.5}}, "temperature is set by --temperature; give that instead"),
        ({"rollout": {"gen_length": 8}}, "gen_length is set by --max-completion-length; give that instead"),
        ({"rollout": {"max_new_tokens": 8}}, "set by --max-completion-length"),
        ({"rollout": {"rng": "reference"}}, "rng is always ours"),
        ({"rollout": {"early_stop": True}}, "early_stop is off where attention is bidirectional"),
        ({"rollout": {"mask_id": 3}}, "mask_id is that of the checkpoint"),
        *[
            (
                {"method": method, "model": "tiny-sdar-base", "rollout": {"block_length": 2}},
                "trained on blocks of 4 tokens",
            )
            for method in ("cj_grpo", "ebpo")
        ],
        (
            {"max_completion_length": 60_000},
            r":\d+: a prompt of \d+ tokens and max_completion_length=60000",
        ),
        (
            {"num_generations": 3},
            r"8 completions .* are not a multiple of --num-generations 3; give .* for 9",
        ),
        ({"num_generations": 0}, "num_generations=0"),
        ({"reference": "tiny-llada-base", "beta": 0.0}, "for the KL penalty, and beta is 0"),
        ({"reference": "tiny-dream-base"}, "reference='tiny-dream-base' has family="),
        ({"sync_ref_model": True, "beta": 0.0}, "sync_ref_model moves the reference .*beta is 0; give beta too"),
        ({"sync_ref_model": True, "peft": "lora"}, "with LoRA the reference has no weights of its own"),
        ({"ref_model_sync_steps": 8}, "ref_model_sync_steps=8 is for sync_ref_model, which is off"),
        ({"sync_ref_model": True, "ref_model_mixup_alpha": 0.0}, "ref_model_mixup_alpha=0.0"),
        ({"reward": {"weight": 1}}, "'weight'"),
        ({"epsilonn": 0.1}, "no setting 'epsilonn'; closest: epsilon"),
    ],
)
def test_settings_that_cannot_work_are_refused_first(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        train(tmp_path / "out", **more)
    assert "\n" not in str(caught.value)
    if "dream" not in str(more.get("reference")):  # a reference is opened when the training begins
        assert not (tmp_path / "out").exists(), "nothing was evaluated"


@pytest.mark.parametrize("rollout", [{"editing": False}, {"strategy": "sequential"}])
def test_a_sampler_without_editing_can_be_chosen(tmp_path: Path, rollout: dict[str, object]) -> None:
    fields = {"model": "tiny-llada2-base", "family": "llada2.1", "rollout": rollout, "eval_on_start": False}
    train(tmp_path / "out", **fields, eval={})
    assert (tmp_path / "out" / "lineage.json").exists()


@pytest.mark.parametrize("missing", ["trajectory", "logprobs", "row_keyed_randomness"])
def test_a_model_without_a_capability_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    from dataclasses import replace

    from dare_bench.model_adapters.native import NativeModel

    monkeypatch.setattr(NativeModel, "capabilities", replace(NativeModel.capabilities, **{missing: False}))
    with pytest.raises(UsageError, match=rf"cj_grpo needs a model that can .*capability '{missing}'.*llada cannot"):
        train(tmp_path / "out")


def test_a_row_without_a_reward_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"data_source": "poems", "prompt": "1+1=", "reward_model": {"ground_truth": "2"}, "extra_info": {}}
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DareError, match=r"rows\.jsonl:1: there is no reward 'poems'; known: .*dare_arithmetic"):
        train(tmp_path / "out", task=None, data=str(file))


@pytest.mark.parametrize(
    ("missing", "row", "said"),
    [
        (
            "dare_bench.sandbox.isolation",
            {"text": "Add one.", "test_list": ["assert f(1) == 2"]},
            "the reward 'code' runs programs .*nothing isolates them",
        ),
        (
            "dare_bench.harness.common.scoring_process.why_not_enclosed",
            {"problem": "What is a half?", "solution": r"\boxed{\frac{1}{2}}"},
            "the reward 'math' is scored by code .*none",
        ),
    ],
)
def test_a_reward_without_its_sandbox_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, row: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(missing, lambda: "none")
    with pytest.raises(UsageError, match=said):
        train(tmp_path / "out", task=None, data=[row])
    assert not (tmp_path / "out").exists()


def test_examples_are_no_prompts_with_a_reward(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "completion": "2"}\n')
    with pytest.raises(DareError, match=r"rows\.jsonl.*dare-bench train sft"):
        train(tmp_path / "out", task=None, data=str(file))


def test_the_help_of_a_method_shows_its_own_defaults() -> None:
    text = " ".join(command.run("train", "d1", "--help").stdout.split())
    for name, default in {
        "--learning-rate": "default: 1e-06, with LoRA 3e-06",
        "--lr-scheduler-type": "default: constant_with_warmup",
        "--weight-decay": "default: 0.1",
        "--adam-beta2": "default: 0.99",
        "--max-grad-norm": "default: 0.2",
        "--num-generations": "default: 6",
        "--num-iterations": "default: 12",
        "--temperature": "default: 0.9",
        "--epsilon ": "default: 0.5",
        "--beta ": "default: 0.04",
        "--p-mask-prompt": "default: 0.15",
    }.items():
        description = text.partition(f"{name.strip()} <")[2].partition(" --")[0]
        assert f"({default})" in description, name
