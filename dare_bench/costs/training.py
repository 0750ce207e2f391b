"""What a training computes.

Operations are 6 N for each token (forward 2 N, backward 4 N; with LoRA 4 N, since the weights need no gradients; one
forward more where activations are computed twice or a reference is queried), times two where the noisy and the clean
copy of a row both pass through the network (block-causal families). N are the parameters that a token uses. Attention,
the optimizer, loading and scoring are left out.
"""

from __future__ import annotations

from dare_bench.costs.sizes import CheckpointSize, TrainingRows
from dare_bench.registry import registry
from dare_bench.training.spec import TrainSpec


def batch_of(spec: TrainSpec) -> int:
    """Rows (pairs) of an optimizer step on one device."""
    return spec.per_device_train_batch_size * spec.gradient_accumulation_steps


def steps_of(spec: TrainSpec, rows: TrainingRows) -> int:
    """Optimizer steps."""
    return spec.steps(rows.count, batch_of(spec))


def copies_of(spec: TrainSpec, rows: TrainingRows, size: CheckpointSize) -> int:
    """How many rows the network reads for each row (pair) of the data."""
    return rows.of_item * (2 if size.two_copies else 1) * int(spec.options.get("draws") or 1)


def operations(spec: TrainSpec) -> int:
    """For each parameter and token: 2 forward; backward 4, or 2 where the weights need no gradients."""
    reference = getattr(registry().get("trainer", spec.method).load(), "wants_reference", False)
    return 2 + (2 if spec.peft else 4) + (2 if spec.gradient_checkpointing else 0) + (2 if reference else 0)
