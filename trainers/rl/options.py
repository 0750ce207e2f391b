"""Settings that algorithms share, by TRL's names where it has them; an algorithm overrides its paper's defaults.

The defaults of a rollout's decoding fields are those of published code (docs/algorithms.md). On a canvas of another
length, a forward writes as many tokens, and a block is the largest divisor of the canvas not longer than the published
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from dare_bench.config import parse_pairs
from dare_bench.training.reward_calls import SECONDS
from dare_bench.types import ModelSpec

Advantage = Literal["standardized", "mean", "leave_one_out"]
Aggregation = Literal["sequence", "token", "transition", "sequence_sum", "constant_length"]
BLOCKS = frozenset({"llada", "llada_moe", "illada"})
"""Families with bidirectional attention whose default sampler decodes in blocks."""
STEPS = BLOCKS | {"dream", "open_dcoder"}
"""Families whose field ``steps`` counts the forwards of the whole canvas."""
CUTS = frozenset({"top_k", "top_p"})
"""Fields that cut the distribution: they hold for every strategy, and a served engine takes them."""


@dataclass(frozen=True)
class PublishedRollout:
    """The decoding fields that published code gives. What it leaves out is as the family samples by default.

    Args:
        forwards: of the sampler for each token of the canvas; None: not published.
        block_length: of the families that have blocks; None: one block.
        temperature: by family, where it is not the default of the method's option.
        fields: by family, fields besides.
    """

    forwards: float | None = None
    block_length: int | None = None
    temperature: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def resolved(self, spec: ModelSpec, canvas: int, given: Mapping[str, Any], cuts_only: bool) -> dict[str, Any]:
        """The fields for a canvas, under those that are given. ``cuts_only``: whether something else than the family's
        default strategy decides when tokens are written."""
        own = self.fields.get(spec.family, {})
        if cuts_only or given.get("strategy") is not None:
            return {**{name: value for name, value in own.items() if name in CUTS}, **given}
        return {**self._schedule(spec.family, canvas, given.get("block_length")), **own, **given}

    def _schedule(self, family: str, canvas: int, given: Any) -> dict[str, int]:
        """Steps and block length; ``given``: the block length that the user gives, which may be invalid."""
        if self.forwards is None or family not in STEPS:
            return {}
        block = divisor(canvas, self.block_length or canvas) if family in BLOCKS else canvas
        blocks = canvas // (given if isinstance(given, int) and 0 < given <= canvas else block)
        steps = blocks * max(1, round(self.forwards * canvas / blocks))
        return {"steps": steps, "block_length": block} if family in BLOCKS else {"steps": steps}


def divisor(canvas: int, most: int) -> int:
    """The largest divisor of a canvas that is at most ``most``; the canvas itself if that is below half of it."""
    largest = next(length for length in range(min(most, canvas), 0, -1) if canvas % length == 0)
    return largest if 2 * largest >= min(most, canvas) else canvas


D1_ROLLOUT = PublishedRollout(1 / 2, 32)
"""128 steps on 256 tokens in blocks of 32: the scripts of d1, and their copies."""
DARE_ROLLOUT = PublishedRollout(
    1 / 2,
    32,
    temperature={"dream": 0.2, "sdar": 1.0},
    fields={"dream": {"top_p": 0.95}, "sdar": {"top_k": 50, "confidence_threshold": 0.9}},
)
"""The recipes of DARE for mathematics. Its prefix cache, which is approximate, is left out: ``cache=prefix``."""


SCRIPTS = {
    "adam_beta2": 0.99, "weight_decay": 0.1, "max_grad_norm": 0.2, "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 1,
}  # fmt: skip
"""Settings of the training in the published scripts of d1, which others are copies of."""
ADAPTER = {"lora_r": 128, "lora_alpha": 64.0}
"""Those of an adapter in the scripts that train one."""
DARE = {"num_generations": 8, "num_iterations": 1, "temperature": 0.6, "advantage": "standardized",
        "score_after_eos": True}  # fmt: skip
"""DARE's settings of rollouts on LLaDA, and what it scores."""
DARE_RATIO = {**DARE, "epsilon": 0.2, "dual_clip": 3.0, "beta": 0.0}
"""The same with its ratios."""
DARE_TRAINING = {
    "adam_beta2": 0.999, "weight_decay": 0.01, "max_grad_norm": 1.0, "lr_scheduler_type": "constant",
}  # fmt: skip
"""DARE's settings of the training."""

MAX_COUNT = 4096
"""Maximum number of completions of a prompt, and of optimizer steps on a rollout."""

MAX_DRAWS = 100
"""Maximum number of times that a group is drawn again."""

AGGREGATION = (
    "How the losses of actions are averaged. sequence: the mean over completions of the mean over a completion's "
    "actions. transition: the same with the mean over its forwards of the mean over a forward's actions. "
    "token: the mean over all actions. sequence_sum: the mean over completions of the sum. "
    "constant_length: that divided by the canvas's length."
)


class RLOptions(BaseModel):
    """Settings of every algorithm, by TRL's names where it has them; each has its paper's defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    variant: Literal["paper", "dare"] = Field(
        "paper",
        description="Whose defaults these settings have: the paper's, or those of DARE's implementation. Settings that "
        "are given override both.",
    )
    num_generations: int = Field(8, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(1, ge=1, description="Optimizer steps on each rollout.")
    max_completion_length: int | None = Field(
        None, ge=1, description="Tokens of a completion's canvas (default: that of the task, else 256)."
    )
    temperature: float = Field(1.0, gt=0, description="Temperature of the rollout.")
    rollout: dict[str, Any] = Field(
        default_factory=dict,
        description="k=v,k=v: further decoding fields of the rollout (steps, block_length, ...); the others are the "
        "published ones, by variant, family and length of the canvas.",
    )
    rollout_engine: str | None = Field(
        None,
        exclude=True,
        description="Served engine that samples the completions: sglang (default: the model in training does).",
    )
    rollout_engine_url: str | None = Field(None, exclude=True, description="Address of its server.")
    rollout_engine_args: dict[str, Any] = Field(
        default_factory=dict, exclude=True, description="k=v,k=v for the engine (timeout, retries, ...)."
    )
    reward: dict[str, Any] = Field(
        default_factory=dict,
        description="k=v,k=v: options of the rewards that the rows name; random=True replaces their values by coin "
        "flips (a control). Or FILE.py:FUNCTION,...: your functions, which score every row.",
    )
    reward_weights: dict[str, FiniteFloat] = Field(
        default_factory=dict,
        exclude=True,
        description="NAME=weight,NAME=weight: score every row by the weighted sum of these rewards (default: by the "
        "reward that the row names).",
    )
    reward_timeout: FiniteFloat = Field(
        SECONDS, gt=0, exclude=True, description="Seconds that a reward may take for the completions of a process."
    )
    log_completions: int = Field(
        10,
        ge=0,
        exclude=True,
        description="Write completions with rewards and advantages to completions/ every N optimizer steps (0: never).",
    )
    advantage: Advantage = Field("standardized", description="Advantages within a group.")
    dynamic_sampling: int | None = Field(
        None,
        ge=1,
        le=MAX_DRAWS,
        description="Draw groups without variance of the reward again, each from another prompt, up to N times a "
        "rollout (DAPO; default: never).",
    )

    @field_validator(
        "rollout",
        "rollout_engine_args",
        "reward",
        "reward_weights",
        mode="before",
        json_schema_input_type=Mapping[str, Any] | str,
    )
    @classmethod
    def _fields(cls, value: Any) -> Any:
        return parse_pairs(value) if isinstance(value, str) else value

    @field_validator("num_generations", "num_iterations")  # algorithms declare them again, with their defaults
    @classmethod
    def _bounded(cls, value: int) -> int:
        if value > MAX_COUNT:
            raise ValueError(f"must be at most {MAX_COUNT}")
        return value

    @model_validator(mode="after")
    def _engine_named(self) -> RLOptions:
        for name in ("rollout_engine_url", "rollout_engine_args"):
            if self.rollout_engine is None and getattr(self, name):
                raise ValueError(f"{name} belongs to rollout_engine, which is not given; give it too, or omit {name}")
        return self


class EndOptions(BaseModel):
    """Settings of algorithms that score tokens one by one; an ELBO is of the whole canvas."""

    score_after_eos: bool = Field(False, description="Score the tokens after the first EOS too.")


class RatioOptions(RLOptions):
    """Settings of algorithms that compare the policy with the one that sampled."""

    epsilon: float = Field(0.2, ge=0, description="Clip range of the ratio.")
    epsilon_high: float | None = Field(None, ge=0, description="Upper clip range (default: epsilon).")
    dual_clip: float | None = Field(None, gt=1, description="Bound of the ratio for negative advantages (DARE: 3).")
    beta: float = Field(0.0, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    aggregation: Aggregation = Field("sequence", description=AGGREGATION)
    importance_cap: float | None = Field(
        None,
        gt=0,
        description="Multiply advantages by min(p / p of the sampler, cap), token by token: corrects a rollout with an "
        "approximate cache, top_p or top_k (default: no weights).",
    )
    reference: str | None = Field(
        None, description="Checkpoint of the reference policy (default: the starting checkpoint)."
    )
    sync_ref_model: bool = Field(
        False,
        description="Let the reference policy follow the policy, as published for d1, coupled-GRPO and ESPO.",
    )
    ref_model_sync_steps: int = Field(64, ge=1, description="With sync_ref_model: optimizer steps between two updates.")
    ref_model_mixup_alpha: float = Field(
        0.6,
        gt=0,
        le=1,
        description="With sync_ref_model: weight of the policy in an update (1: a copy).",
    )
