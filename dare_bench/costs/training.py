"""What a training computes.

Operations are 6 N for each token (forward 2 N, backward 4 N; with LoRA 4 N, since the weights need no gradients; one
forward more where activations are computed twice or a reference is queried), times two where the noisy and the clean
copy of a row both pass through the network (block-causal families). N are the parameters that a token uses. Attention,
the optimizer, loading and scoring are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.costs.recipe import GPUS, UTILIZATION
from dare_bench.costs.sizes import CheckpointSize, TrainingRows
from dare_bench.engine.progress import duration
from dare_bench.registry import registry
from dare_bench.training.spec import TrainSpec

GPU = GPUS["H100"]


@dataclass(frozen=True)
class WorkCost:
    """``forwards``: passes of rows, at most; ``flop``: operations; ``seconds``: on this machine; ``text`` says all that
    is known and on what it stands. What is not known is None."""

    text: str
    forwards: int | None = None
    flop: float | None = None
    seconds: float | None = None


def rows_trained_on(spec: TrainSpec, rows: TrainingRows) -> int:
    """Rows (pairs) of all optimizer steps together, on one device."""
    return spec.steps(rows.count, _batch(spec)) * _batch(spec)


def training_cost(
    spec: TrainSpec, rows: TrainingRows, size: CheckpointSize, seconds_per_row: float | None = None
) -> WorkCost:
    """What a training would cost.

    Args:
        seconds_per_row: of a step, where a training of this checkpoint was measured on this machine.
    """
    batch, total = _batch(spec), rows_trained_on(spec, rows)
    # Rows that the network reads: both of a pair, both copies where it trains block-causally, every noised copy.
    read = total * rows.of_item * (2 if size.two_copies else 1) * int(spec.options.get("draws") or 1)
    text = f"{total // batch:,} steps of {batch} rows of {rows.tokens:.0f} tokens ({rows.source})"
    if size.active is None:
        return WorkCost(f"{text}; the checkpoint is not on this machine, so no operations")
    flop = read * rows.tokens * size.active * _operations(spec)
    text += f", {round(read * rows.tokens):,} tokens through {round(size.active):,} parameters, {_si(flop)}FLOP"
    if seconds_per_row is not None:
        seconds, source = total * seconds_per_row, "as measured here"
    elif size.seconds_per_forward is not None:
        seconds, source = read * _operations(spec) / 2 * size.seconds_per_forward, "by forwards here"
    else:
        hours = flop / (GPU.tflops * 1e12 * UTILIZATION) / 3600
        return WorkCost(f"{text}, {hours:,.2f} GPU hours", flop=flop)
    return WorkCost(f"{text}, {duration(seconds)} ({source})", flop=flop, seconds=seconds)


def _batch(spec: TrainSpec) -> int:
    return spec.per_device_train_batch_size * spec.gradient_accumulation_steps


def _operations(spec: TrainSpec) -> int:
    """For each parameter and token: 2 forward; backward 4, or 2 where the weights need no gradients."""
    reference = getattr(registry().get("trainer", spec.method).load(), "wants_reference", False)
    return 2 + (2 if spec.peft else 4) + (2 if spec.gradient_checkpointing else 0) + (2 if reference else 0)


def _si(value: float) -> str:
    """``1.3 G``: three digits and a prefix."""
    prefixes = iter(("", "k", "M", "G", "T", "P", "E"))
    prefix = next(prefixes)
    while value >= 1000 and prefix != "E":
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g} {prefix}"
