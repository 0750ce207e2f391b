"""The families' samplers as their papers describe them, written plainly: what the speed figures compare with.

No cache: the whole sequence, or the whole prefix, in every forward. Logits of every position, softmax over all of them,
every step of every block, no stop at EOS. Rows of one length may share a forward.

Shape letters: B rows, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _even(total: int, steps: int) -> list[int]:
    """``total`` positions over ``steps`` steps, the remainder one each to the first ones."""
    return [total // steps + (i < total % steps) for i in range(steps)]


def _unmask(x_BL: Tensor, logits_BLV: Tensor, mask_id: int, begin: int, end: int, count: int) -> None:
    """Write the ``count`` masked positions of the block at which the likeliest token is most probable."""
    token = logits_BLV.argmax(-1)
    confidence = torch.softmax(logits_BLV, -1).gather(-1, token[..., None])[..., 0]
    confidence[x_BL != mask_id] = float("-inf")
    confidence[:, :begin] = float("-inf")
    confidence[:, end:] = float("-inf")
    for row in range(len(x_BL)):
        best = confidence[row].topk(count).indices
        x_BL[row, best] = token[row, best]


@torch.no_grad()
def full_attention(
    logits_of: Callable[[Tensor], Tensor],
    prompts: list[list[int]],
    mask_id: int,
    gen_length: int,
    block_length: int,
    steps: int,
) -> list[list[int]]:
    """LLaDA's greedy low-confidence decoding of prompts of one length; returns the responses.

    ``logits_of`` maps ids [B, L] to logits [B, L, V]. ``steps`` are those of the whole response.
    """
    x = torch.tensor([prompt + [mask_id] * gen_length for prompt in prompts])
    first = len(prompts[0])
    blocks = gen_length // block_length
    for begin in range(first, first + gen_length, block_length):
        for count in _even(block_length, steps // blocks):
            _unmask(x, logits_of(x), mask_id, begin, begin + block_length, count)
    return x[:, first:].tolist()


@torch.no_grad()
def block_causal(
    logits_of: Callable[[Tensor], Tensor],
    prompts: list[list[int]],
    mask_id: int,
    gen_length: int,
    block_length: int,
    steps: int,
) -> list[list[int]]:
    """SDAR's static decoding of prompts of one length, which the block length divides; returns the responses.

    ``logits_of`` maps ids [B, L] to logits [B, L, V] under block-causal attention; the window ends with the block, and
    all before it is computed again in every step. ``steps`` are those of one block.
    """
    x = torch.tensor([prompt + [mask_id] * gen_length for prompt in prompts])
    first = len(prompts[0])
    for begin in range(first, first + gen_length, block_length):
        end = begin + block_length
        for count in _even(block_length, steps):
            window = x[:, :end]  # a view: what is written there stands in x
            _unmask(window, logits_of(window), mask_id, begin, end, count)
    return x[:, first:].tolist()
