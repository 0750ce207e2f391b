"""What ``dare-bench train`` refuses in one line before anything is evaluated or written, and damaged checkpoints
that it does not go on from in silence."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command
import pytest
from calls import refused_early
from filelock import FileLock
from require import need_package

import dare_bench
from dare_bench.cli.train import settings
from dare_bench.errors import DareError, RunError, TrainingError, UsageError
from dare_bench.registry import registry

need_package("accelerate")
FIELDS: dict[str, Any] = {
    "method": "sft",
    "model": "tiny-llada-base",
    "task": "dare_sudoku",
    "rows": 20,
    "per_device_train_batch_size": 4,
    "max_steps": 3,
    "save_steps": 1,
    "report_to": (),
}


def train(out: Path, **more: Any) -> Any:
    from dare_bench.training.run import train

    return train(**{**FIELDS, "output_path": str(out), **more})


MISTAKES = (
    ("sft --task dare_sudoku --max_steps 0", "max_steps=0: must be greater than or equal to 1"),
    ("sft --noise even --draws 2", "data and task are the sources of rows, and neither is given"),
    ("sft --task dare_sodoku --no-bf16", "unknown training data 'dare_sodoku'; closest: dare_sudoku"),
    ("sft --data no.jsonl --dry-run", "no.jsonl is not there; give a file"),
    ("sft --task dare_sudoku --eval-every 5", "eval_every needs something to evaluate"),
    ("sft --task dare_sudoku --seed x", "--seed='x' is not valid: it must be a whole number; see dare-bench train sft"),
    ("sft --task dare_sudoku --draw 2", "unknown option '--draw'; closest: --draws"),
    ("sft --task dare_sudoku --noise unifrom", "noise='unifrom': must be 'uniform', 'even', 'counts', "),
    ("sft --task dare_sudoku --lr-scheduler-type cosin", "lr_scheduler_type='cosin': must be 'linear', 'cosine', "),
    ("sft --task dare_sudoku --eval-tasks dare_sodoku", "unknown task 'dare_sodoku'; closest: dare_sudoku"),
    ("sft --data pairs.jsonl", "Use dare-bench train dpo or vrpo, or data with columns (messages)"),
    ("cj_grpo --task dare_sort --num-generation 4", "unknown option '--num-generation'; closest: --num-generations"),
    ("cj_grpo --task dare_sort --advantage meen", "advantage='meen': must be 'standardized', 'mean' or "),
    ("dtreerpo --task dare_sort --num-generations 6", "num_generations=6: the leaves of a tree are a multiple"),
    ("sft --task dare_sudoku --rows 9 -o trained --max-steps 2", "a training of 3 steps, now 2: a training can be ext"),
    ("sft --task dare_sudoku --rows 9 -o trained --max-steps 3 --draws 2", "another training: draws was 1, now 2"),
    ("dpo --task dare_sudoku --rows 9 -o trained --max-steps 3", 'another training: method was "sft", now "dpo"'),
    ("sft --task dare_sudoku -o own", "own holds files that this command did not write ('notes.txt'); give a new or "),
)


def test_mistakes_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (tmp_path / "own").mkdir()
    (tmp_path / "own/notes.txt").write_text("mine")
    train(tmp_path / "trained", rows=9, max_steps=3)
    cases = [
        (f"train {words} -m tiny-llada-base" + " -o out" * (" -o " not in words), says) for words, says in MISTAKES
    ]
    steps = ("1", "was trained by sft, which samples nothing"), ("13", "the training in trained has the steps 1 to 3")
    refused_early([*cases, *((f"rl replay trained --step {step}", says) for step, says in steps)], tmp_path)
    (tmp_path / "wrong.jsonl").write_text('{"promt": "a", "completion": "b"}\n')
    refused_early([("train sft -m tiny-llada-base -o out --data wrong.jsonl", "has columns")], tmp_path, code=1)
    assert not (tmp_path / "out").exists() and (tmp_path / "own/notes.txt").read_text() == "mine"
    # the same settings resume: nothing that was not given is compared
    assert train(tmp_path / "trained", rows=9, max_steps=3).path == tmp_path / "trained"


def test_methods_register_what_their_classes_declare() -> None:
    for entry in registry().entries("trainer"):
        kind = entry.load()
        assert (kind.Options, kind.reads) == (entry.load("options"), entry.about["reads"]), entry.name


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"seed": 2**32}, "seed=4294967296"),
        ({"lora_alpha": float("inf"), "peft": "lora"}, "lora_alpha=inf must be finite"),
        ({"model_args": {"block_length": 4}}, "'block_length' is not an argument of load"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "must be 'linear', 'cosine'"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "must be 'linear', 'cosine'"),
        ({"min_lr_rate": 0.1}, "belongs to lr_scheduler_type=cosine_with_min_lr, and the schedule is cosine"),
        ({"fsdp": True}, "several processes, and this is one"),
        ({"sequence_parallel_size": 2}, "does not divide the number of processes, 1; give 1, or start a multiple of 2"),
        ({"lora_r": 8}, "lora_r=8 belongs to an adapter; give peft='lora' too"),
        ({"padding": "masked_out", "canvas_length": 24}, "canvas_length=24 belongs to padding='eos_supervised'"),
        ({"max_pads": 2}, "no setting 'max_pads'; removed: .* tells the answer's length"),
        ({"looks_per_forward": 2}, r"setting 'looks_per_forward'; renamed: micro_batch_size \(--micro-batch-size\)$"),
        ({"canvas_length": 100_000}, r"beyond the model's context of \d+; give at most"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(tmp_path / "out", **more)


def test_heads_that_processes_cannot_divide_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UsageError, match="=3 does not divide the 4 attention heads of llada; give one of 1, 2, 4"):
        train(tmp_path / "out", sequence_parallel_size=3)
    assert not (tmp_path / "out" / "train.json").exists()


def test_a_folder_in_which_another_process_trains_is_refused_before_a_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dare_bench.training.run.open_training", lambda *_, **__: pytest.fail("it was opened"))
    with FileLock(tmp_path / ".lock"), pytest.raises(RunError, match="is being trained by another process"):
        train(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eval: dare_sudoku\n", r"eval='dare_sudoku' is not a mapping; write eval: \{setting: value\}"),
        ("options: counts\n", "options='counts' is not a mapping"),
        ("noise: even\noptions: {noise: counts}\n", "noise and noise within options are the same setting"),
        ("eval_tasks: a\neval: {tasks: b}\n", "eval_tasks and tasks within eval are the same setting"),
        (
            "include_path: a\neval: {include_path: b}\n",
            "include_path and include_path within eval are the same setting",
        ),
    ],
)
def test_a_file_says_a_setting_once_and_mappings_as_mappings(tmp_path: Path, text: str, said: str) -> None:
    from dare_bench.trainers.sft import SFTOptions

    file = tmp_path / "train.yaml"
    file.write_text(f"model: tiny-llada-base\ntask: dare_sudoku\noutput_path: o\n{text}")
    with pytest.raises(UsageError, match=said):
        settings("sft", SFTOptions.model_fields, {"config": str(file)})


def test_the_last_step_is_logged(tmp_path: Path) -> None:
    train(tmp_path / "out")
    log = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 3]


def _cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:1000])


def _state(**values: Any) -> Callable[[Path], object]:
    """Other values in the state of transformers' Trainer."""

    def change(folder: Path) -> None:
        file = folder / "trainer_state.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


DAMAGE: tuple[tuple[Callable[[Path], object], str], ...] = (
    (lambda folder: (folder / "optimizer.pt").unlink(), r"optimizer\.pt is missing"),
    (lambda folder: (folder / "rng_state.pth").unlink(), r"rng_state\.pth is missing"),
    (lambda folder: (folder / "trainer_state.json").unlink(), r"trainer_state\.json is missing"),
    (lambda folder: (folder / "trainer_state.json").write_text("{"), "cannot be read"),
    (_cut("optimizer.pt"), "cannot be read"),
    (_cut("rng_state.pth"), "cannot be read"),
    (_cut("model.safetensors"), "cannot be read"),
    (_state(global_step="two"), "global_step='two': must be a whole number"),
    (_state(global_step=float("nan")), "global_step=nan"),
    (_state(global_step=10**12), r"its global_step in trainer_state\.json is 1000000000000"),
    (_state(log_history=[1]), "log_history.0=1"),
    (_state(log_history=[{"loss": 1.0}]), r"'log_history\.0\.step' is missing"),
    (_state(log_history=[{"step": 1, "loss": "x" * (2 << 20)}]), "larger than the limit of 1,179,648 bytes"),
    (_state(total_flos="x"), "total_flos='x'"),
    (_state(logging_steps=0), "logging_steps=0"),
    (_state(stateful_callbacks={}), "TrainerControl' is missing"),
    (_state(best_model_checkpoint="checkpoint-1"), "best_model_checkpoint='checkpoint-1'"),
    (lambda folder: (folder / "unlogged.json").write_text('{"loss": [1]}'), "loss"),
    (lambda folder: (folder / "unlogged.json").write_text('{"loss": [1e400, 1]}'), r"loss\.0"),
    (lambda folder: (folder / "unlogged.json").write_text('{"loss": [1, NaN]}'), r"loss\.1"),
)


def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(out)
    whole = (out / "model.safetensors").read_bytes()
    (out / "lineage.json").unlink()  # as if killed before its end
    (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))
    damaged, sound = out / "checkpoint-2", tmp_path / "sound"
    shutil.copytree(damaged, sound)
    for damage, said in DAMAGE:
        shutil.rmtree(damaged)
        shutil.copytree(sound, damaged)
        damage(damaged)
        with pytest.raises(TrainingError, match=f"checkpoint-2 is damaged .*{said}.*; remove it"):
            train(out)
    shutil.rmtree(damaged)
    train(out)
    assert (out / "model.safetensors").read_bytes() == whole


class _Touches:
    """Its pickle makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_a_gradient_scaler_of_others_is_not_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(out)
    whole = (out / "model.safetensors").read_bytes()
    (out / "lineage.json").unlink()
    (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))
    (out / "checkpoint-2" / "scaler.pt").write_bytes(pickle.dumps(_Touches(tmp_path / "was-read")))
    train(out)
    assert (out / "model.safetensors").read_bytes() == whole
    assert not (tmp_path / "was-read").exists()


@pytest.mark.parametrize("lost", ["weights", "config.json", "lineage.json", "all"])
def test_a_finished_training_without_its_checkpoint_is_not_trained_already(
    tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is resumed from the last checkpoint-N, or refused if there is none."""
    out = tmp_path / "out"
    train(out)
    names = {"weights": ["model.safetensors"], "all": ["model.safetensors", "config.json", "lineage.json"]}
    whole = (out / "model.safetensors").read_bytes()
    for name in names.get(lost, [lost]):
        (out / name).unlink()
    says = "weights (*.safetensors), config.json, lineage.json" if lost == "all" else lost
    train(out)
    assert any(f"without its {says}" in line and "resuming from the last" in line for line in caplog.messages)
    assert (out / "model.safetensors").read_bytes() == whole and (out / "lineage.json").exists()
    for folder in out.glob("checkpoint-*"):
        shutil.rmtree(folder)
    for name in names.get(lost, [lost]):
        (out / name).unlink()
    with pytest.raises(TrainingError, match=f"{re.escape(says)}.*; choose another --output-path, or remove the folder"):
        train(out)


def test_what_follows_the_answers_is_resolved_printed_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "completion": "2"}\n{"prompt": "2+3=", "completion": "5000000000"}\n')
    own: dict[str, Any] = {"task": None, "data": str(file), "rows": None, "max_steps": 1}
    with caplog.at_level("INFO", "dare_bench"):
        train(tmp_path / "out", **own)
    line = "padding=drawn (the longest answer has 10 tokens; the canvas of a row is drawn in each epoch)"
    assert line in caplog.messages
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    recorded = {name: lineage["options"][name] for name in ("padding", "canvas_length")}
    assert recorded == {"padding": "drawn", "canvas_length": None}
    shortest, longest = lineage["canvas_lengths"]
    assert 2 <= shortest < longest <= 256
    model, warned = dare_bench.load(str(tmp_path / "out"), device="cpu"), "trained on canvases of"
    for length in (longest, longest + 1, longest + 1):
        model.generate("1+1=", gen_length=length, steps=1)
    assert [f"gen_length={longest + 1}" in line for line in caplog.messages if warned in line] == [True]
    train(tmp_path / "out", **own, **recorded)  # the same training
    with pytest.raises(UsageError, match='padding was "drawn", now "masked_out"'):
        train(tmp_path / "out", **own, padding="masked_out")


ROWS = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "2+3=", "completion": "5"}]


def test_rows_in_memory_are_the_same_training_as_in_a_file(tmp_path: Path) -> None:
    datasets = need_package("datasets")
    given: dict[str, Any] = {"task": None, "rows": None, "max_steps": 1}
    train(tmp_path / "out", **given, data=ROWS)
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    assert re.fullmatch(r"list of 2 rows \(sha256:[0-9a-f]{16}\)", lineage["data"])
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for same in (ROWS, str(file), file, datasets.Dataset.from_list(ROWS), tuple(ROWS)):
        train(tmp_path / "out", **given, data=same)
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before, "finished: nothing was trained"
    with pytest.raises(UsageError, match="holds another training: data_hash was"):
        train(tmp_path / "out", **given, data=ROWS[::-1])


RL_FIELDS: dict[str, Any] = {
    "method": "cj_grpo",
    "task": "dare_arithmetic",
    "rows": 20,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_steps": 1,
    "eval_on_start": True,
    "eval": {"tasks": "dare_arithmetic", "limit": 1},
}


def train_rl(out: Path, **more: Any) -> Any:
    return train(out, **{**RL_FIELDS, **more})


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
        train_rl(tmp_path / "out", **more)
    assert "\n" not in str(caught.value)
    if "dream" not in str(more.get("reference")):  # a reference is opened when the training begins
        assert not (tmp_path / "out").exists(), "nothing was evaluated"


@pytest.mark.parametrize("rollout", [{"editing": False}, {"strategy": "sequential"}])
def test_a_sampler_without_editing_can_be_chosen(tmp_path: Path, rollout: dict[str, object]) -> None:
    fields = {"model": "tiny-llada2-base", "family": "llada2.1", "rollout": rollout, "eval_on_start": False}
    train_rl(tmp_path / "out", **fields, eval={})
    assert (tmp_path / "out" / "lineage.json").exists()


@pytest.mark.parametrize("missing", ["trajectory", "logprobs", "row_keyed_randomness"])
def test_a_model_without_a_capability_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    from dataclasses import replace

    from dare_bench.model_adapters.native import NativeModel

    monkeypatch.setattr(NativeModel, "capabilities", replace(NativeModel.capabilities, **{missing: False}))
    with pytest.raises(UsageError, match=rf"cj_grpo needs a model that can .*capability '{missing}'.*llada cannot"):
        train_rl(tmp_path / "out")


def test_a_row_without_a_reward_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"data_source": "poems", "prompt": "1+1=", "reward_model": {"ground_truth": "2"}, "extra_info": {}}
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DareError, match=r"rows\.jsonl:1: there is no reward 'poems'; known: .*dare_arithmetic"):
        train_rl(tmp_path / "out", task=None, data=str(file))


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
        train_rl(tmp_path / "out", task=None, data=[row])
    assert not (tmp_path / "out").exists()


def test_examples_are_no_prompts_with_a_reward(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "completion": "2"}\n')
    with pytest.raises(DareError, match=r"rows\.jsonl.*dare-bench train sft"):
        train_rl(tmp_path / "out", task=None, data=str(file))


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
