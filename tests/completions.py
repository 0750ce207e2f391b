"""Completions by hand, their values under a table policy, and a source of rollouts without a sampler. For tests of
reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from table_policy import EOS, SPEC, tokens
from torch import Tensor

from dare_bench.diffusion.forward import Inputs, inputs
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import Update
from dare_bench.trainers.steps import Step, StepShape
from dare_bench.types import Event, Generation, Request, Reward, RewardPrompt, Sample

PROMPT = (0, 3)


def completion(
    answer: Sequence[int],
    set_at: Sequence[int] | None = None,
    prompt: Sequence[int] = PROMPT,
    scored: int | None = None,
    key: int = 0,
) -> Completion:
    """A completion whose token i was written in forward ``set_at[i]`` (default: one token a forward, left to right)."""
    order = tuple(range(len(answer))) if set_at is None else tuple(set_at)
    return Completion(tuple(prompt), tuple(answer), len(answer) if scored is None else scored, key, order, f"row {key}")


def first_rollout(
    completions: Sequence[Completion], advantage: Sequence[float], scored_total: int, **others: Any
) -> Rollout:
    """The first rollout of a training, by hand, without texts; ``others`` are further fields of it."""
    fields = {"number": 0, "weights_version": 0, "texts": [""] * len(completions), "rewards": [0.0] * len(completions)}
    fields |= {"completions": list(completions), "advantage": list(advantage), "scored_total": scored_total}
    return Rollout(**{**fields, **others})


def update(number: int, iteration: int, completions: int, steps: int = 1) -> Update:
    """An optimizer step of a training with seed 0."""
    return Update(number=number, iteration=iteration, completions=completions, seed=0, steps=steps)


def values(actions: Actions, losses: Callable[[Inputs], Tensor], spec: Any = SPEC) -> Tensor:
    """The log-probabilities of actions under a policy, float64 [A]."""
    return actions.logprobs(losses(inputs(actions.copies, spec)))


def scored_positions(actions: Actions) -> list[list[int]]:
    """The columns that each copy scores."""
    columns_N, copy_N = actions.copies.batch.column_T[actions.copies.at_N], actions.copies.copy_N
    return [columns_N[copy_N == r].tolist() for r in range(len(actions.copies))]


def seen(actions: Actions) -> list[list[int]]:
    """What the network reads of each copy."""
    return [row.tolist() for row in actions.copies.seen_T.split(list(actions.copies.batch.lengths))]


class ScriptedPolicy:
    """Answers from a list, in turn, with rewards that belong to them; values of a table. One process."""

    steps = 1
    has_dropout = False

    def __init__(self, table: Any, method: Any, answers: Sequence[tuple[Sequence[int], float]]) -> None:
        self.table, self.method, self.answers, self.scored = table, method, answers, 0

    def losses(self, step: Step) -> Tensor:
        with torch.no_grad():
            return self.table.losses(self.method.inputs(step.copies)).float()  # type: ignore[no-any-return]

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        samples = []
        for i, request in enumerate(requests):
            answer = list(self.answers[i % len(self.answers)][0])
            events = [Event(n, "set", n, token, 0.5, -0.7) for n, token in enumerate(answer)]
            end = answer.index(EOS) + 1 if EOS in answer else len(answer)
            generation = Generation(answer, "", len(answer), "length", tokens_to_eos=end, trajectory=events)
            samples.append(Sample(request, generation))
        return samples

    def rewards(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        return [Reward(self.answers[i % len(self.answers)][1], 0.0) for i in range(len(texts))]

    def write_lines(self, name: str, lines: Sequence[str]) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]


def prompts(count: int = 2) -> Any:
    """Prompts of different length, as token ids."""
    rows = [[(tuple(range(1 + i)), ())] for i in range(count)]
    data = tokens("prompts", *rows)
    records = tuple(RewardPrompt("", "", "none", f"row {i}") for i in range(count))
    return type(data)(data.kind, data.items, data.hash, data.name, 4, records)


def rollouts(method: Any, table: Any, answers: Sequence[tuple[Sequence[int], float]], seed: int = 0) -> Rollouts:
    """A source of steps: one completion for each of ``answers``."""
    group = method.options.num_generations
    source: Rollouts = method.source(prompts(len(answers) // group), StepShape(len(answers)), seed)
    source.attach(ScriptedPolicy(table, method, answers))
    return source
