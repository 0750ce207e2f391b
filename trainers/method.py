"""A training method: its name and settings around an objective (``objective.py``); the loop is ``loop.py``.

A plugin method is one class and one line of registration: see docs/example-method.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dare_bench.config import one_line
from dare_bench.diffusion.canvas import Padding
from dare_bench.errors import UsageError, suggestion
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.objective import Objective
from dare_bench.training.rows import Kind, Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import ModelSpec


class Options(BaseModel):
    """A method's settings; here, the supervised EOS tokens after an answer. A method resolves a field that is None."""

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
    def _consistent(self) -> Options:
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

    def resolved(self, canvas: int | None, block_length: int | None) -> Options:
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


class Method(Objective):
    """An objective with a name, the kind of rows it ``reads``, and ``Options``; registered as a trainer."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for lists."""
    reads: ClassVar[Kind] = "examples"
    Options: ClassVar[type[BaseModel]] = Options
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """By the name that an option ``variant`` gives: the options whose defaults are other ones in that variant."""

    @classmethod
    def settle(cls, given: dict[str, Any], spec: ModelSpec) -> Any:
        """The options for a model: ``given`` overrides the variant that it names, which overrides the settings of the
        family's authors, which override the defaults.

        Raises:
            UsageError: an unknown setting, or an invalid value.
        """
        fields = cls.Options.model_fields
        for name in given.keys() - fields.keys():
            raise UsageError(f"{cls.name} has no setting {name!r}{suggestion(name, fields)}")
        try:
            variant = cls.variants.get(str(given.get("variant")), {})
            return cls.Options(**{**cls.family_defaults(spec), **variant, **given})
        except ValidationError as error:
            raise UsageError(one_line(error, cls.name)) from error

    def resolved_options(self, steps: int | None = None) -> BaseModel:
        """The options as they apply to this model, data and number of optimizer steps, for the record."""
        resolved: BaseModel = self.options.resolved(self.canvas, self.spec.block_length)
        return resolved

    @classmethod
    def family_defaults(cls, spec: ModelSpec) -> dict[str, Any]:
        """Settings of the model's family."""
        return {}

    def check(self, spec: TrainSpec, model: LoadedModel, data: Tokens) -> None:
        """Check what the training needs of its settings, model and data, before anything is written or evaluated.

        Raises:
            UsageError, DataError: with the reason.
        """

    def fit(self, spec: TrainSpec, model: LoadedModel, data: Tokens, out: Path, services: Services) -> Path:
        """Train ``model`` (see :func:`dare_bench.trainers.loop.run`)."""
        from dare_bench.trainers.loop import run

        return run(self, spec, model, data, out, services)
