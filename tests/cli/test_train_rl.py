"""Reinforcement learning through ``dare-bench train``: resume inside a rollout, several processes, sizes, metrics."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command
import pytest
from bundled_training import difference, interrupted
from pydantic import ValidationError
from ranks import on_ranks
from require import need_package

from dare_bench.errors import TrainingError

need_package("accelerate")
FIELDS: dict[str, Any] = {
    "method": "cj_grpo",
    "model": "tiny-llada-base",
    "task": "dare_arithmetic",
    "rows": 200,
    "num_generations": 4,
    "num_iterations": 3,
    "reward": {"format_weight": 0.5},
    "learning_rate": 1e-4,
    "warmup_steps": 0,
    "per_device_train_batch_size": 8,
    "max_steps": 7,
    "save_steps": 1,
    "logging_steps": 1,
    "report_to": (),
}
FLAGS = [
    word
    for name, value in FIELDS.items()
    if name not in ("method", "reward", "report_to")
    for word in (f"--{name.replace('_', '-')}", str(value))
]


def train(out: Path, **more: Any) -> Any:
    from dare_bench.training.run import train

    return train(**{**FIELDS, "output_path": str(out), **more})


def logged(out: Path) -> list[dict[str, float]]:
    """The entries of the log with a loss."""
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "loss" in entry]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven steps in one process: two rollouts of three steps, and the first step of another."""
    out = tmp_path_factory.mktemp("whole") / "out"
    train(out, report_to=("tensorboard",))
    return out


# -- resume ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_training_resumed_anywhere_ends_with_the_same_weights(tmp_path: Path, whole: Path, step: int) -> None:
    out = tmp_path / "out"
    interrupted(whole, out, step)
    assert (out / f"checkpoint-{step}" / "rollout.json").exists() == (step % 3 != 0)
    train(out)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [entry["loss"] for entry in logged(out)] == [entry["loss"] for entry in logged(whole)]
    later = Path("checkpoint-5") / "rollout.json"
    assert (out / later).read_bytes() == (whole / later).read_bytes(), "with the version of its weights"
    assert len({entry["loss"] for entry in logged(whole)}) > 4, "a training that does not move would pass too"


def test_a_reference_that_follows_the_policy_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    sync = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0, "beta": 1.0}
    fields = {**sync, "max_steps": 4, "num_iterations": 4, "learning_rate": 1e-3}
    train(whole, **fields)
    divergence = [entry["kl"] for entry in logged(whole)]
    assert divergence[1] > 1e-6 > 1e-12 > divergence[2], "after the second step the reference is the policy"
    assert divergence[3] > 1e-6
    assert not (whole / "checkpoint-1" / "reference").exists()
    interrupted(whole, out, 3)
    train(out, **fields)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    interrupted(whole, tmp_path / "lost", 3)
    shutil.rmtree(tmp_path / "lost" / "checkpoint-3" / "reference")
    with pytest.raises(TrainingError, match=r"reference/model\.safetensors is damaged"):
        train(tmp_path / "lost", **fields)


def test_a_killed_training_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    requested = ["train", "cj_grpo", *FLAGS, "--reward", "format_weight=0.5", "--peft", "lora", "--lora-dropout", "0.1"]
    steps = ["--max-steps", "5", "--report-to", "none"]
    broken, complete = tmp_path / "broken", tmp_path / "complete"
    process = command.start([*requested, *steps, "-o", str(broken)])
    deadline = time.monotonic() + 120
    while not (broken / "checkpoint-2" / "lineage.json").exists():
        assert time.monotonic() < deadline
        assert process.is_alive(), "it ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not (broken / "lineage.json").exists(), "it was to be killed before its end"
    fields = {"peft": "lora", "lora_dropout": 0.1, "max_steps": 5}
    train(broken, **fields)
    train(complete, **fields)
    name = "adapter_model.safetensors"
    assert (broken / name).read_bytes() == (complete / name).read_bytes()


def _without(name: str) -> Callable[[list[dict[str, Any]]], None]:
    def remove(parts: list[dict[str, Any]]) -> None:
        del parts[0][name][-1]

    return remove


def _first(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Other values in the first completion."""
    return lambda parts: parts[0]["completions"][0].update(values)


OTHER = "a completion of .* is not one of its prompt by this model"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_without("rewards"), "7 values for 8 completions"),
        (_without("old"), "no old values of 3 inner iterations"),
        (_first(tokens="tokens"), "0.completions.0.tokens"),
        (_first(tokens=[-5] * 4), OTHER),
        (_first(tokens=[10**18] * 4), OTHER),
        (_first(prompt=[1, 2]), OTHER),
        (_first(set_at=[0]), OTHER),
        (_first(scored=10**12), OTHER),
        (_first(logprobs=[float("nan")] * 4), "must be a finite number"),
        (lambda parts: parts[0].update(number=10**12, weights_version=3 * 10**12), "not one of its prompt"),
        (lambda parts: parts.clear(), "no old values"),
        (
            lambda parts: parts[0].update(weights_version=3),
            "weights_version is 3, and rollout 0 is sampled after step 0",
        ),
        (lambda parts: parts[0].pop("weights_version"), "'0.weights_version' is missing"),
        (None, "not JSON"),
    ],
)
def test_a_damaged_rollout_is_named(tmp_path: Path, whole: Path, damage: Any, said: str) -> None:
    out = tmp_path / "out"
    interrupted(whole, out, 2)
    file = out / "checkpoint-2" / "rollout.json"
    parts = json.loads(file.read_text())
    text = json.dumps(parts)[:1000]
    if damage is not None:
        damage(parts)
        text = json.dumps(parts)
    file.write_text(text)
    with pytest.raises(TrainingError, match=rf"rollout\.json is damaged \(.*{said}.*\); remove .*checkpoint-2 to"):
        train(out)


def test_old_values_of_other_actions_are_named(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out"
    interrupted(whole, out, 2)
    file = out / "checkpoint-2" / "rollout.json"
    parts = json.loads(file.read_text())
    parts[0]["old"][1][0].append(0.5)
    file.write_text(json.dumps(parts))
    with pytest.raises(TrainingError, match=r"step 3: its rollout has \d+ old values of \d+ actions"):
        train(out)


def test_of_a_large_damaged_rollout_one_error_is_made_and_a_larger_one_is_not_read(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dare_bench.trainers.rl import rollout_file

    out = tmp_path / "out"
    interrupted(whole, out, 2)
    file = out / "checkpoint-2" / "rollout.json"
    parts = json.loads(file.read_text())
    for damage in (parts[0]["completions"], parts[0]["completions"][0]["tokens"], parts[0]["old"][0], parts):
        damage += ["x"] * 50_000
        file.write_text(json.dumps(parts))
        with pytest.raises(TrainingError, match=r"rollout\.json is damaged") as caught:
            train(out)
        cause = caught.value.__cause__
        assert isinstance(cause, ValidationError) and cause.error_count() <= 3
    monkeypatch.setattr(rollout_file, "MAX_FILE", 1000)
    with pytest.raises(TrainingError, match="larger than the limit of 1,000 bytes"):
        train(out)


def test_the_log_of_a_training_killed_between_two_entries_is_that_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value but the times, also of the metrics that a rollout reports once."""
    from dare_bench.trainers.loop import Loop

    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    fields = {"max_steps": 6, "save_steps": 3, "logging_steps": 4, "num_iterations": 2}
    train(unbroken, **fields)
    training_step = Loop.training_step

    def killed(self: Any, model: Any, inputs: Any, *more: Any) -> Any:
        if inputs.number == 4:
            raise KeyboardInterrupt
        return training_step(self, model, inputs, *more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "training_step", killed)
        train(broken, **fields)
    train(broken, **fields)
    logs = [_without_times(out) for out in (broken, unbroken)]
    assert [entry["step"] for entry in logs[1]] == [1, 4, 6, 6] and "reward" in logs[1][1]
    assert logs[0] == logs[1]


def _without_times(out: Path) -> list[dict[str, float]]:
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return [{name: value for name, value in entry.items() if "second" not in name and name != "train_runtime"}
            for entry in history]  # fmt: skip


def test_a_rollout_has_the_version_of_the_weights_that_sampled_it(whole: Path) -> None:
    for step, version in ((1, 0), (2, 0), (4, 3), (5, 3)):
        (part,) = json.loads((whole / f"checkpoint-{step}" / "rollout.json").read_text())
        assert (part["number"], part["weights_version"]) == (version // 3, version)


def test_a_missing_rollout_is_an_error(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out"
    interrupted(whole, out, 2)
    (out / "checkpoint-2" / "rollout.json").unlink()
    with pytest.raises(TrainingError, match="inside a rollout that is not in the checkpoint"):
        train(out)


# -- processes ---------------------------------------------------------------------------------------------------------

KL = {"num_iterations": 2, "beta": 0.04, "max_steps": 2, "save_steps": 3, "per_device_train_batch_size": 4}
TWO_ROLLOUTS = {**KL, "max_steps": 3}
FILTERED = {**KL, "method": "mdpo", "save_steps": 1, "prompt_filter": "over_denoising", "rows": 65,
            "rollout": {"steps": 4}}  # fmt: skip
"""Of the last prompt that is filtered, one process has nothing."""
SEQUENCE = {**KL, "per_device_train_batch_size": 8, "sequence_parallel_size": 2}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {**TWO_ROLLOUTS, "model": "tiny-sdar-base", "save_steps": 1},
    "lora": {**TWO_ROLLOUTS, "peft": "lora", "micro_batch_size": 7},
    "trees": {**KL, "method": "dtreerpo", "tree_branch_factor": 2, "distillation": 0.1},
    "filtered prompts, sequence parallel": {**FILTERED, **SEQUENCE},
    "fsdp2": {**TWO_ROLLOUTS, "save_steps": 2, "fsdp": True, "sync_ref_model": True, "ref_model_sync_steps": 1},
    "lora and fsdp2": {**KL, "method": "coupled_grpo", "peft": "lora", "fsdp": True, "save_steps": 1},
    "sequence parallel and fsdp2": {**SEQUENCE, "max_steps": 3, "model": "tiny-sdar-base", "fsdp": True},
}
"""Completions end at different tokens; those of SDAR have canvases of different length. The last cases are FSDP2, which
accelerate keeps for the rest of a process. How a step of each algorithm is divided among processes: see
``test_policy_gradient.py``."""


def _train_on_rank(folder: str) -> int:
    """All cases in one process group."""
    from accelerate.state import AcceleratorState

    for name, case in CASES.items():
        AcceleratorState._reset_state()
        train(Path(folder) / name, **case)
    return 0


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all cases, trained by two processes."""
    folder = tmp_path_factory.mktemp("two")
    on_ranks(_train_on_rank, 2, str(folder), timeout=240)
    return folder


@pytest.fixture(scope="module")
def on_one(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Path]:
    """case -> the folder of its training by one process. Cases that differ in their processes alone have the same."""
    folders: dict[str, Path] = {}

    def trained(case: dict[str, Any]) -> Path:
        rows = case["per_device_train_batch_size"] * 2 // case.get("sequence_parallel_size", 1)
        one = {"per_device_train_batch_size": rows, "fsdp": False, "sequence_parallel_size": 1, "save_steps": 1}
        fields = {**case, **one}
        key = json.dumps(fields, sort_keys=True)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("one") / "out"
            train(folders[key], **fields)
        return folders[key]

    return trained


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(on_one: Callable[[dict[str, Any]], Path], on_two_ranks: Path, name: str) -> None:
    two, one = on_two_ranks / name, on_one(CASES[name])
    file = "adapter_model.safetensors" if CASES[name].get("peft") else "model.safetensors"
    tolerance = 1e-4 if "sequence_parallel_size" in CASES[name] else 2e-5  # attention is summed in another order
    assert difference(one, two, file) < tolerance
    assert difference(one / "checkpoint-1", one, file) > tolerance, "it moved by more than the tolerance"
    for left, right in zip(logged(one), logged(two), strict=True):
        assert left.keys() == right.keys()
        timed = ("tokens_per_second", "seconds")
        for metric in (name for name in left if not name.startswith(timed)):
            rounding = 1e-5 if metric == "sampler_gap_max" else 2e-6  # the former is the largest rounding error
            assert left[metric] == pytest.approx(right[metric], rel=2e-3, abs=rounding), metric


def test_one_process_continues_the_rollout_of_two(tmp_path: Path, on_two_ranks: Path) -> None:
    case, out = CASES["ddp"], tmp_path / "out"
    interrupted(on_two_ranks / "ddp", out, 1)
    assert len(json.loads((out / "checkpoint-1" / "rollout.json").read_text())) == 2
    train(out, **{**case, "per_device_train_batch_size": 8})
    assert difference(out, on_two_ranks / "ddp") < 2e-5


# -- sizes and metrics -------------------------------------------------------------------------------------------------


def test_sizes_are_printed_and_epochs_count_each_use_of_a_completion(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dare_bench")
    train(tmp_path / "out", rows=4, max_steps=None, num_train_epochs=1)
    (text,) = (record.getMessage() for record in caplog.records if "each rollout" in record.getMessage())
    assert "8 per device x 1 accumulated x 1 process = 8 completions = 2 prompts x 4" in text
    assert "used for 3 optimizer steps; an epoch of 4 prompts is 6 optimizer steps; this training makes 6" in text
    assert [entry["step"] for entry in logged(tmp_path / "out")] == [1, 2, 3, 4, 5, 6]


def test_metrics_are_in_the_log_and_in_tensorboard(whole: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    entries = logged(whole)
    of_rollout = {"reward", "reward_std", "accuracy", "accuracy_std", "completion_length", "written_nll"}
    assert [entry["step"] for entry in entries if of_rollout <= entry.keys()] == [1, 4, 7]
    of_step = {"kl", "grad_norm", "forwards/update", "tokens_per_second/update"}
    assert all(of_step <= entry.keys() for entry in entries)
    without = [entry["step"] for entry in entries if "clip_fraction" not in entry]
    assert without == [entry["step"] for entry in entries if entry.get("informative_groups") == 0], "no action to clip"
    first = entries[0]
    assert not any(name.endswith("_square") for name in first)
    # Right answers have reward 1, others half the share of their right digits.
    digits, right = first["reward/digit_accuracy"], first["accuracy"]
    assert first["reward"] == pytest.approx(right + 0.5 * (digits - right))
    assert first["accuracy_std"] == pytest.approx((right * (1 - right)) ** 0.5)
    # One pass for the old values of both later steps, and one for the reference, over the copies of the update.
    assert first["forwards/score"] == 2 * first["forwards/update"] > 0
    accumulator = EventAccumulator(str(next((whole / "logs").rglob("events*")).parent)).Reload()
    assert [event.value for event in accumulator.Scalars("train/reward_std")] == pytest.approx(
        [entry["reward_std"] for entry in entries if "reward_std" in entry]
    )
    assert {"train/tokens_per_second/rollout", "train/forwards/score"} <= set(accumulator.Tags()["scalars"])
