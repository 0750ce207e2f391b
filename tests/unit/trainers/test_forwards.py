"""Forwards of a step: together they hold each of its copies once."""

from __future__ import annotations

import pytest
import torch

from dare_bench.diffusion.schedules import NoiseSchedule, weights
from dare_bench.trainers.forwards import divide
from dare_bench.trainers.steps import NoisedRows, StepShape
from dare_bench.training.rows import TokenRow

MASK = 99


def copies_of_pairs():
    """Three masked copies of each row of eight pairs, whose rows have many lengths; those of one pair share the
    prompt."""
    pairs = [
        tuple(
            TokenRow((i,) * (i % 4), tuple(range(1 + (i * 7 + role * 3) % 5)), f"row {i}", 1000 * i + role)
            for role in range(2)
        )
        for i in range(11)
    ]
    source = NoisedRows(
        pairs, NoiseSchedule("counts", 3), lambda noise: weights(noise, "elbo"), MASK, StepShape(8), seed=3
    )
    return source.step(0).copies


@pytest.mark.parametrize("count", [1, 2, 5, 48, 60])
def test_forwards_hold_every_copy_and_scored_token_once(count):
    copies = copies_of_pairs()
    parts = divide(copies, count)
    assert len(parts) == count
    index_N = torch.cat([index_M for _, index_M in parts])
    assert torch.equal(index_N.sort().values, torch.arange(len(copies.at_N)))
    for part, index_M in parts:
        assert torch.equal(part.target_N, copies.target_N[index_M])
        assert torch.equal(part.at_N, part.at_N.sort().values)
        lengths = list(part.batch.lengths)
        assert lengths == sorted(lengths, reverse=True)
        assert bool((part.seen_T[part.at_N] == MASK).all())
    sizes = [len(part) for part, index_M in parts if len(index_M)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(copies)
