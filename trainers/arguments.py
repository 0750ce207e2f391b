"""The settings of ``transformers.Trainer`` for a training: schedule, precision, device, trackers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import TrainingArguments

from dare_bench.errors import UsageError, unknown
from dare_bench.protocols import LoadedModel
from dare_bench.training.spec import WITH_FLOOR, TrainSpec
from dare_bench.training.trackers import trackers

SCHEDULES = (
    "linear", "cosine", WITH_FLOOR, "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt",
)  # fmt: skip
"""Schedules of transformers that need no further settings, or ``min_lr_rate`` alone."""
SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "seed", "bf16", "logging_steps", "run_name",
)  # fmt: skip
"""Settings of a training that have the name and the meaning that they have in transformers."""


def training_arguments(spec: TrainSpec, model: LoadedModel, out: Path) -> TrainingArguments:
    """The settings of ``transformers.Trainer``; raises UsageError for a value that it does not know."""
    if (schedule := str(spec.lr_scheduler_type)) not in SCHEDULES:
        raise unknown("lr_scheduler_type", schedule, SCHEDULES)
    if spec.fsdp and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        raise UsageError("fsdp shards a model over several processes, and this is one; start more with torchrun")
    arguments = TrainingArguments(
        output_dir=str(out),
        **{name: getattr(spec, name) for name in SETTINGS},
        max_steps=spec.max_steps or 1,
        per_device_train_batch_size=spec.rows_per_forward,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # a loss that is not finite ends the training
        save_strategy="no",  # Loop decides
        report_to=trackers(spec.report_to),
        use_cpu=torch.device(model.spec.device).type == "cpu",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        ddp_timeout=7 * 24 * 3600,  # the other processes wait while the first one evaluates
        ddp_find_unused_parameters=False,
        lr_scheduler_kwargs={} if spec.min_lr_rate is None else {"min_lr_rate": spec.min_lr_rate},
        **({"fsdp": True, "fsdp_config": {"version": 2}} if spec.fsdp else {}),
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs are several processes, never DataParallel
    return arguments


@contextlib.contextmanager
def tensorboard_folder(folder: Path) -> Iterator[None]:
    """TensorBoard's callback reads its folder from the environment; its default ``runs/`` holds our evaluations."""
    before = os.environ.get("TENSORBOARD_LOGGING_DIR")
    os.environ["TENSORBOARD_LOGGING_DIR"] = before or str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TENSORBOARD_LOGGING_DIR"]
