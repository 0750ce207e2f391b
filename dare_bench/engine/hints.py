"""Names that can be refused before a model is opened, and what a user may have meant by them."""

from __future__ import annotations

import difflib
from typing import Any

from dare_bench import suites
from dare_bench.config import RunSpec
from dare_bench.errors import DareError, DecodingError, UnknownNameError, suggestion
from dare_bench.harness.common.requests import plain
from dare_bench.keywords import DecodingKeywords
from dare_bench.registry import registry

_OURS = "dare_bench.model_adapters"


def check(source_class: Any, spec: RunSpec) -> None:
    """Let the harness refuse what it must refuse (unknown tasks, code without a sandbox) before gigabytes are read.

    Raises:
        UnknownNameError: as the harness says it, with where else such a name is known.
        DecodingError: a decoding field that no family has.
    """
    _refuse_unknown_fields(spec)
    refuse = getattr(source_class, "check", None)
    if refuse is None:
        return
    try:
        refuse(spec)
    except UnknownNameError as error:
        hints = [*_suites(spec), *_elsewhere(spec)]
        raise type(error)("; ".join([str(error), *hints])) if hints else error from None


def _refuse_unknown_fields(spec: RunSpec) -> None:
    """Without importing a family, which imports torch. One from a plugin may have fields of its own."""
    if any(entry.origin != _OURS for entry in registry().entries("family")):
        return
    known = [*DecodingKeywords.__annotations__]
    for name in plain(spec.decoding):
        if name not in known:
            raise DecodingError(
                f"no model family has a decoding field {name!r}{suggestion(name, known)}; see dare-bench eval --help"
            )


def _suites(spec: RunSpec) -> list[str]:
    known = registry().names("suite")
    near = [name for task in spec.tasks for name in difflib.get_close_matches(task.replace("_", "-"), known, 1, 0.8)]
    return [f"or the suite {name!r}?" for name in near if suites.find(name)][:1]


def _elsewhere(spec: RunSpec) -> list[str]:
    """Other harnesses that know a task of that name, asked by their ``knows``."""
    found = []
    for entry in registry().entries("harness"):
        if entry.name == spec.harness:
            continue
        try:
            knows = getattr(entry.load(), "knows", None)
            here = [task for task in spec.tasks if knows is not None and knows(task, spec)]
        except (ImportError, DareError):  # it is not installed: nobody meant it
            continue
        if here:
            found.append(f"{here[0]!r} is known to --harness {entry.name}")
    return found
