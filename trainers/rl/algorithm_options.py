"""The settings of each algorithm, with its paper's defaults. No torch: the command line reads them before it imports a
method."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from dare_bench.diffusion.schedule_names import Range
from dare_bench.trainers.rl.options import AGGREGATION, Advantage, Aggregation, EndOptions, RatioOptions, RLOptions


class D1Options(EndOptions, RatioOptions):
    """Settings of ``d1``."""

    num_generations: int = Field(6, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(12, ge=1, description="Optimizer steps on each rollout.")
    temperature: float = Field(0.9, gt=0, description="Temperature of the rollout.")
    advantage: Advantage = Field("mean", description="Advantages within a group.")
    epsilon: float = Field(0.5, ge=0, description="Clip range of the ratio.")
    beta: float = Field(0.04, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    p_mask_prompt: float = Field(0.15, ge=0, lt=1, description="Probability that a prompt token is masked.")


class CoupledGRPOOptions(EndOptions, RatioOptions):
    """Settings of ``coupled_grpo``."""

    num_generations: int = Field(10, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(2, ge=1, description="Optimizer steps on each rollout.")
    advantage: Advantage = Field("leave_one_out", description="Advantages within a group.")
    epsilon: float = Field(0.5, ge=0, description="Clip range of the ratio.")
    beta: float = Field(0.01, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    level: Range = Field((0.2, 0.8), description="Lowest and highest mask level: low,high.")
    normalized: bool = Field(
        False, description="Divide the token's value by 1.5, the expected number of its predictions."
    )

    @field_validator("level")
    @classmethod
    def _inside(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1] < 1:
            raise ValueError("must be low,high with 0 < low <= high < 1: values are divided by the level")
        return value


class CJGRPOOptions(EndOptions, RatioOptions):
    """Settings of ``cj_grpo``."""

    num_generations: int = Field(6, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(12, ge=1, description="Optimizer steps on each rollout.")
    advantage: Advantage = Field("mean", description="Advantages within a group.")
    epsilon: float = Field(0.5, ge=0, description="Clip range of the ratio.")
    beta: float = Field(0.04, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    aggregation: Aggregation = Field("transition", description=AGGREGATION)


class DTreeRPOOptions(EndOptions, RatioOptions):
    """Settings of ``dtreerpo``."""

    num_generations: int = Field(16, ge=2, description="Completions of each prompt: the leaves of its tree.")
    tree_branch_factor: int = Field(
        4, ge=1, description="Children of a node below the root; the root has as many as the leaves need."
    )
    tree_contraction_factor: int = Field(
        2,
        ge=1,
        description="Levels of the tree: equal parts of a completion's forwards; paths branch at the start of each.",
    )
    num_iterations: int = Field(12, ge=1, description="Optimizer steps on each rollout.")
    temperature: float = Field(0.9, gt=0, description="Temperature of the rollout.")
    advantage: Advantage = Field("leave_one_out", description="Advantages among siblings.")
    epsilon: float = Field(0.4, ge=0, description="Clip range of the ratio.")
    beta: float = Field(0.01, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    distillation: float = Field(3e-3, ge=0, description="Strength of self-distillation at the end of its schedule.")
    distillation_growth: float = Field(2.0, gt=0, description="Growth of that strength with time (gamma).")
    distillation_temperature: float = Field(2.0, gt=0, description="First temperature of the target (tau_max).")
    distillation_cooling: float = Field(0.7, gt=0, description="Exponent of the temperature's fall with time.")
    distillation_steps: int | None = Field(
        None, ge=1, description="Optimizer steps of the schedule (default: those of the training)."
    )

    @model_validator(mode="after")
    def _grows(self) -> DTreeRPOOptions:
        below = self.tree_branch_factor ** (self.tree_contraction_factor - 1)
        if self.num_generations % below or self.num_generations < 2 * below:
            near = max(2, round(self.num_generations / below)) * below
            raise ValueError(
                f"num_generations={self.num_generations}: the leaves of a tree are a multiple of tree_branch_factor ** "
                f"(tree_contraction_factor - 1) = {below}, at least {2 * below}; give {near}, or another branch factor"
            )
        return self


class ESPOOptions(RatioOptions):
    """Settings of ``espo``."""

    num_generations: int = Field(10, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(8, ge=1, description="Optimizer steps on each rollout.")
    num_mc: int = Field(2, ge=1, description="Pairs of complementary masks of a completion.")
    advantage: Advantage = Field("leave_one_out", description="Advantages within a group.")
    beta: float = Field(0.01, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")


class JustGRPOOptions(EndOptions, RatioOptions):
    """Settings of ``just_grpo``."""

    num_generations: int = Field(16, ge=2, description="Completions of each prompt (the group).")
    score_after_eos: bool = Field(True, description="Score the tokens after the first EOS too.")


class BGPOOptions(RatioOptions):
    """Settings of ``bgpo``."""

    temperature: float = Field(0.6, gt=0, description="Temperature of the rollout.")
    num_mc: int = Field(16, ge=1, description="Monte Carlo masks of each completion.")


class EBPOOptions(RatioOptions):
    """Settings of ``ebpo``."""

    temperature: float = Field(0.6, gt=0, description="Temperature of the rollout (default: 1 on SDAR, 0.2 on Dream).")
    num_mc: int = Field(16, ge=1, description="Monte Carlo masks of each completion.")


class SPGOptions(EndOptions, RLOptions):
    """Settings of ``spg``."""

    num_generations: int = Field(6, ge=2, description="Completions of each prompt (the group).")
    num_iterations: int = Field(4, ge=1, description="Optimizer steps on each rollout.")
    temperature: float = Field(0.9, gt=0, description="Temperature of the rollout.")
    advantage: Advantage = Field("mean", description="Advantages within a group.")
    num_mc: int = Field(2, ge=1, description="Monte Carlo masks of each completion.")
    negative: Literal["mix", "eubo", "elbo", "zero"] = Field(
        "mix",
        description="The bound for completions without a positive advantage: upper, lower, their mix, or none. The "
        "lower one is the ELBO if mask_block_length is at least the completion's length and p_mask_prompt is 0; with "
        "few draws the upper one is often below it.",
    )
    eubo_beta: float = Field(1.5, gt=0, description="Exponent of the evidence upper bound.")
    mix_weight: float = Field(0.5, ge=0, le=1, description="Weight of the upper bound in the mix.")
    mask_block_length: int = Field(32, ge=1, description="Tokens of a block of masks.")
    p_mask_prompt: float = Field(
        0.15, ge=0, lt=1, description="Probability that a token before the block, prompt included, is masked."
    )


class MDPOOptions(EndOptions, RatioOptions):
    """Settings of ``mdpo``."""

    temperature: float = Field(0.4, gt=0, description="Temperature of the rollout.")
    beta: float = Field(0.02, ge=0, description="Strength of the KL penalty to the reference policy; 0 needs none.")
    aggregation: Aggregation = Field("transition", description=AGGREGATION)
    score_after_eos: bool = Field(True, description="Score the tokens after the first EOS too.")
    sample_train_steps: int = Field(8, ge=1, description="Forwards of the sampler that each prompt is trained on.")
    prompt_filter: Literal["over_denoising"] | None = Field(
        None,
        description="over_denoising: train only on prompts whose answer, with temperature 0, is right after some "
        "forward and wrong after the last one, as in the published command (default: all prompts). Needs max_steps.",
    )
    confidence_weights: bool = Field(
        False,
        description="Multiply the loss of a token by its probability when it was sampled, as published code does.",
    )
