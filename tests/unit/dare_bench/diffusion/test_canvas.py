"""Training rows on their canvas, packed, and the absorbing noise that hides their tokens."""

from __future__ import annotations

import pytest
import torch

from dare_bench.diffusion.masked_copies import pack
from dare_bench.diffusion.schedules import EPS, draw_masks, even_levels, levels
from dare_bench.errors import UsageError

EOS = 5
KEYS = torch.arange(1000, dtype=torch.long)
ROWS = [([0, 1], [2, 3, 4]), ([1], [0, 5, 5, 2])]


def test_prompts_are_never_masked_and_rates_follow_the_level():
    rows = [([1] * 5, [2] * 50)] * 400
    batch, key_B = pack(rows), KEYS[:400]
    for t in (0.1, 0.5, 1.0):
        masked_T = draw_masks(batch, torch.full((400,), t, dtype=torch.float64), key_B, 0)
        assert not (masked_T & ~batch.response_T).any()
        assert float(masked_T[batch.response_T].double().mean()) == pytest.approx(t, abs=0.02)


def test_levels_are_uniform_and_a_row_keeps_its_noise_in_any_batch():
    t_B = levels(torch.arange(20000), 0)
    assert float(t_B.min()) >= EPS
    assert float(t_B.max()) < 1.0 + 1e-12
    assert float(t_B.mean()) == pytest.approx((1 + EPS) / 2, abs=0.01)
    assert torch.equal(levels(torch.tensor([17]), 0), t_B[17:18])
    assert not torch.equal(levels(torch.arange(5), 1), t_B[:5])
    even = even_levels(4, 0, 100)
    assert not torch.equal(even, even.sort().values)
    assert torch.allclose(even.sort().values.diff(), torch.full((99,), (1 - EPS) / 100, dtype=torch.float64))


def test_what_cannot_be_is_said():
    with pytest.raises(UsageError, match="row 1 has no response"):
        pack([([1], [2]), ([1], [])])


def test_packed_rows_know_their_places():
    batch = pack(ROWS)
    assert batch.tokens_T.tolist() == [0, 1, 2, 3, 4, 1, 0, 5, 5, 2]
    assert batch.row_T.tolist() == [0] * 5 + [1] * 5
    assert batch.column_T.tolist() == [0, 1, 2, 3, 4] * 2
    assert batch.response_T.tolist() == [False] * 2 + [True] * 3 + [False] + [True] * 4
    assert batch.response_lengths_B.tolist() == [3, 4]
