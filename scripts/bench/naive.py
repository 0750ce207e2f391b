"""The families' samplers as their papers describe them, written plainly: the baselines of the speed figures.

No cache: the whole sequence, or the whole prefix, in every forward. Logits of every position, softmax over all of them,
every step of every block, no stop at EOS. Rows of one length may share a forward.

Shape letters: B rows, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _unmask(x_BL: Tensor, logits_BLV: Tensor, mask_id: int, begin: int, end: int, count: int) -> None:
    """Write the ``count`` masked positions of the block with the highest probability of the most likely token."""
    token = logits_BLV.argmax(-1)
    confidence = torch.softmax(logits_BLV, -1).gather(-1, token[..., None])[..., 0]
    confidence[x_BL != mask_id] = float("-inf")
    confidence[:, :begin] = float("-inf")
    confidence[:, end:] = float("-inf")
    for row in range(len(x_BL)):
        best = confidence[row].topk(count).indices
        x_BL[row, best] = token[row, best]


@torch.no_grad()
def decode(
    logits_of: Callable[[Tensor], Tensor],
    prompts: list[list[int]],
    mask_id: int,
    gen_length: int,
    block_length: int,
    steps: int,
    *,
    block_causal: bool = False,
    device: str = "cpu",
) -> list[list[int]]:
    """Greedy low-confidence decoding of prompts of one length; returns the responses.

    Args:
        logits_of: maps ids [B, L] to logits [B, L, V].
        steps: forwards per block; a remainder of positions goes to the first ones.
        block_causal: SDAR's static decoding: a forward sees the sequence up to the end of the block, computed again in
            every step; the block length must divide the prompt. Otherwise LLaDA's: a forward sees the whole sequence.
    """
    x = torch.tensor([prompt + [mask_id] * gen_length for prompt in prompts], device=device)
    first = len(prompts[0])
    for begin in range(first, first + gen_length, block_length):
        end = begin + block_length
        window = x[:, :end] if block_causal else x  # a view: what is written in it is written in x
        for step in range(steps):
            count = block_length // steps + (step < block_length % steps)
            _unmask(window, logits_of(window), mask_id, begin, end, count)
    return x[:, first:].tolist()
