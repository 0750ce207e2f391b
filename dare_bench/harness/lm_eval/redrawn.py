"""What the choice of a document would score with other random draws of its likelihoods.

Shape letters: C choices, R deviations, S simulated sets of draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dare_bench.types import Likelihood, Sample

Floats = NDArray[np.float64]
AnswerAt = Callable[[str, Any, int], Sample]
"""The sample of (task, document, index of the request in the document)."""
SETS = 512
"""Simulated sets of draws for each document; 1 / SETS is the step of a share."""
LENGTHS: Mapping[str, Callable[[str], float]] = {
    "acc": lambda choice: 1.0,
    "acc_norm": lambda choice: float(len(choice)),
    "acc_bytes": lambda choice: float(len(choice.encode())),
}
"""What each metric of lm-eval divides the log-likelihood of a choice by."""


def mark_redrawn(tasks: Mapping[str, Any], samples: Mapping[str, Sequence[dict[str, Any]]], answer: AnswerAt) -> None:
    """Write into lm-eval's logged samples of multiple-choice tasks with random draws what other draws would score:
    ``redrawn``, by metric the share of :data:`SETS` sets in which the choice is right. The errors of the recorded draws
    are added to their values, so this has the noise of two draws."""
    for name, rows in samples.items():
        task = tasks.get(name)
        if getattr(task, "OUTPUT_TYPE", None) != "multiple_choice":
            continue
        for row in rows:
            answers = [answer(name, row["doc_id"], idx).answer for idx in range(len(row["resps"]))]
            likelihoods = [each for each in answers if isinstance(each, Likelihood)]
            if len(likelihoods) == len(answers) and any(each.deviations for each in likelihoods):
                row["redrawn"] = _shares(task, row, likelihoods)


def _shares(task: Any, row: Mapping[str, Any], likelihoods: Sequence[Likelihood]) -> dict[str, float]:
    choices, doc = task.doc_to_choice(row["doc"]), row["doc"]
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    right = {choices.index(each) if isinstance(each, str) else each for each in _listed(gold)}
    values_SC = redrawn_values(likelihoods[: len(choices)])
    shares = {}
    for metric, length in LENGTHS.items():
        if metric in row["metrics"]:
            lengths_C = np.array([length(choice) for choice in choices])
            values_C = np.array([each.value for each in likelihoods[: len(choices)]])
            # Where this is not how the task computes its metric, nothing is known about other draws.
            if float(int(np.argmax(values_C / lengths_C)) in right) == row[metric]:
                shares[metric] = float(np.isin((values_SC / lengths_C).argmax(1), list(right)).mean())
    return shares


def redrawn_values(likelihoods: Sequence[Likelihood]) -> Floats:
    """The values of choices with other normal errors of their size and correlation, [S, C]."""
    deviations_CR = np.zeros((len(likelihoods), max(len(each.deviations) for each in likelihoods)))
    for row_R, each in zip(deviations_CR, likelihoods, strict=True):
        row_R[: len(each.deviations)] = each.deviations
    half = np.random.default_rng(0).standard_normal((SETS // 2, deviations_CR.shape[1]))
    errors_SC = np.concatenate([half, -half]) @ deviations_CR.T
    return np.array([each.value for each in likelihoods]) + errors_SC


def _listed(gold: Any) -> list[Any]:
    return list(gold) if isinstance(gold, list | tuple) else [gold]
