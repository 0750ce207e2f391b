"""Replay of an optimizer step: its rollout made again from the weights that sampled it (completions are a function of
weights, seed and the number of the rollout), or read from a table of the training (``completions_table.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from dare_bench.errors import UsageError
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.checkpoints import checkpoints, step_of
from dare_bench.trainers.forwards import settle
from dare_bench.trainers.loop import Loop
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.completions_table import TableRow, read_table
from dare_bench.trainers.rl.kept import kept_weights, refuse_not_kept, table_name
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import RolloutStep
from dare_bench.trainers.steps import StepShape
from dare_bench.trainers.training_run import training_arguments
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec


@dataclass(frozen=True, kw_only=True)
class ReplayedCompletion(Completion):
    """A completion of the rollout with its reward. ``weights`` are the derivatives of the step's loss at -log p of each
    token, summed over the copies that score it: the update makes a token with a positive weight likelier; None if the
    weights before the update were not kept. Of a completion with ``predictions``, ``advantage`` is that of the last
    answer."""

    text: str
    reward: float | None
    advantage: float
    weights: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A step of a training of ``steps`` steps, counted from 1. ``sampled_from`` and ``updated_from`` name the weights
    that sampled its rollout and those before its update; ``updated_from`` None: they were not kept."""

    step: int
    steps: int
    rollout: int
    iteration: int
    iterations: int
    sampled_from: str
    updated_from: str | None
    groups: tuple[tuple[ReplayedCompletion, ...], ...]
    is_table: bool = False
    """Are the completions read from a table of the training, which has no weights of tokens?"""


def replay(
    method: Algorithm,
    spec: TrainSpec,
    model: LoadedModel,
    data: Tokens,
    out: Path,
    services: Services,
    step: int,
    batch: int,
) -> Replay:
    """Replay a step of the training in ``out``.

    Args:
        model: as the training opened it.
        step: counted from 1, as the log counts.
        batch: completions of an optimizer step in all processes.

    Raises:
        UsageError: no such step, or neither the weights that sampled its rollout nor its completions were kept.
    """
    shape, iterations = StepShape(batch), method.options.num_iterations
    source = method.source(data, shape, spec.seed)
    assert isinstance(source, Rollouts)
    steps, saved = spec.steps(source.rows, batch), checkpoints(out)
    if not 1 <= step <= steps:
        raise UsageError(f"step {step}: the training in {out} has the steps 1 to {steps}")
    number = step - 1
    rollout, iteration = divmod(number, iterations)
    first = number - iteration
    place: dict[str, Any] = {"step": step, "steps": steps, "rollout": rollout}
    place |= {"iteration": iteration, "iterations": iterations}
    options = vars(method.options)  # with those that a record of settings lacks
    refuse_not_kept(out, step, steps, options)
    if first not in kept_weights(out, options):
        rows = read_table(out, first + 1)
        groups = tuple(tuple(map(_of_table, group)) for _, group in groupby(rows, key=lambda row: row.group))
        table = f"the table {table_name(first)}"
        return Replay(**place, sampled_from=table, updated_from=None, groups=groups, is_table=True)
    with TemporaryDirectory() as scratch:
        arguments = training_arguments(spec, model, Path(scratch))
        arguments.max_steps = steps
        loop = Loop(method, spec, model, source, shape, services, arguments)
        policy = PolicyInTraining(loop)
        source.attach(policy)

        def read(checkpoint: Path) -> None:
            model.read_weights(checkpoint)
            if method.reference_sync is not None:
                method.reference_sync.load(checkpoint, step_of(checkpoint))

        if first:
            read(saved[first])
            source.load_prompts(saved[first])
        update = source.step(first)
        assert source.rollout is not None
        if iteration:
            update = source.step_on(source.rollout, number)
        known = not iteration or number in saved
        if iteration and known:
            read(saved[number])
        settled = settle(method, update, policy.losses(update), loop.reference) if known else None
    completions = replayed(source.rollout, update, settled.weight_N if settled else None)
    group = source.records
    return Replay(
        **place,
        sampled_from=_name(first),
        updated_from=_name(number) if known else None,
        groups=tuple(tuple(completions[i : i + group]) for i in range(0, len(completions), group)),
    )


def replayed(rollout: Rollout, update: RolloutStep, weight_N: Tensor | None) -> list[ReplayedCompletion]:
    """The completions of a rollout with the weights of their tokens in an update."""
    weights = [[0.0] * len(c.tokens) for c in rollout.completions]
    if weight_N is not None:
        actions, copies = update.surrogate.actions, update.copies
        completion_N, column_N = update.surrogate.completion_A[actions.action_N], copies.batch.column_T[copies.at_N]
        tables = (completion_N, column_N, copies.target_N, weight_N)
        for number, column, target, weight in zip(*(table.tolist() for table in tables), strict=True):
            completion = rollout.completions[number]
            place = column - len(completion.prompt)
            weights[number][place] += weight if completion.tokens[place] == target else 0.0
    parts = zip(rollout.completions, rollout.texts, rollout.rewards, rollout.advantage, weights, strict=True)
    return [
        ReplayedCompletion(
            **vars(c), text=text, reward=reward, advantage=advantage,
            weights=None if weight_N is None else tuple(of_tokens),
        )
        for c, text, reward, advantage, of_tokens in parts
    ]  # fmt: skip


def _of_table(row: TableRow) -> ReplayedCompletion:
    """A completion as far as the table of its rollout has it: without the weights of tokens."""
    return ReplayedCompletion(
        prompt=row.prompt_ids, tokens=row.tokens, scored=row.scored, key=0, set_at=row.set_at, where=row.where,
        logprobs=row.logprobs, text=row.completion, reward=row.reward, advantage=row.advantage, weights=None,
    )  # fmt: skip


def _name(step: int) -> str:
    return f"checkpoint-{step}" if step else "the starting checkpoint"
