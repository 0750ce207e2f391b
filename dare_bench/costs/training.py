"""The computation of a training.

Operations are 6 N per token (forward 2 N, backward 4 N; with LoRA 4 N in all, since the weights need no gradients;
2 N more with gradient checkpointing), times two for block-causal families, which compute a noisy and a clean copy of
each row; 2 N for each token of passes without gradients (old values, reference). N is the number of parameters that a
token uses. Reinforcement learning adds 2 N for each token of each forward of a rollout (block-causal families read a
block, the others the whole row). Attention, the optimizer, loading, rewards and scoring are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dare_bench.costs.recipe import GPUS, UTILIZATION
from dare_bench.costs.sizes import CheckpointSize, TrainingRows
from dare_bench.engine.progress import duration
from dare_bench.registry import registry
from dare_bench.training.spec import TrainSpec

GPU = GPUS["H100"]
Phase = Literal["rollout", "score", "update"]


@dataclass(frozen=True)
class PhaseWork:
    """Of an item (row, pair, completion) in an optimizer step: ``forwards`` of the network, counted per row, which read
    ``tokens`` tokens, with ``operations`` per parameter and token."""

    forwards: float
    tokens: float
    operations: int

    def flop(self, active: float) -> float:
        """Operations with ``active`` parameters."""
        return self.tokens * self.operations * active


def work_of(spec: TrainSpec, rows: TrainingRows, size: CheckpointSize) -> Mapping[Phase, PhaseWork] | None:
    """The work of an item by phase; None if its forwards are not known."""
    if rows.forwards is None:
        return None
    sampled, scored, updated = rows.forwards
    copies = 2 if size.two_copies else 1
    block = size.model.spec.block_length if size.model is not None else None
    update = 2 + (2 if spec.peft else 4) + (2 if spec.gradient_checkpointing else 0)
    return {
        "rollout": PhaseWork(sampled, sampled * (block or rows.tokens), 2),
        "score": PhaseWork(copies * scored, copies * scored * rows.tokens, 2),
        "update": PhaseWork(copies * updated, copies * updated * rows.tokens, update),
    }


@dataclass(frozen=True)
class WorkCost:
    """``forwards``: maximum number of forward passes, counted per row; ``flop``: operations; ``seconds``: on this
    machine; ``text``: all of these with their sources. Unknown values are None."""

    text: str
    forwards: int | None = None
    flop: float | None = None
    seconds: float | None = None


def training_cost(
    spec: TrainSpec, rows: TrainingRows, size: CheckpointSize, seconds_per_flop: float | None = None
) -> WorkCost:
    """Estimate a training.

    Args:
        seconds_per_flop: as measured by trainings of this checkpoint on this machine.
    """
    work = work_of(spec, rows, size)
    if work is None or rows.forwards is None:
        return WorkCost("unknown: the forwards of a rollout follow from the checkpoint, which is not on this machine")
    batch, forwards = _batch(spec), None
    total = spec.steps(rows.count, batch) * batch  # rows (pairs) in all optimizer steps on one device
    kind = "completions in rows of about" if rows.samples else "rows of"
    text = f"{total // batch:,} steps of {batch} {kind} {rows.tokens:.0f} tokens ({rows.source})"
    if rows.samples:
        forwards = round(total * sum(rows.forwards))
        per_step = " + ".join(f"{count:,.3g}" for count in rows.forwards)
        text += f"; forwards of each in a step: {per_step} (rollout + without gradients + update)"
    if size.active is None:
        return WorkCost(f"{text}; operations are unknown, the checkpoint is not on this machine", forwards)
    if not rows.samples:
        text += f", {round(total * work['update'].tokens):,} tokens through {round(size.active):,} parameters"
    flop = total * sum(phase.flop(size.active) for phase in work.values())
    text += f", {_si(flop)}FLOP"
    if seconds_per_flop is not None:
        seconds, source = flop * seconds_per_flop, "at the speed of trainings measured here"
    elif size.seconds_per_forward is not None:
        equivalent = total * sum(phase.forwards * phase.operations / 2 for phase in work.values())
        seconds, source = equivalent * size.seconds_per_forward, "by forwards here"
    else:
        hours = flop / (GPU.tflops * 1e12 * UTILIZATION) / 3600
        return WorkCost(f"{text}, {hours:,.2f} GPU hours", forwards, flop)
    return WorkCost(f"{text}, {duration(seconds)} ({source})", forwards, flop, seconds)


def _batch(spec: TrainSpec) -> int:
    spec = spec.with_defaults(registry().get("trainer", spec.method).load())
    return spec.rows_per_forward * spec.gradient_accumulation_steps


def _si(value: float) -> str:
    """Three digits and a prefix, as in ``1.3 G``."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} E"
