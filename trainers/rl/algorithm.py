"""What rollouts, their checks and their replay read of an algorithm. Its base is
:class:`dare_bench.trainers.rl.policy_gradient.PolicyGradient`, which defines and explains all of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from dare_bench.protocols import LoadedModel
from dare_bench.trainers.method import Method
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.options import RatioOptions, RLOptions
from dare_bench.trainers.rl.reference_sync import ReferenceSync
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.rollout_step import RolloutStep, Update
from dare_bench.types import Generation


class Algorithm(Method):
    """An algorithm, as the modules below it see it."""

    options: RLOptions
    ratio: RatioOptions
    importance_cap: float | None
    reference_sync: ReferenceSync | None
    engine: LoadedModel | None
    families: ClassVar[str]
    capabilities: ClassVar[Mapping[str, str]]
    scores_draws: ClassVar[bool]
    reads_tokens_only: ClassVar[bool]
    allows_rewriting: ClassVar[bool]
    fixed_copies: ClassVar[bool]
    never_redraws: ClassVar[str]
    has_ratio: ClassVar[bool]
    filters_prompts: bool

    @property
    @abstractmethod
    def completion_length(self) -> int:
        """Tokens of a completion's canvas."""

    @property
    @abstractmethod
    def predictions_each(self) -> int:
        """Most predictions of a completion that are trained on."""

    @property
    @abstractmethod
    def rollout_fields(self) -> Mapping[str, Any]:
        """Decoding fields of the rollout that the algorithm determines."""

    @property
    @abstractmethod
    def decoding_fields(self) -> Mapping[str, Any]:
        """The decoding fields of the rollout that are given or published."""

    @abstractmethod
    def request(self, prompt: Sequence[int]) -> dict[str, Any]:
        """The decoding fields of a completion."""

    @abstractmethod
    def served_request(self, prompt: Sequence[int]) -> dict[str, Any]:
        """The decoding fields of a completion that an engine samples."""

    @abstractmethod
    def completion(self, prompt: Sequence[int], answer: Generation, key: int, where: str) -> Completion:
        """The record of a sampled answer."""

    @abstractmethod
    def step(self, rollout: Rollout, update: Update) -> RolloutStep:
        """This process's part of an optimizer step on a rollout."""

    @abstractmethod
    def action_logprobs(self, rollout: Rollout, step: RolloutStep, nll_N: Tensor) -> list[list[float]]:
        """The log probabilities of the actions of each completion."""
