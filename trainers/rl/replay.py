"""Replay of an optimizer step: its rollout made again from the weights that sampled it (completions are a function of
weights, seed and the number of the rollout), or read from a table of the training (``completions_table.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from dare_bench.trainers.rl.completions_table import (
    TableRow,
    kept_weights,
    read_table,
    refuse_not_kept,
    table_name,
)
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import RolloutStep
from dare_bench.trainers.steps import StepShape
from dare_bench.trainers.training_run import training_arguments
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec

Piece = Callable[[int], str]


def replay(
    method: Algorithm,
    spec: TrainSpec,
    model: LoadedModel,
    data: Tokens,
    out: Path,
    services: Services,
    step: int,
    batch: int,
) -> dict[str, Any]:
    """Replay a step of the training in ``out``.

    Args:
        model: as the training opened it.
        step: counted from 1, as the log counts.
        batch: completions of an optimizer step in all processes.

    Returns:
        Plain JSON: ``step`` of ``steps``; ``rollout`` and ``iteration`` of ``iterations``, from 0; ``sampled_from`` and
        ``updated_from``, the weights that sampled its rollout, or the table that has it, and those before its update
        (None: not kept); ``groups`` of completions (:func:`completion_record`).

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
    place = {"step": step, "steps": steps, "rollout": rollout, "iteration": iteration, "iterations": iterations}
    options = vars(method.options)  # with those that a record of settings lacks
    refuse_not_kept(out, step, steps, options)
    decode = getattr(model.tokenizer, "decode", None)

    def piece(token: int) -> str:
        return f"<{token}>" if decode is None else str(decode([token]))

    if first not in kept_weights(out, options):
        rows = groupby(read_table(out, first + 1), key=lambda row: row.group)
        groups = [[_of_table(row, piece) for row in group] for _, group in rows]
        return {**place, "sampled_from": f"the table {table_name(first)}", "updated_from": None, "groups": groups}
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
    completions = replayed(source.rollout, update, settled.weight_N if settled else None, piece)
    groups = [completions[i : i + source.records] for i in range(0, len(completions), source.records)]
    updated_from = _name(number) if known else None
    return {**place, "sampled_from": _name(first), "updated_from": updated_from, "groups": groups}


def replayed(rollout: Rollout, update: RolloutStep, weight_N: Tensor | None, piece: Piece) -> list[dict[str, Any]]:
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
        completion_record(c, text, reward, advantage, None if weight_N is None else of_tokens, piece)
        for c, text, reward, advantage, of_tokens in parts
    ]


def completion_record(
    c: Completion, text: str, reward: float | None, advantage: float, weights: Sequence[float] | None, piece: Piece
) -> dict[str, Any]:
    """A completion of the rollout as plain JSON.

    ``weights`` are the derivatives of the step's loss at -log p of each token, summed over the copies that score it:
    the update makes a token with a positive weight likelier; None if the weights before the update were not kept. Of a
    completion with predictions, ``advantage`` is that of the last answer.
    """

    def written(tokens: Sequence[int]) -> str:
        return "".join(map(piece, tokens))

    return {
        **{name: getattr(c, name) for name in ("where", "prompt", "tokens", "scored", "set_at", "logprobs")},
        "text": text,
        "reward": reward,
        "advantage": advantage,
        "weights": weights,
        "prompt_text": written(c.prompt),
        "pieces": [piece(token) for token in c.tokens],
        "predictions": [
            {"masked": each.masked, "advantage": each.advantage, "text": written(each.tokens[: each.scored])}
            for each in c.predictions
        ],
    }


def _of_table(row: TableRow, piece: Piece) -> dict[str, Any]:
    c = Completion(row.prompt_ids, row.tokens, row.scored, 0, row.set_at, row.where, row.logprobs)
    return completion_record(c, row.completion, row.reward, row.advantage, None, piece)


def _name(step: int) -> str:
    return f"checkpoint-{step}" if step else "the starting checkpoint"
