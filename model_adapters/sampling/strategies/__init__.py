"""Strategies: which open positions a forward writes, and when a block is finished.

A strategy is registered under the kind ``strategy`` (see ``dare_bench.registry``), by us in
``model_adapters/__init__.py`` and by third parties through the entry-point group ``dare_bench.plugins``; the decoding
field ``strategy`` then selects it by name in every family. Families select their published ones by their own fields.

Shape letters: N open positions, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import Tensor

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.fields import first_error, unknown_field
from dare_bench.model_adapters.sampling.ranking import Ranked, rank
from dare_bench.model_adapters.sampling.records import SCORE, Decision, Offer, Positions
from dare_bench.model_adapters.sampling.scores import SCORES, PositionScore, RankBy
from dare_bench.model_adapters.sampling.strategies.published import Described
from dare_bench.registry import registry

Ends = Literal["full", "planned", "schedule"]


class Carried(NamedTuple):
    """A value beside each token of the canvas, of shape ``size``, that begins as ``fill``."""

    fill: float
    dtype: torch.dtype = torch.float64
    size: tuple[int, ...] = ()


class Strategy(Described):
    """A way of unmasking; its fields are its settings, and its docstring states its exactness.

    Most strategies rank positions by a score and write the best: :meth:`count` returns how many. Others override
    :meth:`select`. Instances are immutable and shared between rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ends: ClassVar[Ends] = "full"
    """When a block ends: as soon as it has no mask left | also after the planned forwards | with its schedule alone."""
    edits: ClassVar[bool] = False
    """Are the written tokens of the block open, too?"""
    remasks: ClassVar[bool] = False
    """Does ``select`` read the scores with which tokens were written? They are carried as ``SCORE``, inf where a token
    was given. Only with ``edits``."""
    whole: ClassVar[bool] = False
    """Is the whole answer its block? The family's blocks are its own to observe (:meth:`for_model`). Only without a
    cache, and where attention is bidirectional."""
    grows: ClassVar[bool] = False
    """May the canvas become longer (:meth:`grown`)? Only with ``whole``."""
    shadows: ClassVar[bool] = False
    """Does ``select`` read what all other tokens say of each token of the block (``Positions.verified_N``)? A second
    token stands at each place of the block, which sees the row but that place, and is not seen by the row."""
    greedy: ClassVar[bool] = False
    """Is it defined at temperature 0 alone?"""
    float64: ClassVar[bool] = False
    """Are probabilities computed in float64?"""
    alternatives: ClassVar[int] = 0
    """The number of most probable tokens of each position that it reads (``Offer.best_NK``)."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """The fields of a family's own strategies that mean the same here. Its ``steps``, those of a block, become the
    strategy's own."""
    steps: int | None = Field(default=None, ge=1)
    """Forwards planned for a block; None: one for each of its tokens."""

    @property
    def score(self) -> PositionScore:
        """The score that ranks positions."""
        return SCORES["confidence"]

    @property
    def remembers(self) -> bool:
        """Does ``select`` read and change what :meth:`remember` returned for a row's block (``Positions.memories``)? It
        is also given the most probable tokens (``Offer.best_NK``), and has ``edits``."""
        return type(self).remember is not Strategy.remember

    @property
    def has_state(self) -> bool:
        """Does a decision depend on more than the canvas and the number of forwards?"""
        return self.remembers or bool(self.carries(1))

    @property
    def static(self) -> bool:
        """Can forwards have a static shape, with positions that are not open (``Positions.live_N``)? Strategies
        that only ``count`` can; one with its own ``select`` says so if its operations do not depend on the number of
        open positions, and no tensor comes from the host or is read back to it."""
        return type(self).select is Strategy.select

    @property
    def decision(self) -> Strategy:
        """Rows with an equal value select positions together; override if ``select`` reads ``steps``."""
        return self.model_copy(update={"steps": None})

    def recorded(self) -> dict[str, Any]:
        """Name and settings, as ``strategy_of`` reads them."""
        return {"name": self.name, **self.model_dump()}

    def for_model(self, eos_ids: Sequence[int], length: int, answer: int) -> Strategy:
        """The strategy for rows whose answers of ``answer`` tokens end with one of ``eos_ids`` and whose blocks have
        ``length`` tokens: override if it depends on them."""
        return self

    def opening(self, answer: list[int]) -> list[int]:
        """The canvas that an answer starts with, of as many masks at first."""
        return answer

    def grown(self, carried: Mapping[str, Tensor]) -> dict[int, int | list[int]]:
        """What is inserted into the canvas after a forward that ended the block, behind which columns: so many masks,
        or these tokens; nothing if the answer is finished. ``carried``: what it keeps of the row."""
        return {}

    def remember(self, masked: Sequence[bool]) -> Any:
        """The state of a row's block for ``select``, from its masks after the prompt; a strategy that overrides this
        ``remembers``."""
        return None

    def carries(self, vocab: int) -> Mapping[str, Carried]:
        """What ``select`` reads beside the open positions (``Positions.carried``) and gives other values there
        (``Offer.write(carried=...)``), by a name that says what and of which size. It stays with the row."""
        return {SCORE: Carried(float("inf"))} if self.remasks else {}

    def planned(self, length: int) -> int:
        """Forwards planned for a block of ``length`` tokens."""
        return length if self.steps is None else self.steps

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        """Positions due in each forward from step ``first`` on, in a block of ``length`` tokens with ``masks`` masks
        left (and ``before`` masks before it); empty if the strategy has no schedule."""
        return []

    def most_forwards(self, length: int) -> int:
        """Maximum forwards of a block, unless the model predicts the mask token itself: one for each token, or as many
        as planned if those are fewer, or if a forward may fill no mask."""
        planned = self.planned(length)
        if self.ends == "planned" and self.edits:
            return planned
        return length if self.ends == "full" else min(planned, length)

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        """Forwards after which a block ends even with masks left. Where it has to be full, only a model that keeps
        predicting the mask token needs so many (the published samplers would not terminate)."""
        if self.ends == "schedule":
            return len(schedule)
        return self.planned(length) + (2 * length if self.ends == "full" else 0)

    def least_forwards(self, masks: int, due: Sequence[int]) -> int:
        """Forwards without which a block with ``masks`` masks cannot end, unless a forward changes nothing; ``due`` is
        what is left of its schedule. The host looks at the block no earlier."""
        return 1

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        """The number of best positions that each row writes, int64 [R]."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither count nor select")

    def select(self, offer: Offer) -> Decision:
        """The positions to write."""
        positions = offer.positions
        ranked = rank(offer.score_N, positions)
        count_R: Any = self.count(ranked, positions)
        if not isinstance(count_R, Tensor):
            got = f"count returned a {type(count_R).__name__}"
            raise DecodingError(f"strategy {self.name!r}: {got}; expected the counts alone, int64 [R]")
        return offer.write(ranked.rank_N < count_R[positions.row_N])

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        """Rows whose block is finished with this decision, bool [R]."""
        done_R = positions.is_last_R
        if self.ends != "schedule":
            done_R = done_R | (positions.masks_left(decision) == 0) | positions.stuck(decision)
        return done_R


class RankedStrategy(Strategy):
    """A strategy of which users choose the score."""

    rank_by: RankBy = "confidence"

    @property
    def score(self) -> PositionScore:
        return SCORES[self.rank_by]


def strategy_of(value: Any) -> Strategy:
    """The registered strategy of ``NAME`` or ``{"name": NAME, field: value}``; raises DecodingError."""
    if isinstance(value, Strategy):
        return value
    fields = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise DecodingError(f"strategy={value!r}: expected a name or {{'name': ..., field: value}}")
    kind: type[Strategy] = registry().get("strategy", name).load()
    for field in sorted(fields.keys() - kind.model_fields.keys()):
        raise unknown_field(f"strategy {name!r}", field, kind.model_fields)
    try:
        return kind(**fields)
    except ValidationError as error:
        raise DecodingError(f"strategy {name!r}: {first_error(error)}") from error
