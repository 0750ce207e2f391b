"""Rewards of the tasks here: the scores of their lm-eval tasks, with partial credit on request. And those of the
countdown and 4x4 sudoku data of DARE and d1 (arXiv 2504.12216), whose answers stand between ``<answer>`` and
``</answer>``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dare_bench.errors import DataError
from dare_bench.reading import parse_json
from dare_bench.reward_parts import MAX_TEXT, PartialCredit, RewardOptions, read_options, tagged
from dare_bench.tasks.dare_arithmetic import utils as arithmetic_task
from dare_bench.tasks.dare_countdown import utils as countdown_task
from dare_bench.tasks.dare_sort import utils as sort_task
from dare_bench.tasks.dare_sudoku import utils as sudoku_task
from dare_bench.types import Reward, RewardPrompt

ZERO, EMPTY = "0", sudoku_task.EMPTY
CELLS = sudoku_task.SIDE**2
PARTIAL = 0.1
"""The value of a partly right answer in the schemes ``d1`` and ``dare`` of countdown."""


@dataclass(frozen=True)
class TaskReward:
    """A registered ``reward`` target.

    Attributes:
        score: the task's scorer: document and answers to metrics, one of them ``exact_match``.
        partial: the metric of a partly right answer, from 0 to 1.
        stop: text that ends an answer: ``until`` of the task's yaml.
    """

    score: Callable[[dict[str, Any], list[str]], Mapping[str, float]]
    partial: str
    stop: str

    def __call__(
        self, prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]
    ) -> list[Reward]:
        """``exact_match`` as value and accuracy; a wrong answer gets ``format_weight`` times the partial metric; raises
        DataError or UsageError."""
        if not prompts:
            return []
        credit = read_options(PartialCredit, options, prompts[0].task)
        return [self._reward(prompt, text, credit) for prompt, text in zip(prompts, texts, strict=True)]

    def _reward(self, prompt: RewardPrompt, text: str, credit: PartialCredit) -> Reward:
        answer = text[:MAX_TEXT].partition(self.stop)[0]
        try:
            scores = self.score(dict(prompt.extra), [answer])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # any text gets a score: it is the document
            raise DataError(
                f"{prompt.where}: {dict(prompt.extra)!r:.120} is not a document of {prompt.task} ({error!r:.80})"
            ) from error
        return credit.reward(scores["exact_match"], scores[self.partial], self.partial)


SUDOKU = TaskReward(sudoku_task.score, "cell_accuracy", "\n\n")
ARITHMETIC = TaskReward(arithmetic_task.score, "digit_accuracy", "\n")
COUNTDOWN = TaskReward(countdown_task.score, "format", "\n")
SORT = TaskReward(sort_task.score, "format", "\n")


class CountdownOptions(RewardOptions):
    """``scheme``: ``exact``, 1 for a solution; ``d1``, also 0.1 for an expression of the right numbers with another
    value (d1, appendix); ``dare``, also 0.1 for any text in the tags (DARE's and d1's code)."""

    scheme: Literal["exact", "d1", "dare"] = "exact"


class SudokuOptions(RewardOptions):
    """``exact``: 1 for a solved board, else 0, instead of the share of empty cells that are right."""

    exact: bool = False


def countdown(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """A solution uses every number exactly once, and its exact value is the target. Read by the parser of
    ``dare_countdown``, never evaluated; raises DataError or UsageError.

    Terms: ``correctness``; ``format``, an expression of the right numbers; ``answered``, text in the tags.
    """
    scheme = read_options(CountdownOptions, options, "countdown").scheme
    rewards = []
    for prompt, text in zip(prompts, texts, strict=True):
        answer = tagged(text[-MAX_TEXT:])
        scores = countdown_task.score(_countdown_problem(prompt), [answer or ""])
        right, form, answered = scores["exact_match"], scores["format"], float(answer is not None)
        partial = {"exact": 0.0, "d1": PARTIAL * form, "dare": PARTIAL * answered}[scheme]
        terms = {"correctness": right, "format": form, "answered": answered}
        rewards.append(Reward(right or partial, right, terms))
    return rewards


def _countdown_problem(prompt: RewardPrompt) -> dict[str, Any]:
    numbers = prompt.extra.get("numbers")
    try:
        numbers = parse_json(numbers) if isinstance(numbers, str) else numbers
        if not isinstance(numbers, list) or not numbers or any(type(number) is not int for number in numbers):
            raise ValueError("no list of whole numbers")
        return {"numbers": numbers, "target": int(prompt.truth)}
    except ValueError as error:
        raise DataError(
            f"{prompt.where}: numbers={prompt.extra.get('numbers')!r:.60} and truth {prompt.truth!r:.40}; the reward "
            "'countdown' needs a list of whole numbers and a whole number"
        ) from error


def sudoku(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """The share of the empty cells with the right digit (d1, DARE). The accuracy is that of the whole board: 16 digits
    that keep the given ones and solve the puzzle; raises DataError or UsageError.

    Terms: ``correctness``, ``cell_accuracy``, and ``answered``, text in the tags.
    """
    exact = read_options(SudokuOptions, options, "sudoku").exact
    rewards = []
    for prompt, text in zip(prompts, texts, strict=True):
        answer = tagged(text[-MAX_TEXT:])
        digits = "".join(c for c in answer or "" if c in "0123456789")
        scores = sudoku_task.score(_sudoku_board(prompt), [digits])
        right, cells = scores["exact_match"], scores["cell_accuracy"]
        terms = {"correctness": right, "cell_accuracy": cells, "answered": float(answer is not None)}
        rewards.append(Reward(right if exact else cells, right, terms))
    return rewards


def _sudoku_board(prompt: RewardPrompt) -> dict[str, str]:
    puzzle, solution = (
        str(text).translate(sudoku_task.SEPARATORS) for text in (prompt.extra.get("puzzle"), prompt.truth)
    )
    board = {"puzzle": puzzle.replace(ZERO, EMPTY), "solution": solution}
    if len(puzzle) != CELLS or EMPTY not in board["puzzle"] or not sudoku_task.solves(board["puzzle"], solution):
        raise DataError(
            f"{prompt.where}: puzzle={prompt.extra.get('puzzle')!r:.60} and truth {prompt.truth!r:.40}; the reward "
            "'sudoku' needs a 4x4 puzzle of 16 digits (0: empty) and its solution"
        )
    return board
