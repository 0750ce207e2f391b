"""What a sweep is asked to do, as it stands in its YAML file (docs/sweeps.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dare_bench import fingerprint
from dare_bench.config import one_line, read_yaml
from dare_bench.errors import UsageError, suggestion


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class SweepModel(_Strict):
    """One of ``models``. ``name`` is what nodes are called by; it is made from ``model`` where it is not given."""

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
        object.__setattr__(self, "name", _part(self.name or name))
        return self

    def opening(self) -> dict[str, Any]:
        """How it is opened, what is not given left out."""
        return self.model_dump(exclude={"name"}, exclude_defaults=True)


class BoardSpec(_Strict):
    """The board: another one by ``board`` (a name or a YAML file), or the fields of a board file right here."""

    board: str | None = None
    title: str | None = None
    about: str | None = None
    tasks: Any = None
    rank_by: str | None = None

    @model_validator(mode="after")
    def _one(self) -> BoardSpec:
        if self.board is not None and (extra := self.model_fields_set - {"board"}):
            raise ValueError(f"board names a board, so {sorted(extra)[0]} is that board's; leave one of them out")
        return self


class SweepSpec(_Strict):
    """A sweep as it stands in its file; ``entries`` spells out its grids.

    ``train`` may be empty: then the models themselves are evaluated. ``base``: evaluate them besides what is trained.
    """

    name: str = Field("sweep", min_length=1)
    models: tuple[SweepModel, ...]
    train: tuple[dict[str, Any], ...] = ()
    eval: tuple[dict[str, Any], ...] = ()
    base: bool = True
    board: BoardSpec | Literal[False] = False

    @field_validator("models", mode="before")
    @classmethod
    def _short_models(cls, value: Any) -> Any:
        """A checkpoint may be written as its name alone, one without brackets."""
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        return [{"model": item} if isinstance(item, str) else item for item in items]

    @field_validator("train", "eval", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        items = [value] if isinstance(value, Mapping) else value if value is not None else []
        return (
            [_dashed(item) if isinstance(item, Mapping) else item for item in items]
            if isinstance(items, list)
            else items
        )

    @field_validator("board", mode="before")
    @classmethod
    def _short_board(cls, value: Any) -> Any:
        short = {True: {}, None: False}.get(value, value) if isinstance(value, bool | None) else value
        return {"board": short} if isinstance(short, str) else short

    @field_validator("models")
    @classmethod
    def _distinct(cls, value: tuple[SweepModel, ...]) -> tuple[SweepModel, ...]:
        if not value:
            raise ValueError("no model is named; give names, folders or hub ids (dare-bench ls models)")
        names = [model.name for model in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two are called {twice[0]!r}; give one a name of its own ({{model: ..., name: ...}})")
        return value

    @model_validator(mode="after")
    def _something(self) -> SweepSpec:
        if not self.train and not self.eval:
            raise ValueError("neither train nor eval is given, so there is nothing to do; give one of them")
        if self.board is not False and not self.eval:
            raise ValueError("board shows evaluations, and no eval is given; give eval, or leave board out")
        return self


def read_spec(source: str | Path | Mapping[str, Any] | SweepSpec) -> SweepSpec:
    """A sweep from its YAML file or from plain values.

    Raises:
        UsageError: what is off, by the name of its field, in one line.
    """
    if isinstance(source, SweepSpec):
        return source
    fields = _dashed(source) if isinstance(source, Mapping) else read_yaml(source)
    where = "" if isinstance(source, Mapping) else f"{source}: "
    unknown = [name for name in fields if name not in SweepSpec.model_fields]
    if unknown:
        near = suggestion(unknown[0], SweepSpec.model_fields)
        raise UsageError(f"{where}unknown setting {unknown[0]!r} of a sweep{near}")
    if where and "name" not in fields:
        fields["name"] = Path(str(source)).stem
    try:
        return SweepSpec.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"{where}{one_line(error, 'a sweep')}") from error


def _part(name: str) -> str:
    """``name`` as part of a file name; letters that are lost there leave a hash behind."""
    clean = fingerprint.slug(name, 60)
    return clean if name.isascii() else f"{clean[:50]}-{fingerprint.digest(name, 8)}"


def _dashed(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).replace("-", "_"): value for name, value in mapping.items()}
