"""Methods that learn from noised rows of the data: each draws noise by a law and weighs the masked tokens.

Supervised fine-tuning and preference optimization are such methods; reinforcement learning samples its rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from dare_bench.diffusion.canvas import Padding, response
from dare_bench.diffusion.laws import Law, Noise
from dare_bench.errors import UsageError
from dare_bench.trainers.method import Method
from dare_bench.trainers.steps import Item, NoisedRows, StepShape, TrainingRow
from dare_bench.training.rows import TokenRow, Tokens


class NoisedOptions(BaseModel):
    """The settings of every method on noised rows: the supervised EOS tokens after an answer. A method resolves a field
    that is None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    padding: Padding | None = Field(
        None,
        description="eos_supervised: the canvas behind the answer is EOS and learned, so that the model learns where "
        "an answer ends; masked_out: one EOS ends the row (default: eos_supervised).",
    )
    canvas_length: int | None = Field(
        None,
        ge=1,
        description="Response tokens of a row with eos_supervised (default: the task's own; with --data the longest "
        "answer and one EOS, rounded up; in block-causal families up to the end of the answer's block).",
    )
    max_pads: int | None = Field(
        None, ge=0, description="Maximum number of supervised EOS tokens after an answer (default: no limit)."
    )

    @model_validator(mode="after")
    def _consistent(self) -> NoisedOptions:
        if self.padding == "masked_out" and (self.canvas_length is not None or self.max_pads is not None):
            name = "canvas_length" if self.canvas_length is not None else "max_pads"
            raise ValueError(f"{name} belongs to padding='eos_supervised'; with masked_out a row ends with one EOS")
        return self

    def room(
        self, prompt: int, answer: int, canvas: int | None, block_length: int | None
    ) -> tuple[int, Padding, int | None]:
        """(canvas length, padding, max_pads) of a row, the arguments of :func:`dare_bench.diffusion.canvas.response`.

        A canvas ends on the grid of blocks, as decoding does. An answer that is longer than the canvas gets a canvas of
        its own length plus one EOS: answers are never truncated silently.
        """
        padding = self.padding or "eos_supervised"
        length = max(self.canvas_length or canvas or 0, answer + 1)
        if padding == "eos_supervised" and block_length is not None:
            length += -(prompt + length) % block_length
        return length, padding, self.max_pads

    def resolved(self, canvas: int | None, block_length: int | None) -> NoisedOptions:
        """The options with ``padding``, ``canvas_length`` and ``max_pads`` as :meth:`room` applies them.

        ``canvas_length`` remains None if rows end with the block of their answer. A ``max_pads`` that was not given is
        the largest number of EOS that the canvas has room for. With ``masked_out`` both do not apply and remain None.
        """
        if self.padding == "masked_out":
            return self
        length = self.canvas_length or canvas
        most = self.max_pads
        if most is None and (length or block_length):
            most = (length or 1) + (block_length or 1) - 1
        return self.model_copy(update={"padding": "eos_supervised", "canvas_length": length, "max_pads": most})


class NoisedMethod(Method):
    """A method on noised rows. Subclasses define ``law``, ``weigh`` and ``loss``."""

    Options: ClassVar[type[BaseModel]] = NoisedOptions

    @property
    @abstractmethod
    def law(self) -> Law:
        """The noise law."""

    @abstractmethod
    def weigh(self, noise: Noise) -> Tensor:
        """The loss weight of each token of a whole step's copies, float64 [T]; 0 where it is not masked."""

    @property
    def block_length(self) -> int | None:
        return getattr(self.options, "block_length", None)

    def resolved_options(self, steps: int | None = None) -> BaseModel:
        resolved: BaseModel = self.options.resolved(self.canvas, self.spec.block_length)
        return resolved

    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> NoisedRows:
        return NoisedRows(
            self.items(data), self.law, self.weigh, self.spec.mask, shape, seed, process, self.fresh_noise
        )

    def lengths(self, data: Tokens) -> list[int]:
        return [len(row.prompt) + len(row.response) for item in self.items(data) for row in item]

    def items(self, data: Tokens) -> list[Item]:
        """Training rows with their supervised EOS tokens.

        Raises:
            UsageError: a missing canvas length, or a canvas beyond the model's context.
        """
        o = self.options
        unknown = o.canvas_length is None and self.canvas is None and self.spec.block_length is None
        if o.padding == "eos_supervised" and unknown and o.max_pads != 0:
            raise UsageError("padding='eos_supervised' needs the length of the canvas; give canvas_length")
        return [tuple(self._row(row) for row in rows) for rows in data.items]

    def _row(self, row: TokenRow) -> TrainingRow:
        if row.cut:
            return TrainingRow(row.prompt, row.answer, row.key, row.where)
        if (canvas := self.options.canvas_length) is not None and len(row.prompt) + canvas > self.spec.context_limit:
            fits = self.spec.context_limit - len(row.prompt)
            raise UsageError(
                f"canvas_length={canvas} after {row.where} (a prompt of {len(row.prompt)} tokens) is beyond the "
                f"model's context of {self.spec.context_limit}; give at most {fits}"
            )
        length, padding, most = self.options.room(len(row.prompt), len(row.answer), self.canvas, self.spec.block_length)
        length = max(len(row.answer) + 1, min(length, self.spec.context_limit - len(row.prompt)))
        eos = self.spec.eos_ids[0] if self.spec.eos_ids else self.spec.pad_id
        if eos is None:
            raise UsageError("this checkpoint has no EOS id to end answers with; give --model-args eos_id=")
        answer = response(row.answer, length, eos, padding, most)
        return TrainingRow(row.prompt, tuple(answer), row.key, row.where)
