"""A training method: an objective with a name and settings. Its base is
:class:`dare_bench.trainers.noised.NoisedMethod` for rows of the data,
:class:`dare_bench.trainers.rl.policy_gradient.PolicyGradient` for completions; a plugin's is one class and one line of
registration (docs/example-method)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.objective import Objective
from dare_bench.training.methods import valid_options
from dare_bench.training.rows import Kind, Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import ModelSpec


class Method(Objective):
    """An objective with a name, the kind of rows it ``reads``, and ``Options``; registered as a trainer."""

    name: ClassVar[str]
    reads: ClassVar[Kind] = "examples"
    Options: ClassVar[type[BaseModel]]
    validation_metrics: ClassVar[Mapping[str, bool]] = {"loss": False}
    """The metrics of validation data, and whether a greater value is a better one."""
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """By the name that an option ``variant`` gives: the options whose defaults are other ones in that variant."""

    @classmethod
    def settle(cls, given: dict[str, Any], spec: ModelSpec) -> Any:
        """The options for a model: ``given`` overrides the variant that it names, which overrides the settings of the
        family's authors, which override the defaults. Raises UsageError: an unknown setting, or an invalid value."""
        variant = cls.variants.get(str(given.get("variant")), {})
        return valid_options(cls.name, cls.Options, given, {**cls.family_defaults(spec), **variant})

    def resolved_options(self, steps: int | None = None) -> BaseModel:
        """The options as they apply to this model, data and number of optimizer steps, for the record."""
        resolved: BaseModel = self.options
        return resolved

    @classmethod
    def family_defaults(cls, spec: ModelSpec) -> dict[str, Any]:
        """Settings of the model's family."""
        return {}

    def check(self, spec: TrainSpec, model: LoadedModel, data: Tokens) -> None:
        """Check what the training needs of its settings, model and data, before anything is written or evaluated.
        Raises UsageError, DataError: with the reason."""

    def fit(self, spec: TrainSpec, model: LoadedModel, data: Tokens, out: Path, services: Services) -> Path:
        """Train ``model`` (see :func:`dare_bench.trainers.training_run.run`)."""
        from dare_bench.trainers.training_run import run

        return run(self, spec, model, data, out, services)
