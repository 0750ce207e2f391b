"""The YAML file of a sweep (docs/sweeps.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dare_bench import fingerprint
from dare_bench.config import one_line, read_yaml
from dare_bench.errors import UsageError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _underscored(value: Any) -> Any:
    """A mapping's names as those of Python."""
    return {str(k).replace("-", "_"): v for k, v in value.items()} if isinstance(value, Mapping) else value


Underscored = Annotated[dict[str, Any], BeforeValidator(_underscored)]
Entries = Annotated[
    tuple[Underscored, ...], BeforeValidator(lambda v: [v] if isinstance(v, Mapping) else [] if v is None else v)
]
"""A list of mappings, or one of them."""


def label(text: str, longest: int) -> str:
    """``text`` as one part of a path. If it is cut, or characters are replaced by others than ASCII, it has a hash."""
    clean = re.sub(r"[^A-Za-z0-9._=+]+", "-", text).strip("-._")
    if len(clean) <= longest and clean and text.isascii():
        return clean
    begin, end = clean[: longest - 40].rstrip("-._"), clean[longest - 40 :][-30:].lstrip("-._")
    return "-".join(part for part in (begin, fingerprint.digest(text, 8), end) if part)


class SweepModel(_Strict):
    """One of ``models``. ``name`` appears in the names of nodes; by default it is derived from ``model``."""

    model: str = Field(min_length=1)
    name: str = ""
    adapter: str | None = None
    family: str | None = None
    model_args: dict[str, Any] = Field(default_factory=dict)
    dtype: str | None = None

    @model_validator(mode="after")
    def _named(self) -> SweepModel:
        name = fingerprint.model_name(self.model).split("/")[-1]
        name += f"-{fingerprint.model_name(self.adapter)}" if self.adapter and not self.name else ""
        object.__setattr__(self, "name", label(self.name or name, 60))
        return self

    def opening(self) -> dict[str, Any]:
        """The settings for loading it that are not defaults."""
        return self.model_dump(exclude={"name"}, exclude_defaults=True)


class SweepSpec(_Strict):
    """The content of a sweep's file; ``entries`` expands its grids. Without ``train`` the models themselves are
    evaluated. ``train_defaults``: settings of the entries of ``train`` that do not give them. ``base``: evaluate them
    next to the trained checkpoints. ``board``: a name or a YAML file, or the fields of a board."""

    name: str = Field("sweep", min_length=1)
    models: tuple[SweepModel, ...]
    train_defaults: Underscored = Field(default_factory=dict)
    train: Entries = ()
    eval: Entries = ()
    base: bool = True
    board: str | dict[str, Any] | Literal[False] = False

    @field_validator("models", mode="before")
    @classmethod
    def _short_models(cls, value: Any) -> Any:
        """Accept a single model, and models by name."""
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        return [{"model": item} if isinstance(item, str) else item for item in items]

    @field_validator("train")
    @classmethod
    def _with_defaults(cls, value: tuple[dict[str, Any], ...], info: ValidationInfo) -> tuple[dict[str, Any], ...]:
        defaults = info.data.get("train_defaults", {})
        return tuple({**entry, **{name: v for name, v in defaults.items() if name not in entry}} for entry in value)

    @field_validator("board", mode="before")
    @classmethod
    def _short_board(cls, value: Any) -> Any:
        return {} if value is True else False if value is None else value

    @field_validator("models")
    @classmethod
    def _distinct(cls, value: tuple[SweepModel, ...]) -> tuple[SweepModel, ...]:
        if not value:
            raise ValueError("no model is given; give names, folders or hub ids (dare-bench ls models)")
        names = [model.name for model in value]
        if repeated := sorted(name for name in names if names.count(name) > 1):
            raise ValueError(
                f"two models have the name {repeated[0]!r}; give one of them another name ({{model: ..., name: ...}})"
            )
        return value

    @model_validator(mode="after")
    def _not_empty(self) -> SweepSpec:
        if not self.train and not self.eval:
            raise ValueError("neither train nor eval is given, so there is nothing to do; give one of them")
        if self.board is not False and not self.eval:
            raise ValueError("board shows evaluations, and no eval is given; give eval, or leave board out")
        return self


def read_spec(source: str | Path | Mapping[str, Any] | SweepSpec) -> SweepSpec:
    """A sweep from its YAML file or from plain values.

    Raises:
        UsageError: an invalid field.
    """
    if isinstance(source, SweepSpec):
        return source
    try:
        fields = _underscored(source) if isinstance(source, Mapping) else read_yaml(source)
    except UsageError as error:
        raise UsageError(f"{error}; a sweep is a YAML file of models, train and eval (docs/sweeps.md)") from error
    where = "" if isinstance(source, Mapping) else f"{source}: "
    if where and "name" not in fields:
        fields["name"] = Path(str(source)).stem
    try:
        return SweepSpec.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"{where}{one_line(error, 'a sweep')}") from error
