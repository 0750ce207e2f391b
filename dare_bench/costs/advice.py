"""What ``train --dry-run`` says of an optimizer step, and the smallest change with which a training fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from dare_bench.costs.training import StepEstimate
from dare_bench.formatting import duration

FLAGS = {
    "gradient_checkpointing": "--gradient-checkpointing", "fsdp": "--fsdp", "bf16": "--bf16", "peft": "--peft {}",
    "micro_batch_size": "--micro-batch-size {}",
}  # fmt: skip
"""The settings that save memory, as a user gives them."""
NOT_COUNTED = (
    "rewards, loading, evaluation, the optimizer's time, exchanges of sequence parallelism; CUDA context, "
    "fragmentation, buffers of collectives"
)


def text(step: StepEstimate) -> str:
    """The estimate in lines."""
    spec, (parameters, trained), (phase, peak) = step.spec, step.parameters, step.peak
    where = f"a group of {spec.sequence_parallel_size} devices" if spec.sequence_parallel_size > 1 else "a device"
    copies = f"{len(step.rehearsal.copies):,} masked copies in {step.rehearsal.forwards(spec):,} forward(s)"
    lines = [
        f"{spec.method} on {step.processes} x {step.gpu.name}: an estimate from traced code, not a measurement",
        f"{spec.model}: {parameters:,.0f} parameters, {trained:,.0f} trained",
        f"a step: {step.about}; on {where} {copies}",
        f"GB held by a device: {_gigabytes(step.held)}; needed by it in {_gigabytes(step.needed)}",
        f"peak in {phase}: {peak / 1e9:.3g} GB of {step.gpu.memory_gb:g}; "
        + ("it fits" if step.fits else f"it does not fit; {advice(step)}"),
    ]
    if step.seconds is not None:
        each = ", ".join(f"{k} {v:.3g}" for k, v in step.seconds.items())
        total = duration(step.steps * sum(step.seconds.values()))
        lines.append(f"seconds of a step: {each}; {step.steps:,} steps {total}")
    return "\n".join([*lines, *(f"assumed: {note}" for note in assumed(step)), f"not counted: {NOT_COUNTED}"])


def _gigabytes(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value / 1e9:.2f}" for name, value in parts.items())


def assumed(step: StepEstimate) -> Iterator[str]:
    """The assumptions."""
    yield f"rows of the mean length ({step.rows.source}); {step.gpu.text}"
    if step.rehearsal.request is not None:
        yield "every completion takes the most forwards of its sampler, and has a gradient"
    if step.spec.quantize:
        yield f"the base takes the memory of its dtype: that it is held in {step.spec.quantize} is not counted"
    if step.seconds is None:
        yield "no time: products are float32 (give --bf16), and the data sheets' rates are of bfloat16"
    if step.processes > 8:
        yield f"the links between machines are as fast as in one; all {step.processes} GPUs are counted as if in it"


def advice(step: StepEstimate) -> str:
    """What to change so that the training fits into memory."""
    if (changes := least_changes(step)) is None:
        return "give more processes with --fsdp or --sequence-parallel-size, or a larger GPU"
    return f"it fits with {' '.join(FLAGS[name].format(value) for name, value in changes.items())}"


def least_changes(step: StepEstimate) -> dict[str, Any] | None:
    """The smallest change of the settings with which the training fits; None if none is known. First those that leave
    the result as it is, then few changes. A micro-batch is the largest of all masked copies halved again and again."""
    values = {"gradient_checkpointing": True, "fsdp": True, "bf16": True, "peft": "lora", "micro_batch_size": 1}
    unused = [(name, value) for name, value in values.items() if getattr(step.spec, name) != value]
    several = (dict(some) for count in range(len(unused) + 1) for some in combinations(unused, count))
    for changes in sorted(several, key=lambda some: (len(some.keys() & {"bf16", "peft"}), len(some))):
        if ("fsdp" in changes and step.processes == 1) or not step.changed(changes).fits:
            continue
        if "micro_batch_size" not in changes:
            return changes
        copies = len(step.rehearsal.copies)
        halved = ({**changes, "micro_batch_size": copies >> n} for n in range(1, copies.bit_length()))
        return next(smaller for smaller in halved if step.changed(smaller).fits)
    return None
