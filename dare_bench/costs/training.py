"""One optimizer step of a training on given devices: memory and seconds, by tracing each phase that the step has.

With FSDP over n processes each holds 1/n of weights, gradients and optimizer, and gathers two layers and the LM head at
a time; a reference that is a second network is not sharded. Sequence parallelism divides what rows need. AdamW has two
moments of each trained number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, inf
from statistics import mean
from types import SimpleNamespace
from typing import Any

import torch

from dare_bench.costs.rehearsal import RehearsedPolicy, SampledRows, rows_of
from dare_bench.costs.trace import GPUS, Gpu, Trace, answering, find, parameters, traced
from dare_bench.errors import UsageError, unknown
from dare_bench.formatting import duration
from dare_bench.loading import here
from dare_bench.protocols import AdapterSettings
from dare_bench.registry import registry
from dare_bench.training.processes import check_heads, data_parallel_size
from dare_bench.training.rewards import NO_FUNCTIONS, Functions, check_options
from dare_bench.training.rollout_engine import check_rollout_engine
from dare_bench.training.spec import TrainSpec

NOTES = """\
assumed: rows of the mean length, which take all forwards of their sampler; products of bfloat16; {}
not counted: rewards, loading, evaluation, the optimizer's time, exchanges of sequence parallelism, slower links between
machines; CUDA context, fragmentation, buffers of collectives, what a quantized base saves"""


@dataclass
class StepEstimate:
    """What an optimizer step needs of each device, by ``spec`` with the defaults of its method; of a ``model`` without
    weights."""

    spec: TrainSpec
    gpu: Gpu
    processes: int
    model: Any
    rows: SampledRows
    method: Any

    def __post_init__(self) -> None:
        spec = self.spec
        self.adapter = AdapterSettings(*spec.lora, spec.seed) if spec.peft else None
        self.parameters, self.trained = parameters(self.model, self.adapter)
        dtype = spec.dtype or ("auto" if spec.peft else "float32")
        self.dtype: torch.dtype = getattr(torch, self.model.spec.dtype if dtype == "auto" else dtype)
        self.read = torch.bfloat16 if spec.bf16 and spec.fsdp else self.dtype  # FSDP gathers bfloat16
        groups = self.processes // spec.sequence_parallel_size
        self.items = spec.rows_per_forward * spec.gradient_accumulation_steps * groups
        self.steps = spec.steps(self.rows.count * self.method.uses_of_item, self.items)
        without_adapter = spec.peft and not spec.adapter and self.method.reference is None
        self.second_network = self.method.wants_reference and not without_adapter
        self._rehearse(groups)

    def _rehearse(self, groups: int) -> None:
        """Take steps of one of the ``groups`` of processes, each with other rows, from the method's source: the masked
        copies of a step, and forwards of single rows without gradients, means over the steps on a rollout."""
        spec, method, accumulated = self.spec, self.method, self.spec.gradient_accumulation_steps
        shape: Any = SimpleNamespace(
            items=spec.rows_per_forward, accumulate=accumulated, processes=groups, sequence=1, items_per_step=self.items
        )
        policy = RehearsedPolicy(self.model, groups, spec.max_steps or 1)
        source = method.source(self.rows.alike(self.items, policy.token), shape, spec.seed)
        source.prompts = range(self.items)  # instead of those that a method chooses by its first answers
        source.attach(policy)
        iterations, first = int(getattr(method.options, "num_iterations", 1)), source.step(0)
        self.copies, count = first.copies, len(first.copies)
        self.forwards = max(accumulated, ceil(count / (spec.micro_batch_size or count)))
        with_reference = method.wants_reference and not self.second_network
        apart = (self.forwards > 1 or with_reference) and not method.sums_over_copies
        scored = float(policy.scored)
        for step, times in (first, 1), (source.step(iterations - 1), iterations - 1):
            scored += times * len(step.copies) * (method.wants_reference + (apart and method.needs_values(step)))
        self.scored, self.sampled, self.request = scored / iterations, policy.sampled / iterations, policy.request

    @cached_property
    def phases(self) -> dict[str, Trace]:
        """The phases that the step has."""
        spec, others, shared = self.spec, 1 - 1 / self.processes, self.spec.sequence_parallel_size
        gathered, phases = self.parameters * self.read.itemsize * spec.fsdp * others, dict[str, Trace]()
        if self.request is not None:  # rows_per_forward completions at a time
            rows = min(spec.rows_per_forward, ceil(spec.rows_per_forward * spec.gradient_accumulation_steps / shared))
            _, one = answering(self.model, self.read, rows, self.request, spec.bf16)
            phases["rollout"] = one.scaled(self.sampled / shared / rows, gathered)
        if self.scored:
            phases["score"] = self._of_copies(self.scored, gathered)
        scattered = spec.fsdp and self.forwards == 1  # otherwise gradients are accumulated whole
        how = {"backward": True, "checkpointing": spec.gradient_checkpointing, "scattered": scattered}
        update = self._of_copies(len(self.copies), 2 * gathered, **how)
        gradients = self.trained * 4 * others * (1 if spec.fsdp else 2)  # FSDP scatters them, DDP sends them twice
        return {**phases, "update": replace(update, received=update.received + gradients)}

    def _of_copies(self, rows: float, received: float, **how: bool) -> Trace:
        """Forwards of so many masked copies in all, each of which receives so many bytes."""
        spec, most = self.spec, ceil(len(self.copies) / self.forwards)
        given, how = self.method.inputs(self.copies.take(range(most))[0]), {"autocast": spec.bf16, **how}
        one = traced(self.model, self.read, given.plan, len(given.at_N), losses=True, adapter=self.adapter, **how)
        return one.scaled(rows / most, received, spec.sequence_parallel_size)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each phase."""
        return {name: self.gpu.seconds(cost) for name, cost in self.phases.items()}

    @property
    def held(self) -> dict[str, float]:
        """Bytes that a device holds throughout."""
        spec, several, weights = self.spec, self.processes > 1, self.parameters * self.dtype.itemsize
        share = 1 / self.processes if spec.fsdp else 1.0
        trained = self.trained * share * (4 if spec.peft else self.dtype.itemsize)
        # Gradients of a single forward without FSDP are traced with its backward; DDP reduces copies of them.
        gradients = (spec.fsdp or self.forwards > 1) + (several and not spec.fsdp)
        held = {"weights": weights * share + trained * bool(spec.peft), "gradients": trained * gradients}
        held["optimizer"] = 2 * trained
        return {**held, "reference": float(weights)} if self.second_network else held

    @property
    def needed(self) -> dict[str, float]:
        """Bytes that a device needs in each phase, and while the model is opened."""
        arch, fsdp, throughout = self.model.network.arch, self.spec.fsdp, sum(self.held.values())
        if fsdp:  # two layers and the LM head are gathered
            head = arch.width * arch.vocab
            throughout += (2 * (self.parameters - 2 * head) / arch.layers + head) * self.read.itemsize
        loading = {"loading": self.parameters * self.dtype.itemsize * (1 + fsdp / self.processes)}
        return loading | {name: throughout + cost.peak for name, cost in self.phases.items()}

    @property
    def fits(self) -> bool:
        """Does a device have the memory? Nothing is traced where what it holds throughout is too much."""
        memory = self.gpu.memory_gb * 1e9
        return sum(self.held.values()) <= memory and max(self.needed.values()) <= memory

    @property
    def about(self) -> str:
        """The size of a step, in words."""
        kind = "items with rows" if self.request is None else "completions in rows"
        rows = f"{mean(self.copies.batch.lengths):.0f} tokens ({self.rows.source})"
        counts = f"rollout {self.sampled:,.6g}, score {self.scored:,.6g}, update {len(self.copies):,}"
        return f"{self.items} {kind} of {rows}; forwards of a device: {counts}"

    def text(self) -> str:
        """The estimate in lines."""
        spec, seconds, memory = self.spec, self.seconds, (self.held, self.needed)
        phase, peak = max(self.needed.items(), key=lambda item: item[1])
        held, needed = (", ".join(f"{name} {value / 1e9:.2f}" for name, value in part.items()) for part in memory)
        return (
            f"{spec.method} on {self.processes} x {self.gpu.name}: an estimate from traced code, not a measurement\n"
            f"{spec.model}: {self.parameters:,} parameters, {self.trained:,} trained\n"
            f"a step: {self.about} in {self.forwards:,} forward(s)\n"
            f"GB held by a device: {held}; needed by it in {needed}\n"
            f"peak in {phase}: {peak / 1e9:.3g} GB of {self.gpu.memory_gb:g}; {self.advice()}\n"
            f"seconds of a step: {', '.join(f'{name} {value:.3g}' for name, value in seconds.items())}; "
            f"{self.steps:,} steps {duration(self.steps * sum(seconds.values()))}\n{NOTES.format(self.gpu.text)}"
        )

    def advice(self) -> str:
        """Does it fit, or with which change?"""
        if (changes := self.least_changes()) is None:
            return "it does not fit; give more processes with --fsdp or --sequence-parallel-size, or a larger GPU"
        flags = (f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}" for name, value in changes.items())
        return f"it does not fit; it fits with {' '.join(flags)}" if changes else "it fits"

    def least_changes(self) -> dict[str, Any] | None:
        """The smallest change of the settings with which the training fits; None if none is known. First those that
        leave the result as it is, then few changes, then large micro-batches: halves of all copies, and so on."""
        smallest = min(self.dtype.itemsize, getattr(torch, self.model.spec.dtype).itemsize)
        if self.parameters * smallest > self.gpu.memory_gb * 1e9:  # its weights alone, whatever else changes
            return None
        sizes = [len(self.copies) >> n for n in range(1, len(self.copies).bit_length())]
        values: dict[str, list[Any]] = {
            "gradient_checkpointing": [True],
            "fsdp": [True] * (self.processes > 1),
            "bf16": [True],
        }
        values |= {"peft": ["lora"], "micro_batch_size": sizes}
        ways = [[{}, *({name: value} for value in some)] for name, some in values.items()]
        several = [{n: v for way in some for n, v in way.items()} for some in product(*ways)]
        several.sort(
            key=lambda some: (len(some.keys() & {"bf16", "peft"}), len(some), -some.get("micro_batch_size", inf))
        )
        fitting = (some for some in several if replace(self, spec=self.spec.model_copy(update=some)).fits)
        return next(fitting, None)


def estimate(
    spec: TrainSpec, processes: int = 1, gpu: str = "H100", functions: Functions = NO_FUNCTIONS
) -> StepEstimate:
    """Estimate a training without its weights and without a GPU, on ``processes`` which have one each. ``functions``:
    rewards that are not registered.

    Raises:
        UsageError: an unknown GPU, or settings that the training would refuse.
        CheckpointError: nothing is known of the checkpoint, or the training would refuse it.
        DataError: rows that the training would refuse.
    """
    kind = registry().get("trainer", spec.method).load()
    if gpu not in GPUS:
        raise unknown("GPU", gpu, GPUS)
    if spec.fsdp and processes == 1:
        raise UsageError("fsdp shards a model over several processes, and this is one; give --processes N")
    if not hasattr(kind, "source"):
        raise UsageError(f"{spec.method} does not train by dare-bench's loop, so it cannot be estimated")
    groups = data_parallel_size(spec.sequence_parallel_size, processes)
    model, spec = find(spec.model, spec.family), spec.with_defaults(kind)
    check_heads(model.spec, spec.sequence_parallel_size)
    rows = rows_of(spec, kind.reads, model)
    method = kind(kind.settle(spec.options, model.spec), model.spec, rows.some.canvas)
    if records := rows.some.records:
        check_options(records, method.options.reward, weights=method.options.reward_weights, functions=functions)
    if method.reference is not None:
        here(method.reference)  # raises CheckpointError
    check_rollout_engine(method.options)
    method.check_sizes(spec, rows.some, groups)
    return StepEstimate(spec, GPUS[gpu], processes, model, rows, method)
