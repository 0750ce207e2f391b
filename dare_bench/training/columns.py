"""The row formats of training files, in one table with their sources. A file's format is determined by its columns and
holds for all its rows; a row that violates it is :class:`Malformed`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.errors import DataError, UsageError, brief
from dare_bench.training import prompts, turns
from dare_bench.training.rows import Example, Item, Kind, PreferencePair
from dare_bench.training.turns import Malformed, column, text
from dare_bench.types import Message

Columns = Mapping[str, Any]
Read = Callable[[Columns, str], list[Item]]
"""Makes items of a row and its place."""


@dataclass(frozen=True)
class RowFormat:
    """A row format: its required columns (``a.b`` is field b of column a), and the function that reads a row."""

    name: str
    kind: Kind
    required: tuple[str, ...]
    read: Read
    source: str


def _dialogue(name: str, read: Callable[[Any, str], list[Message]]) -> Read:
    """An example for each assistant turn, with all turns before it as the prompt (LLaDA, arXiv 2502.09992, B.1)."""

    def examples(row: Columns, where: str) -> list[Item]:
        messages = read(column(row, name), name)
        turns.check_order(messages, name, last="assistant")
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return [
            Example(
                tuple(messages[:i]),
                text(messages[i]["content"], f"{name}[{i}].content"),
                where if len(answers) == 1 else f"{where} (turn {turn})",
            )
            for turn, i in enumerate(answers, 1)
        ]

    return examples


def _prompt_and(name: str) -> Read:
    def read(row: Columns, where: str) -> list[Item]:
        prompt, (answer,) = turns.prompt_and_answers(row, "prompt", (name,))
        return [Example(prompt, answer, where)]

    return read


def _alpaca(row: Columns, where: str) -> list[Item]:
    instruction = text(column(row, "instruction"), "instruction")
    if row.get("input") not in (None, ""):
        instruction += "\n" + text(row["input"], "input")
    return [Example((turns.user(instruction),), text(column(row, "output"), "output"), where)]


def _question(question: str, answer: str) -> Read:
    def read(row: Columns, where: str) -> list[Item]:
        asked, answered = (text(column(row, name), name) for name in (question, answer))
        return [Example((turns.user(asked),), answered, where)]

    return read


def _preference(prompt_name: str | None) -> Read:
    def read(row: Columns, where: str) -> list[Item]:
        if column(row, "chosen") == column(row, "rejected"):
            raise Malformed(f"chosen and rejected are the same ({brief(row['chosen'])}); expected different answers")
        prompt, (chosen, rejected) = turns.prompt_and_answers(row, prompt_name, ("chosen", "rejected"))
        if chosen == rejected:
            raise Malformed(f"chosen and rejected answers are the same ({brief(chosen)}); expected different ones")
        return [PreferencePair(prompt, chosen, rejected, where)]

    return read


_CHAT, _SHAREGPT = _dialogue("messages", turns.messages), _dialogue("conversations", turns.sharegpt)
_TRL, _DARE = "TRL, prompt-completion", ("extra_info.question", "extra_info.answer")
ROW_FORMATS: tuple[RowFormat, ...] = (
    RowFormat("chat", "examples", ("messages",), _CHAT, "OpenAI fine-tuning; TRL, conversational"),
    RowFormat("ShareGPT", "examples", ("conversations",), _SHAREGPT, "FastChat, LLaMA-Factory"),
    RowFormat("prompt and completion", "examples", ("prompt", "completion"), _prompt_and("completion"), _TRL),
    RowFormat("prompt and response", "examples", ("prompt", "response"), _prompt_and("response"), "verl"),
    RowFormat("prompt and answer", "examples", ("prompt", "answer"), _prompt_and("answer"), "our own tasks"),
    RowFormat("instruction", "examples", ("instruction", "output"), _alpaca, "Stanford Alpaca"),
    RowFormat("question and answer", "examples", ("question", "answer"), _question("question", "answer"), "GSM8K"),
    RowFormat("DARE SFT", "examples", _DARE, _question(*_DARE), "DARE, dLLMSFTDataset"),
    RowFormat(
        "preference", "pairs", ("prompt", "chosen", "rejected"), _preference("prompt"), "TRL, DARE, UltraFeedback"
    ),
    RowFormat("preference without prompt", "pairs", ("chosen", "rejected"), _preference(None), "TRL, implicit prompt"),
    RowFormat(
        "DARE RL", "prompts", ("prompt", "reward_model.ground_truth"), prompts.dare_rl, "DARE, verl: RLHFDataset"
    ),
    RowFormat("GSM8K", "prompts", ("question", "answer"), prompts.gsm8k, "GSM8K; d1"),
    RowFormat("MATH", "prompts", ("problem",), prompts.math, "MATH, MATH-500"),
    RowFormat("countdown", "prompts", ("numbers", "target"), prompts.countdown("numbers"), "our own countdown files"),
    RowFormat("countdown tasks", "prompts", ("nums", "target"), prompts.countdown("nums"), "Countdown-Tasks-3to4; d1"),
    RowFormat("sudoku", "prompts", ("puzzle", "solution"), prompts.sudoku("puzzle", "solution"), "SPG"),
    RowFormat("d1 sudoku", "prompts", ("Puzzle", "Solution"), prompts.sudoku("Puzzle", "Solution"), "d1"),
    RowFormat("input and output", "prompts", ("input", "output"), prompts.puzzle, "d1, Dream: countdown and sudoku"),
    RowFormat("HumanEval", "prompts", ("prompt", "test", "entry_point"), prompts.humaneval, "HumanEval, HumanEval+"),
    RowFormat("MBPP", "prompts", ("text", "test_list"), prompts.mbpp("text"), "MBPP"),
    RowFormat("sanitized MBPP", "prompts", ("prompt", "test_list"), prompts.mbpp("prompt"), "MBPP sanitized, MBPP+"),
)

KEEP = frozenset(need.partition(".")[0] for row_format in ROW_FORMATS for need in row_format.required)
KEEP |= {"input", "data_source", "extra_info", "answer", "solution", *prompts.CODE_FIELDS}
"""Columns that a format reads."""

DESCRIPTIONS: Mapping[Kind, str] = {
    "examples": "a prompt and an answer",
    "pairs": "preferences (a prompt, a chosen and a rejected answer)",
    "prompts": "prompts with a reference answer that a reward checks",
}
"""The contents of the rows of each kind."""


OWN: Mapping[Kind, str] = {"prompts": "; any prompts will do with a reward of your own (--reward FILE.py:FUNCTION)"}
ANY_PROMPT = RowFormat("prompt", "prompts", ("prompt",), prompts.any_prompt, "TRL, prompt-only")
"""Rows that name no reward, where rewards are given with weights."""


def format_of(
    columns: frozenset[str], kind: Kind, where: str, readers: Callable[[Kind], str], any_prompt: bool = False
) -> RowFormat:
    """The format of a file for a method that reads ``kind``, by its ``columns`` and their fields (``column.field``).
    ``readers`` describes the methods that read a kind; ``any_prompt``: may rows of kind ``prompts`` have a prompt
    alone? Raises UsageError: rows of another kind, or columns of two formats; DataError: columns of no format."""
    expected = " or ".join(f"({', '.join(f.required)})" for f in ROW_FORMATS if f.kind == kind)
    known = (*ROW_FORMATS, ANY_PROMPT) if any_prompt else ROW_FORMATS
    matches = [f for f in known if columns.issuperset(f.required)]
    of_kind = [f for f in matches if f.kind == kind]
    of_kind = [f for f in of_kind if not any(set(f.required) < set(other.required) for other in of_kind)]
    if len(of_kind) == 1 or ANY_PROMPT in of_kind:
        return of_kind[-1]
    if of_kind:
        formats = " and of ".join(f"{f.name} ({', '.join(f.required)})" for f in of_kind)
        raise UsageError(f"{where} has the columns of {formats}; keep those of one format")
    if matches:
        other = matches[0]
        raise UsageError(
            f"{where} holds {DESCRIPTIONS[other.kind]}: columns {', '.join(other.required)}; this method learns from "
            f"{DESCRIPTIONS[kind]}. Use {readers(other.kind)}, or data with columns {expected}{OWN.get(kind, '')}"
        )
    top = sorted(name for name in columns if "." not in name)
    raise DataError(f"{where} has columns {brief(', '.join(top), 120)}; expected {expected}")
