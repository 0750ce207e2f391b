"""What an algorithm of reinforcement learning declares, and how its completions are sampled and recorded: all that
rollouts, their checks and their replay read of it. Its loss is in ``policy_gradient.py``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel
from torch import Tensor

from dare_bench.protocols import LoadedModel
from dare_bench.trainers.method import Method
from dare_bench.trainers.reference_policy import ReferenceSync
from dare_bench.trainers.rl.completions import Completion, check_blocks, recorded
from dare_bench.trainers.rl.options import EndOptions, PublishedRollout, RatioOptions, RLOptions
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import RolloutStep, Update
from dare_bench.training.rows import Tokens
from dare_bench.types import Generation, ModelSpec

CAPABILITIES: Mapping[str, str] = {
    "trajectory": "record which forward wrote each token",
    "logprobs": "record the log-probability of each drawn token",
    "row_keyed_randomness": "draw a row's random numbers from the row's own seed",
}
"""What every rollout needs of a model (``types.Capabilities``), and what it means."""


class Algorithm(Method):
    """An algorithm, as the modules that sample for it see it."""

    reads = "prompts"
    Options: ClassVar[type[BaseModel]] = RatioOptions
    options: RLOptions
    ratio: RatioOptions
    """The settings of the ratio and the KL penalty; those of an algorithm without them are the defaults: no penalty."""
    learning_rate = 1e-6
    lora_learning_rate = 3e-6
    rollouts: ClassVar[Mapping[str, PublishedRollout]] = {"paper": PublishedRollout()}
    """By variant, how its published code samples; a variant that is missing samples as the paper."""
    families: ClassVar[str] = "bidirectional"
    """``bidirectional`` or ``any``: the attention that the estimator is sound for."""
    scores_draws: ClassVar[bool] = False
    """Is each action a token that the sampler drew, on the canvas that it drew from? Then logits are divided by the
    rollout's temperature, so that ratios and gradients are those of the sampler's distribution."""
    capabilities: ClassVar[Mapping[str, str]] = CAPABILITIES
    """What a rollout needs of the model, and what it means."""
    reads_tokens_only: ClassVar[bool] = False
    """Does the loss depend on the tokens of a completion alone, and not on which forward wrote them, or how likely it
    was? Then a served engine can sample."""
    engine: LoadedModel | None = None
    """The served engine that samples the completions; None: the model in training does."""
    allows_rewriting: ClassVar[bool] = False
    """Is the method sound if the sampler writes over tokens, or masks them again?"""
    fixed_copies: ClassVar[bool] = False
    """Are the masked copies of a completion the same in every inner iteration?"""
    never_redraws: ClassVar[str] = ""
    """Why groups are not drawn again (``dynamic_sampling``), if they cannot be."""
    has_ratio: ClassVar[bool] = True
    """Does the loss compare the policy with the one that sampled? Then later steps on a rollout need its values."""
    filters_prompts = False
    """Does the policy choose the prompts of the data that are trained on, before the first rollout?"""
    reference_sync: ReferenceSync | None = None
    """What moves the reference; None: it stays as it is."""
    importance_cap: float | None

    @classmethod
    def settle(cls, given: dict[str, Any], spec: ModelSpec) -> Any:
        """The options, with the temperature of the variant's published rollout for the model's family."""
        temperature = cls.published_rollout(given).temperature.get(spec.family)
        return super().settle({**({} if temperature is None else {"temperature": temperature}), **given}, spec)

    @classmethod
    def published_rollout(cls, options: Mapping[str, Any]) -> PublishedRollout:
        """The published rollout of the variant that the options name."""
        return cls.rollouts.get(str(options.get("variant")), cls.rollouts["paper"])

    @property
    def rollout_fields(self) -> Mapping[str, Any]:
        """Decoding fields of the rollout that the algorithm determines."""
        return {}

    @classmethod
    def default_batch(cls, options: Mapping[str, Any]) -> int:
        """The completions of one prompt."""
        given = {**cls.variants.get(str(options.get("variant")), {}), **options}
        count = str(given.get("num_generations", cls.Options.model_fields["num_generations"].default))
        return int(count) if count.isdigit() and int(count) else super().default_batch(options)

    @property
    def uses_of_item(self) -> int:
        return self.options.num_generations * self.options.num_iterations

    def lengths(self, data: Tokens) -> list[int]:
        return [len(row.prompt) + self.completion_length for item in data.items for row in item]

    @property
    def completion_length(self) -> int:
        """Tokens of a completion's canvas."""
        return self.options.max_completion_length or self.canvas or 256

    def resolved_options(self, steps: int | None = None) -> BaseModel:
        update = {"max_completion_length": self.completion_length, "rollout": self.decoding_fields}
        return self.options.model_copy(update=update)

    @property
    def decoding_fields(self) -> dict[str, Any]:
        """The decoding fields of the rollout that are given, over those of the variant's published code."""
        given, published = self.options.rollout, self.published_rollout({"variant": self.options.variant})
        served = self.options.rollout_engine is not None
        return published.resolved(self.spec, self.completion_length, given, cuts_only=served)

    def request(self, prompt: Sequence[int]) -> dict[str, Any]:
        """The decoding fields of a completion: the whole canvas where attention is bidirectional, else up to the block
        of the first EOS."""
        own = {"gen_length": self.completion_length, "temperature": self.options.temperature, **self.rollout_fields}
        return {**own, "early_stop": self.spec.block_length is not None, **self.decoding_fields, "trajectory": True}

    def served_request(self, prompt: Sequence[int]) -> dict[str, Any]:
        """The decoding fields of a completion that an engine samples: the whole canvas (see ``served.py``)."""
        canvas = self.completion_length
        canvas += -(len(prompt) + canvas) % (self.spec.block_length or 1)
        own = {"gen_length": canvas, "temperature": self.options.temperature, "early_stop": False}
        return {**own, **self.decoding_fields}

    def completion(self, prompt: Sequence[int], answer: Generation, key: int, where: str) -> Completion:
        """The record of a sampled answer. Raises TrainingError if its blocks are not the learner's."""
        completion = recorded(prompt, answer, self.spec.mask, key, where)
        completion = replace(completion, scored=self.scored(completion.tokens))
        if self.spec.block_length is not None and answer.trajectory is not None:
            check_blocks(completion, self.spec.block_length, None if self.spec.whole_blocks else self.completion_length)
        return completion

    def scored(self, tokens: Sequence[int]) -> int:
        """The number of leading tokens of an answer that count."""
        every = self.options.score_after_eos if isinstance(self.options, EndOptions) else True
        ends = [] if every else [i for i, t in enumerate(tokens) if t in self.spec.eos_ids]
        return ends[0] + 1 if ends else len(tokens)

    @abstractmethod
    def step(self, rollout: Rollout, update: Update) -> RolloutStep:
        """This process's part of an optimizer step on a rollout."""

    @abstractmethod
    def action_logprobs(self, rollout: Rollout, step: RolloutStep, nll_N: Tensor) -> list[list[float]]:
        """The log probabilities of the actions of each completion."""
