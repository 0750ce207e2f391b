"""What likelihoods need of an opened model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from dare_bench.errors import PromptError
from dare_bench.model_adapters.opened_network import OpenedNetwork
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.scoring.likelihood_estimators import LikelihoodEstimator
from dare_bench.types import ModelSpec, Prompt


class ScoredModel(OpenedNetwork, ABC):
    """An opened diffusion network whose family says how its likelihoods are estimated."""

    @abstractmethod
    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; raises PromptError."""

    @property
    def prefix_id(self) -> int:
        """What stands before a text without a prompt: BOS, else EOS, as in lm-eval. Raises PromptError."""
        ids = (getattr(self.tokenizer, "bos_token_id", None), *self.spec.eos_ids)
        prefix = next((token for token in ids if token is not None), None)
        if prefix is None:
            raise PromptError(f"{self.path} has neither BOS nor EOS to begin a text with; give eos_id=")
        return int(prefix)

    @abstractmethod
    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """All resolved likelihood settings; raises DecodingError."""

    @abstractmethod
    def likelihood_estimator(self) -> LikelihoodEstimator:
        """How log-likelihoods are estimated."""

    @abstractmethod
    def greedy_sampler(self, n: int, spec: ModelSpec, cfg_scale: float = 0.0) -> Sampler:
        """The sampler behind ``is_greedy``, for n tokens."""
