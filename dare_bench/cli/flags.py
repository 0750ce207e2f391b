"""Flags of a command from the fields of its settings, so that flag, YAML key and Python argument always agree."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo


def takes(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> None:
    """Make typer read ``parameters`` instead of the keyword arguments of ``command``."""
    signature = inspect.Signature(list(parameters))
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}


def parameter(
    name: str, kind: type, text: str, panel: str | None = None, flags: Sequence[str] = (), **more: Any
) -> inspect.Parameter:
    """An option whose default is None. ``kind``: type of the value; ``panel``: heading in the help; ``flags``: by
    default ``--name``, for a bool ``--name/--no-name``; ``more``: further arguments of ``typer.Option``."""
    flag = f"--{name.replace('_', '-')}"
    flags = flags or ((f"{flag}/--no-{flag[2:]}",) if kind is bool else (flag,))
    option = typer.Option(*flags, help=text, rich_help_panel=panel, **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def switch(name: str, text: str, panel: str | None = None, short: Sequence[str] = ()) -> inspect.Parameter:
    """A flag without a value whose default is False."""
    option = typer.Option(f"--{name.replace('_', '-')}", *short, help=text, rich_help_panel=panel)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def of_field(
    name: str, field: FieldInfo, panel: str | None = None, flags: Sequence[str] = (), **more: Any
) -> inspect.Parameter:
    """The option of a field; its help is the field's description."""
    return parameter(name, _kind(field.annotation), field.description or "", panel, flags, **more)


def with_values(field: FieldInfo) -> str:
    """A field's description with its choices and its default."""
    silent = field.default is None or field.is_required() or field.default_factory is not None
    shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
    default = " (required)" if field.is_required() else "" if silent else f" (default: {shown})"
    return f"{field.description or ''}{_choices(field.annotation)}{default}".strip()


def _parts(annotation: Any) -> list[Any]:
    """The types that an annotation allows besides None."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [part for part in parts if part is not type(None)]


def _kind(annotation: Any) -> type:
    """The type on the command line: int, float or bool; any other field parses its text."""
    parts = _parts(annotation)
    return parts[0] if len(parts) == 1 and parts[0] in (int, float, bool) else str


def _choices(annotation: Any) -> str:
    values = next((get_args(part) for part in _parts(annotation) if get_origin(part) is Literal), ())
    return f" One of {', '.join(map(str, values))}." if values else ""
