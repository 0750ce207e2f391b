"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups whose rewards do not differ teach nothing, and are
drawn again, each from another prompt, up to a limit.

DAPO draws whole batches until enough groups are left; here a group is replaced in its place, so that sizes stay as they
are. Draw d of a place in rollout k is the prompt at that place in an order of the data of its own, with random numbers
of its own: a function of (seed, k, place, d). A resumed or divided training therefore draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.surrogate import Advantage, advantages
from dare_bench.types import Generation, Reward, RewardPrompt


@dataclass(frozen=True)
class Scored:
    """A completion with its answer and its reward."""

    prompt: RewardPrompt
    completion: Completion
    answer: Generation
    reward: Reward


@dataclass
class Groups:
    """The groups of a rollout: the completions of this process, and of all processes group by group the rewards (NaN:
    none), the advantages, and the draw that each group is from (0: the first)."""

    mine: list[Scored]
    value_B: list[float]
    advantage_B: list[float]
    draws: list[int]

    def informative(self) -> list[bool]:
        """Of each group: has a completion an advantage?"""
        group = len(self.value_B) // len(self.draws)
        return [any(self.advantage_B[i : i + group]) for i in range(0, len(self.value_B), group)]


def groups_of(mine: list[Scored], value_B: list[float], size: int, kind: Advantage, draws: Sequence[int]) -> Groups:
    """The groups of ``size`` completions with the rewards ``value_B`` of all processes, and their advantages."""
    advantage_B = advantages(torch.tensor(value_B, dtype=torch.float64), size, kind)
    return Groups(mine, value_B, advantage_B.tolist(), [*draws])
