"""The room behind an answer: which EOS tokens are learned. An explicit setting of every method, never a side effect."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dare_bench.diffusion.canvas import Padding


class PaddingOptions(BaseModel):
    """What stands behind an answer and is learned with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    padding: Padding | None = Field(
        None,
        description="eos_supervised: the canvas behind the answer is EOS and learned; masked_out: one EOS ends the row "
        "(default: eos_supervised where a canvas length is known, else masked_out).",
    )
    canvas_length: int | None = Field(
        None, ge=1, description="Response tokens of a row with eos_supervised (default: the task's own)."
    )
    max_pads: int | None = Field(None, ge=0, description="Maximum number of supervised EOS tokens after an answer.")

    @model_validator(mode="after")
    def _consistent(self) -> PaddingOptions:
        if self.padding == "masked_out" and (self.canvas_length is not None or self.max_pads is not None):
            name = "canvas_length" if self.canvas_length is not None else "max_pads"
            raise ValueError(f"{name} is of padding='eos_supervised'; with masked_out a row ends with its one EOS")
        return self

    def room(
        self, prompt: int, answer: int, canvas: int | None, block_length: int | None
    ) -> tuple[int, Padding, int | None]:
        """(canvas length, padding, most pads) of a row, as :func:`dare_bench.diffusion.canvas.response` takes them.

        A canvas ends on the grid of blocks, because that is where decoding ends. An answer longer than the canvas has a
        canvas of its own length plus one EOS: nothing is cut in silence.
        """
        length = self.canvas_length or canvas
        padding = self.padding or ("masked_out" if length is None else "eos_supervised")
        length = max(length or 0, answer + 1)
        if padding == "eos_supervised" and block_length is not None:
            length += -(prompt + length) % block_length
        return length, padding, self.max_pads
