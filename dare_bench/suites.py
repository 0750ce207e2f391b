"""Suites: several benchmarks under one name, each with its harness and task (``tasks/suites/*.yaml``).

A suite defines prompts and scorers; decoding comes from the family's defaults, the command line or a recipe. Suites are
registered by the kind ``suite``, also from plugins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from dare_bench.config import one_line, read_yaml
from dare_bench.errors import UsageError
from dare_bench.recipe_schema import OneOrMore, Strict
from dare_bench.registry import registry
from dare_bench.types import Decoding

Need = Literal["hub", "punkt_tab", "sandbox"]
"""Data to be downloaded from the Hugging Face hub by the user; nltk's sentence model; a sandbox for generated code."""

_MERGED = ("decoding", "likelihood")


class SuiteEntry(Strict):
    """One benchmark of a suite: one run.

    ``tasks`` are names as in ``--tasks`` for that harness (OpenCompass: ``CONFIG`` or ``CONFIG:ABBR``). Fields that are
    None or empty are not set. ``documents`` is the size of the whole test set (None: not fixed), ``gated`` marks data
    that its authors provide only on request.
    """

    name: str = Field(min_length=1)
    harness: str
    tasks: Annotated[tuple[str, ...], OneOrMore] = Field(min_length=1)
    about: str = ""
    documents: int | None = Field(default=None, ge=1)
    num_fewshot: int | None = Field(default=None, ge=0)
    repeats: int = Field(default=1, ge=1)
    apply_chat_template: bool | str | None = None
    limit: int | float | None = Field(default=None, gt=0)
    decoding: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] = Field(default_factory=dict)
    needs: Annotated[tuple[Need, ...], OneOrMore] = ()
    gated: bool = False
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """The RunSpec fields that this entry sets."""
        names = {"harness", "tasks", "num_fewshot", "repeats", "apply_chat_template", "limit", *_MERGED}
        fields = self.model_dump(include=names, exclude_defaults=True)
        return {name: value for name, value in fields.items() if value != {}}


class Suite(Strict):
    """Benchmarks to be run together, in this order."""

    name: str
    about: str = ""
    entries: tuple[SuiteEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Suite:
        (name, count), *_ = Counter(entry.name for entry in self.entries).most_common(1)
        if count > 1:
            raise ValueError(f"duplicate entry {name!r}; give each its own name")
        return self

    def specs(self, fields: Mapping[str, Any]) -> list[tuple[SuiteEntry, dict[str, Any]]]:
        """RunSpec fields for each entry, in order, overridden by the user's ``fields``.

        A field that is None is not set. ``decoding`` and ``likelihood`` are merged by name, other fields are replaced;
        ``tasks`` is always the entry's. The user's ``samples`` remove an entry's ``limit``, since they exclude each
        other.

        Raises:
            UsageError: ``fields`` name a harness, but each entry has its own.
        """
        given = {name: value for name, value in fields.items() if value is not None and name != "tasks"}
        if "harness" in given:
            raise UsageError(
                f"--harness {given['harness']} and the suite {self.name!r} exclude each other: each benchmark of a"
                " suite has its own harness; omit --harness, or give task names with --tasks"
            )
        return [(entry, merged(entry.fields(), given)) for entry in self.entries]


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """RunSpec fields ``given`` over those of ``base``; ``decoding`` and ``likelihood`` are merged by name."""
    fields = {**base, **given}
    if given.get("samples") is not None and "limit" not in given:
        fields.pop("limit", None)
    for group in _MERGED:
        if group in fields:  # both may use different names of one field (max_new_tokens)
            over = {Decoding.aliases.get(name, name) for name in given.get(group, {})}
            kept = {n: v for n, v in base.get(group, {}).items() if Decoding.aliases.get(n, n) not in over}
            fields[group] = {**kept, **given.get(group, {})}
    return fields


def load(name: str) -> Suite:
    """The suite of that name.

    Raises:
        UnknownNameError: no such suite.
        UsageError: its file cannot be read or is not a suite; the message names file and field.
    """
    return read(registry().get("suite", name).target).model_copy(update={"name": name})


def find(name: str) -> Suite | None:
    """The suite of that name; None if it may be a task's name."""
    return load(name) if name in registry().names("suite") else None


def read(path: str | Path) -> Suite:
    """The suite in a YAML file, whose default name is that of the file.

    Raises:
        UsageError: the file cannot be read or is not a suite.
    """
    try:
        return Suite.model_validate({"name": Path(path).stem, **read_yaml(path)})
    except ValidationError as error:
        raise UsageError(f"{path}: {one_line(error, 'a suite')}") from error
