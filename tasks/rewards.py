"""Rewards of the tasks here: the scores of their lm-eval tasks, with partial credit on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.errors import DataError
from dare_bench.reward_parts import MAX_TEXT, PartialCredit, read_options
from dare_bench.tasks.dare_arithmetic import utils as arithmetic
from dare_bench.tasks.dare_countdown import utils as countdown
from dare_bench.tasks.dare_sort import utils as sort
from dare_bench.tasks.dare_sudoku import utils as sudoku
from dare_bench.types import Reward, RewardPrompt


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
        """``exact_match`` as value and accuracy; a wrong answer gets ``format_weight`` times the partial metric.

        Raises:
            DataError: the fields of a prompt are not those of the task's documents.
            UsageError: unknown options.
        """
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


SUDOKU = TaskReward(sudoku.score, "cell_accuracy", "\n\n")
ARITHMETIC = TaskReward(arithmetic.score, "digit_accuracy", "\n")
COUNTDOWN = TaskReward(countdown.score, "format", "\n")
SORT = TaskReward(sort.score, "format", "\n")
