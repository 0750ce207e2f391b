"""What a training method registers beside its class, so that its settings and rows are checked without torch:
``registry.add("trainer", ..., options="module:Options", reads="examples")``, both attributes of the class too.
``refuse_replay="module:function"`` of a method with rollouts refuses a step that cannot be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from dare_bench.config import one_line
from dare_bench.errors import UsageError, suggestion
from dare_bench.registry import Registration, registry
from dare_bench.training.rows import Kind


def options_of(entry: Registration) -> type[BaseModel]:
    """The settings of a method."""
    options: type[BaseModel] = entry.load("options") if "options" in entry.about else entry.load().Options
    return options


def valid_options(
    method: str, kind: type[BaseModel], given: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """The settings of a method, ``given`` over other ``defaults``. Raises UsageError: an unknown setting, or an invalid
    value."""
    for name in given.keys() - kind.model_fields.keys():
        raise UsageError(f"{method} has no setting {name!r}{suggestion(name, kind.model_fields)}")
    try:
        return kind(**{**defaults, **given})
    except ValidationError as error:
        raise UsageError(one_line(error, method)) from error


def readers(kind: Kind) -> str:
    """The registered methods that read a kind of rows, for messages."""
    names = [entry.name for entry in registry().entries("trainer") if entry.about.get("reads") == kind]
    return f"dare-bench train {' or '.join(names)}" if names else "another method"
