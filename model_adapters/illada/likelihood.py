"""iLLaDA's likelihoods: those of its eval_illada.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dare_bench.diffusion.likelihood import MaskDraws
from dare_bench.errors import DecodingError, PromptError
from dare_bench.model_adapters.scoring.likelihood_estimators import LikelihoodEstimator, Settings, WholeTarget
from dare_bench.types import ModelSpec


class ILLaDAEstimator(WholeTarget):
    """LLaDA's Monte Carlo bound (``llh="mc"``), or the sum of the smallest losses (``llh="confidence"``): in each of n
    forwards, the loss of the masked target token that is most probable is added, and the token revealed. That needs no
    random numbers, and is what iLLaDA chooses by between few answers. ``padd_eos`` puts an EOS behind the target, which
    is neither masked nor scored. ``estimator="confidence"`` and ``"mc"`` are short for ``reference`` with that ``llh``.
    """

    choices: Mapping[str, tuple[str, ...]] = {**LikelihoodEstimator.choices, "llh": ("mc", "confidence")}

    def __init__(self) -> None:
        super().__init__(guided=True)

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        return super().fields(spec) | {"llh": "mc", "padd_eos": False}

    def settings(self, fields: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
        if fields.get("estimator") in self.choices["llh"]:
            fields = {**fields, "estimator": "reference", "llh": fields["estimator"]}
        return super().settings(fields, spec)

    def check(self, settings: Settings) -> None:
        super().check(settings)
        if not isinstance(settings["padd_eos"], bool):
            raise DecodingError(f"padd_eos={settings['padd_eos']!r} must be True or False")
        if settings["llh"] == "confidence" and settings["estimator"] not in ("auto", "reference"):
            raise DecodingError(
                "llh='confidence' is not a bound: it has estimator='auto' or 'reference', "
                f"not {settings['estimator']!r}"
            )

    def reveals(self, settings: Settings) -> bool:
        return settings["llh"] == "confidence"

    def other_quantity(self, settings: Settings) -> str | None:
        return "llh='confidence'" if self.reveals(settings) else None

    def kind(self, context: int, target: int, settings: Settings) -> str:
        return "reference" if self.reveals(settings) else super().kind(context, target, settings)

    def ending(
        self, context: int, target: Sequence[int], settings: Settings, text: bool, spec: ModelSpec
    ) -> tuple[list[int], int]:
        if not settings["padd_eos"]:
            return [], 0
        if not spec.eos_ids:
            raise PromptError("padd_eos=True puts an EOS behind the target; this checkpoint has none: give eos_id=")
        return [spec.eos_ids[0]], 1

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        n = target - visible
        if not self.reveals(settings):
            return super().draws(context, n, settings, seed)
        every = torch.ones((n, n), dtype=torch.bool)
        return [MaskDraws(every, torch.ones(n, dtype=torch.float64), 0, "reference")]

    def passes(self, context: int, target: int, settings: Settings) -> int:
        return target if self.reveals(settings) else super().passes(context, target, settings)
