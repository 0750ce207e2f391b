"""Sampled answers as algorithms look at them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import FailFast, FiniteFloat

from dare_bench.errors import TrainingError
from dare_bench.types import Generation, ModelSpec

Integers = Annotated[tuple[int, ...], FailFast()]
"""Validated up to the first value that is none, as are those of :data:`Numbers`: a file may hold millions."""
Numbers = Annotated[tuple[FiniteFloat, ...], FailFast()]


@dataclass(frozen=True)
class Prediction:
    """The answer that one forward of the sampler predicted: ``tokens``, the canvas with a proposed token at every mask;
    ``masked``, the positions that were masked before it; ``advantage`` of the forward, among those of the other
    completions of the prompt."""

    tokens: Integers
    masked: Integers
    scored: int
    advantage: FiniteFloat


@dataclass(frozen=True)
class Completion:
    """A sampled answer.

    Attributes:
        prompt, tokens: ids; ``tokens`` is the whole canvas as the sampler left it.
        scored: the number of leading tokens that count, through the first EOS or all.
        key: of its random numbers.
        set_at: the forward, from 0, in which each token was written; -1 if none wrote it.
        where: the prompt's name for messages.
        logprobs: log p of each token in the distribution that the sampler drew it from, in nats (``Event.logprob``;
            0.0 where nothing was written); empty if it was not recorded.
        predictions: of the forwards that are trained on; empty if an algorithm does not look at predictions.
        parent: in a tree of completions, the name of the canvas from which it went on (equal for siblings).
    """

    prompt: Integers
    tokens: Integers
    scored: int
    key: int
    set_at: Integers
    where: str = ""
    logprobs: Numbers = ()
    predictions: Annotated[tuple[Prediction, ...], FailFast()] = ()
    parent: str = ""

    @property
    def scored_tokens(self) -> int:
        """The tokens that count, in all predictions if there are any."""
        if not self.predictions:
            return self.scored
        return sum(place < predicted.scored for predicted in self.predictions for place in predicted.masked)

    def check(self, prompt: Sequence[int], spec: ModelSpec) -> None:
        """Raise ValueError unless the record, which was read from a file, fits this prompt, the model and itself."""
        length = len(self.tokens)

        def is_answer(answer: Completion | Prediction) -> bool:
            is_whole = len(answer.tokens) == length and 0 <= answer.scored <= length
            return is_whole and 0 <= min(answer.tokens) <= max(answer.tokens) < spec.vocab_size

        fits = (
            self.prompt == tuple(prompt)
            and 0 < length <= spec.context_limit
            and 0 <= self.key < 1 << 63
            and len(self.set_at) == length
            and -1 <= min(self.set_at) <= max(self.set_at) < 1 << 31
            and len(self.logprobs) in (0, length)
            and is_answer(self)
            and all(map(is_answer, self.predictions))
            and all(0 <= place < length for predicted in self.predictions for place in predicted.masked)
        )
        if not fits:
            raise ValueError(f"a completion of {self.where!r} is not one of its prompt by this model")

    @property
    def written(self) -> list[int]:
        """The positions that count and that a forward wrote."""
        return [i for i, at in enumerate(self.set_at[: self.scored]) if at >= 0]


def recorded(prompt: Sequence[int], answer: Generation, mask_id: int, key: int, where: str) -> Completion:
    """The record of a sampled answer, all of whose tokens count: those that the sampler wrote, also in the hidden rest
    of the block in which it stopped. ``key``: of its random numbers; ``where``: the prompt's name for messages."""
    events = [event for event in answer.trajectory or () if event.position >= 0]
    length = max([len(answer.tokens), *(event.position + 1 for event in events)])
    tokens = [*answer.tokens, *[mask_id] * (length - len(answer.tokens))]
    set_at, drawn = [-1] * length, list[float | None]([0.0] * length)
    for event in events:
        tokens[event.position] = event.token
        set_at[event.position] = event.step if event.op == "set" else -1
        drawn[event.position] = event.logprob
    logprobs = tuple(value for value in drawn if value is not None)
    known = logprobs if len(logprobs) == length and answer.trajectory is not None else ()
    return Completion(tuple(prompt), tuple(tokens), length, key, tuple(set_at), where, known)


def check_blocks(completion: Completion, block_length: int, canvas: int | None = None) -> None:
    """Check that a completion was written in the blocks in which a block-causal learner scores it: counted from the
    prompt's first token, one finished after another, to the end of the last, or of a canvas of so many tokens. Raises
    TrainingError: other blocks, or a last block that was left unfinished."""
    offset, end = len(completion.prompt), len(completion.prompt) + len(completion.tokens)
    forwards: dict[int, list[int]] = {}
    for column, forward in enumerate(completion.set_at, offset):
        forwards.setdefault(column // block_length, []).append(forward)
    in_order = all(max(earlier) < min(later) for earlier, later in pairwise([[-1], *forwards.values()]))
    unfinished = end % block_length and len(completion.tokens) != canvas
    if unfinished or not in_order:
        raise TrainingError(
            f"{completion.where}: columns {offset} to {end - 1} were not sampled in finished blocks of {block_length} "
            "tokens, counted from the prompt's first token, in which the learner scores them; omit --rollout fields "
            "that stop inside a block or set other blocks (eos_early_stop, block_length)"
        )
