"""What our sampler is measured against: the families' samplers as their papers describe them, written plainly; with
networks of random weights, and runs that take turns.

The plain sampler has no cache: the whole sequence, or the whole prefix, in every forward. Logits of every position,
softmax over all of them, every step of every block, no stop at EOS. Rows of one length may share a forward.

Shape letters: B rows, L positions, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.native import NativeModel
from dare_bench.types import LoopStats, ModelSpec, Request

Tokens = list[list[int]]


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
    prompts: Tokens,
    mask_id: int,
    gen_length: int,
    block_length: int,
    steps: int,
    *,
    block_causal: bool = False,
    device: str = "cpu",
) -> Tokens:
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


def native_model(family: Any, network: Any, spec: ModelSpec, wrapper: Any = None) -> NativeModel:
    """A model of a network in evaluation mode that never predicts the mask token. ``wrapper`` is called in place of the
    network."""
    network.eval()
    with torch.no_grad():
        network.get_output_embeddings().weight[spec.mask_id] = 0
    return NativeModel(family, wrapper or network, None, spec, Path())


def generate(
    model: NativeModel, prompts: Tokens, decoding: dict[str, Any], rows: int, stats: LoopStats | None = None
) -> Tokens:
    """The response to each prompt."""
    requests = [Request(str(i), "generate", prompt, decoding=decoding) for i, prompt in enumerate(prompts)]
    answers = {s.request.key: s.answer.tokens for s in model.generate(requests, max_rows=rows, stats=stats)}
    return [answers[str(i)] for i in range(len(prompts))]


@dataclass(frozen=True)
class Timing:
    """Seconds of each run, slow and fast alternating, and the return values of the last runs."""

    slow: list[float]
    fast: list[float]
    slow_value: Any = None
    fast_value: Any = None

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.slow, self.fast, strict=True)]

    def spread(self) -> str:
        """The median ratio and its quartiles as text."""
        several = self.ratios if len(self.slow) > 1 else self.ratios * 2
        low, median, high = statistics.quantiles(several, n=4, method="inclusive")
        return f"{median:.2f}x (quartiles {low:.2f} to {high:.2f})"


def alternate(slow: Callable[[], Any], fast: Callable[[], Any], runs: int) -> Timing:
    """Run both alternately, ``runs`` times each, so that other load affects both: processor time with one thread, which
    other programs disturb less, and otherwise the time of day. The caller warms up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: tuple[list[float], list[float]] = ([], [])
    values = [None, None]
    for _ in range(runs):
        for side, function in enumerate((slow, fast)):
            start = clock()
            values[side] = function()
            seconds[side].append(clock() - start)
    return Timing(*seconds, *values)
