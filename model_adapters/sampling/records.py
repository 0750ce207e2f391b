"""What a forward offers at its open positions (``Offer``), and what is decided on it (``Decision``).

Shape letters: N open positions, R rows, K most probable tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform

FAR = torch.iinfo(torch.long).max
SCORE = "score"
"""The name of what a strategy carries that remasks."""


@dataclass(frozen=True)
class Positions:
    """The open positions of one forward, the rows one after another.

    ``position_N`` counts from the first response token, ``place_N`` in the concatenated canvases, and ``slot_N`` in the
    row, below ``width`` and in the order of columns; ``masked_N`` is False where a written token may be replaced
    (editing). Of all rows of the batch: the ``key_R`` of a row's random numbers, forwards of the block (``step_R``) and
    of the row (``forward_R``) so far, positions due by schedule, the first column of the block and the most forwards
    that it has, whether the row has no randomness, its forwards on a block without masks if a strategy edits
    (``post_steps_R``, this one counts), and the length of its canvas.
    """

    mask_id: int
    row_N: Tensor
    column_N: Tensor
    position_N: Tensor
    place_N: Tensor
    slot_N: Tensor
    width: int
    current_N: Tensor
    masked_N: Tensor
    key_R: Tensor
    step_R: Tensor
    forward_R: Tensor
    quota_R: Tensor
    begin_R: Tensor
    limit_R: Tensor
    deterministic_R: Tensor
    post_steps_R: Tensor
    lengths: Sequence[int]
    masks_outside_R: Tensor | None = None
    """Masks of the block that the forward did not see."""
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    """What strategies keep beside the tokens (``Strategy.carries``), [N, ...] each."""
    memories: Sequence[Any] = ()
    """By row, what a strategy that remembers keeps of its block."""
    verified_N: Tensor | None = None
    """If a strategy has shadows: the probability of the token at each position, as all others predict it, float64."""
    live_N: Tensor | None = None
    """In forwards of static shape: False at positions that are not open now. None: all are open."""

    @property
    def rows(self) -> int:
        return len(self.key_R)

    @property
    def is_first_N(self) -> Tensor:
        """True at the first position of a block."""
        return self.column_N == self.begin_R[self.row_N]

    @property
    def is_last_R(self) -> Tensor:
        """Is this the last forward that the block may have?"""
        return self.step_R + 1 >= self.limit_R

    @property
    def full_R(self) -> Tensor:
        """Has the block no mask before the forward is decided?"""
        return self.count(self.masked_N) == 0

    def live(self, which_N: Tensor) -> Tensor:
        """``which_N`` at open positions, else False."""
        return which_N if self.live_N is None else which_N & self.live_N

    def count(self, which_N: Tensor) -> Tensor:
        """The number of positions of each row where ``which_N`` is True, int64 [R]."""
        return torch.zeros_like(self.key_R).scatter_add_(0, self.row_N, which_N.long())

    def first(self, which_N: Tensor) -> Tensor:
        """The first position of each row where ``which_N`` is True, else ``FAR``: int64 [R]."""
        at_N = torch.where(which_N, self.position_N, FAR)
        return torch.full_like(self.key_R, FAR).scatter_reduce_(0, self.row_N, at_N, "amin")

    def only(self, which_N: Tensor) -> Positions:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_N")}
        carried = {name: x_N[which_N] for name, x_N in self.carried.items()}
        return replace(self, **{name: x_N[which_N] for name, x_N in values.items() if x_N is not None}, carried=carried)

    def uniform(self, draw: Draw, which: slice | None = None) -> Tensor:
        """Uniform random numbers of this forward, float64 [N]."""
        row_N, at_N = (x_N if which is None else x_N[which] for x_N in (self.row_N, self.position_N))
        return uniform(self.key_R[row_N], draw, self.forward_R[row_N], at_N)

    def masks_left(self, decision: Decision) -> Tensor:
        """Masks of each row's block after a decision, int64 [R]."""
        in_block_N = self.column_N >= self.begin_R[self.row_N]
        masks_R = self.count((decision.after_N == self.mask_id) & in_block_N)
        return masks_R if self.masks_outside_R is None else masks_R + self.masks_outside_R

    def changed(self, decision: Decision) -> Tensor:
        """Does a decision change a position of the row? bool [R]."""
        return self.count(decision.after_N != self.current_N) > 0

    def stuck(self, decision: Decision) -> Tensor:
        """Without randomness an unchanged canvas gives the same forward again, forever: bool [R]."""
        return self.deterministic_R & ~self.changed(decision)


@dataclass(frozen=True)
class Offer:
    """What a forward offers for every open position: the proposed token, its confidence (float32 or float64), and the
    score that ranks it."""

    positions: Positions
    token_N: Tensor
    confidence_N: Tensor
    score_N: Tensor
    finite: Tensor
    """False, [], if any position has no finite largest logit."""
    logprob_N: Tensor | None = None
    """Above temperature 0: the log probability of the token in the distribution that drew it, float64, nats."""
    best_NK: Tensor | None = None
    """The K most probable tokens of each position, if the policy asks for them."""
    best_confidence_NK: Tensor | None = None
    """Their confidences."""
    probability_NV: Tensor | None = None
    """The probabilities of all tokens, if the score keeps them."""

    @staticmethod
    def joined(parts: Sequence[Offer]) -> Offer:
        """The concatenated chunks."""
        if len(parts) == 1:
            return parts[0]
        names = ["token_N", "confidence_N", "score_N", "logprob_N", "best_NK", "best_confidence_NK", "probability_NV"]
        names = [name for name in names if getattr(parts[0], name) is not None]
        tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **tensors, finite=torch.stack([part.finite for part in parts]).all())

    def write(
        self,
        written_N: Tensor,
        *,
        remasked_N: Tensor | None = None,
        token_N: Tensor | None = None,
        ended_R: Tensor | None = None,
        carried: Mapping[str, Tensor] | None = None,
    ) -> Decision:
        """The decision to write the positions ``written_N``.

        Args:
            remasked_N: written positions that become masks again.
            token_N: tokens other than the proposed ones.
            ended_R: rows whose block ends with this forward.
            carried: new values beside the tokens.
        """
        positions, confidence_N, logprob_N = self.positions, self.confidence_N, self.logprob_N
        token = self.token_N if token_N is None else token_N
        written_N = positions.live(written_N)
        if logprob_N is not None and token_N is not None:
            other_N = torch.where(token_N == positions.mask_id, 0.0, float("nan"))
            logprob_N = torch.where(token_N == self.token_N, logprob_N, other_N)
        carried = dict(carried or {})
        if SCORE in positions.carried:
            new_N = written_N & positions.masked_N
            carried[SCORE] = torch.where(new_N, self.score_N.double(), positions.carried[SCORE])
        if remasked_N is not None:
            token = torch.where(remasked_N, positions.mask_id, token)
            confidence_N = torch.where(remasked_N, positions.carried[SCORE], confidence_N.double())
            logprob_N = None if logprob_N is None else torch.where(remasked_N, 0.0, logprob_N)
            written_N = written_N | remasked_N
        after_N = torch.where(written_N, token, positions.current_N)
        return Decision(token, confidence_N, self.score_N, written_N, after_N, logprob_N, ended_R, carried)


@dataclass(frozen=True)
class Decision:
    """What is written at the open positions (``written_N``), each with its token and score, also where it is not
    written: the proposed token, or the mask id where a written token is masked again, whose confidence is the score
    with which it was written."""

    token_N: Tensor
    confidence_N: Tensor
    score_N: Tensor
    written_N: Tensor
    after_N: Tensor
    """The tokens at the positions after it."""
    logprob_N: Tensor | None = None
    """Above temperature 0: as offered, 0 for a mask, NaN where the token is not the one that was drawn."""
    ended_R: Tensor | None = None
    """Rows whose block ends with this forward, whatever it holds (None: no row)."""
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    """New values beside the tokens, [N, ...] each."""

    def only(self, written_N: Tensor, positions: Positions) -> Decision:
        """The same tokens at other positions."""
        after_N = torch.where(written_N, self.token_N, positions.current_N)
        return replace(self, written_N=written_N, after_N=after_N)
