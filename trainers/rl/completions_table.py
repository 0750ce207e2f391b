"""The completions of a rollout as a file of the training, for people and for a replay without the weights:
``completions/step-000011.jsonl`` has those that step 11 is the first to train on, in whole groups, at most
:data:`MOST`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dare_bench.config import one_line
from dare_bench.errors import TrainingError, UsageError
from dare_bench.reading import parse_json, read_bytes
from dare_bench.registry import registry
from dare_bench.trainers.rl.completions import Completion
from dare_bench.types import Generation, Reward, RewardPrompt

FOLDER = "completions"
MOST = 256
LIMIT = 1 << 28
"""Bytes of a file that are read."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A completion. ``step`` counts from 1, ``group`` from 0 within the step; ``truncated``: it has no EOS. The last
    fields are those of :class:`~dare_bench.trainers.rl.completions.Completion`."""

    step: int
    group: int
    where: str
    prompt: Any
    completion: str
    reward: float | None
    terms: dict[str, float]
    accuracy: float | None
    advantage: float
    truncated: bool
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    scored: int
    set_at: tuple[int, ...]
    logprobs: tuple[float, ...]


def is_due(step: int, every: int, iterations: int) -> bool:
    """Is the rollout that ``step`` (from 0) is the first of written, with a file every so many steps (0: never)?"""
    return every > 0 and step % every < iterations


def table_lines(
    step: int,
    group: int,
    first: int,
    prompts: Sequence[RewardPrompt],
    scored: Sequence[tuple[Completion, Generation, Reward, float]],
) -> list[str]:
    """The rows of a process, as JSON. ``step``: the first on the rollout, from 0; ``group``: completions of a group;
    ``first``: the number of this process's first completion among all; ``scored``: with answers, rewards, advantages.
    """
    kept = max(MOST // group, 1) * group - first
    rows = (
        {
            "step": step + 1,
            "group": (first + i) // group,
            "where": completion.where,
            "prompt": prompt.prompt,
            "completion": answer.text or "",
            "reward": reward.value,
            "terms": dict(reward.terms),
            "accuracy": reward.accuracy,
            "advantage": advantage,
            "truncated": answer.finish_reason == "length",
            "prompt_ids": completion.prompt,
            "tokens": completion.tokens,
            "scored": completion.scored,
            "set_at": completion.set_at,
            "logprobs": [round(value, 6) for value in completion.logprobs],
        }
        for i, (prompt, (completion, answer, reward, advantage)) in enumerate(zip(prompts, scored, strict=True))
        if i < kept
    )
    return [json.dumps(row) for row in rows]


def read_table(out: Path, step: int) -> list[TableRow]:
    """The completions that ``step`` (from 1) is the first to train on; raises TrainingError if the file is damaged."""
    file = out / table_name(step - 1)
    try:
        lines = read_bytes(file, TrainingError, limit=LIMIT).splitlines()
        rows = TypeAdapter(list[TableRow]).validate_python([parse_json(line) for line in lines])
    except ValidationError as error:
        raise TrainingError(f"{file} is damaged ({one_line(error, 'a row')}); remove it") from error
    except ValueError as error:
        raise TrainingError(f"{file} is damaged ({error}); remove it") from error
    if not rows or any(len(row.tokens) != len(row.set_at) for row in rows):
        raise TrainingError(f"{file} is damaged (no completions, or tokens and set_at of different length); remove it")
    return rows


# -- which steps can be shown again ------------------------------------------------------------------------------------


def table_name(step: int) -> str:
    """The file of the rollout that ``step`` (from 0) is the first of."""
    return f"{FOLDER}/step-{step + 1:06d}.jsonl"


def kept_weights(out: Path, options: Mapping[str, Any]) -> set[int]:
    """The steps after which the weights are there, from which a rollout can be made again; 0: the starting checkpoint.
    ``options``: the settings of the method."""
    if _why_never(options):
        return set()
    names = (file.parent.name.rpartition("-")[2] for file in out.glob("checkpoint-*/lineage.json"))
    return {0, *(int(name) for name in names if name.isdecimal())}


def refuse_not_kept(out: Path, step: int, steps: int, options: Mapping[str, Any]) -> None:
    """Refuse a step (counted from 1) of the training of ``steps`` steps in ``out`` that cannot be shown again.
    ``options``: the settings of the method; of a record, with what it has beside them (``reward_weights``). Raises
    UsageError: neither the weights that sampled its rollout nor its completions were kept."""
    iterations = options["num_iterations"]
    first = (step - 1) // iterations * iterations
    weights = kept_weights(out, options)
    if first in weights or (out / table_name(first)).exists():
        return
    reason = _why_never(options) or (
        f"its rollout was sampled with the weights after step {first}, and {out} has no checkpoint-{first}"
    )
    raise UsageError(
        f"step {step}: {reason}, and no table has its completions; steps that can be replayed: "
        f"{replayable(steps, iterations, weights | _tables(out))}; a training keeps all with --save-steps "
        f"{iterations}, or completions without weights with --log-completions {iterations}"
    )


def replayable(steps: int, iterations: int, kept: set[int]) -> str:
    """The steps whose rollout can be shown again, in words: the weights before the first step of a rollout, or a table
    of its completions, were kept."""
    ranges: list[tuple[int, int]] = []
    for first in sorted(kept):
        if first % iterations == 0 and first < steps:
            last = min(first + iterations, steps)
            begin = ranges.pop()[0] if ranges and ranges[-1][1] == first else first + 1
            ranges.append((begin, last))
    return ", ".join(f"{begin} to {last}" if begin < last else str(begin) for begin, last in ranges) or "none"


def _why_never(options: Mapping[str, Any]) -> str:
    """Why no rollout of a training can be made again; empty if it can."""
    if (engine := options.get("rollout_engine")) is not None:
        return f"engine {engine} sampled, whose random numbers cannot be drawn again"
    if functions := set(options.get("reward_weights") or ()) - set(registry().names("reward")):
        return f"its reward {min(functions)!r} is a function of your own"
    return ""


def _tables(out: Path) -> set[int]:
    """The steps, from 0, whose completions were kept."""
    names = (file.stem.rpartition("-")[2] for file in (out / FOLDER).glob("step-*.jsonl"))
    return {int(name) - 1 for name in names if name.isdecimal()}
