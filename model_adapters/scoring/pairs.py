"""A request to score on its way: tokens, masks, losses; and the canvases that the network sees of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.controlled import FIRST_ROUND, ROUND, combine_rounds
from dare_bench.diffusion.likelihood import MaskDraws, folded
from dare_bench.errors import PromptError
from dare_bench.model_adapters.backbone.pages import RowPages, chain
from dare_bench.model_adapters.encoding import split_texts
from dare_bench.model_adapters.scoring.likelihood_estimators import LikelihoodEstimator
from dare_bench.model_adapters.scoring.scored_model import ScoredModel
from dare_bench.types import Likelihood, Request


@dataclass(eq=False)
class ScoredPair:
    """``target`` is what is scored; ``ending`` are tokens at its end that the estimator has added. ``parts`` are its
    masks, one set a block where there are blocks, and none if no value is wanted; ``losses`` are the losses of each
    part's scored tokens, float64 [M, n], 0 elsewhere."""

    request: Request
    context: list[int]
    target: list[int]
    ending: int
    estimator: LikelihoodEstimator
    settings: dict[str, Any]
    parts: list[MaskDraws]
    shifted: bool = False
    """Does the state before a token predict it?"""
    losses: list[Tensor] = field(init=False)
    pages: RowPages = field(default_factory=RowPages)
    """The clean blocks before the target's last one, in the cache."""
    is_greedy: bool | None = None
    greedy_forwards: int = 0
    canvases: int = 0
    """Different canvases that the network saw of this pair, counted in each pass."""
    seen: int = 0
    """Those of earlier passes."""
    filled: range = field(init=False)
    """The masks of the pass to come, or of the last one: their losses are (to be) computed. Adaptive pairs have more
    passes than one, others all masks in one. An enumeration belongs to the first."""
    separated: bool | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.losses = [torch.zeros(part.masks_Mn.shape, dtype=torch.float64) for part in self.parts]
        self.whole = [*self.context, *self.target]
        self.guidance = self.estimator.guidance(self.settings)
        most = max((len(loss_Mn) for loss_Mn in self.losses), default=0)
        self.filled = range(1 + FIRST_ROUND if self.is_drawn_on else most)

    @property
    def is_adaptive(self) -> bool:
        """Is the number of draws that of its document, chosen as they go? Families without draws have no level."""
        return "level" in self.settings

    @property
    def is_drawn_on(self) -> bool:
        """Is it adaptive, and not enumerated?"""
        return self.is_adaptive and any(part.round_size for part in self.parts)

    @property
    def rounds(self) -> int:
        """Rounds of an adaptive pair with the draws of its passes."""
        return (self.filled.stop - 1) // ROUND

    @property
    def work(self) -> int:
        """The number of masks of the pass to come, in all parts."""
        return sum(len(self.masks_of(part)) for part in self.parts)

    def masks_of(self, part: MaskDraws) -> range:
        """The masks of a part that belong to the pass."""
        if self.is_adaptive and part.round_size == 0:
            return range(len(part.masks_Mn)) if self.filled.start == 0 else range(0)
        return range(self.filled.start, min(self.filled.stop, len(part.masks_Mn)))

    @property
    def answer(self) -> list[int]:
        """The target as it was given."""
        return self.target[: len(self.target) - self.ending]

    @property
    def block_length(self) -> int | None:
        return self.settings.get("block_length")

    @property
    def clean(self) -> int:
        """Columns whose keys and values the masked blocks read: all full blocks before the target's last."""
        return 0 if self.block_length is None else (len(self.whole) - 1) // self.block_length * self.block_length

    def window(self, part: MaskDraws) -> tuple[int, int]:
        """The columns that a canvas of this part holds: its block, and the one before where the state before the block
        predicts its first token."""
        if self.block_length is None:
            return 0, len(self.whole)
        first = len(self.context) + part.start
        low = first // self.block_length * self.block_length
        high = min(low + self.block_length, len(self.whole))
        return low - (self.block_length if self.shifted and first == low > 0 else 0), high

    def likelihood(self, weights_version: int = 0) -> Likelihood:
        """The answer, when all losses are there, or all that are wanted."""
        if self.is_adaptive:
            value, deviations_R = combine_rounds(self.parts, self.losses, self.rounds)
        else:
            value, deviations_R = self.estimator.estimate(self.parts, self.losses)
        exact = all(part.round_size == 0 for part in self.parts)
        alike = all(part.round_size == 0 or part.masks_Mn.shape[1] == 1 for part in self.parts)
        passes = self.canvases + (self.clean > 0) + self.greedy_forwards
        return Likelihood(
            value=value,
            stderr=float(deviations_R.norm()),
            deviations=[float(f"{x:.4g}") for x in folded(deviations_R).tolist() if math.isfinite(x)],
            is_greedy=self.is_greedy,
            nfe=passes * (2 if self.guidance > 0 else 1),
            estimator=next((p.estimator for p in self.parts if p.round_size), self.parts[0].estimator),
            draws=sum(map(len, self.losses))
            if exact
            else max(part.round_size and min(self.filled.stop, len(part.masks_Mn)) for part in self.parts),
            target_tokens=len(self.answer),
            prompt_tokens=len(self.context),
            tier="E1" if exact or alike else "E2",
            seconds=self.seconds,
            weights_version=weights_version,
            separated=self.separated,
        )


@dataclass(frozen=True, eq=False)
class MaskedCanvas:
    """One masked copy of a pair, or of one of its blocks, as it goes through the network.

    ``start`` is the column of its first token, on the grid of ``block_length``, ``slots`` the cached columns before it;
    ``scored`` are places among its tokens, ``hidden`` the places that the unconditional half of guidance masks. ``key``
    is equal for equal work.
    """

    tokens: tuple[int, ...]
    scored: tuple[int, ...]
    targets: tuple[int, ...]
    guidance: float
    hidden: range
    block_length: int | None
    start: int
    slots: Tensor
    prefix: bytes

    @property
    def key(self) -> tuple[Any, ...]:
        return self.tokens, self.scored, self.guidance, self.hidden, self.block_length, self.prefix


@dataclass(frozen=True, eq=False)
class CanvasUse:
    """Who wants the loss of a canvas: draw ``m`` of a pair's part ``part``."""

    pair: ScoredPair
    part: int
    m: int
    canvas: MaskedCanvas


def canvases(pair: ScoredPair, mask_id: int) -> Iterator[CanvasUse]:
    """The canvases of a pair whose clean prefix is in the cache; draws that mask nothing to score have none."""
    hidden = (
        pair.estimator.hidden(len(pair.context), len(pair.target), pair.settings) if pair.guidance > 0 else range(0)
    )
    keys = chain(pair.whole[: pair.clean], pair.block_length) if pair.block_length else []
    for p, part in enumerate(pair.parts):
        low, high = pair.window(part)
        first = len(pair.context) + part.start - low
        clean = pair.whole[low:high]
        prefix = keys[low // pair.block_length - 1] if pair.block_length and low else b""
        slots = pair.pages.slots[:low]
        places = pair.masks_of(part)
        rows = slice(places.start, places.stop)
        for m, mask, score in zip(places, part.masks_Mn[rows].tolist(), part.scores_Mn[rows].tolist(), strict=True):
            scored = tuple(first + i for i, wanted in enumerate(score) if wanted)
            if not scored:
                continue
            tokens = list(clean)
            for i, masked in enumerate(mask):
                if masked:
                    tokens[first + i] = mask_id
            targets = tuple(clean[i] for i in scored)
            yield CanvasUse(
                pair,
                p,
                m,
                MaskedCanvas(
                    tuple(tokens), scored, targets, pair.guidance, hidden, pair.block_length, low, slots, prefix
                ),
            )


def encode_pair(model: ScoredModel, request: Request) -> tuple[list[int], list[int]]:
    """Context and target ids, those of texts by :func:`split_texts`.

    Raises:
        PromptError: an empty target.
    """
    prompt, target = request.prompt, request.target
    if isinstance(prompt, str) and isinstance(target, str):
        context, tail = split_texts(prompt, target, model.encode)
    else:
        context = model.encode(prompt)
        tail = model.encode(target if isinstance(target, str) else list(target or ()))
    if not tail:
        raise PromptError(f"the target {target!r} adds no tokens to the context; nothing to score")
    return context, tail


def make_pair(model: ScoredModel, request: Request) -> ScoredPair:
    """A request as masks over tokens; raises DecodingError or PromptError."""
    context, target = encode_pair(model, request)
    estimator, spec = model.likelihood_estimator(), model.spec
    settings = model.resolve_likelihood(request.decoding)
    kind = estimator.kind(len(context), len(target), settings)
    text = request.rolling or (isinstance(request.prompt, str) and isinstance(request.target, str))
    ending, visible = estimator.ending(len(context), target, settings, text, spec)
    total = len(context) + len(target) + len(ending)
    if total > spec.context_limit:
        behind = f" and {len(ending)} behind it" if ending else ""
        raise PromptError(
            f"context of {len(context)} and target of {len(target)} tokens{behind} are {total}; "
            f"the model's context limit is {spec.context_limit}"
        )
    target = [*target, *ending]
    parts = estimator.masks(len(context), len(target), {**settings, "estimator": kind}, request.seed, visible)
    return ScoredPair(request, context, target, len(ending), estimator, settings, parts, spec.predicts == "next")
