"""One training loop for all objectives, on ``transformers.Trainer``, which owns optimizer, schedule, precision,
processes, trackers and resume; this module adds the data of a step, the loss, and checkpoints.

A step's loss is settled first: one weight for each scored token of the whole step, the derivative of the objective's
loss (see ``objective.py``). Then the weighted sum of token losses is minimized, divided into forwards in any way.

The same command resumes from the last complete checkpoint (see ``checkpoints.py``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from dare_bench.diffusion.forward import Inputs
from dare_bench.diffusion.lockstep import Lockstep
from dare_bench.diffusion.looks import Looks
from dare_bench.diffusion.sequence_parallel import sequence_group
from dare_bench.errors import TrainingError
from dare_bench.protocols import LoadedModel, Services
from dare_bench.seeds import key
from dare_bench.trainers.arguments import tensorboard_folder, training_arguments
from dare_bench.trainers.checkpoints import (
    LINEAGE,
    check_complete,
    checkpoints,
    reading_checkpoint,
    remove,
    remove_incomplete,
    writing_checkpoint,
)
from dare_bench.trainers.objective import Objective, add_metrics, averages
from dare_bench.trainers.phases import PhaseCost, Phases
from dare_bench.trainers.progress import TrainingProgress
from dare_bench.trainers.reference import open_reference
from dare_bench.trainers.steps import Step, StepShape, StepSource, forwards
from dare_bench.training.processes import data_parallel_size, first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import LoopStats, Request, Reward, RewardPrompt, Sample

log = logging.getLogger("dare_bench")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
    source.attach(loop)
    if first_process():
        log.info("%s; this training makes %d", source.describe(), steps)
    if (last := loop.last_checkpoint_after_cleanup(out)) is not None:
        check_complete(last)
        with reading_checkpoint(last):
            model.read_weights(last)  # before the model is sharded
            source.load(last)
            loop.phases = Phases(services.counts(last))
        if first_process():
            log.info("continuing after step %s of %d from %s", last.name.rpartition("-")[2], steps, last)
    if spec.eval_every is not None:
        loop.catch_up(out)
    loop.train(resume_from_checkpoint=str(last) if last else None)
    if loop.is_world_process_zero():
        (out / LINEAGE).unlink(missing_ok=True)  # of a shorter training that this one extends
    loop.save_model(str(out))
    counts = loop.phases.totals(loop.gather)
    if loop.is_world_process_zero():
        with writing_checkpoint(out / "trainer_state.json"):
            loop.state.save_to_json(str(out / "trainer_state.json"))
        services.lineage(out, steps, steps, counts)
    loop.evaluate_saved(out, steps)
    loop.accelerator.wait_for_everyone()
    assert model.network is not None
    model.network.eval()
    return out


class Loop(Trainer):
    """``transformers.Trainer`` with our steps and losses. For it a batch is a whole step of this process, so that it
    never accumulates: :meth:`training_step` divides a step into forwards."""

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
        self.phases = Phases({})
        network: Any = model.pretrained()
        network.train()
        for module in network.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = spec.gradient_checkpointing
        super().__init__(model=network, args=arguments, train_dataset=range(arguments.max_steps))
        self.sequence = sequence_group(spec.sequence_parallel_size, timedelta(seconds=arguments.ddp_timeout))
        self.reference = None
        if objective.wants_reference:
            self.reference = open_reference(objective, spec, model, services, self.accelerator, self.values)
        self.remove_callback(PrinterCallback)
        self.add_callback(_SaveAndLogCallback(self))
        self.add_callback(TrainingProgress(shape.items_per_step))
        for callback in objective.callbacks():
            self.add_callback(callback)

    def create_accelerator_and_postprocess(self) -> None:
        """accelerate supports FSDP only on accelerators and would silently run DDP on CPU ranks. Its policy for bf16
        converts all inputs and outputs of a layer (rotary positions, token losses) and cannot convert a plan; here only
        the gathered weights are bfloat16."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            PartialState._shared_state["distributed_type"] = state.distributed_type = DistributedType.FSDP
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
        numbers, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return [self.source.step(number) for number in numbers], None

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> None:
        return None

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    # -- loss ----------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Any = None) -> Tensor:
        """Settle the step's loss, and accumulate its gradient forward by forward. Returns the loss times the processes
        that have rows of their own, since losses, like gradients, are averaged over all."""
        with self.phases.measure("update") as cost:
            self.phases.steps += 1
            cost.forwards += len(inputs.looks)
            return self._update(model, inputs, cost)

    def _update(self, model: Any, inputs: Step, cost: PhaseCost) -> Tensor:
        model.train()
        self._rows = ", ".join(row.where for item in inputs.items for row in item[:1])
        parts, settled = self.parts(inputs.looks), None
        if not self.objective.needs_values(inputs):
            settled = self.settle(inputs, torch.zeros(len(inputs.looks.at_N)))
        elif len(parts) > 1 or (self.reference is not None and self.reference.adapter_off):
            # The adapter must not be switched off and on between a forward and its backward.
            settled = self.settle(inputs, self.values(model, inputs))
        total, nll_M = torch.zeros((), device=self.args.device), []
        for number, (looks, index_N) in enumerate(parts):
            wait = contextlib.nullcontext() if number == len(parts) - 1 else self.accelerator.no_sync(model=model)
            with wait, self._dropout(inputs, number):
                given = self.inputs(looks)
                cost.tokens += len(given.tokens_U)
                nll_N = model(**given.arguments()).nll
                if settled is None:
                    settled = self.settle(inputs, restored(nll_N.detach(), index_N))
                loss = torch.dot(nll_N, settled.weight_N[index_N].to(nll_N.device, nll_N.dtype))
                self.accelerator.backward(loss * self.accelerator.num_processes)
                total += loss.detach()
                nll_M.append(nll_N.detach())
        assert settled is not None
        nll_N = restored(torch.cat(nll_M), torch.cat([index_N for _, index_N in parts]))
        add_metrics(self.metrics, self.objective.observe(inputs, nll_N))
        value = float(total) if self.objective.linear else settled.loss
        if not math.isfinite(value):
            raise self._not_finite(inputs.number, f"the loss is {value}")
        return torch.tensor(value * self.shape.processes, device=self.args.device)

    def settle(self, step: Step, nll_N: Tensor) -> SettledLoss:
        """The loss of this process's part of a step, with its derivative at the token losses; notes the metrics."""
        nll_N = nll_N.double().requires_grad_()
        with torch.enable_grad():
            loss, metrics = self.objective.loss(step, nll_N, self.reference)
            (weight_N,) = torch.autograd.grad(loss, nll_N, allow_unused=True, materialize_grads=True)
        add_metrics(self.metrics, metrics)
        if not math.isfinite(value := float(loss.detach())):
            raise self._not_finite(step.number, f"the loss is {value}")
        return SettledLoss(weight_N, value)

    @torch.no_grad()
    def values(self, model: Any, step: Step) -> Tensor:
        """-log p of a step's scored tokens under a network, float32 [N] on the CPU."""
        nll_N = torch.empty(len(step.looks.at_N))
        with self.phases.measure("score") as cost:
            cost.forwards += len(step.looks)
            for number, (looks, index_N) in enumerate(self.parts(step.looks)):
                with self._dropout(step, number), self.accelerator.autocast():
                    given = self.inputs(looks)
                    cost.tokens += len(given.tokens_U)
                    nll_N[index_N] = model(**given.arguments()).nll.float().cpu()
        return nll_N

    def inputs(self, looks: Looks) -> Inputs:
        """The input of the network, to be computed together with the processes that have the same rows."""
        given = self.objective.inputs(looks).to(self.args.device)
        return replace(given, plan=replace(given.plan, sequence=self.sequence))

    def parts(self, looks: Looks) -> list[tuple[Looks, Tensor]]:
        """The forwards of a step, as many in every process."""
        count, limit = self.spec.gradient_accumulation_steps, self.spec.looks_per_forward
        if limit is not None:
            count = max(count, math.ceil(len(looks) / limit))
            if self.accelerator.num_processes > 1:
                count = int(self.accelerator.gather(torch.tensor([count], device=self.args.device)).max())
        return forwards(looks, count)

    @contextlib.contextmanager
    def _dropout(self, step: Step, forward: int) -> Iterator[None]:
        """The same dropout in every pass over a forward's looks."""
        if not self.spec.lora_dropout:
            yield
            return
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(key("dropout", self.spec.seed, step.number, self.args.process_index, forward))
            yield

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Raise before a gradient that is not finite changes the weights."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and not math.isfinite(float(norm)):
            raise self._not_finite(self.state.global_step, f"the gradient's norm is {float(norm)}")
        return norm

    def _not_finite(self, step: int, problem: str) -> TrainingError:
        return TrainingError(
            f"step {step + 1}: {problem}; rows of the last batch: {self._rows}; lower --learning-rate, check these "
            "rows, or resume from the last checkpoint with other settings"
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The objective's metrics beside the loss, averaged over the same steps."""
        if "loss" in logs:
            costs = self.phases.take(self.shape.processes)
            logs |= averages(self.gather({**self.metrics, **costs}))
            self.metrics.clear()
        super().log(logs, start_time)

    # -- the model in training, for sources of steps that sample with it (``rl.rollout.Policy``) ------------------

    def losses(self, step: Step) -> Tensor:
        """-log p of a step's scored tokens now, float32 [N] on the CPU."""
        self.model_wrapped.train()
        return self.values(self.model_wrapped, step)

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Answers in the order of the requests."""
        answers: dict[str, Sample] = {}
        with self.phases.measure("rollout") as cost:
            for share, stats in self._divided(requests, self._generate):
                answers |= share
                cost.forwards, cost.tokens = cost.forwards + stats.row_forwards, cost.tokens + stats.tokens_processed
        return [answers[request.key] for request in requests]

    def _generate(self, requests: Sequence[Request]) -> tuple[dict[str, Sample], LoopStats]:
        """Answers by key, by the network in place: in evaluation mode, in the precision of the training, and in step
        with the other processes where weights are sharded."""
        network: Any = self.loaded.network
        steps = Lockstep(network) if self.is_fsdp_enabled else contextlib.nullcontext(network)
        network.eval()
        self.loaded.weights_version = self.state.global_step
        answers, stats, rows = {}, LoopStats(), self.spec.rows_per_forward
        try:
            with self.accelerator.autocast(), steps as self.loaded.network:
                for sample in self.loaded.generate(requests, max_rows=rows, stats=stats):
                    answers[sample.request.key] = sample
        finally:
            self.loaded.network = network
            network.train()
        return answers, stats

    def _divided(self, items: Sequence[Item], compute: Callable[[Sequence[Item]], Result]) -> list[Result]:
        """The results of all shares of what the processes with the same rows divide: item i belongs to share i modulo
        their number."""
        return [compute(items)] if self.sequence is None else self.sequence.divided(items, compute)

    def rewards(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        """The rewards of answers."""

        def rewards(pairs: Sequence[tuple[RewardPrompt, str]]) -> list[Reward]:
            return self.services.rewards([p for p, _ in pairs], [t for _, t in pairs], self.objective.options.reward)

        with self.phases.measure("reward"):
            shares = self._divided(list(zip(prompts, texts, strict=True)), rewards)
        return [shares[i % len(shares)][i // len(shares)] for i in range(len(prompts))]

    def forwards(self, request: Request) -> int:
        """Upper bound of the forwards of a request."""
        return self.loaded.forwards(request)

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        return self.args.max_steps

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes that have rows of their own, in order."""
        return list(gather_object([value]))[:: self.shape.sequence]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def is_save_due(self, step: int) -> bool:
        """Is a checkpoint due after this step? (That of the last step is the output itself.)"""
        every = (self.spec.save_steps, self.spec.eval_every)
        return step < self.args.max_steps and any(n is not None and step % n == 0 for n in every)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            self.loaded.save(Path(output_dir or self.args.output_dir), state_dict)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        folder = Path(self.args.output_dir) / f"checkpoint-{step}"
        with writing_checkpoint(folder):
            super()._save_checkpoint(model, trial)
            self.source.save(folder)
        counts = self.phases.totals(self.gather)  # waits for all processes
        if self.is_world_process_zero():
            for pickled in folder.glob("pytorch_model_fsdp*.bin"):  # the weights again, as a pickle
                pickled.unlink()
            self.services.lineage(folder, step, self.args.max_steps, counts)
            limit = self.spec.save_total_limit
            for old in list(checkpoints(Path(self.args.output_dir)).values())[: -limit if limit else 0]:
                if old != folder:
                    remove(old)
        self.evaluate_saved(folder, step)

    def evaluate_saved(self, folder: Path, step: int) -> None:
        """Evaluate a checkpoint if its step is one to evaluate; the last one is."""
        every = self.spec.eval_every
        if every is None or (step % every and step < self.args.max_steps):
            return
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
        """The weights were read before the model was wrapped (see ``run``)."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_rng_state(checkpoint)

    def last_checkpoint_after_cleanup(self, out: Path) -> Path | None:
        """The last complete checkpoint in ``out``; incomplete ones are removed."""
        complete = list(checkpoints(out).values())
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            remove_incomplete(out)
        self.accelerator.wait_for_everyone()
        return complete[-1] if complete else None

    def catch_up(self, out: Path) -> None:
        """Evaluate checkpoints whose evaluation was interrupted; finished evaluations are only read."""
        for step, folder in checkpoints(out).items():
            self.evaluate_saved(folder, step)


@dataclass(frozen=True)
class SettledLoss:
    """A step's loss, and the weight of each scored token's loss in its gradient, float64 [N]."""

    weight_N: Tensor
    loss: float


def restored(value_N: Tensor, index_N: Tensor) -> Tensor:
    """Values on the CPU in the order from which ``index_N`` took them."""
    return torch.empty(len(value_N)).index_copy_(0, index_N, value_N.float().cpu())


class _SaveAndLogCallback(TrainerCallback):
    """Requests a checkpoint when one is due, and a log entry for the last step and for earlier evaluations."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.loop.log_scores()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        state.epoch = self.loop.epoch(state.global_step)
        control.should_save = self.loop.is_save_due(state.global_step)
        control.should_log |= state.global_step == state.max_steps
        return control


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the global random generators afterwards: harnesses seed them."""
    state, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
    random.setstate(state)
    np.random.set_state(arrays)
