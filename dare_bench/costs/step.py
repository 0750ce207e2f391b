"""One optimizer step on given devices: the memory of each by part and the seconds of each phase (``train --dry-run``).

The seconds of a phase are the largest of three times, which overlap: operations (as ``training.py`` counts them), reads
of the weights, and what FSDP or DDP send, each at a share of the GPU's peak. The exchanges of sequence parallelism do
not overlap with them: attention waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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
from dare_bench.engine.progress import duration
from dare_bench.errors import CheckpointError, UsageError, suggestion
from dare_bench.registry import registry
from dare_bench.training.processes import check_heads, data_parallel_size
from dare_bench.training.spec import TrainSpec

FLAGS = {
    "gradient_checkpointing": "--gradient-checkpointing", "fsdp": "--fsdp", "bf16": "--bf16", "peft": "--peft {}",
    "looks_per_forward": "--looks-per-forward {}",
}  # fmt: skip
"""The settings that save memory, as a user gives them."""
MACHINE = 8
"""Assumed number of GPUs whose links are those of one machine."""
NOT_COUNTED = "rewards, optimizer, loading, evaluation; CUDA context, fragmentation, buffers of collectives"


@dataclass(frozen=True)
class StepEstimate:
    """What an optimizer step needs on each GPU. What is None is unknown, and ``unknown`` says why.

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
    def advice(self) -> str:
        """The least change of the settings with which the training fits into memory; empty if it does."""
        if self.fits() or self.training.division is None:
            return ""
        # First what leaves the result as it is, then few changes.
        for changes in sorted(self._changes(), key=lambda c: (len(c.keys() & {"bf16", "peft"}), len(c))):
            changed = replace(self.training, spec=self.training.spec.model_copy(update=changes))
            if replace(self, training=changed).fits():
                return f"it fits with {' '.join(FLAGS[name].format(value) for name, value in changes.items())}"
        return "give more processes with --fsdp or --sequence-parallel-size, or a larger GPU"

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

    @property
    def assumed(self) -> Iterator[str]:
        """The assumptions."""
        rows, gpu = self.training.rows, self.gpu
        yield from self.training.size.notes
        yield f"rows of {rows.tokens:.0f} tokens ({rows.source})"
        peaks = f"{gpu.tflops:g} TFLOP/s bfloat16, memory {gpu.tb_per_s:g} TB/s, links {gpu.link_gb_per_s:g} GB/s"
        yield f"{UTILIZATION:.0%} of the {gpu.name}'s data sheet: {peaks}"
        yield "2 N operations per token of a forward, 6 N of the update (LoRA 4 N), without attention"
        if rows.samples and rows.forwards is not None:
            forwards = f"{rows.forwards[0] * rows.iterations:,.0f}, for {rows.iterations} optimizer steps"
            yield f"every completion takes the most forwards of its sampler ({forwards}) and has a gradient"

    @property
    def unknown(self) -> Iterator[str]:
        """What cannot be known."""
        training, spec, size = self.training, self.training.spec, self.training.size
        if size.dimensions is None:
            yield f"the memory of {spec.model}, whose network is not one of ours"
        elif training.trained is None:
            yield f"the adapter: its targets {','.join(spec.lora_targets)} are not attention, mlp or router"
        if spec.adapter:
            yield f"rank and targets of {spec.adapter}; those of --lora-r and --lora-targets are counted"
        if self.seconds is None:
            yield "seconds: products are float32 (give --bf16), and the data sheets' rates are of bfloat16"
        elif spec.peft and not spec.bf16:
            yield "the time of the adapter's float32 products, which run below the bfloat16 rate; --bf16 avoids them"
        if training.processes > MACHINE:
            yield f"the links between machines; all {training.processes} GPUs are counted as if in one"

    def plain(self) -> dict[str, Any]:
        """The JSON record: bytes, seconds."""
        training, memory, rollout = self.training, self.memory, self.rollout
        return {
            "method": training.spec.method,
            "model": training.spec.model,
            "gpu": asdict(self.gpu),
            "processes": training.processes,
            "parameters": training.size.parameters,
            "trained": training.trained,
            "steps": self.steps,
            "division": None if training.division is None else asdict(training.division),
            "memory": None if memory is None else {**asdict(memory), "peak": memory.needed(memory.peak)},
            "fits": self.fits() if memory is not None else None,
            "seconds": self.seconds,
            "rollout": None
            if rollout is None
            else {
                **asdict(rollout),
                "in_place": rollout.in_place,
                "sending": rollout.sending,
                "pays_from": rollout.pays_from,
                "at_peak": self.at_peak,
            },
            "assumed": list(self.assumed),
            "unknown": list(self.unknown),
        }

    def text(self) -> str:
        """The estimate in lines."""
        training = self.training
        where = f"{training.processes} x {self.gpu.name}"
        lines = [f"{training.spec.method} on {where}: an estimate from the settings, not a measurement"]
        if training.size.parameters is not None:
            trained = "" if training.trained is None else f", {training.trained:,.0f} trained"
            lines.append(f"{training.spec.model}: {training.size.parameters:,.0f} parameters{trained}")
            lines += [*self._division(), *self._memory(), *self._seconds()]
            lines += [f"assumed: {note}" for note in self.assumed]
        return "\n".join([*lines, *(f"unknown: {note}" for note in self.unknown), f"not counted: {NOT_COUNTED}"])

    def _division(self) -> Iterator[str]:
        rows, one = self.training.rows, self.training.division
        if one is not None:
            kind = "completions in rows of about" if rows.samples else "items with rows of"
            forwards = f"{one.forwards} forward{'s' if one.forwards > 1 else ''} of at most {one.tokens:,.0f} tokens"
            yield f"a step: {one.items * self.training.groups} {kind} {rows.tokens:.0f} tokens"
            together = self.training.sequence
            where, each = ("a device", "") if together == 1 else (f"a group of {together} devices", " on each")
            yield f"  on {where} {one.items}, {one.looks:,.0f} masked copies in {forwards}{each}"

    def _memory(self) -> Iterator[str]:
        if (memory := self.memory) is None:
            return
        yield "memory of a device in GB"
        for name, parts in {"always": memory.held, **memory.phases}.items():
            known = sum(value or 0.0 for value in parts.values()) / 1e9
            each = (f"{part} {'unknown' if b is None else f'{b / 1e9:.2f}'}" for part, b in parts.items())
            yield f"  {name:<10}{known:8.2f}: {', '.join(each)}"
        peak = f"{memory.needed(memory.peak) / 1e9:.3g} GB of {self.gpu.memory_gb:g}"
        fits = "it fits" if self.fits() else f"it does not fit; {self.advice}"
        yield f"  peak in {memory.peak}: {peak}; {fits}"

    def _seconds(self) -> Iterator[str]:
        if self.seconds is None:
            return
        step = sum(self.seconds.values())
        phases = ", ".join(f"{phase} {seconds:.3g}" for phase, seconds in self.seconds.items())
        yield f"seconds of a step: {phases}; {step:.3g} in all, {self.steps:,} steps {duration(self.steps * step)}"
        if self.rollout is not None:
            yield from self._served(self.rollout, self.seconds["rollout"], step)

    @property
    def _can_be_served(self) -> bool:
        """Can an engine that there is sample for this method and model?"""
        method, model = registry().get("trainer", self.training.spec.method).load(), self.training.size.model
        return model is not None and model.spec.block_length is not None and getattr(method, "reads_tokens_only", False)

    def _served(self, rollout: DeviceRollout, in_place: float, step: float) -> Iterator[str]:
        least = rollout.pays_from
        engine = "never pays" if least is None else f"pays if it is at least {least:.4g} times as fast"
        flag = " (--rollout-engine)" if self._can_be_served else ""
        yield f"rollout in place: {in_place:.3g} s of {step:.3g} s per step; a served engine{flag} {engine}"
        sent = f"{rollout.weight_bytes / 1e9:.1f} GB of weights take {rollout.sending:.2g} s to send, once a rollout"
        yield f"  ({sent}; at the GPU's peak rate the same operations are {self.at_peak:.3g} times as fast)"
        if self.speedup is not None:
            served = rollout.served(self.speedup) / self.training.rows.iterations
            count = rollout.completions_from(self.speedup)
            pays = "never pays" if count is None else f"pays if a device samples {ceil(count):,} or more completions"
            yield f"  at a speed-up of {self.speedup:g}: {step - in_place + served:.3g} s per step; it {pays}"


def estimate(spec: TrainSpec, processes: int = 1, gpu: str = "H100", speedup: float | None = None) -> StepEstimate:
    """Estimate a training without its weights and without a GPU.

    Args:
        processes: each with its GPU.
        speedup: of a served engine over the rollout in place, as measured elsewhere.

    Raises:
        UsageError: an unknown GPU, or settings that the training would refuse.
        CheckpointError: nothing is known of the checkpoint, or the training would refuse it.
        DataError: rows that the training would refuse.
    """
    device, method = gpu_named(gpu), registry().get("trainer", spec.method).load()
    if spec.fsdp and processes == 1:
        raise UsageError("fsdp shards a model over several processes, and this is one; give --processes N")
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
    return StepEstimate(DeviceTraining(spec, rows_of(spec, size.model, groups), size, processes), device, speedup)
