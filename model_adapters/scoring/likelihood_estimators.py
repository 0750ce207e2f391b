"""The likelihood estimators of families: their fields, their masks, and their cost in forward passes.

The masks come from ``dare_bench.diffusion.likelihood``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from dare_bench.diffusion.likelihood import (
    EXACT_LIMIT,
    Estimator,
    MaskDraws,
    block_masks,
    block_spans,
    check_rounds,
    combine,
    combine_blocks,
    draw,
    enumerate_blocks,
)
from dare_bench.errors import DecodingError
from dare_bench.types import ModelSpec

Settings = Mapping[str, Any]
"""Resolved values of an estimator's fields."""


class LikelihoodEstimator(ABC):
    """How a family estimates log p(target | context). Stateless."""

    @abstractmethod
    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        """The estimator's fields with their defaults, ``estimator`` first."""

    counts: tuple[str, ...] = ("mc_num", "batch_size")
    """Fields that are whole numbers."""
    choices: Mapping[str, tuple[str, ...]] = {"estimator": get_args(Estimator)}
    """Fields that have one of these values."""
    reads_context: bool = False
    """Does the cost of a pair depend on its context?"""
    causal: bool = False
    """Is the target predicted from left to right, each token by the state before it, in one forward?"""

    def settings(self, fields: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
        """All fields with their resolved values; None stands for the default.

        Raises:
            DecodingError: an unknown field, or an invalid value.
        """
        known = self.fields(spec)
        for name in fields:
            if name not in known:
                raise DecodingError(f"likelihood field {name!r} is not known here; fields are {', '.join(known)}")
        known |= {name: value for name, value in fields.items() if value is not None}
        for name, allowed in self.choices.items():
            if known[name] not in allowed:
                raise DecodingError(f"{name}={known[name]!r} is not known; {name}s are {', '.join(allowed)}")
        for name in self.counts:
            if isinstance(known[name], bool) or not isinstance(known[name], int):
                raise DecodingError(f"{name}={known[name]!r} must be a whole number")
        self.check(known)
        return known

    @abstractmethod
    def check(self, settings: Settings) -> None:
        """Raise DecodingError for invalid values, or combinations of them."""

    def kind(self, context: int, target: int, settings: Settings) -> str:
        """``exact`` or ``reference``: the meaning of ``auto`` for these numbers of context and target tokens."""
        kind = str(settings["estimator"])
        if kind == "auto":
            return "exact" if self.longest(context, target, settings) <= EXACT_LIMIT else "reference"
        return kind

    def longest(self, context: int, target: int, settings: Settings) -> int:
        """The largest number of tokens whose masks an exact estimate enumerates together."""
        return target

    def ending(
        self, context: int, target: Sequence[int], settings: Settings, text: bool, spec: ModelSpec
    ) -> tuple[list[int], int]:
        """The tokens appended to a target before it is scored, and how many tokens at its new end stay visible, neither
        masked nor scored.

        ``context``: the number of tokens before the target; ``text``: the pair was given as strings.
        """
        return [], 0

    @abstractmethod
    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        """The masks, one set for each part of the sum (a block each where the family has blocks).

        The last ``visible`` tokens of the target stay visible. ``settings["estimator"]`` is ``exact`` or ``reference``.

        Raises:
            DecodingError: more tokens than can be enumerated. PromptError: nothing to mask.
        """

    @abstractmethod
    def passes(self, context: int, target: int, settings: Settings) -> int:
        """Upper bound of the forwards of one pair, without guidance."""

    def reveals(self, settings: Settings) -> bool:
        """Is each masked token of the target revealed when it is the most probable one, in a forward of its own?"""
        return False

    def guidance(self, settings: Settings) -> float:
        """Classifier-free guidance as LLaDA counts it, u + (scale + 1)(c - u); 0 is off."""
        return 0.0

    def hidden(self, context: int, target: int, settings: Settings) -> range:
        """The columns that are masked in the unconditional half of a guided pair."""
        return range(context)

    def combine(self, parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, float]:
        """(log-likelihood, standard error) in nats from the losses of each part's draws."""
        return combine(parts[0], losses[0])


class WholeTarget(LikelihoodEstimator):
    """Masks over the whole target (LLaDA). ``batch_size`` is the stratification of the published draws."""

    def __init__(self, guided: bool = False) -> None:
        self.guided = guided

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        shared = {"estimator": "auto", "mc_num": 128, "batch_size": 16}
        return shared | ({"cfg_scale": 0.0} if self.guided else {})

    def check(self, settings: Settings) -> None:
        check_rounds(settings["mc_num"], settings["batch_size"])

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        return [draw(target, dict(settings), seed)]

    def passes(self, context: int, target: int, settings: Settings) -> int:
        exact = self.kind(context, target, settings) == "exact"
        return (1 << target) - 1 if exact else int(settings["mc_num"])

    def guidance(self, settings: Settings) -> float:
        return float(settings.get("cfg_scale", 0.0))


class Blockwise(LikelihoodEstimator):
    """The sum over blocks of each block's own bound, given the clean tokens before it (SDAR, LLaDA2).

    Blocks are counted from column 0; context tokens of the target's first block are visible and never masked.
    ``reference`` is the estimator of EBPO (LLaDA2.1 report, arXiv 2602.08676); no published code scores pairs with
    these families.
    """

    counts = ("mc_num", "block_length")
    reads_context = True

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        return {"estimator": "auto", "mc_num": 128, "block_length": spec.block_length}

    def check(self, settings: Settings) -> None:
        for name in self.counts:
            if settings[name] < 1:
                raise DecodingError(f"{name}={settings[name]} must be at least 1")

    def longest(self, context: int, target: int, settings: Settings) -> int:
        return max(map(len, block_spans(context, target, settings["block_length"])))

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        spans = block_spans(context, target, settings["block_length"])
        if settings["estimator"] == "exact":
            return enumerate_blocks(spans, settings["block_length"])
        return block_masks(spans, settings["mc_num"], seed)

    def passes(self, context: int, target: int, settings: Settings) -> int:
        spans = block_spans(context, target, settings["block_length"])
        clean = int(context + target > settings["block_length"])
        if self.kind(context, target, settings) == "exact":
            return clean + sum((1 << len(span)) - 1 for span in spans)
        return clean + int(settings["mc_num"]) * len(spans)

    def combine(self, parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, float]:
        return combine_blocks(parts, losses)
