"""The two models that lm-eval meets in our two passes: one that stops at the first question, one that knows all
answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dare_bench.harness.lm_eval.base_lm import BaseLM
from dare_bench.protocols import LoadedModel
from dare_bench.types import Generation, Likelihood, Sample


class Collected(Exception):
    """Ends the first pass: lm-eval has built every request of every task."""


class Asker(BaseLM):
    """Stops at the first question."""

    def generate_until(self, requests: list[Any]) -> list[str]:
        raise Collected

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        raise Collected

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        raise Collected


class Replayer(BaseLM):
    """Answers from finished samples, by (task, document, index, repeat).

    Args:
        part: which of ``--repeats``: a task that asks for r answers itself is given those from ``part * r`` on.
    """

    def __init__(self, model: LoadedModel, template: bool | str, samples: Mapping[Any, Sample], part: int = 0) -> None:
        super().__init__(model, template)
        self._samples, self._part = samples, part
        self._times: Counter[Any] = Counter()

    def _next(self, instance: Any) -> Generation | Likelihood:
        where = instance.true_key
        sample = self._samples[(*where, self._part * (instance.repeats or 1) + self._times[where])]
        self._times[where] += 1
        assert sample.answer is not None  # documents without an answer were left out
        return sample.answer

    def generate_until(self, requests: list[Any]) -> list[str]:
        answers: list[Any] = [self._next(instance) for instance in requests]
        return [answer.text or "" for answer in answers]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        # lm-eval turns is_greedy into a number even where no metric reads it, hence False for "not computed".
        answers: list[Any] = [self._next(instance) for instance in requests]
        return [(answer.value, bool(answer.is_greedy)) for answer in answers]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        raise AssertionError("refused when requests are built")
