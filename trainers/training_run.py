"""A training from its settings to the saved checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

from dare_bench.errors import TrainingError
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.arguments import tensorboard_folder, training_arguments
from dare_bench.trainers.checkpoints import checkpoints
from dare_bench.trainers.loop import Loop
from dare_bench.trainers.objective import Objective
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.trainers.settling import NotFiniteError
from dare_bench.trainers.steps import StepShape
from dare_bench.trainers.validation import Validation
from dare_bench.training.processes import data_parallel_size, first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec

log = logging.getLogger("dare_bench")


def run(objective: Objective, spec: TrainSpec, model: LoadedModel, data: Tokens, out: Path, services: Services) -> Path:
    """Train ``model`` on ``objective`` and save it to ``out``.

    Raises:
        TrainingError: the loss or gradient is not finite.
        SaveError: a checkpoint could not be written.
    """
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
        log.info("%s; this training makes %d", source.describe(), steps)
        if arguments.lr_scheduler_type != "constant" and arguments.get_warmup_steps(steps) >= steps:
            log.warning("warmup_steps covers all steps (%d), of which the first has a learning rate of 0", steps)
    last = loop.read_last_checkpoint(out)
    if spec.eval_every is not None:
        loop.catch_up(out)
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
