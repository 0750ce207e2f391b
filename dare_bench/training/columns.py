"""What the columns of a row mean: one table of the shapes that are read, each with where it comes from.

A file's shape is told by its columns alone and holds for all its rows. A row that breaks it is :class:`Malformed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.errors import DataError, UsageError
from dare_bench.training import turns
from dare_bench.training.files import shown
from dare_bench.training.rows import Example, Item, Kind, PreferencePair, RewardPrompt
from dare_bench.training.turns import Malformed, column, text
from dare_bench.types import Message

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class RowFormat:
    """Rows of one make: the columns they must have (``a.b`` is field b of column a), and how one is read."""

    name: str
    kind: Kind
    needs: tuple[str, ...]
    read: Callable[[Columns, str], list[Item]]
    source: str


def _chat(row: Columns, where: str) -> list[Item]:
    return _dialogue(turns.messages(column(row, "messages"), "messages"), "messages", where)


def _sharegpt(row: Columns, where: str) -> list[Item]:
    return _dialogue(turns.sharegpt(column(row, "conversations"), "conversations"), "conversations", where)


def _dialogue(said: list[Message], what: str, where: str) -> list[Item]:
    """Every assistant turn is one example, with all turns before it as its prompt (LLaDA, arXiv 2502.09992, B.1)."""
    turns.ordered(said, what, last="assistant")
    at = [i for i, message in enumerate(said) if message["role"] == "assistant"]
    places = [where] if len(at) == 1 else [f"{where} (turn {n})" for n in range(1, len(at) + 1)]
    return [
        Example(tuple(said[:i]), text(said[i]["content"], f"{what}[{i}].content"), place)
        for i, place in zip(at, places, strict=True)
    ]


def _answered(name: str) -> Callable[[Columns, str], list[Item]]:
    def read(row: Columns, where: str) -> list[Item]:
        prompt, (answer,) = turns.prompt_and_answers(row, "prompt", (name,))
        return [Example(prompt, answer, where)]

    return read


def _asked(question: Any, answer: Any, names: tuple[str, str], where: str) -> list[Item]:
    return [Example((turns.user(text(question, names[0])),), text(answer, names[1]), where)]


def _alpaca(row: Columns, where: str) -> list[Item]:
    instruction, more = text(column(row, "instruction"), "instruction"), row.get("input")
    if more not in (None, ""):
        instruction += "\n" + text(more, "input")
    return _asked(instruction, column(row, "output"), ("instruction", "output"), where)


def _question(row: Columns, where: str) -> list[Item]:
    return _asked(column(row, "question"), column(row, "answer"), ("question", "answer"), where)


def _dare_sft(row: Columns, where: str) -> list[Item]:
    extra = _inner(row, "extra_info")
    names = ("extra_info.question", "extra_info.answer")
    return _asked(column(extra, "question", names[0]), column(extra, "answer", names[1]), names, where)


def _preferring(prompt_name: str | None) -> Callable[[Columns, str], list[Item]]:
    def read(row: Columns, where: str) -> list[Item]:
        if column(row, "chosen") == column(row, "rejected"):
            raise Malformed(f"chosen and rejected are the same ({shown(row['chosen'])}); expected different answers")
        prompt, (chosen, rejected) = turns.prompt_and_answers(row, prompt_name, ("chosen", "rejected"))
        if chosen == rejected:
            raise Malformed(f"chosen and rejected answers are the same ({shown(chosen)}); expected different ones")
        return [PreferencePair(prompt, chosen, rejected, where)]

    return read


def _dare_rl(row: Columns, where: str) -> list[Item]:
    extra = _inner(row, "extra_info") if row.get("extra_info") is not None else {}
    truth = column(_inner(row, "reward_model"), "ground_truth", "reward_model.ground_truth")
    if isinstance(truth, list | dict):
        truth = json.dumps(truth, ensure_ascii=False)
    elif isinstance(truth, int | float) and not isinstance(truth, bool):
        truth = str(truth)
    task = extra.get("task")
    return [
        RewardPrompt(
            turns.prompt(column(row, "prompt"), "prompt"),
            text(truth, "reward_model.ground_truth"),
            text(column(row, "data_source") if task is None else task, "extra_info.task"),
            where,
            {k: v for k, v in extra.items() if k != "task" and v is not None},  # parquet fills absent fields with None
        )
    ]


def _inner(row: Columns, name: str) -> Columns:
    value = column(row, name)
    if not isinstance(value, dict):
        raise Malformed(f"{name} is {shown(value)}; expected an object of fields")
    return value


_TRL = "TRL, prompt-completion"
ROW_FORMATS: tuple[RowFormat, ...] = (
    RowFormat("chat", "examples", ("messages",), _chat, "OpenAI fine-tuning; TRL, conversational"),
    RowFormat("ShareGPT", "examples", ("conversations",), _sharegpt, "FastChat, LLaMA-Factory"),
    RowFormat("prompt and completion", "examples", ("prompt", "completion"), _answered("completion"), _TRL),
    RowFormat("prompt and response", "examples", ("prompt", "response"), _answered("response"), "verl"),
    RowFormat("prompt and answer", "examples", ("prompt", "answer"), _answered("answer"), "our own tasks"),
    RowFormat("instruction", "examples", ("instruction", "output"), _alpaca, "Stanford Alpaca"),
    RowFormat("question and answer", "examples", ("question", "answer"), _question, "GSM8K"),
    RowFormat("DARE SFT", "examples", ("extra_info.question", "extra_info.answer"), _dare_sft, "DARE, dLLMSFTDataset"),
    RowFormat(
        "preference", "pairs", ("prompt", "chosen", "rejected"), _preferring("prompt"), "TRL, DARE, UltraFeedback"
    ),
    RowFormat("preference without prompt", "pairs", ("chosen", "rejected"), _preferring(None), "TRL, implicit prompt"),
    RowFormat("DARE RL", "prompts", ("prompt", "reward_model.ground_truth"), _dare_rl, "DARE and verl, RLHFDataset"),
)

KEEP = frozenset(need.partition(".")[0] for shape in ROW_FORMATS for need in shape.needs) | {"input", "data_source"}
KEEP |= {"extra_info"}
"""Columns that some shape reads."""

LEARNS: Mapping[Kind, str] = {
    "examples": "a prompt and an answer",
    "pairs": "preferences (a prompt, a chosen and a rejected answer)",
    "prompts": "prompts with a reference answer that a reward checks",
}
"""What rows of a kind are, in words."""


def format_of(columns: frozenset[str], kind: Kind, where: str, readers: Callable[[Kind], str]) -> RowFormat:
    """The shape of a file for a method that reads ``kind``.

    Args:
        columns: the file's columns and the fields inside them, with a dot.
        readers: the methods that read a kind, in words, for the error about a file of another kind.

    Raises:
        UsageError: rows of another kind, or columns of two shapes.
        DataError: columns of no shape.
    """
    matching = [shape for shape in ROW_FORMATS if columns.issuperset(shape.needs)]
    fitting = [shape for shape in matching if shape.kind == kind]
    fitting = [s for s in fitting if not any(set(s.needs) < set(other.needs) for other in fitting)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        both = " and of ".join(f"{s.name} ({', '.join(s.needs)})" for s in fitting)
        raise UsageError(f"{where} has the columns of {both}; which is meant? keep those of one")
    if matching:
        found = matching[0]
        raise UsageError(
            f"{where} holds {LEARNS[found.kind]}: columns {', '.join(found.needs)}; this method learns from "
            f"{LEARNS[kind]}. Use {readers(found.kind)}, or data with columns {_wanted(kind)}"
        )
    top = sorted(name for name in columns if "." not in name)
    raise DataError(f"{where} has columns {shown(', '.join(top), 120)}; expected {_wanted(kind)}")


def _wanted(kind: Kind) -> str:
    return " or ".join(f"({', '.join(s.needs)})" for s in ROW_FORMATS if s.kind == kind)
