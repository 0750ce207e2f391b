"""``dare-bench train`` by two processes: the weights of one, also after a resume, with sharding, and where it stops."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import command
import pytest
import torch
from bundled_training import difference, interrupted, lines, train
from ranks import on_ranks
from require import need_package
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

need_package("accelerate")
TWO = {"per_device_train_batch_size": 4, "save_steps": 2}
TRAIN = [{"prompt": f"{a}+{a}=", "completion": str(2 * a)} for a in range(10, 26)]
OTHER = [{"prompt": f"{a}+{a}=", "completion": "77777"[: 1 + a % 5]} for a in range(30, 38)]
STOPPING = {
    "task": None, "rows": None, "max_steps": 60, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
    "warmup_steps": 0, "eval_every": 2, "early_stopping_patience": 2, "load_best_model_at_end": True,
}  # fmt: skip
"""Validated on answers that the training data contradict: the loss rises soon."""
CASES: dict[str, dict[str, Any]] = {
    "stopping": {**STOPPING, "per_device_train_batch_size": 2},
    "fsdp2": {**TWO, "fsdp": True},
    "sequence parallel": {**TWO, "fsdp": True, "sequence_parallel_size": 2, "gradient_checkpointing": True,
                          "gradient_accumulation_steps": 2},
    "bf16": {**TWO, "fsdp": True, "bf16": True},
}  # fmt: skip
"""FSDP2 comes last: accelerate keeps it for the rest of a process."""


def _train_on_rank(place: str) -> int:
    """All cases in one process group; that of sharded weights also resumed from checkpoint-2."""
    from accelerate.state import AcceleratorState

    for name, case in CASES.items():
        out = Path(place, name)
        AcceleratorState._reset_state()
        train(out, **case, **_files(name, Path(place)))
        if name == "fsdp2":
            torch.distributed.barrier()
            if torch.distributed.get_rank() == 0:
                interrupted(out, out.with_name(f"{name} resumed"), 2)
            torch.distributed.barrier()
            AcceleratorState._reset_state()
            train(out.with_name(f"{name} resumed"), **case)
    return 0


def _files(name: str, place: Path) -> dict[str, str]:
    known = {"data": str(place / "train.jsonl"), "validation_data": str(place / "other.jsonl")}
    return known if name == "stopping" else {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all trainings by two processes, and of those by one: ``plain`` and ``stopping, one``."""
    place = tmp_path_factory.mktemp("two")
    lines(place / "train.jsonl", TRAIN)
    lines(place / "other.jsonl", OTHER)
    on_ranks(_train_on_rank, 2, str(place), timeout=240)
    train(place / "plain")
    train(place / "stopping, one", **STOPPING, **_files("stopping", place), per_device_train_batch_size=4)
    return place


def log(out: Path) -> list[dict[str, float]]:
    entries: list[dict[str, float]] = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return entries


def lineage(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "lineage.json").read_text())
    return record


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2 resumed"])
def test_two_processes_equal_one_also_after_a_resume(place: Path, name: str) -> None:
    assert difference(place / "plain", place / name) < 5e-5
    first, exact = log(place / name)[0], log(place / "plain")[0]
    assert first["loss"] == pytest.approx(exact["loss"], rel=1e-4)
    assert first["grad_norm"] == pytest.approx(exact["grad_norm"], rel=1e-4)


def test_torchrun_starts_the_command(place: Path, tmp_path: Path) -> None:
    """Its launcher, with workers that import nothing again."""
    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="forkserver")
    out, flags = tmp_path / "out", ("--rows", "200", "--learning-rate", "1e-3", "--per-device-train-batch-size", "4")
    data = ("--model", "tiny-llada-base", "--task", "dare_sudoku", *flags, "--max-steps", "4", "--report-to", "none")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    elastic_launch(config, _worker)(["train", "sft", *data, "-o", str(out)], str(tmp_path / "log"), env)
    assert difference(place / "plain", out) < 5e-5
    for name in ("loss", "grad_norm"):
        assert log(out)[0][name] == pytest.approx(log(place / "plain")[0][name], rel=1e-4), name


def _worker(arguments: list[str], log: str, env: dict[str, str]) -> None:
    """A worker of the launcher, which has put its rank into the environment."""
    try:
        command.call(arguments, log, log, {**env, **os.environ}, str(Path.cwd()), None)
    except SystemExit as left:
        assert not left.code, Path(log).read_text()


def test_two_processes_that_compute_the_same_rows_equal_one(place: Path) -> None:
    """Sequence parallelism: with sharded weights, and with two forwards in a step."""
    out, plain = place / "sequence parallel", place / "plain"
    assert difference(plain, out) < 5e-5
    for name in ("loss", "grad_norm", "forwards/update"):
        assert log(out)[0][name] == pytest.approx(log(plain)[0][name], rel=1e-4), name
    left, right = lineage(out), lineage(plain)
    assert (left["sequence_parallel_size"], right["sequence_parallel_size"]) == (2, 1)
    assert (left["forwards"], left["tokens"]) == (right["forwards"], right["tokens"]), "counted once"


def test_fsdp_with_bf16_gathers_bfloat16_weights_and_keeps_float32_ones(place: Path) -> None:
    out, plain = place / "bf16", place / "plain"
    assert all(weight.dtype == torch.float32 for weight in load_file(str(out / "model.safetensors")).values())
    assert 1e-5 < difference(plain, out) < 1e-2, "four steps of 1e-3, in another precision"
    first, exact = log(out)[0], log(plain)[0]
    assert first["loss"] == pytest.approx(exact["loss"], rel=1e-2) and first["loss"] != exact["loss"]
    assert first["grad_norm"] == pytest.approx(exact["grad_norm"], rel=5e-2)


def test_two_processes_stop_early_where_one_does_and_keep_the_same_checkpoint(place: Path) -> None:
    two, one = place / "stopping", place / "stopping, one"
    losses = [[entry["eval_loss"] for entry in log(out) if "eval_loss" in entry] for out in (two, one)]
    assert 2 < len(losses[1]) < 30 and losses[0] == pytest.approx(losses[1], rel=1e-3)
    best = 2 * (losses[1].index(min(losses[1])) + 1)
    assert lineage(two)["step"] == lineage(one)["step"] == best < log(one)[-1]["step"] == log(two)[-1]["step"]
    assert (two / "model.safetensors").read_bytes() == (two / f"checkpoint-{best}/model.safetensors").read_bytes()
    assert difference(one, two) < 1e-3
