"""LLaDA's sampler as its paper describes it, written plainly: what the speed figures compare with.

One prompt at a time, logits of every position, softmax over all of them, every step of every block, no stop at EOS.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def sample(
    logits_of: Any, prompt: list[int], mask_id: int, gen_length: int, block_length: int, steps: int
) -> list[int]:
    """Greedy low-confidence decoding of one prompt; returns the response.

    ``logits_of`` maps ids [1, L] to logits [1, L, V].
    """
    x = torch.tensor([prompt + [mask_id] * gen_length])
    blocks = gen_length // block_length
    per_block = steps // blocks
    for block in range(blocks):
        begin = len(prompt) + block * block_length
        end = begin + block_length
        masked = int((x[:, begin:end] == mask_id).sum())
        schedule = [masked // per_block + (i < masked % per_block) for i in range(per_block)]
        for count in schedule:
            logits: Tensor = logits_of(x)
            token = logits.argmax(-1)
            confidence = torch.softmax(logits, -1).gather(-1, token[..., None])[..., 0]
            confidence[x != mask_id] = float("-inf")
            confidence[:, end:] = float("-inf")
            best = confidence[0].topk(count).indices
            x[0, best] = token[0, best]
    return x[0, len(prompt) :].tolist()
