"""DiffusionGemma's likelihoods: its encoder's, which is trained as a causal language model."""

from __future__ import annotations

from typing import Any

import torch

from dare_bench.diffusion.likelihood import MaskDraws
from dare_bench.errors import DecodingError, PromptError
from dare_bench.model_adapters.scoring.likelihood_estimators import LikelihoodEstimator, Settings
from dare_bench.types import ModelSpec


class EncoderEstimator(LikelihoodEstimator):
    """log p(target | context) by the chain rule, exactly and in one forward: the encoder's state at a token predicts
    the next one. This is the distribution of the encoder, with which the decoder shares its weights; that of the
    sampler, which has no published bound, is another."""

    counts = ()
    causal = True

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        return {"estimator": "exact"}

    def check(self, settings: Settings) -> None:
        if settings["estimator"] == "reference":
            raise DecodingError(
                "estimator='reference' draws masks, and this model has none: its likelihood is exact; give "
                "estimator='exact' or leave it out"
            )

    def kind(self, context: int, target: int, settings: Settings) -> str:
        return "exact"

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        if not context:
            raise PromptError(
                "an empty context: nothing predicts the target's first token; give at least one token (BOS)"
            )
        nothing = torch.zeros((1, target), dtype=torch.bool)
        return [MaskDraws(nothing, torch.ones(1, dtype=torch.float64), 0, "exact", scored_Mn=~nothing)]

    def passes(self, context: int, target: int, settings: Settings) -> int:
        return 1
