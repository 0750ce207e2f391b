"""One optimizer step of a training on given devices: memory and seconds, by tracing each phase that the step has.

With FSDP over n processes each holds 1/n of weights, gradients and optimizer, and gathers two layers and the LM head at
a time; a reference that is a second network is not sharded. Sequence parallelism divides what rows need. AdamW has two
moments of each trained number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from statistics import mean
from typing import Any

import torch

from dare_bench.costs.checkpoint import Network, find
from dare_bench.costs.gpus import Gpu, gpu_named
from dare_bench.costs.recipe import decoding
from dare_bench.costs.rehearsal import Rehearsal, SampledRows, rehearse, rows_of
from dare_bench.costs.trace import Trace, answering, parameters, shapes_in, training
from dare_bench.errors import UsageError, unknown
from dare_bench.loading import here, refuse_untrainable
from dare_bench.protocols import AdapterSettings
from dare_bench.registry import registry
from dare_bench.training.processes import check_heads, data_parallel_size
from dare_bench.training.rewards import NO_FUNCTIONS, Functions, check_options
from dare_bench.training.rollout_engine import check_rollout_engine
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Request

DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""


@dataclass(frozen=True)
class Phase:
    """``rows``: forwards of a step, counted per row; ``passes``: forwards; ``flop``, ``moved``: operations and bytes of
    all; ``peak``: bytes that one needs besides what is held."""

    rows: float
    passes: float
    flop: float
    moved: float
    peak: float


def _phase(rows: float, passes: float, parts: Sequence[tuple[Trace, float]], shared: int = 1) -> Phase:
    """A phase of some kinds of forwards, each with its share of them; ``shared`` devices compute one together."""
    flop, moved = (passes / shared * sum(getattr(one, of) * n for one, n in parts) for of in ("flop", "moved"))
    return Phase(rows, passes, flop, moved, max(one.peak for one, _ in parts) / shared)


@dataclass(frozen=True)
class StepEstimate:
    """What an optimizer step needs of each device. ``spec`` has the defaults of its method; ``rehearsal``: a
    step of the method's source."""

    spec: TrainSpec
    gpu: Gpu
    processes: int
    network: Network
    rows: SampledRows
    method: Any
    rehearsal: Rehearsal

    @property
    def adapter(self) -> AdapterSettings | None:
        return AdapterSettings(*self.spec.lora, self.spec.seed) if self.spec.peft else None

    @property
    def dtypes(self) -> tuple[str, str]:
        """Of the weights as held, and as a forward reads them: FSDP gathers bfloat16; raises UnknownNameError."""
        held = self.spec.dtype or (self.network.dtype if self.spec.peft else "float32")
        if held not in DTYPES:
            raise unknown("dtype", held, DTYPES)
        return held, "bfloat16" if self.spec.bf16 and self.spec.fsdp else held

    @property
    def adapter_off(self) -> bool:
        """Is the reference, if there is one, the network in training with its adapter off?"""
        return bool(self.spec.peft and not self.spec.adapter and self.method.reference is None)

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """The phases that the step has."""
        spec, of = self.spec, self.rehearsal
        apart = of.forwards(spec) > 1 or (self.method.wants_reference and self.adapter_off)
        phases = {"rollout": self._rollout(of.request)} if of.request is not None else {}
        if scored := of.scored_apart if apart else of.scored:
            phases["score"] = self._of_copies(scored, backward=False)
        scattered = spec.fsdp and of.forwards(spec) == 1  # otherwise they are accumulated whole
        how = {"checkpointing": spec.gradient_checkpointing, "scattered": scattered}
        return {**phases, "update": self._of_copies(len(of.copies), backward=True, **how)}

    def _of_copies(self, rows: float, **how: bool) -> Phase:
        """Forwards of so many masked copies in all."""
        spec, copies, dtype = self.spec, self.rehearsal.copies, self.dtypes[1]
        most = ceil(len(copies) / self.rehearsal.forwards(spec))
        inputs = self.method.inputs(copies.take(range(most))[0])
        one = training(self.network, getattr(torch, dtype), self.adapter, shapes_in(inputs), autocast=spec.bf16, **how)
        return _phase(rows, rows / most, [(one, 1.0)], spec.sequence_parallel_size)

    def _rollout(self, request: Request) -> Phase:
        """The forwards of the sampler, ``rows_per_forward`` completions at a time."""
        spec, shared, dtype = self.spec, self.spec.sequence_parallel_size, getattr(torch, self.dtypes[1])
        rows = ceil(min(spec.rows_per_forward, spec.rows_per_forward * spec.gradient_accumulation_steps / shared))
        passes = list(decoding(self.network.model.sampler(request)[1], len(request.prompt)))
        total = sum(part.count for part in passes)
        parts = [
            (answering(self.network, dtype, rows, *part.sizes(2), spec.bf16), part.count / total) for part in passes
        ]
        return _phase(self.rehearsal.sampled / shared, self.rehearsal.sampled / shared / rows, parts)

    @property
    def parameters(self) -> tuple[float, float]:
        """Numbers of parameters: of the checkpoint, and those that are trained."""
        return parameters(self.network, self.adapter)

    @cached_property
    def held(self) -> dict[str, float]:
        """Bytes that a device holds throughout."""
        spec, (parameters, trained), size = self.spec, self.parameters, DTYPES[self.dtypes[0]]
        numbers, share = trained * (4 if spec.peft else size), 1 / self.processes if spec.fsdp else 1.0
        # Those of a single forward without FSDP are traced with its backward; DDP reduces copies of them.
        gradients = float(spec.fsdp or self.rehearsal.forwards(spec) > 1) + (self.processes > 1 and not spec.fsdp)
        held = {"weights": (parameters * size + (numbers if spec.peft else 0)) * share}
        held |= {"gradients": numbers * share * gradients, "optimizer": 2 * numbers * share}
        second = self.method.wants_reference and not self.adapter_off
        return held | ({"reference": parameters * size} if second else {})

    @cached_property
    def needed(self) -> dict[str, float]:
        """Bytes that a device needs in each phase, and while the model is opened."""
        (parameters, _), size, arch, fsdp = self.parameters, DTYPES[self.dtypes[0]], self.network.arch, self.spec.fsdp
        head = arch.width * arch.vocab
        gathered = (2 * (parameters - 2 * head) / arch.layers + head) * DTYPES[self.dtypes[1]] * fsdp
        loading = {"loading": parameters * size * (1 + fsdp / self.processes)}
        return loading | {name: sum(self.held.values()) + gathered + of.peak for name, of in self.phases.items()}

    @property
    def peak(self) -> tuple[str, float]:
        """The phase that needs most, and its bytes."""
        return max(self.needed.items(), key=lambda item: item[1])

    @property
    def fits(self) -> bool:
        """Does a device have the memory? Nothing is traced where what it holds throughout is too much."""
        memory = self.gpu.memory_gb * 1e9
        return sum(self.held.values()) <= memory and self.peak[1] <= memory

    @cached_property
    def seconds(self) -> Mapping[str, float] | None:
        """Seconds of each phase: operations, bytes of memory, and what FSDP or DDP send, whichever takes longest; None
        if products are not of 16 bits: the data sheets' rates are of bfloat16."""
        spec, (parameters, trained), others = self.spec, self.parameters, 1 - 1 / self.processes
        if not spec.bf16 and DTYPES[self.dtypes[0]] != 2:
            return None
        weights, seconds = parameters * DTYPES[self.dtypes[1]] * others * spec.fsdp, {}
        for name, of in self.phases.items():
            received = of.passes * weights
            if name == "update":  # the backward gathers weights again; FSDP scatters gradients, DDP sends them twice
                received = 2 * received + trained * 4 * others * (1 if spec.fsdp else 2)
            seconds[name] = self.gpu.seconds(of.flop, of.moved, received)
        return seconds

    @property
    def items(self) -> int:
        """Rows, pairs or completions of a step, on all devices."""
        groups = self.processes // self.spec.sequence_parallel_size
        return self.spec.rows_per_forward * self.spec.gradient_accumulation_steps * groups

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        return self.spec.steps(self.rows.count * self.method.uses_of_item, self.items)

    def changed(self, changes: Mapping[str, Any]) -> StepEstimate:
        """The same with other settings of the training."""
        return replace(self, spec=self.spec.model_copy(update=dict(changes)))

    @property
    def about(self) -> str:
        """The size of a step, in words."""
        kind = "completions in rows" if self.rehearsal.request is not None else "items with rows"
        return f"{self.items} {kind} of {mean(self.rehearsal.copies.batch.lengths):.0f} tokens"


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
    device, kind = gpu_named(gpu), registry().get("trainer", spec.method).load()
    if spec.fsdp and processes == 1:
        raise UsageError("fsdp shards a model over several processes, and this is one; give --processes N")
    if not hasattr(kind, "source"):
        raise UsageError(f"{spec.method} does not train by dare-bench's loop, so it cannot be estimated")
    if (folder := here(spec.model)) is not None:
        refuse_untrainable(folder, spec.family)
    groups = data_parallel_size(spec.sequence_parallel_size, processes)
    network, spec = find(spec.model, spec.family), spec.with_defaults(kind)
    model = network.model
    check_heads(model.spec, spec.sequence_parallel_size)
    rows = rows_of(spec, kind.reads, model)
    method = kind(kind.settle(spec.options, model.spec), model.spec, rows.some.canvas)
    if rows.some.records:
        check_options(
            rows.some.records, method.options.reward, weights=method.options.reward_weights, functions=functions
        )
    if method.reference is not None:
        here(method.reference)  # raises CheckpointError
    check_rollout_engine(method.options)
    method.check_sizes(spec, rows.some, groups)
    rehearsal = rehearse(method, spec, model, rows, groups)
    return StepEstimate(spec, device, processes, network, rows, method, rehearsal)
