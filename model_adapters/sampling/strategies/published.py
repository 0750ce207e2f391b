"""What a strategy says of itself: where it is published, its rule and exactness, and the settings of its paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

BENCHMARKS = {
    "GSM8K": r"gsm8k([-_].*)?",
    "MATH": r"(minerva_math|hendrycks_math)([-_].*)?|math([-_]?500)?",
    "HumanEval": r"(openai_)?humaneval(_instruct|_plus)?",
    "MBPP": r"(sanitized_)?mbpp(_instruct|_plus)?",
    "GPQA": r"gpqa([-_].*)?",
    "ARC": r"arc[-_](c|e|challenge|easy)([-_].*)?",
}
"""The names that lm-eval and OpenCompass give the tasks of a benchmark."""


class PaperSettings(NamedTuple):
    """The settings of a paper, or of its code, for some benchmarks and families."""

    families: Sequence[str]
    benchmarks: Sequence[str]
    fields: Mapping[str, Any]
    """Of the strategy."""
    answer: Mapping[str, Any]
    """Of the answer: ``gen_length``, ``block_length``, ``steps``."""
    missing: str = ""
    """What cannot be set, as a sentence."""


class Described(BaseModel):
    """The part of a strategy that users read; its fields are its settings."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Where the strategy is published."""
    rule: ClassVar[str] = ""
    """What it writes, in a few words."""
    exact: ClassVar[str] = ""
    """The published samplers whose tokens these are; none: approximate."""
    published: ClassVar[Sequence[PaperSettings]] = ()
    """What ``--strategy NAME`` alone means in a task."""

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Its fields with their defaults as JSON; None where a value must be given."""
        fields = cls.model_fields.items()
        return {name: None if field.is_required() else to_jsonable_python(field.default) for name, field in fields}

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """What ``dare-bench ls strategies`` says of it, as JSON."""
        published: dict[str, list[str]] = {}
        for part in cls.published:
            for family in part.families:
                published.setdefault(family, []).extend(part.benchmarks)
        about = {"rule": cls.rule, "exact": cls.exact, "source": cls.source}
        return {**about, "fields": cls.settings(), "published": published}

    @classmethod
    def published_for(cls, family: str, task: str) -> PaperSettings | None:
        """Its published settings for a task of a harness, by the names of the task's benchmark."""
        for part in cls.published:
            names = (BENCHMARKS[name] for name in part.benchmarks)
            if family in part.families and any(re.fullmatch(name, task, re.IGNORECASE) for name in names):
                return part
        return None
