"""The computation of a training.

Operations are 6 N per token (forward 2 N, backward 4 N; with LoRA 4 N in all, since the weights need no gradients;
2 N more with gradient checkpointing, and with a reference model), times two for block-causal families, which compute a
noisy and a clean copy of each row. N is the number of parameters that a token uses. Reinforcement learning adds 2 N for
each token of each forward of a rollout (block-causal families read a block, the others the whole row) and of passes
without gradients (old values, reference). Attention, the optimizer, loading, rewards and scoring are not counted.
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
    """``forwards``: maximum number of forward passes, counted per row; ``flop``: operations; ``seconds``: on this
    machine; ``text``: all of these with their sources. Unknown values are None."""

    text: str
    forwards: int | None = None
    flop: float | None = None
    seconds: float | None = None


def rows_trained_on(spec: TrainSpec, rows: TrainingRows) -> int:
    """Number of rows (pairs) in all optimizer steps on one device."""
    return spec.steps(rows.count, _batch(spec)) * _batch(spec)


def training_cost(
    spec: TrainSpec, rows: TrainingRows, size: CheckpointSize, seconds_per_flop: float | None = None
) -> WorkCost:
    """Estimate a training.

    Args:
        seconds_per_flop: as measured by trainings of this checkpoint on this machine.
    """
    if rows.forwards is not None:
        return _rollout_cost(spec, rows, rows.forwards, size, seconds_per_flop)
    if getattr(registry().get("trainer", spec.method).load(), "reads", None) == "prompts":
        return WorkCost("unknown: the forwards of a rollout follow from the checkpoint, which is not on this machine")
    batch, total = _batch(spec), rows_trained_on(spec, rows)
    # Rows in the network: both of a pair, both copies in block-causal training, every noised copy.
    read = total * rows.of_item * (2 if size.two_copies else 1) * int(spec.options.get("draws") or 1)
    text = f"{total // batch:,} steps of {batch} rows of {rows.tokens:.0f} tokens ({rows.source})"
    if size.active is None:
        return WorkCost(f"{text}; operations are unknown, the checkpoint is not on this machine")
    flop = read * rows.tokens * size.active * _operations(spec)
    text += f", {round(read * rows.tokens):,} tokens through {round(size.active):,} parameters"
    return _timed(text, flop, read * _operations(spec) / 2, size, seconds_per_flop)


def _rollout_cost(
    spec: TrainSpec,
    rows: TrainingRows,
    of_completion: tuple[float, float, float],
    size: CheckpointSize,
    seconds_per_flop: float | None,
) -> WorkCost:
    """Estimate a training that samples; its rows are completions."""
    batch, total = _batch(spec), rows_trained_on(spec, rows)
    sampled, scored, updated = (total * forwards for forwards in of_completion)
    per_step = " + ".join(f"{forwards:,.3g}" for forwards in of_completion)
    text = (
        f"{total // batch:,} steps of {batch} completions of at most {rows.tokens:.0f} tokens ({rows.source}); "
        f"forwards of each in a step: {per_step} (rollout + without gradients + update)"
    )
    forwards = round(sampled + scored + updated)
    if size.active is None:
        return WorkCost(f"{text}; operations are unknown, the checkpoint is not on this machine", forwards)
    copies = 2 if size.two_copies else 1
    block = size.model.spec.block_length if size.model is not None else None
    update = _operations(spec, reference=False)
    tokens = copies * (2 * scored + update * updated) * rows.tokens + 2 * sampled * (block or rows.tokens)
    equivalent = sampled + copies * (scored + update / 2 * updated)
    return _timed(text, tokens * size.active, equivalent, size, seconds_per_flop, forwards)


def _timed(
    text: str,
    flop: float,
    forwards: float,
    size: CheckpointSize,
    seconds_per_flop: float | None,
    counted: int | None = None,
) -> WorkCost:
    """The cost with its time: by measured trainings, else by ``forwards`` of a row here, else in GPU hours."""
    text += f", {_si(flop)}FLOP"
    if seconds_per_flop is not None:
        seconds, source = flop * seconds_per_flop, "at the speed of trainings measured here"
    elif size.seconds_per_forward is not None:
        seconds, source = forwards * size.seconds_per_forward, "by forwards here"
    else:
        hours = flop / (GPU.tflops * 1e12 * UTILIZATION) / 3600
        return WorkCost(f"{text}, {hours:,.2f} GPU hours", counted, flop)
    return WorkCost(f"{text}, {duration(seconds)} ({source})", counted, flop, seconds)


def _batch(spec: TrainSpec) -> int:
    spec = spec.with_defaults(registry().get("trainer", spec.method).load())
    return spec.rows_per_forward * spec.gradient_accumulation_steps


def _operations(spec: TrainSpec, reference: bool | None = None) -> int:
    """Operations per parameter and token of an update, with the forward of a reference (default: the method's)."""
    if reference is None:
        reference = getattr(registry().get("trainer", spec.method).load(), "wants_reference", False)
    return 2 + (2 if spec.peft else 4) + (2 if spec.gradient_checkpointing else 0) + (2 if reference else 0)


def _si(value: float) -> str:
    """Three digits and a prefix, as in ``1.3 G``."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} E"
