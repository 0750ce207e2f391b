"""The completions of a rollout as a file of the training, for people and for a replay without the weights:
``completions/step-000011.jsonl`` has those that step 11 is the first to train on, in whole groups, at most
:data:`MOST`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dare_bench.config import one_line
from dare_bench.errors import TrainingError
from dare_bench.reading import parse_json, read_bytes
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.kept import table_name
from dare_bench.types import Generation, Reward, RewardPrompt

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
