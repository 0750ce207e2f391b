"""Refuse unknown names before a model is opened, with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from dare_bench import suites
from dare_bench.config import RunSpec, not_valid, reason
from dare_bench.errors import DareError, DecodingError, UnknownNameError, suggestion
from dare_bench.harness import task_source
from dare_bench.harness.common.requests import plain
from dare_bench.keywords import DECODING_LIMITS, ESTIMATORS, DecodingKeywords, LikelihoodKeywords
from dare_bench.loading import refuse_unknown_opening
from dare_bench.protocols import TaskSource
from dare_bench.registry import registry
from dare_bench.types import Decoding


def checked_harness(spec: RunSpec) -> type[TaskSource]:
    """The harness's class, once it has accepted the settings (known tasks, a sandbox for code): no checkpoint is read.

    Raises:
        UnknownNameError: from the harness; the message adds suites and other harnesses that know the name.
        DecodingError: a decoding field that no family, or that the served engine, has.
        UsageError, DataError: from :func:`~dare_bench.harness.task_source` and the harness's ``check``.
    """
    source_class = task_source(spec.harness)
    refuse_unknown_opening({"device": spec.device, "family": spec.family, **spec.model_args})
    refuse_unknown_fields(spec.decoding)
    refuse_unknown_estimator(spec.likelihood)
    if spec.engine != "native":  # before its server is asked for anything
        registry().get("engine", spec.engine).load().check_fields(plain(spec.decoding))
    try:
        source_class.check(spec)
    except UnknownNameError as error:
        hints = [*_suites(spec), *_other_harnesses(spec)]
        raise type(error)("; ".join([str(error), *hints])) if hints else error from None
    return source_class


def refuse_unknown_fields(decoding: Mapping[str, Any], recorded: bool = False) -> None:
    """Refuse a decoding field that no family has, a value that no family takes, and an unknown strategy. No family is
    imported, which would import torch: plugins register the fields of theirs. ``recorded``: may they be fields that
    record more (``trajectory``)?"""
    families = registry().entries("family")
    known = [
        *DecodingKeywords.__annotations__,
        *(name for family in families for name in family.about.get("fields", ())),
    ]
    for name, value in plain(decoding).items():
        if name not in known:
            hint = suggestion(name, known) or f"; known: {', '.join(sorted(set(known) - Decoding.hidden))}"
            raise DecodingError(f"no model family has a decoding field {name!r}{hint}")
        if name in Decoding.hidden and not recorded:
            raise DecodingError(
                f"{name}={value}: an evaluation records what its files need, and changes no answer by it; omit it (in "
                f"Python, model.generate takes {name})"
            )
        kind = DecodingKeywords.__annotations__.get(name, Any)
        if name in DECODING_LIMITS:
            kind = Annotated[kind, Field(**DECODING_LIMITS[name])]
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            raise DecodingError(not_valid(name, value, reason(error.errors()[0]))) from error
    strategy = decoding.get("strategy")
    named = strategy.get("name") if isinstance(strategy, Mapping) else strategy
    if isinstance(named, str):
        registry().get("strategy", named)


def refuse_unknown_estimator(likelihood: Mapping[str, Any]) -> None:
    """Refuse an estimator, and a likelihood field, that no family has. A plugin's family may have others, which it
    refuses itself."""
    if any(entry.plugin is not None for entry in registry().entries("family")):
        return
    for name in likelihood:
        if name not in (known := ["estimator", *LikelihoodKeywords.__annotations__]):
            raise DecodingError(f"no model family has a likelihood field {name!r}{suggestion(name, known)}")
    estimator = likelihood.get("estimator")
    for part in [] if estimator is None else str(estimator).split("+"):
        if part not in ESTIMATORS:
            raise DecodingError(f"no model family has an estimator {estimator!r}{suggestion(part, ESTIMATORS)}")


def _suites(spec: RunSpec) -> list[str]:
    known = registry().names("suite")
    near = [name for task in spec.tasks for name in difflib.get_close_matches(task.replace("_", "-"), known, 1, 0.8)]
    return [f"or the suite {name!r}?" for name in near if suites.find(name)][:1]


def _other_harnesses(spec: RunSpec) -> list[str]:
    """Other harnesses whose ``knows`` accepts one of the tasks."""
    hints = []
    for entry in registry().entries("harness"):
        if entry.name == spec.harness:
            continue
        try:
            source_class = task_source(entry.name)
            task = next((task for task in spec.tasks if source_class.knows(task, spec)), None)
        except (ImportError, DareError):  # not installed
            continue
        if task is not None:
            hints.append(f"{task!r} is known to --harness {entry.name}")
    return hints
