"""Trees of completions: each level goes on from the canvases of the level above, as one batch of requests.

A prompt has one tree: its root is the empty canvas, its leaves are completions with rewards. A node's value is the mean
of its children's; its advantage is that value against its siblings' (d-TreeRPO, arXiv 2512.09675, section 3). A tree of
branches (b_1, ..., b_s) has n_k = b_1 ... b_k nodes in level k, of T / s forwards each, T being those of a completion.

A tree belongs to one process. Shape letters: B nodes of a level in all trees of a process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from dare_bench.errors import UsageError
from dare_bench.seeds import key
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.options import Advantage
from dare_bench.trainers.rl.rollout import Rollouts, weights_version
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.rollout_metrics import group_metrics, numbers, reward_metrics, written_nll
from dare_bench.trainers.rl.surrogate import advantages, distilled_positions
from dare_bench.trainers.steps import StepShape
from dare_bench.training.rows import Tokens
from dare_bench.types import Generation, Request


@dataclass(frozen=True)
class TreeShape:
    """``branches``: the children of each node, level by level from the root."""

    branches: tuple[int, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Nodes of each level below the root."""
        return tuple(accumulate(self.branches, mul))

    @property
    def leaves(self) -> int:
        return self.counts[-1]

    @property
    def nodes(self) -> int:
        """Nodes below the root."""
        return sum(self.counts)

    @property
    def parents(self) -> int:
        """Nodes that have children."""
        return 1 + sum(self.counts[:-1])

    def turn(self, level: int, turns: int) -> int:
        """The forwards before a level (from 0) of paths of ``turns`` forwards: k T / s, rounded down."""
        return level * turns // len(self.branches)


def node_values(leaf_B: Sequence[float], branches: Sequence[int]) -> list[list[float]]:
    """The values of the nodes of each level, the root's children first: the mean of a node's children, without those
    that have none (NaN). The sums are rounded once, so that equal rewards in another order give equal values."""
    levels = [list(leaf_B)]
    for count in reversed(branches[1:]):
        below = levels[0]
        levels.insert(0, [_mean(below[i : i + count]) for i in range(0, len(below), count)])
    return levels


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def local_advantages(value_B: Sequence[float], count: int, kind: Advantage) -> list[float]:
    """The advantages of nodes that stand ``count`` siblings by ``count``; ``leave_one_out`` is the paper's. The
    baseline of a node without siblings is 0. A node without a value (NaN) has none."""
    if count == 1:
        return [0.0 if math.isnan(value) else value for value in value_B]
    result: list[float] = advantages(torch.tensor(value_B, dtype=torch.float64), count, kind).tolist()
    return result


@dataclass(frozen=True)
class Node:
    """A canvas: the request that it is the answer to, the index of its prompt, and the answer. The root has none."""

    index: int
    request: Request
    completion: Completion | None = None
    answer: Generation | None = None


class TreeRollouts(Rollouts):
    """Steps on trees. The records of a rollout are the nodes below the roots, tree by tree and level by level;
    ``rewards`` are their values, and ``advantage`` is their local advantages. Raises UsageError: sizes that do not fit
    together."""

    def __init__(
        self, method: Algorithm, tree: TreeShape, data: Tokens, shape: StepShape, seed: int, process: int
    ) -> None:
        super().__init__(method, data, shape, seed, process)
        self.tree, self.records = tree, tree.nodes
        trees = shape.items_per_step // self.group
        if trees % shape.processes:
            raise UsageError(
                f"{trees} trees of {self.group} completions in an optimizer step cannot be divided among "
                f"{shape.division}, and a tree belongs to one; make --per-device-train-batch-size x "
                f"--gradient-accumulation-steps a multiple of {self.group}"
            )

    def sample(self, number: int) -> Rollout:
        """New trees with their values and local advantages, and old values for the later inner iterations."""
        shape, levels = self.tree, self._grown(number)
        leaves = [node.answer for node in levels[-1] if node.answer is not None]
        texts = [answer.text or "" for answer in leaves]
        prompts = self.reward_prompts([(node.index, node.request) for node in levels[-1]])
        rewards = self.scores(prompts, texts)
        value = node_values(numbers(rewards), shape.branches)
        kind = self.method.options.advantage
        advantage = [local_advantages(v, n, kind) for v, n in zip(value, shape.branches, strict=True)]
        nodes = self._by_tree(levels)
        completions = [node.completion for node in nodes if node.completion is not None]
        answers = [node.answer for node in nodes if node.answer is not None]
        rollout = Rollout(
            number=number,
            completions=completions,
            texts=[answer.text or "" for answer in answers],
            rewards=[None if math.isnan(v) else v for v in self._by_tree(value)],
            advantage=self._by_tree(advantage),
            scored_total=self._total(sum(len(completion.written) for completion in completions)),
            weights_version=weights_version(answers),
        )
        rollout.distilled_total = self._total(len(distilled_positions(completions, rollout.advantage)))
        trees = [rollout.advantage[i : i + shape.nodes] for i in range(0, len(nodes), shape.nodes)]
        ends = [node.completion for node in levels[-1] if node.completion is not None]
        self._write_table(number, prompts, list(zip(ends, leaves, rewards, advantage[-1], strict=True)))
        rollout.metrics = {
            **reward_metrics(rewards, leaves),
            **group_metrics(value[-1], [any(tree) for tree in trees]),
            "written_nll": written_nll(completions, answers),
        }
        return self._with_old_values(rollout)

    def _total(self, value: int) -> int:
        return sum(self.policy.gather(value))

    def _roots(self, number: int) -> list[Node]:
        every = [
            Node(index, replace(self.request(number, place, 0, epoch, index), key=f"{number}.{place}"))
            for place, (epoch, index) in enumerate(self.drawn(number))
        ]
        mine: list[Node] = self._slice(every)
        return mine

    def _grown(self, number: int) -> list[list[Node]]:
        above = self._roots(number)
        turns = {node.index: self.policy.forwards(node.request) for node in above}
        levels = []
        for level, count in enumerate(self.tree.branches):
            requests = [
                (node.index, self._going_on(node, branch, level, turns[node.index]))
                for node in above
                for branch in range(count)
            ]
            parents = [node for node in above for _ in range(count)]
            answered = self.answered(requests)
            above = [
                Node(index, request, replace(completion, parent=parent.request.key), answer)
                for (index, request), parent, (completion, answer) in zip(requests, parents, answered, strict=True)
            ]
            levels.append(above)
        return levels

    def _going_on(self, node: Node, branch: int, level: int, turns: int) -> Request:
        """The request of a child, with other random numbers than its siblings."""
        shape, request = self.tree, node.request
        last = level + 1 == len(shape.branches)
        return replace(
            request,
            key=f"{request.key}.{branch}",
            seed=key("branch", request.seed, branch),
            canvas=node.completion.tokens if node.completion is not None else None,
            start_step=(node.answer.end_step or 0) if node.answer is not None else 0,
            start_forward=shape.turn(level, turns) if level else None,
            end_forward=None if last else shape.turn(level + 1, turns),
        )

    def _by_tree(self, levels: Sequence[Sequence[Any]]) -> list[Any]:
        """The values of all levels, tree by tree."""
        counts = self.tree.counts
        trees = len(levels[0]) // counts[0]
        return [
            value
            for tree in range(trees)
            for level, count in zip(levels, counts, strict=True)
            for value in level[tree * count : (tree + 1) * count]
        ]
