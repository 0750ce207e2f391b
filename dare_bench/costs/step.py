"""One optimizer step on given devices: the memory of each by part and the seconds of each phase.

The seconds of a phase are the largest of three times, which overlap: operations (as ``training.py`` counts them), reads
of the weights, and what FSDP or DDP send, each at a share of the GPU's peak. The exchanges of sequence parallelism do
not overlap with them: attention waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import ceil
from typing import Any

from dare_bench import recipes
from dare_bench.costs.memory import DeviceMemory, DeviceTraining, memory_of
from dare_bench.costs.network import attention_widths
from dare_bench.costs.recipe import UTILIZATION, Gpu, gpu_named
from dare_bench.costs.serving import DeviceRollout
from dare_bench.costs.sizes import rows_of, size_of, tokenizing
from dare_bench.costs.training import Phase, PhaseWork, work_of
from dare_bench.errors import CheckpointError, UsageError, suggestion
from dare_bench.registry import registry
from dare_bench.training.processes import check_heads, data_parallel_size
from dare_bench.training.rewards import NO_FUNCTIONS, Functions
from dare_bench.training.spec import TrainSpec


@dataclass(frozen=True)
class StepEstimate:
    """What an optimizer step needs on each GPU. What is None is unknown; ``step_report`` says why.

    ``speedup``: of a served engine over the rollout in place, as stated.
    """

    training: DeviceTraining
    gpu: Gpu
    speedup: float | None = None

    @cached_property
    def memory(self) -> DeviceMemory | None:
        """The memory of a device."""
        return memory_of(self.training)

    @cached_property
    def work(self) -> Mapping[Phase, PhaseWork] | None:
        """The work of an item by phase."""
        return work_of(self.training.spec, self.training.rows, self.training.size)

    @cached_property
    def seconds(self) -> Mapping[Phase, float] | None:
        """Seconds of a device by phase, if products are of 16 bits: the data sheets' rates are of bfloat16."""
        training, division, work = self.training, self.training.division, self.work
        parameters, active, of = training.size.parameters, training.size.active, training.precision
        if division is None or work is None or parameters is None or active is None or of.products != 2:
            return None
        updates = work["update"].forwards
        batches = ceil(division.samples / training.spec.rows_per_forward)
        others = 1 - 1 / training.processes
        gathered = parameters * min(of.weights, of.stream) * others if training.spec.fsdp else 0.0
        # Gradients are reduced and scattered by FSDP, reduced and sent back by DDP.
        reduced = (training.trained or 0.0) * 4 * others * (1 if training.spec.fsdp else 2)
        seconds: dict[Phase, float] = {}
        for phase, part in work.items():
            calls = batches * part.forwards if phase == "rollout" else division.forwards * part.forwards / updates
            calls *= 2 if phase == "update" else 1  # the backward reads, and gathers, all weights again
            received = calls * gathered + (reduced if phase == "update" else 0.0)
            if part.forwards:
                share = division.samples if phase == "rollout" else division.items / training.sequence
                flop = share * part.flop(active)
                seconds[phase] = self.gpu.seconds(flop, calls * parameters * of.products, received)
                seconds[phase] += self.gpu.seconds(0.0, 0.0, share * part.tokens * self._exchanged(phase))
        return seconds

    def _exchanged(self, phase: Phase) -> float:
        """Bytes that a device receives for each of its tokens from those that compute the same rows: queries, keys and
        values, and the results of attention; in the update also their gradients, and recomputed values again. Each
        device samples alone."""
        training, net = self.training, self.training.size.dimensions
        if net is None or training.sequence == 1 or phase == "rollout":
            return 0.0
        passes = 1 if phase == "score" else 3 if training.spec.gradient_checkpointing else 2
        channels = 2 * attention_widths(net)[0] + 2 * training.exchanged(net)[0]
        return passes * net.layers * channels * training.precision.products * (1 - 1 / training.sequence)

    @cached_property
    def rollout(self) -> DeviceRollout | None:
        """The rollout of a device, with an engine on the same machine that gets all weights in bfloat16."""
        training, division, parameters = self.training, self.training.division, self.training.size.parameters
        if self.seconds is None or self.work is None or division is None or parameters is None:
            return None
        if "rollout" not in self.seconds:
            return None
        forwards = self.work["rollout"].forwards
        return DeviceRollout(
            completions=division.samples,
            forwards=forwards * training.rows.iterations,
            seconds_per_forward=self.seconds["rollout"] / division.samples / forwards,
            weight_bytes=parameters * 2,
            bandwidth=self.gpu.link_gb_per_s * 1e9 * UTILIZATION,
        )

    @property
    def at_peak(self) -> float | None:
        """How many times as fast the rollout's operations alone are at the peak of the GPU: no engine that does the
        same operations has a larger speed-up."""
        if self.rollout is None or self.work is None or self.training.size.active is None:
            return None
        flop = self.work["rollout"].flop(self.training.size.active) / self.work["rollout"].forwards
        return self.rollout.seconds_per_forward * self.gpu.tflops * 1e12 / flop

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        spec = self.training.spec
        batch = spec.rows_per_forward * spec.gradient_accumulation_steps * self.training.groups
        return spec.steps(self.training.rows.count, batch)

    def fits(self) -> bool:
        """Does the memory of the GPU suffice, as far as it is known?"""
        memory = self.memory
        return memory is None or memory.needed(memory.peak) <= self.gpu.memory_gb * 1e9

    @property
    def least_changes(self) -> dict[str, Any] | None:
        """The least change of the settings with which the training fits into memory; None if none is known."""
        if self.training.division is None:
            return None
        # First what leaves the result as it is, then few changes.
        for changes in sorted(self._changes(), key=lambda c: (len(c.keys() & {"bf16", "peft"}), len(c))):
            changed = replace(self.training, spec=self.training.spec.model_copy(update=changes))
            if replace(self, training=changed).fits():
                return changes
        return None

    def _changes(self) -> Iterator[dict[str, Any]]:
        """Changes of settings that save memory."""
        spec, division = self.training.spec, self.training.division
        looks = 0 if division is None else ceil(division.looks)
        limits = [{"looks_per_forward": looks // 2**halving} for halving in range(1, looks.bit_length())]
        switches: list[dict[str, Any]] = [{"gradient_checkpointing": True}, {"bf16": True}, {"peft": "lora"}]
        if self.training.processes > 1:
            switches.insert(1, {"fsdp": True})
        unused = [switch for switch in switches if not getattr(spec, *switch)]
        for limit in ({}, *limits):
            for count in range(len(unused) + 1):
                for chosen in combinations(unused, count):
                    yield {name: value for part in (*chosen, limit) for name, value in part.items()}


def estimate(
    spec: TrainSpec,
    processes: int = 1,
    gpu: str = "H100",
    speedup: float | None = None,
    functions: Functions = NO_FUNCTIONS,
) -> StepEstimate:
    """Estimate a training without its weights and without a GPU.

    Args:
        processes: each with its GPU.
        speedup: of a served engine over the rollout in place, as measured elsewhere.
        functions: rewards that are not registered.

    Raises:
        UsageError: an unknown GPU, or settings that the training would refuse.
        CheckpointError: nothing is known of the checkpoint, or the training would refuse it.
        DataError: rows that the training would refuse.
    """
    device, method = gpu_named(gpu), registry().get("trainer", spec.method).load()
    if spec.fsdp and processes == 1:
        raise UsageError("fsdp shards a model over several processes, and this is one; give --processes N")
    if (kind := spec.quantize or spec.model_args.get("quantize")) is not None:
        raise UsageError(
            f"quantize={kind!r}: the memory of a quantized base is not estimated; leave it out for that of full weights"
        )
    groups = data_parallel_size(spec.sequence_parallel_size, processes)
    size = size_of(spec.model, spec.family)
    if size.parameters is None:
        published = [recipes.load(name).model for name in registry().names("recipe")]
        raise CheckpointError(
            f"nothing to estimate from: the checkpoint {spec.model!r} is not on this machine, and no recipe has it"
            f"{suggestion(spec.model, published)}; give its folder, or a hub id of dare-bench ls recipes"
        )
    size.model = size.model or tokenizing(spec.model, spec.family)
    if size.model is not None:
        check_heads(size.model.spec, spec.sequence_parallel_size)
    spec = spec.with_defaults(method)
    rows = rows_of(spec, size.model, groups, functions)
    return StepEstimate(DeviceTraining(spec, rows, size, processes), device, speedup)
