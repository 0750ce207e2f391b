"""A training from its settings, as ``transformers.Trainer`` has them, to the saved checkpoint."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import TrainingArguments

from dare_bench.errors import TrainingError, UsageError
from dare_bench.log import log
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.best import Validation
from dare_bench.trainers.checkpoints import checkpoints
from dare_bench.trainers.forwards import NotFiniteError
from dare_bench.trainers.loop import Loop
from dare_bench.trainers.objective import Objective
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.trainers.steps import StepShape
from dare_bench.training.processes import data_parallel_size, first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec, check_trackers

SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "seed", "bf16", "logging_steps", "run_name",
)  # fmt: skip
"""Settings of a training that have the name and the meaning that they have in transformers."""


def training_arguments(spec: TrainSpec, model: LoadedModel, out: Path) -> TrainingArguments:
    """The settings of ``transformers.Trainer``; raises UsageError for a value that it does not know."""
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
        report_to=check_trackers(spec.report_to),
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


def run(objective: Objective, spec: TrainSpec, model: LoadedModel, data: Tokens, out: Path, services: Services) -> Path:
    """Train ``model`` on ``objective`` and save it to ``out``. Raises TrainingError: the loss or gradient is not
    finite; SaveError: a checkpoint could not be written."""
    spec = spec.with_defaults(objective)
    arguments = training_arguments(spec, model, out)
    together = spec.sequence_parallel_size
    processes = data_parallel_size(together, arguments.world_size)
    shape = StepShape(spec.rows_per_forward, spec.gradient_accumulation_steps, processes, together)
    source = objective.source(data, shape, spec.seed, arguments.process_index // together)
    arguments.max_steps = steps = spec.steps(source.rows, shape.items_per_step)
    with tensorboard_folder(out / "logs"):
        loop = Loop(objective, spec, model, source, shape, services, arguments)
    source.attach(PolicyInTraining(loop))
    if data.validation is not None:
        place = arguments.process_index // together
        loop.validation = Validation(objective, data.validation, shape, place, loop.forwards)
    if first_process():
        most = spec.micro_batch_size
        parts = "" if most is None else f", in forwards of at most {most} masked copies (micro_batch_size)"
        log.info("%s%s; this training makes %d", source.describe(), parts, steps)
        if arguments.lr_scheduler_type != "constant" and arguments.get_warmup_steps(steps) >= steps:
            log.warning("warmup_steps covers all steps (%d), of which the first has a learning rate of 0", steps)
    last = loop.read_last_checkpoint(out)
    if spec.eval_every is not None:
        for step, folder in checkpoints(out).items():  # those whose evaluation was interrupted; finished ones are read
            loop.evaluate_saved(folder, step)
    if last is None or not loop.has_ended(last):
        _train(loop, out, last)
    step = loop.save_final(out)
    loop.evaluate_saved(out, step, final=True)
    loop.accelerator.wait_for_everyone()
    assert model.network is not None
    model.network.eval()
    return out


def _train(loop: Loop, out: Path, last: Path | None) -> None:
    """The steps that are left; an error names a checkpoint to start from, if there is one."""
    try:
        loop.train(resume_from_checkpoint=str(last) if last else None)
    except NotFiniteError as error:
        saved = list(checkpoints(out).values())
        raise TrainingError(f"{error}, or start another training from {saved[-1]}" if saved else str(error)) from error
