"""Training rows on their canvas, packed, and the absorbing noise that hides their tokens."""

from __future__ import annotations

import pytest
import torch

from dare_bench.diffusion.masked_copies import pack
from dare_bench.diffusion.masks import Padding, block_mask, clean_mask
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


# -- Padding of a pack, and the masks of its rows ----------------------------------------------------------------------


CPU = torch.device("cpu")


def padded(lengths: list[int], longest: int) -> Padding:
    return Padding.of(torch.tensor(lengths), longest, sum(lengths))


def test_every_token_has_one_place_and_padding_repeats_the_first_token():
    padding = padded([3, 1, 0, 2], 4)
    token_T = torch.tensor([10, 11, 12, 20, 40, 41])
    padded_RL = token_T[padding.index_RL]
    assert padded_RL[0].tolist() == [10, 11, 12, 10] and padded_RL[1].tolist() == [20, 20, 20, 20]
    assert padded_RL[3].tolist() == [40, 41, 40, 40]
    assert torch.equal(padded_RL.flatten()[padding.place_T], token_T)
    assert padding.real_RL.sum(1).tolist() == [3, 1, 0, 2]


def test_padded_queries_attend_to_the_first_token_and_nobody_to_padding():
    mask_RLL = padded([2, 3], 3).mask(None)[:, 0]
    assert mask_RLL[0].tolist() == [[True, True, False], [True, True, False], [True, False, False]]
    assert bool(mask_RLL[1].all())
    blocks = padded([2, 3], 3).mask(block_mask(3, 1, 1, CPU))[:, 0]
    assert blocks[0].tolist() == [[True, False, False], [True, True, False], [True, False, False]]


def test_a_noisy_copy_attends_to_its_own_block_and_to_clean_ones_before_it():
    mask_LL = block_mask(8, 2, 2, CPU)[0, 0].int().tolist()
    assert mask_LL[0] == [1, 1, 0, 0, 0, 0, 0, 0] and mask_LL[3] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert mask_LL[4] == [0, 0, 0, 0, 1, 1, 0, 0] and mask_LL[7] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_window_limits_clean_tokens_and_what_a_canvas_sees_of_them():
    column_RE = torch.arange(5)[None]
    mask_LE = clean_mask(torch.tensor([0]), torch.tensor([3]), 5, column_RE, 2)[0, 0].int().tolist()
    assert mask_LE == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]
