"""Prompts that suffer from over-denoising: the answer is right after some forward, and wrong after the last one.

The published training of MDPO (arXiv 2508.13148) is on such prompts alone: before an epoch, of which its command makes
one, each prompt is answered once with temperature 0 and the other settings of the rollout (``incremental_training``).
Here the weights before the first step answer them, and the chosen prompts are part of each checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from dare_bench.errors import TrainingError
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.step_rewards import rewards_of_forwards
from dare_bench.training.processes import first_process
from dare_bench.types import Request, Reward

log = logging.getLogger("dare_bench")


def is_over_denoised(rewards: Sequence[Reward]) -> bool:
    """Is an answer right after some forward, and wrong after the last one?

    Args:
        rewards: of the answers that its forwards predict, in order.
    """
    right = [reward.accuracy or 0.0 for reward in rewards]
    return max(right) > right[-1]


def over_denoised_prompts(source: Rollouts) -> list[int]:
    """The indices of the prompts of the data that suffer from over-denoising now. Called by all processes together;
    each answers its part, as many prompts at a time as a step has completions.

    Raises:
        TrainingError: there are none.
    """
    assert source.policy is not None
    count, size, kept = len(source.data.items), source.shape.items_per_step, list[int]()
    for begin in range(0, count, size):
        mine = range(begin, min(begin + size, count))[source.process :: source.shape.processes]
        requests = [(index, _greedy(source.request(0, index, 0, 0, index))) for index in mine]
        answers = [answer for _, answer in source.answered(requests)]
        rewards = rewards_of_forwards(answers, source.reward_prompts(requests), source.scores)
        chosen = [index for index, of_answer in zip(mine, rewards, strict=True) if is_over_denoised(of_answer)]
        kept += [index for part in source.policy.gather(chosen) for index in part]
    if not kept:
        raise TrainingError(
            f"prompt_filter=over_denoising: none of {count:,} prompts has a right answer after some forward and a "
            "wrong one after the last; give more prompts (--rows), or omit it"
        )
    if first_process():
        log.info("prompt_filter=over_denoising: %s of %s prompts", f"{len(kept):,}", f"{count:,}")
    return sorted(kept)


def _greedy(request: Request) -> Request:
    return replace(request, decoding={**request.decoding, "temperature": 0.0})
