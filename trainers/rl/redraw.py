"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups whose rewards do not differ teach nothing, and are
drawn again, each from another prompt, up to a limit.

DAPO draws whole batches until enough groups are left; here a group is replaced in its place, so that sizes stay as they
are. Draw d of a place in rollout k is the prompt at that place in an order of the data of its own, with random numbers
of its own: a function of (seed, k, place, d). A resumed or divided training therefore draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.rollout_metrics import numbers
from dare_bench.trainers.rl.surrogate import advantages
from dare_bench.types import Generation, Request, Reward, RewardPrompt

if TYPE_CHECKING:
    from dare_bench.trainers.rl.rollout import Rollouts


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


def drawn_groups(source: Rollouts, mine: list[Scored], draws: Sequence[int]) -> Groups:
    """The groups that this process's completions and those of the others make up. Called by all processes together."""
    assert source.policy is not None
    value_B = [value for part in source.policy.gather(numbers([each.reward for each in mine])) for value in part]
    reward_B = torch.tensor(value_B, dtype=torch.float64)
    advantage_B = advantages(reward_B, source.group, source.method.options.advantage)
    return Groups(mine, value_B, advantage_B.tolist(), [*draws])


def redrawn(source: Rollouts, number: int, groups: Groups) -> tuple[Groups, int]:
    """The groups of a rollout, those without an advantage drawn again, and how many groups that were in all. Called by
    all processes together."""
    count, first = 0, source.process * len(groups.mine)
    for draw in range(1, 1 + (source.method.options.dynamic_sampling or 0)):
        dull = [not informative for informative in groups.informative()]
        if not any(dull):
            break
        count += sum(dull)
        own = [i for i in range(len(groups.mine)) if dull[(first + i) // source.group]]
        drawn, requests = source.drawn(number, draw), list[tuple[int, Request]]()
        for place, g in (divmod(first + i, source.group) for i in own):
            epoch, index = drawn[place]
            requests.append((index, source.request(number, place, g, epoch, index, draw)))
        mine = [*groups.mine]
        for i, scored in zip(own, source.scored(requests), strict=True):
            mine[i] = scored
        draws = [draw if again else before for again, before in zip(dull, groups.draws, strict=True)]
        groups = drawn_groups(source, mine, draws)
    return groups, count
