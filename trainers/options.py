"""The settings of methods that learn from rows of the data. No torch: the command line reads them before it imports a
method."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dare_bench.diffusion.schedule_names import CART_Q, EPS, Range, ScheduleName, Unbiased, Weighting
from dare_bench.errors import UsageError

Padding = Literal["drawn", "longest", "eos_supervised", "masked_out"]
"""What follows an answer: EOS tokens, masked and learned like any token, to the end of a canvas. Its length is
``drawn`` for each row and epoch, that of a step's ``longest`` row, or fixed (``eos_supervised``). ``masked_out``: one
EOS."""


class NoisedOptions(BaseModel):
    """The settings of every method on noised rows: the supervised EOS tokens after an answer. A method resolves a field
    that is None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    padding: Padding | None = Field(
        None,
        description="EOS tokens behind an answer, which are learned. drawn: up to the end of a canvas whose length is "
        "drawn for each row and epoch. longest: of the longest row of a step. eos_supervised: of canvas_length. "
        "masked_out: one EOS. Default: drawn with --data, eos_supervised with --task or canvas_length.",
    )
    canvas_length: int | None = Field(
        None,
        ge=1,
        description="Response tokens of a row with eos_supervised, or the longest with drawn. Default: those of the "
        "task; with --data twice the longest answer, at least 256. In block-causal families a row ends with the block "
        "of its answer.",
    )

    eps: float = Field(EPS, gt=0, lt=1, description="Lowest noise level of the schedules uniform and even.")
    block_length: int | None = Field(
        None, ge=1, description="Block length of a block-causal model (default: the model's)."
    )

    @model_validator(mode="after")
    def _consistent(self) -> NoisedOptions:
        if self.padding in ("masked_out", "longest") and self.canvas_length is not None:
            raise ValueError(
                f"canvas_length={self.canvas_length} belongs to padding='eos_supervised' or 'drawn', not to "
                f"'{self.padding}'"
            )
        return self

    def resolved(self, canvas: int | None, block_length: int | None) -> NoisedOptions:
        """The options with ``padding`` and ``canvas_length`` as they apply. The latter remains None if rows end with
        the block of their answer, and where it follows from the rows.

        Args:
            canvas: the length that the source of the rows states, if it does.
            block_length: that of a block-causal model.

        Raises:
            UsageError: a padding that does not apply to block-causal models, or a fixed canvas without a length.
        """
        length = self.canvas_length or canvas
        padding = self.padding or ("eos_supervised" if length or block_length else "drawn")
        if padding in ("drawn", "longest") and block_length is not None:
            raise UsageError(
                f"padding={padding!r}: rows of a block-causal model end with the block of their answer, for any "
                "gen_length; omit it"
            )
        if padding == "eos_supervised" and length is None and block_length is None:
            raise UsageError("padding='eos_supervised' needs the length of the canvas; give canvas_length")
        kept = length if padding in ("drawn", "eos_supervised") else None
        return self.model_copy(update={"padding": padding, "canvas_length": kept})


class SFTOptions(NoisedOptions):
    """Settings of ``sft``; those of a family's authors are the defaults for its models."""

    noise: ScheduleName = Field("uniform", description="Noise schedule (docs/training.md); for LLaDA2 band.")
    draws: int = Field(1, ge=1, description="Noised copies of each row.")
    band: Range = Field((0.3, 0.8), description="Lowest and highest noise level of the schedule band: low,high.")
    weight: Weighting = Field("elbo", description="Weight of a masked token: elbo is 1 / p, plain 1; for LLaDA2 plain.")
    cart_q: float = Field(
        CART_Q, gt=0, lt=1, description="Geometric rate of weight=cart: the share of the nearest visible tokens."
    )
    normalize: Literal["row", "token", "mask"] = Field(
        "row",
        description="Divide by each row's learned tokens, by all learned, or by all masked tokens of a step; for SDAR "
        "token, for LLaDA2 mask.",
    )


class DPOOptions(NoisedOptions):
    """Settings of ``dpo``: one draw for the policy, an independent one for the reference policy."""

    beta: float = Field(
        0.1, gt=0, description="Strength of the KL penalty to the reference policy, per nat of a response's ELBO."
    )
    draws: int = Field(1, ge=1, description="Noised copies of each answer: noise levels with one mask each.")
    noise: Unbiased = Field("uniform", description="Noise schedule (docs/training.md).")
    shared_noise: bool = Field(False, description="Use the same noised copies for the reference policy and the policy.")
    fresh_noise: bool = Field(
        True,
        description="Draw new noise each epoch; if false, a pair keeps its noise, and the reference is computed once.",
    )
    reference: str | None = Field(
        None, description="Checkpoint of the reference policy (default: the starting checkpoint)."
    )
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed share of pairs with a wrong preference.")


class VRPOOptions(DPOOptions):
    """Settings of ``vrpo``. ``counts`` spreads an answer's levels evenly (ML-GSAI/LLaDA's likelihood, DARE's VRPO); the
    paper's own independent levels are ``uniform``."""

    beta: float = Field(
        0.2, gt=0, description="Strength of the KL penalty to the reference policy, per nat of a response's ELBO."
    )
    draws: int = Field(8, ge=1, description="Noised copies of each answer: noise levels with one mask each.")
    noise: Unbiased = Field("counts", description="Noise schedule (docs/training.md).")
    shared_noise: bool = Field(True, description="Use the same noised copies for the reference policy and the policy.")
