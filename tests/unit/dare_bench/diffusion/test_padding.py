"""Padding of a pack, and the masks of its rows."""

from __future__ import annotations

import torch

from dare_bench.diffusion.masks import Padding, block_mask, clean_mask

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
