"""The likelihood estimators of families: their fields, their masks, and their cost in forward passes.

The masks come from ``dare_bench.diffusion.likelihood``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from torch import Tensor

from dare_bench.diffusion.controlled import (
    PARTS,
    canonical,
    check_draws,
    check_level,
    combine_controlled,
    controlled_masks,
    controlled_passes,
    enumerates,
    parts_of,
)
from dare_bench.diffusion.likelihood import (
    EXACT_LIMIT,
    Estimator,
    MaskDraws,
    block_masks,
    block_spans,
    chain_masks,
    check_rounds,
    combine,
    combine_blocks,
    draw,
    enumerate_blocks,
)
from dare_bench.errors import DecodingError
from dare_bench.types import ADAPTIVE, ModelSpec

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
    controlled_draws: int = 16
    """The default of ``mc_num`` for ``fast`` and its parts."""
    most_draws: int = 64
    """The default of ``mc_num`` for ``adaptive``, its limit: pairs then have about the error of 128 published draws."""
    level: float = 0.95
    """The default of ``level`` for ``adaptive``: how sure it is of a best choice that it calls known."""
    causal: bool = False
    """Is the target predicted from left to right, each token by the state before it, in one forward?"""

    def settings(self, fields: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
        """All fields with their resolved values; None stands for the default.

        Raises:
            DecodingError: an unknown field, or an invalid value.
        """
        known = self.fields(spec)
        if controlled := parts_of(str(fields.get("estimator"))) is not None and "mc_num" in known:
            known.pop("batch_size", None)
            known["mc_num"] = self.controlled_draws
            fields = {**fields, "estimator": canonical(fields["estimator"])}
            if fields["estimator"] == ADAPTIVE:
                known |= {"mc_num": self.most_draws, "level": self.level}
        for name in fields:
            if name not in known:
                raise DecodingError(f"likelihood field {name!r} is not known here; fields are {', '.join(known)}")
        known |= {name: value for name, value in fields.items() if value is not None}
        for name, allowed in self.choices.items():
            if known[name] not in allowed and not (name == "estimator" and parts_of(str(known[name]))):
                more = f", and {', '.join(PARTS)} joined by '+'" if name == "estimator" else ""
                raise DecodingError(f"{name}={known[name]!r} is not known; {name}s are {', '.join(allowed)}{more}")
        for name in self.counts:
            if name in known and (isinstance(known[name], bool) or not isinstance(known[name], int)):
                raise DecodingError(f"{name}={known[name]!r} must be a whole number")
        self.check(known)
        if controlled:
            check_draws(known["estimator"], known["mc_num"])
            check_level(known.get("level", self.level))
        return known

    @abstractmethod
    def check(self, settings: Settings) -> None:
        """Raise DecodingError for invalid values, or combinations of them."""

    def kind(self, context: int, target: int, settings: Settings) -> str:
        """What computes these numbers of context and target tokens: the meaning of ``auto``, and ``exact`` where
        enumerating takes no more forwards than ``fast``."""
        kind, longest = str(settings["estimator"]), max(map(len, self.spans(context, target, settings)))
        if kind == "auto":
            return "exact" if longest <= EXACT_LIMIT else "reference"
        return "exact" if parts_of(kind) and enumerates(longest, settings["mc_num"], kind) else kind

    def spans(self, context: int, target: int, settings: Settings) -> list[range]:
        """The parts of the target, counted from its first token, whose bounds are summed."""
        return [range(target)]

    def masks(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        """The masks of ``fast`` and its parts, else :meth:`draws`."""
        kind = settings["estimator"]
        if parts_of(kind) is None:
            return self.draws(context, target, settings, seed, visible)
        spans = self.spans(context, target - visible, settings)
        return [controlled_masks(len(span), settings["mc_num"], kind, seed, span.start) for span in spans]

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

        The last ``visible`` tokens of the target stay visible. ``settings["estimator"]`` is a :meth:`kind`, none of
        ``fast``.

        Raises:
            DecodingError: more tokens than can be enumerated. PromptError: nothing to mask.
        """

    def passes(self, context: int, target: int, settings: Settings) -> int:
        """Upper bound of the forwards of one pair, without guidance."""
        kind, sizes = self.kind(context, target, settings), map(len, self.spans(context, target, settings))
        if parts_of(kind):
            return sum(controlled_passes(size, settings["mc_num"], kind) for size in sizes)
        return sum((1 << size) - 1 if kind == "exact" else int(settings["mc_num"]) for size in sizes)

    def reveals(self, settings: Settings) -> bool:
        """Is each masked token of the target revealed when it is the most probable one, in a forward of its own?"""
        return False

    def other_quantity(self, settings: Settings) -> str | None:
        """The setting by which the value is none of the whole target, or no bound; None: there is none."""
        return None

    def guidance(self, settings: Settings) -> float:
        """Classifier-free guidance as LLaDA counts it, u + (scale + 1)(c - u); 0 is off."""
        return 0.0

    def hidden(self, context: int, target: int, settings: Settings) -> range:
        """The columns that are masked in the unconditional half of a guided pair."""
        return range(context)

    def estimate(self, parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, Tensor]:
        """(log-likelihood, its deviations) in nats from the losses of each part's scored tokens, float64 [M, n]."""
        if any(parts_of(part.estimator) for part in parts):
            return combine_controlled(parts, losses)
        return self.combine(parts, [loss_Mn.sum(1) for loss_Mn in losses])

    def combine(self, parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, Tensor]:
        """(log-likelihood, its deviations) in nats from the summed losses of each part's draws."""
        return combine(parts[0], losses[0])


class WholeTarget(LikelihoodEstimator):
    """Masks over the whole target (LLaDA). ``batch_size`` is the stratification of the published draws."""

    def __init__(self, guided: bool = False) -> None:
        self.guided = guided

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        shared = {"estimator": "auto", "mc_num": 128, "batch_size": 16}
        return shared | ({"cfg_scale": 0.0} if self.guided else {})

    def check(self, settings: Settings) -> None:
        if "batch_size" in settings:  # which fast has not
            check_rounds(settings["mc_num"], settings["batch_size"])

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        return [draw(target, dict(settings), seed)]

    def guidance(self, settings: Settings) -> float:
        return float(settings.get("cfg_scale", 0.0))


class Blockwise(LikelihoodEstimator):
    """The sum over blocks of each block's own bound, given the clean tokens before it (SDAR, LLaDA2).

    Blocks are counted from column 0; context tokens of the target's first block are visible and never masked.
    ``reference`` is the estimator of EBPO (LLaDA2.1 report, arXiv 2602.08676); no published code scores pairs with
    these families. ``chain`` is another quantity: the probability of decoding each block from left to right, which
    takes a forward for each token.
    """

    choices: Mapping[str, tuple[str, ...]] = {"estimator": (*get_args(Estimator), "chain")}
    counts = ("mc_num", "block_length")
    controlled_draws = 8
    reads_context = True

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        return {"estimator": "auto", "mc_num": 128, "block_length": spec.block_length}

    def check(self, settings: Settings) -> None:
        for name in self.counts:
            if settings[name] < 1:
                raise DecodingError(f"{name}={settings[name]} must be at least 1")

    def spans(self, context: int, target: int, settings: Settings) -> list[range]:
        return block_spans(context, target, settings["block_length"])

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        spans = self.spans(context, target, settings)
        if settings["estimator"] == "chain":
            return [replace(chain_masks(len(span), start=span.start), estimator="chain") for span in spans]
        if settings["estimator"] == "exact":
            return enumerate_blocks(spans, settings["block_length"])
        return block_masks(spans, settings["mc_num"], seed)

    def passes(self, context: int, target: int, settings: Settings) -> int:
        clean = int(context + target > settings["block_length"])
        return clean + (target if settings["estimator"] == "chain" else super().passes(context, target, settings))

    def combine(self, parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, Tensor]:
        return combine_blocks(parts, losses)
