"""One training loop for all objectives, on ``transformers.Trainer``; this module adds the data of a step, the loss, and
checkpoints. The same command resumes from the last complete one.

A step's loss is settled as one weight for each scored token of the whole step, the derivative of the objective's loss
(``forwards.py``). The weighted sum of token losses is minimized, divided into forwards in any way.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments

from dare_bench.diffusion.sequence_parallel import sequence_group
from dare_bench.log import log
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.best import Best, Validation, agreed
from dare_bench.trainers.checkpoints import (
    LINEAGE,
    STATE,
    check_complete,
    checkpoints,
    copy_model,
    read_sums,
    reading_checkpoint,
    remove,
    remove_incomplete,
    step_of,
    write_sums,
    writing_checkpoint,
)
from dare_bench.trainers.forwards import Forward, Forwards, NotFiniteError, StepLoss, finite
from dare_bench.trainers.objective import Objective, add_metrics, averages, mean_loss
from dare_bench.trainers.phases import PhaseCost, Phases
from dare_bench.trainers.progress import TrainingProgress
from dare_bench.trainers.reference_policy import open_reference_policy
from dare_bench.trainers.steps import Step, StepShape, StepSource
from dare_bench.training.processes import first_process
from dare_bench.training.spec import TrainSpec


class Loop(Trainer):
    """``transformers.Trainer`` with our steps and losses. For it a batch is a whole step of this process, so that it
    never accumulates: :meth:`training_step` divides a step into forwards."""

    state: TrainerState
    loss_is_scaled_for_ga = True  # weights are computed for the whole step

    def __init__(
        self,
        objective: Objective,
        spec: TrainSpec,
        model: LoadedModel,
        source: StepSource,
        shape: StepShape,
        services: Services,
        arguments: TrainingArguments,
    ) -> None:
        self.objective, self.spec, self.loaded, self.services = objective, spec, model, services
        self.source, self.shape = source, shape
        self.metrics: dict[str, tuple[float, float]] = {}
        self._scores: list[tuple[int, Mapping[str, float]]] = []  # (step, scores) that are not in the log yet
        self._evaluated: set[int] = set()
        """The steps whose checkpoints have been evaluated."""
        self.validation: Validation | None = None
        self.phases = Phases({})
        network: Any = model.pretrained()
        network.train()
        for module in network.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = spec.gradient_checkpointing
        super().__init__(model=network, args=arguments, train_dataset=range(arguments.max_steps))
        sequence = sequence_group(spec.sequence_parallel_size, timedelta(seconds=arguments.ddp_timeout))
        self.forwards = Forwards(objective, spec, self.accelerator, self.phases, sequence)
        self.reference = None
        if objective.wants_reference:
            self.reference = open_reference_policy(
                objective, spec, model, services, self.accelerator, self.forwards.values
            )
        self.remove_callback(PrinterCallback)
        self.add_callback(_SaveAndLogCallback(self))
        self.add_callback(TrainingProgress(shape.items_per_step))
        for callback in objective.callbacks():
            self.add_callback(callback)

    def create_accelerator_and_postprocess(self) -> None:
        """accelerate supports FSDP only on accelerators and would silently run DDP on CPU ranks. Its policy for bf16
        converts all inputs and outputs of a layer, which a plan does not bear; here only the gathered weights are
        bfloat16."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            PartialState().distributed_type = state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True
        if self.is_fsdp_enabled and state.mixed_precision == "bf16":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
            state.fsdp_plugin.mixed_precision_policy = policy

    # -- data ----------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[int]:
        """The numbers of the steps."""
        return DataLoader(range(self.args.max_steps), batch_size=1, shuffle=False, collate_fn=itemgetter(0))  # type: ignore[arg-type]

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """This process's part of the next step."""
        return [self.source.step(number) for number in islice(epoch_iterator, num_batches)], None

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted by transformers, whose count is of one batch of tokens."""
        return 0

    # -- loss ----------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Any = None) -> Tensor:
        """Accumulate the gradient of a step, forward by forward. Returns the loss times the processes (or
        sequence-parallel groups), since losses, like gradients, are averaged over all."""
        self._step = inputs
        with self.phases.measure("update") as cost:
            self.phases.steps += 1
            cost.forwards += len(inputs.copies)
            model.train()
            forwards, values = self.forwards.of(inputs), partial(self.forwards.values, model)
            loss = StepLoss(self.objective, inputs, self.reference, values, len(forwards))
            total = torch.zeros((), device=self.args.device)
            for forward in forwards:
                total += self.forward_backward_step(model, forward, loss, cost)
            assert loss.settled is not None
            add_metrics(self.metrics, loss.settled.metrics)
            add_metrics(self.metrics, self.objective.observe(inputs, loss.nll_N))
            value = finite(inputs, float(total)) if self.objective.linear else loss.settled.loss
            add_metrics(self.metrics, {"loss": (value, 1 / self.shape.processes)})
        return torch.tensor(value * self.shape.processes, device=self.args.device)

    def forward_backward_step(self, model: Any, forward: Forward, step_loss: StepLoss, cost: PhaseCost) -> Tensor:
        """A forward and its backward; returns its part of the weighted sum of token losses."""
        with contextlib.nullcontext() if forward.is_last else self.accelerator.no_sync(model=model):
            nll_M = self.forwards.token_losses(model, forward, cost)
            weight_M = step_loss.weights(forward, nll_M.detach())
            loss = torch.dot(nll_M, weight_M.to(nll_M.device, nll_M.dtype))
            self.accelerator.backward(loss * self.accelerator.num_processes)
        return loss.detach()

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Raise before a gradient that is not finite changes the weights."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None:
            finite(self._step, float(norm), "the gradient's norm")
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The loss and the metrics of the steps since the last entry; transformers forgets those before a resume."""
        if "loss" in logs:
            logs |= averages(self.gather(self.sums()))
            self.metrics.clear()
        if "train_loss" in logs:
            logs["train_loss"] = mean_loss(self.state.log_history)
        super().log(logs, start_time)

    def sums(self) -> dict[str, tuple[float, float]]:
        """This process's metrics since the last entry of the log, with the costs of phases."""
        add_metrics(self.metrics, self.phases.take(self.shape.processes))
        return self.metrics

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes (one of each sequence-parallel group), in order."""
        return list(gather_object([value]))[:: self.shape.sequence]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def is_save_due(self, step: int) -> bool:
        """Is a checkpoint due after this step? That of the last one is the output itself, unless some are compared."""
        if step == self.args.max_steps:
            return self.spec.best_metric is not None
        judged = self.spec.eval or self.spec.metric_for_best_model
        every = (self.spec.save_steps, self.spec.eval_every if judged else None)
        return any(n is not None and step % n == 0 for n in every)

    def is_evaluation_due(self, step: int) -> bool:
        """Is this step one to evaluate? The last one is."""
        every = self.spec.eval_every
        return step == self.args.max_steps or (every is not None and step % every == 0)

    def validate(self) -> None:
        """Log the validation loss; raises NotFiniteError."""
        if self.validation is not None:
            sums = self.validation.metrics(self.model_wrapped, self.reference)
            values = averages(self.gather(sums))
            if not math.isfinite(values["loss"]):
                raise NotFiniteError(
                    f"step {self.state.global_step}: the validation loss is {values['loss']}; lower --learning-rate, "
                    "or check the rows of --validation-data"
                )
            self.log({f"eval_{name}": value for name, value in values.items()})

    def best(self) -> Best | None:
        """The best evaluation so far, in all processes; None if nothing is compared."""
        return None if self.spec.best_metric is None else agreed(self.spec, self.state.log_history)

    def has_ended(self, last: Path) -> bool:
        """Did the training end at its last checkpoint, by early stopping or since the last step is kept? Its state is
        read then."""
        if self.spec.best_metric is None:
            return False
        before, self.state = self.state, TrainerState.load_from_json(str(last / STATE))
        scores = list(self._scores)  # of evaluations after this state was saved, which a resumed training logs too
        self.log_scores()
        best = self.best()
        if (best is not None and best.stop) or step_of(last) == self.args.max_steps:
            return True
        self.state, self._scores = before, scores
        return False

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            self.loaded.save(Path(output_dir or self.args.output_dir), state_dict)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        folder = Path(self.args.output_dir) / f"checkpoint-{step}"
        with writing_checkpoint(folder):
            super()._save_checkpoint(model, trial)
            self.source.save(folder)
            parts = self.gather(self.sums())
            if self.is_world_process_zero():
                write_sums(folder, parts)
        counts = self.phases.totals(self.gather)  # waits for all processes
        if self.is_world_process_zero():
            for pickled in folder.glob("pytorch_model_fsdp*.bin"):  # the weights again, as a pickle
                pickled.unlink()
            self.services.lineage(folder, step, self.args.max_steps, counts, self.source.canvas_lengths)
        self.evaluate_saved(folder, step)
        best = self.best()
        self.prune(best)
        self.control.should_training_stop |= best is not None and best.stop

    def prune(self, best: Best | None) -> None:
        """Remove the checkpoints beyond ``save_total_limit``, but for the best one."""
        limit = self.spec.save_total_limit
        if self.is_world_process_zero():
            for old in list(checkpoints(Path(self.args.output_dir)).values())[: -limit if limit else 0]:
                if best is None or step_of(old) != best.step:
                    remove(old)

    def save_final(self, out: Path) -> int:
        """Write the trained checkpoint, or the best one, ``lineage.json`` last; returns its step."""
        if self.is_world_process_zero():
            (out / LINEAGE).unlink(missing_ok=True)  # of a shorter training that this one extends
        self.save_model(str(out))
        counts, steps, step = self.phases.totals(self.gather), self.args.max_steps, self.state.global_step
        best = self.best()
        if best is not None and first_process():
            log.info("%s", best.describe(self.spec, step, steps))
        if self.is_world_process_zero():
            with writing_checkpoint(out / "trainer_state.json"):
                if best is not None and self.spec.load_best_model_at_end:
                    copy_model(out / f"checkpoint-{best.step}", out)
                self.state.save_to_json(str(out / "trainer_state.json"))
        if best is not None and self.spec.load_best_model_at_end:
            counts, step = self.services.counts(out / f"checkpoint-{best.step}"), best.step
        if self.is_world_process_zero():
            self.services.lineage(out, step, steps, counts, self.source.canvas_lengths)
        self.prune(best)  # a kill during an evaluation leaves the earlier ones
        return step

    def evaluate_saved(self, folder: Path, step: int, final: bool = False) -> None:
        """Evaluate a checkpoint if its step is one to evaluate; the ``final`` one is, unless that of its step was
        evaluated."""
        due = step not in self._evaluated if final else self.is_evaluation_due(step)
        if self.spec.eval_every is None or not due:
            return
        self._evaluated.add(step)
        if self.is_world_process_zero():
            with preserved_rng():
                self._scores.append((step, self.services.evaluate(folder, step)))
            if self.state.max_steps:  # else training has not begun, and the trackers are not open
                self.log_scores()
        self.accelerator.wait_for_everyone()

    def log_scores(self) -> None:
        """Log scores of evaluations at their steps, for trackers as ``eval/TASK/METRIC``, unless the log has them."""
        state, now = self.state, (self.state.global_step, self.state.epoch)
        for step, scores in self._scores:
            logs = {f"eval_{name}": value for name, value in scores.items()}  # transformers writes eval/ for eval_
            if logs and not any(entry["step"] == step and logs.keys() <= entry.keys() for entry in state.log_history):
                state.global_step, state.epoch = step, self.epoch(step)
                self.log(logs)
        self._scores.clear()
        state.global_step, state.epoch = now

    def epoch(self, step: int) -> float:
        """Passes over the data after a step (transformers counts max_steps as one epoch)."""
        return step * self.shape.items_per_step / self.source.rows

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The weights were read before the model was wrapped (see ``training_run.py``)."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """bfloat16 and float32 need no gradient scaler: a ``scaler.pt`` is not ours."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_rng_state(checkpoint)

    def read_last_checkpoint(self, out: Path) -> Path | None:
        """The last complete checkpoint in ``out``, which is read, before the model is sharded; None: there is none.
        Incomplete ones are removed."""
        complete = list(checkpoints(out).values())
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            remove_incomplete(out)
        self.accelerator.wait_for_everyone()
        if not complete:
            return None
        last, steps = complete[-1], self.args.max_steps
        check_complete(last)
        with reading_checkpoint(last):
            self.loaded.read_weights(last)
            self.source.load(last)
            self.metrics = read_sums(last) if first_process() else {}
            self.phases.earlier = self.services.counts(last)
        if first_process():
            log.info("continuing after step %d of %d from %s", step_of(last), steps, last)
        return last


class _SaveAndLogCallback(TrainerCallback):
    """Requests a checkpoint when one is due, and a log entry for each step that may be the last and for evaluations."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.loop.log_scores()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        state.epoch = self.loop.epoch(state.global_step)
        if self.loop.is_evaluation_due(state.global_step):
            self.loop.validate()
        control.should_save = self.loop.is_save_due(state.global_step)
        may_stop = self.loop.spec.early_stopping_patience is not None and control.should_save
        control.should_log |= state.global_step == state.max_steps or may_stop
        return control


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the global random generators afterwards: harnesses seed them."""
    state, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
    random.setstate(state)
    np.random.set_state(arrays)
