"""coupled-GRPO (DiffuCoder, arXiv 2506.20639): the full mask, a random mask and its complement.

Every token is predicted once by the pair, and once from the full mask (equation 6); ``estimators.coupled`` has the
formula. It is not a log-probability: without context its expectation is 1.5 log p, and ``normalized`` divides by that.
Source: section 4 and apple/ml-diffucoder at f735e01 (recipes/config_coupled_code.yaml). In DARE the mask level is
always 0.5837, since it seeds the global generator in each call; its variant here does not reproduce that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, coupled
from dare_bench.trainers.rl.options import DARE_RATIO, DARE_ROLLOUT, SCRIPTS, EndOptions, PublishedRollout, RatioOptions
from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.trainers.rl.surrogate import Advantage
from dare_bench.training.spec import WITH_FLOOR


class CoupledGRPOOptions(EndOptions, RatioOptions):
    """Settings of ``coupled_grpo``."""

    num_generations: int = Field(10, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(2, ge=1, description="Optimizer steps on each rollout.")
    advantage: Advantage = Field("leave_one_out", description="Advantages within a group.")
    epsilon: float = Field(0.5, ge=0, description="Clip range of the ratio.")
    beta: float = Field(0.01, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    level: tuple[float, float] = Field((0.2, 0.8), description="Lowest and highest mask level: low,high.")
    normalized: bool = Field(
        False, description="Divide the token's value by 1.5, the expected number of its predictions."
    )

    @field_validator("level", mode="before", json_schema_input_type=tuple[float, float] | str)
    @classmethod
    def _two(cls, value: Any) -> Any:
        return tuple(part for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("level")
    @classmethod
    def _inside(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1] < 1:
            raise ValueError("must be low,high with 0 < low <= high < 1: values are divided by the level")
        return value


class CoupledGRPO(PolicyGradient):
    """coupled-GRPO."""

    name = "coupled_grpo"
    estimator = "all masked; a random mask and its complement"
    reads_tokens_only = True
    paper, code = "arXiv 2506.20639", "apple/ml-diffucoder"
    Options = CoupledGRPOOptions
    options: CoupledGRPOOptions
    learning_rate = lora_learning_rate = 1e-6
    training_defaults: ClassVar = {**SCRIPTS, "lr_scheduler_type": WITH_FLOOR}
    rollouts: ClassVar = {
        "paper": PublishedRollout(1, fields={"dream": {"top_p": 0.95}}),
        "dare": DARE_ROLLOUT,
    }
    variants: ClassVar = {"dare": {**DARE_RATIO, "aggregation": "token"}}

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        o = self.options
        return coupled(completions, self.spec.mask, iteration, shared_key, o.level, o.normalized)
