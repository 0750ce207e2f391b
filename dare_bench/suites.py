"""Suites: many benchmarks under one word, each naming its harness and its data-set config (``tasks/suites/*.yaml``).

A suite says what is asked and by which scorer; how a checkpoint decodes is the family's default, the command line's or
a recipe's business. Suites are found by the registry's kind "suite", so a plugin can bring its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dare_bench.config import one_line, read_yaml
from dare_bench.errors import UsageError
from dare_bench.registry import registry
from dare_bench.types import Decoding

Need = Literal["hub", "punkt_tab", "sandbox"]
"""Data that one has to get from the Hugging Face hub oneself; nltk's sentence model; a sandbox for generated code."""

_MERGED = ("decoding", "likelihood")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SuiteEntry(_Strict):
    """One benchmark of a suite: one run.

    ``tasks`` are words as ``--tasks`` takes them for that harness (OpenCompass: ``CONFIG`` or ``CONFIG:ABBR``). What is
    None or empty is left to the command line, the task and the family. ``documents`` is the size of the whole test set
    (None: not fixed here), ``gated`` marks data that its authors hand out on request only.
    """

    name: str = Field(min_length=1)
    harness: str
    tasks: tuple[str, ...] = Field(min_length=1)
    about: str = ""
    documents: int | None = Field(default=None, ge=1)
    num_fewshot: int | None = Field(default=None, ge=0)
    repeats: int = Field(default=1, ge=1)
    apply_chat_template: bool | str | None = None
    limit: int | float | None = Field(default=None, gt=0)
    decoding: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] = Field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    gated: bool = False
    note: str = ""

    @field_validator("tasks", "needs", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        """One name may stand without brackets."""
        return (value,) if isinstance(value, str) else value

    def fields(self) -> dict[str, Any]:
        """The RunSpec fields that this entry sets."""
        made: dict[str, Any] = {"harness": self.harness, "tasks": self.tasks}
        if self.repeats != 1:
            made["repeats"] = self.repeats
        for name in ("num_fewshot", "apply_chat_template", "limit"):
            if getattr(self, name) is not None:
                made[name] = getattr(self, name)
        for name in _MERGED:
            if getattr(self, name):
                made[name] = dict(getattr(self, name))
        return made


class Suite(_Strict):
    """Benchmarks that are run together, in this order."""

    name: str
    about: str = ""
    entries: tuple[SuiteEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Suite:
        names = [entry.name for entry in self.entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"duplicate entry {twice[0]!r}; give each its own name")
        return self

    def specs(self, fields: Mapping[str, Any]) -> list[tuple[SuiteEntry, dict[str, Any]]]:
        """RunSpec fields for each entry, in order, with the user's ``fields`` on top.

        A field that is None counts as not given. ``decoding`` and ``likelihood`` are merged name by name, all else is
        replaced whole; ``tasks`` (the suite's own word, where it came from ``--tasks``) is always the entry's. An
        entry's ``limit`` gives way to the user's ``samples``, since the two exclude each other.

        Raises:
            UsageError: ``fields`` name a harness: each entry has its own.
        """
        given = {name: value for name, value in fields.items() if value is not None and name != "tasks"}
        if "harness" in given:
            raise UsageError(
                f"--harness {given['harness']} and the suite {self.name!r} exclude each other: each benchmark of a"
                " suite has its own harness; omit --harness, or give task names with --tasks"
            )
        return [(entry, merged(entry.fields(), given)) for entry in self.entries]


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """RunSpec fields ``given`` over those of ``base``; ``decoding`` and ``likelihood`` name by name."""
    made = {**base, **given}
    if given.get("samples") is not None and "limit" not in given:
        made.pop("limit", None)
    for name in _MERGED:
        if name in base or name in given:
            made[name] = _over(base.get(name, {}), given.get(name, {}))
    return made


def _over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` over ``base``; a field under another of its names (max_new_tokens) takes the place of the same one."""
    aliases = Decoding.aliases
    meant = {aliases.get(name, name) for name in given}
    return {**{name: value for name, value in base.items() if aliases.get(name, name) not in meant}, **given}


def load(name: str) -> Suite:
    """The suite of that name.

    Raises:
        UnknownNameError: no such suite; the closest names are given.
        UsageError: its file cannot be read or is not a suite (file and field are named).
    """
    return read(registry().get("suite", name).target)


def find(word: str) -> Suite | None:
    """The suite that ``word`` names, or None: then it may be a task's name."""
    return load(word) if word in registry().names("suite") else None


def read(path: str | Path) -> Suite:
    """The suite in a YAML file; its name is the file's unless it says another one.

    Raises:
        UsageError: the file cannot be read or is not a suite.
    """
    try:
        return Suite.model_validate({"name": Path(path).stem, **read_yaml(path)})
    except ValidationError as error:
        raise UsageError(f"{path}: {one_line(error, 'a suite')}") from error
