"""A training method: its name and settings around an objective (``objective.py``); the loop is ``loop.py``.

A method of your own is one class and one line of registration: docs/example-plugin has a whole one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, ValidationError

from dare_bench.config import one_line
from dare_bench.errors import UsageError, suggestion
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.objective import Objective
from dare_bench.trainers.padding import PaddingOptions
from dare_bench.training.rows import Kind, Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import ModelSpec


class Options(PaddingOptions):
    """A method's settings. A field that is None until the family or the data decides is filled in by the method."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method(Objective):
    """An objective with a name, the kind of rows it ``reads``, and ``Options``; registered as a trainer."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for lists."""
    reads: ClassVar[Kind] = "examples"
    Options: ClassVar[type[PaddingOptions]] = Options

    @classmethod
    def settle(cls, given: dict[str, Any], spec: ModelSpec) -> Any:
        """The options that hold for a model: what is given, over what its family's authors use, over the defaults.

        Raises:
            UsageError: a setting the method does not have, or a value that cannot be.
        """
        known = cls.Options.model_fields
        for name in given:
            if name not in known:
                raise UsageError(f"{cls.name} has no setting {name!r}{suggestion(name, known)}")
        try:
            return cls.Options(**{**cls.family_defaults(spec), **given})
        except ValidationError as error:
            raise UsageError(one_line(error, cls.name)) from error

    @classmethod
    def family_defaults(cls, spec: ModelSpec) -> dict[str, Any]:
        """Settings that the model's family brings along."""
        return {}

    def fit(self, spec: TrainSpec, model: LoadedModel, data: Tokens, out: Path, services: Services) -> Path:
        """Train ``model`` (see :func:`dare_bench.trainers.loop.run`)."""
        from dare_bench.trainers.loop import run

        return run(self, spec, model, data, out, services)
