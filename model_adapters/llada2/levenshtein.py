"""Tokens are written, replaced, deleted and inserted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.quota import even_schedule

ALTERNATIVES = 3
"""Most probable tokens of a position that are enough to leave out the two edits."""
TRIES = 5
"""Attempts to leave a state of the block that was there before."""


@dataclass
class BlockState:
    """The state of a row's block. ``original``: by position, has its token come from a mask that the block began with?
    ``seen``: its states before edits; ``after``: forwards since the last of those masks was filled."""

    original: list[bool]
    masks: int
    forwards: int = 0
    after: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)


class Levenshtein(Strategy):
    """As ``edit``, and a token may also be deleted, or a mask inserted before it: the model proposes ``delete_id`` or
    ``split_id`` for it. The block keeps its length: masks are added at its end, or tokens are lost there. Forward i
    fills at least its share of the masks that the block began with, and as many as were added since. A block ends when
    a forward changes nothing, or after ``max_post_steps`` forwards without such masks, in the last of which nothing is
    deleted or inserted (LLaDA2.2; approximate: a state that repeats is left by the least confident change and not by a
    random one)."""

    name = "levenshtein"
    source = "LLaDA2.2 generate, as in FLX-OSS/FluxServe decoders/levenshtein.py"
    ends = "planned"
    edits = True

    steps: int = Field(ge=1)
    threshold: float = Field(ge=0, le=1)
    edit_threshold: float = Field(ge=0, le=1)
    max_post_steps: int = Field(default=16, ge=0)
    max_steps: int = Field(default=1000, ge=2)
    mask_id: int
    delete_id: int
    split_id: int

    @property
    def decision(self) -> Strategy:
        return self  # ``select`` reads ``steps``

    def remember(self, masked: Sequence[bool]) -> BlockState:
        return BlockState(list(masked), sum(masked))

    def planned(self, length: int) -> int:
        return self.max_steps  # a mask that is split again and again is never filled

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        assert offer.best_NK is not None
        token_N, ended_R = positions.current_N.clone(), torch.zeros(positions.rows, dtype=torch.bool)
        for r in positions.row_N.unique().tolist():
            at = (positions.row_N == r).nonzero()[:, 0]
            step = _Step(
                self,
                positions.memories[r],
                positions.current_N[at].tolist(),
                offer.token_N[at].tolist(),
                offer.score_N[at].tolist(),
                offer.best_NK[at].tolist(),
            )
            tokens, ended_R[r] = step.run()
            token_N[at] = torch.tensor(tokens, device=token_N.device)
        written_N, ended_R = token_N != positions.current_N, ended_R.to(token_N.device)
        return offer.write(written_N, token_N=token_N, ended_R=ended_R)

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        assert decision.ended_R is not None
        return positions.is_last_R | (positions.full_R & ~positions.changed(decision)) | decision.ended_R


@dataclass
class _Step:
    """A forward's edits of one row: the block's tokens after the prompt, with the proposed ones, their confidences, and
    the best alternatives of each."""

    rule: Levenshtein
    state: BlockState
    old: list[int]
    proposed: list[int]
    confidence: list[float]
    best: list[list[int]]

    def run(self) -> tuple[list[int], bool]:
        """The new tokens, and whether the block ends here."""
        rule, state = self.rule, self.state
        masked = [i for i, token in enumerate(self.old) if token == rule.mask_id]
        original = [i for i in masked if state.original[i]]
        state.after = 0 if original else state.after + 1
        chosen = self._filled(masked, len(masked) - len(original))
        if rule.max_post_steps:
            last = state.after >= rule.max_post_steps
        else:
            last = bool(original) and set(original) <= set(chosen)
        last = last or state.forwards >= rule.max_steps - 1
        changed = {*(masked if last else chosen), *self._replaced()}
        new = [self._token(i, last) if i in changed else token for i, token in enumerate(self.old)]
        if not last:
            self._leave_seen(new)
        state.seen.add(tuple(new))
        state.forwards += 1
        return self._edited(new), last

    def _filled(self, masked: list[int], added: int) -> list[int]:
        """The masks to fill."""
        if self.state.forwards >= self.rule.steps:
            return masked
        due = even_schedule(self.state.masks, self.rule.steps)[self.state.forwards] + added
        above = [i for i in masked if self.confidence[i] > self.rule.threshold]
        return above if len(above) >= due else sorted(masked, key=lambda i: -self.confidence[i])[:due]

    def _replaced(self) -> list[int]:
        """The written tokens to replace."""
        return [
            i
            for i, token in enumerate(self.old)
            if token not in (self.rule.mask_id, self.proposed[i]) and self.confidence[i] > self.rule.edit_threshold
        ]

    def _token(self, i: int, last: bool) -> int:
        edits = (self.rule.delete_id, self.rule.split_id)
        if not last or self.proposed[i] not in edits:
            return self.proposed[i]
        return next(token for token in self.best[i] if token not in edits)

    def _leave_seen(self, new: list[int]) -> None:
        """Where the block was in this state before: another token at its least confident change."""
        for _ in range(TRIES):
            changes = [i for i, token in enumerate(self.old) if new[i] != token]
            if tuple(new) not in self.state.seen or not changes:
                return
            i = min(changes, key=lambda i: self.confidence[i])
            new[i] = next(token for token in self.best[i] if token != new[i])

    def _edited(self, new: list[int]) -> list[int]:
        """Delete and insert; ``state.original`` follows its tokens."""
        rule, tokens, original = self.rule, list[int](), list[bool]()
        for i, token in enumerate(new):
            if token == rule.split_id:
                tokens += [rule.mask_id, self.old[i]]
                original += [False, self.state.original[i]]
            elif token != rule.delete_id:
                tokens.append(token)
                original.append(self.state.original[i])
        length = len(self.old)
        tokens += [rule.mask_id] * (length - len(tokens))
        self.state.original = (original + [False] * length)[:length]
        return tokens[:length]
