"""Pages of answers on the unmasking slider: those of ``dare-bench generate``, different strategies side by side, and
the completions of a training step with reward, advantage, and the weight of each token in the update.

Both are made from the records that the commands print with ``--json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.analysis.unmasking import Piece, Unmasking, unmasking, with_weights
from dare_bench.formatting import figure, short_difference
from dare_bench.leaderboards.rendering import write_page
from dare_bench.leaderboards.sample_document import PageBudget

ASSETS = ("samples.css", "slider.js")


def write_answers(record: Mapping[str, Any], path: str | Path) -> Path:
    """Write answers as a page that needs only the folder ``<name>_files`` beside it.

    Args:
        record: ``model``, a name, and ``turns``, each as ``dare-bench generate --json`` prints it.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    turns = [
        {**turn, "answers": [{**answer, "order": _order(answer["trace"])} for answer in turn["answers"]]}
        for turn in record["turns"]
    ]
    return write_page(path, "answers.html.j2", ASSETS, model=record["model"], turns=turns, budget=PageBudget())


def _order(trace: Mapping[str, Any] | None) -> Any:
    return None if trace is None else unmasking(trace)


@dataclass(frozen=True, slots=True)
class ShownCompletion:
    """A completion on the page."""

    text: str
    reward: float | None
    advantage: float
    order: Unmasking
    budget: PageBudget

    @property
    def weighted(self) -> int:
        """The number of tokens with a weight."""
        return sum(bool(piece.weight) for piece in self.order.pieces)


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """The completions of a prompt."""

    where: str
    prompt: str
    completions: Sequence[ShownCompletion]

    @property
    def mean_reward(self) -> float | None:
        rewards = [completion.reward for completion in self.completions if completion.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


def write_rollout(record: Mapping[str, Any], path: str | Path) -> Path:
    """Write a replayed step as a page that needs only the folder ``<name>_files`` beside it.

    Args:
        record: as ``dare-bench rl replay --json`` prints it, with the groups to show.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    every = [weight for group in record["groups"] for c in group for weight in c["weights"] or ()]
    heaviest = max(map(abs, every), default=0.0)
    groups = [_group(group, heaviest) for group in record["groups"]]
    return write_page(
        path, "rollout.html.j2", ASSETS,
        record=record, groups=groups, heaviest=heaviest, token_rows=token_rows,
    )  # fmt: skip


def _group(completions: Sequence[Mapping[str, Any]], heaviest: float) -> ShownGroup:
    first = completions[0]
    return ShownGroup(first["where"], first["prompt_text"], [_completion(each, heaviest) for each in completions])


def _completion(completion: Mapping[str, Any], heaviest: float) -> ShownCompletion:
    order = unmasking(_trace(completion))
    if completion["weights"] is not None:
        order = with_weights(order, completion["weights"], heaviest)
    return ShownCompletion(completion["text"], completion["reward"], completion["advantage"], order, PageBudget())


def _trace(completion: Mapping[str, Any]) -> dict[str, Any]:
    """The trace line of a completion, as a run's trace file has it: a rollout's sampler writes each token once. The
    confidence is the probability of the token in the distribution that it was drawn from."""
    tokens = completion["tokens"]
    logprobs = completion["logprobs"] or [None] * len(tokens)
    probabilities = [None if value is None else math.exp(value) for value in logprobs]
    written = zip(completion["set_at"], tokens, probabilities, strict=True)
    events = [[step, "set", at, token, p] for at, (step, token, p) in enumerate(written) if step >= 0]
    return {"pieces": completion["pieces"], "events": sorted(events, key=lambda event: event[0])}


def token_rows(pieces: Sequence[Piece]) -> list[tuple[str, str, str, str]]:
    """(text, forward, confidence, weight) of each token, for a table."""
    return [
        (
            piece.text,
            "–" if piece.step is None else figure(piece.step),
            "–" if piece.confidence is None else f"{piece.confidence:.3g}",
            "–" if piece.weight is None else short_difference(piece.weight, share=False),
        )
        for piece in pieces
    ]
