"""What ``train --dry-run`` says of an optimizer step: its text, and its JSON record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import ceil
from typing import Any

from dare_bench.costs.memory import DeviceMemory, DeviceTraining, Division
from dare_bench.costs.recipe import UTILIZATION
from dare_bench.costs.serving import DeviceRollout
from dare_bench.costs.step import StepEstimate
from dare_bench.costs.training import Phase
from dare_bench.engine.progress import duration
from dare_bench.registry import registry

FLAGS = {
    "gradient_checkpointing": "--gradient-checkpointing", "fsdp": "--fsdp", "bf16": "--bf16", "peft": "--peft {}",
    "looks_per_forward": "--looks-per-forward {}",
}  # fmt: skip
"""The settings that save memory, as a user gives them."""
MACHINE = 8
"""Assumed number of GPUs whose links are those of one machine."""
NOT_COUNTED = "rewards, optimizer, loading, evaluation; CUDA context, fragmentation, buffers of collectives"


def text(step: StepEstimate) -> str:
    """The estimate in lines."""
    training, size = step.training, step.training.size
    where = f"{training.processes} x {step.gpu.name}"
    lines = [f"{training.spec.method} on {where}: an estimate from the settings, not a measurement"]
    if size.parameters is not None:
        trained = "" if training.trained is None else f", {training.trained:,.0f} trained"
        lines.append(f"{training.spec.model}: {size.parameters:,.0f} parameters{trained}")
        if training.division is not None:
            lines += _division(training, training.division)
        if step.memory is not None:
            lines += _memory(step, step.memory)
        if step.seconds is not None:
            lines += _seconds(step, step.seconds)
        lines += [f"assumed: {note}" for note in assumed(step)]
    return "\n".join([*lines, *(f"unknown: {note}" for note in unknown(step)), f"not counted: {NOT_COUNTED}"])


def record(step: StepEstimate) -> dict[str, Any]:
    """The JSON record: bytes, seconds."""
    training, memory = step.training, step.memory
    return {
        "method": training.spec.method,
        "model": training.spec.model,
        "gpu": asdict(step.gpu),
        "processes": training.processes,
        "parameters": training.size.parameters,
        "trained": training.trained,
        "steps": step.steps,
        "division": None if training.division is None else asdict(training.division),
        "memory": None if memory is None else {**asdict(memory), "peak": memory.needed(memory.peak)},
        "fits": step.fits() if memory is not None else None,
        "seconds": step.seconds,
        "rollout": None if step.rollout is None else _rollout_record(step.rollout, step.at_peak),
        "assumed": list(assumed(step)),
        "unknown": list(unknown(step)),
    }


def _rollout_record(rollout: DeviceRollout, at_peak: float | None) -> dict[str, Any]:
    derived = {"in_place": rollout.in_place, "sending": rollout.sending, "pays_from": rollout.pays_from}
    return {**asdict(rollout), **derived, "at_peak": at_peak}


def advice(step: StepEstimate) -> str:
    """What to change so that the training fits into memory; empty if it does."""
    if step.fits():
        return ""
    if (changes := step.least_changes) is None:
        return "give more processes with --fsdp or --sequence-parallel-size, or a larger GPU"
    return f"it fits with {' '.join(FLAGS[name].format(value) for name, value in changes.items())}"


def assumed(step: StepEstimate) -> Iterator[str]:
    """The assumptions."""
    rows, gpu = step.training.rows, step.gpu
    yield from step.training.size.notes
    yield f"rows of {rows.tokens:.0f} tokens ({rows.source})"
    peaks = f"{gpu.tflops:g} TFLOP/s bfloat16, memory {gpu.tb_per_s:g} TB/s, links {gpu.link_gb_per_s:g} GB/s"
    yield f"{UTILIZATION:.0%} of the {gpu.name}'s data sheet: {peaks}"
    yield "2 N operations per token of a forward, 6 N of the update (LoRA 4 N), without attention"
    if rows.samples and rows.forwards is not None:
        forwards = f"{rows.forwards[0] * rows.iterations:,.0f}, for {rows.iterations} optimizer steps"
        yield f"every completion takes the most forwards of its sampler ({forwards}) and has a gradient"


def unknown(step: StepEstimate) -> Iterator[str]:
    """What cannot be known."""
    training, spec, size = step.training, step.training.spec, step.training.size
    if size.dimensions is None:
        yield f"the memory of {spec.model}, whose network is not one of ours"
    elif training.trained is None:
        yield f"the adapter: its targets {','.join(spec.lora_targets)} are not attention, mlp or router"
    if spec.adapter:
        yield f"rank and targets of {spec.adapter}; those of --lora-r and --lora-targets are counted"
    if step.seconds is None:
        yield "seconds: products are float32 (give --bf16), and the data sheets' rates are of bfloat16"
    elif spec.peft and not spec.bf16:
        yield "the time of the adapter's float32 products, which run below the bfloat16 rate; --bf16 avoids them"
    if training.processes > MACHINE:
        yield f"the links between machines; all {training.processes} GPUs are counted as if in one machine"


def _division(training: DeviceTraining, division: Division) -> Iterator[str]:
    rows, together = training.rows, training.sequence
    kind = "completions in rows of about" if rows.samples else "items with rows of"
    forwards = (
        f"{division.forwards} forward{'s' if division.forwards > 1 else ''} of at most {division.tokens:,.0f} tokens"
    )
    yield f"a step: {division.items * training.groups} {kind} {rows.tokens:.0f} tokens"
    where, each = ("a device", "") if together == 1 else (f"a group of {together} devices", " on each")
    yield f"  on {where} {division.items}, {division.looks:,.0f} masked copies in {forwards}{each}"


def _memory(step: StepEstimate, memory: DeviceMemory) -> Iterator[str]:
    yield "memory of a device in GB"
    for name, parts in {"always": memory.held, **memory.phases}.items():
        known = sum(value or 0.0 for value in parts.values()) / 1e9
        each = (f"{part} {'unknown' if b is None else f'{b / 1e9:.2f}'}" for part, b in parts.items())
        yield f"  {name:<10}{known:8.2f}: {', '.join(each)}"
    peak = f"{memory.needed(memory.peak) / 1e9:.3g} GB of {step.gpu.memory_gb:g}"
    fits = "it fits" if step.fits() else f"it does not fit; {advice(step)}"
    yield f"  peak in {memory.peak}: {peak}; {fits}"


def _seconds(step: StepEstimate, seconds: Mapping[Phase, float]) -> Iterator[str]:
    total = sum(seconds.values())
    phases = ", ".join(f"{phase} {value:.3g}" for phase, value in seconds.items())
    yield f"seconds of a step: {phases}; {total:.3g} in all, {step.steps:,} steps {duration(step.steps * total)}"
    if step.rollout is not None:
        yield from _served(step, step.rollout, seconds["rollout"], total)


def _served(step: StepEstimate, rollout: DeviceRollout, in_place: float, total: float) -> Iterator[str]:
    least = rollout.pays_from
    engine = "never pays" if least is None else f"pays if it is at least {least:.4g} times as fast"
    flag = " (--rollout-engine)" if _can_be_served(step.training) else ""
    yield f"rollout in place: {in_place:.3g} s of {total:.3g} s per step; a served engine{flag} {engine}"
    sent = f"{rollout.weight_bytes / 1e9:.1f} GB of weights take {rollout.sending:.2g} s to send, once a rollout"
    yield f"  ({sent}; at the GPU's peak rate the same operations are {step.at_peak:.3g} times as fast)"
    if step.speedup is not None:
        served = rollout.served(step.speedup) / step.training.rows.iterations
        count = rollout.completions_from(step.speedup)
        pays = "never pays" if count is None else f"pays if a device samples {ceil(count):,} or more completions"
        yield f"  at a speed-up of {step.speedup:g}: {total - in_place + served:.3g} s per step; it {pays}"


def _can_be_served(training: DeviceTraining) -> bool:
    """Can an engine that there is sample for this method and model?"""
    method, model = registry().get("trainer", training.spec.method).load(), training.size.model
    return model is not None and model.spec.block_length is not None and getattr(method, "reads_tokens_only", False)
