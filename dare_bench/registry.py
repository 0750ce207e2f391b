"""One registry for everything that can be named: families, strategies, checkpoints, tasks, recipes, suites, trainers,
rewards.

Entries are lazy ``"module:attribute"`` targets, so listing names imports no torch. The project's own folders register
through their ``register`` function; third parties through an entry point of the group ``dare_bench.plugins`` that
names a function taking the registry. Registering a name twice is an error that names both places.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

from dare_bench.errors import UsageError, unknown

Kind = Literal[
    "family",
    "checkpoint",
    "task_folder",
    "recipe",
    "suite",
    "harness",
    "trainer",
    "executor",
    "engine",
    "training_data",
    "reward",
    "strategy",
]
BUILT_IN = (
    "dare_bench.executors",
    "dare_bench.harness",
    "dare_bench.model_adapters",
    "dare_bench.tasks",
    "dare_bench.trainers",
)
GROUP = "dare_bench.plugins"


@dataclass(frozen=True)
class Registration:
    """A name and its target. ``about`` has plain facts (never objects)."""

    kind: Kind
    name: str
    target: str
    origin: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """Import the target: ``module:attribute``."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Registry:
    """Names by kind. ``add`` refuses duplicates; ``get`` suggests similar names."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Registration] = {}

    def add(self, kind: Kind, name: str, target: str, *, origin: str, **about: Any) -> None:
        """Register ``name``. ``origin``: the registering module or distribution, for messages about duplicates.

        Raises:
            UsageError: the kind is not one of ``Kind``, or the name is taken.
        """
        if kind not in get_args(Kind):
            raise UsageError(f"{origin} registers {name!r} as {kind!r}; kinds are {', '.join(get_args(Kind))}")
        entry = Registration(kind, name, target, origin, about)
        seen = self._entries.get((kind, name))
        if seen is not None and seen != entry:
            raise UsageError(
                f"{kind} {name!r} is registered twice: {seen.target} by {seen.origin}, {target} by {origin}; rename one"
            )
        self._entries[kind, name] = entry

    def get(self, kind: Kind, name: str) -> Registration:
        """The entry of that name; raises UnknownNameError."""
        try:
            return self._entries[kind, name]
        except KeyError:
            raise unknown(kind.replace("_", " "), name, self.names(kind)) from None

    def names(self, kind: Kind) -> list[str]:
        return sorted(name for k, name in self._entries if k == kind)

    def entries(self, kind: Kind) -> list[Registration]:
        return [self._entries[kind, name] for name in self.names(kind)]


def load_plugins(registry: Registry) -> None:
    """Register every installed plugin. One that fails to import is a warning, as it must not stop an evaluation."""
    for point in entry_points(group=GROUP):
        try:
            register: Callable[[Registry], None] = point.load()
        except Exception as error:
            warnings.warn(f"plugin {point.name!r} ({point.value}) does not import: {error}", stacklevel=2)
            continue
        register(registry)


@cache
def registry() -> Registry:
    """The process's registry: built-in folders, then plugins."""
    entries = Registry()
    for name in BUILT_IN:
        importlib.import_module(name).register(entries)
    load_plugins(entries)
    return entries
