"""One registry for everything that can be named: families, strategies, checkpoints, tasks, recipes, suites, trainers,
rewards.

Entries are lazy ``"module:attribute"`` targets, so listing names imports no torch. The project's folders register
through their ``register`` function; third parties through an entry point of the group ``dare_bench.plugins`` that
names a function taking the registry. Registering a name twice is an error that names both places.

A plugin that cannot be registered, for whatever reason, is left out as a whole with a warning: it must not stop an
evaluation that has nothing to do with it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, get_args

from dare_bench.errors import DareError, PluginWarning, UsageError, in_one_line, unknown

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
FILES = ("checkpoint", "task_folder", "recipe", "suite")
"""Kinds whose target is the path of a file or folder; that of the others is ``module:attribute``."""
BUILT_IN = (
    "dare_bench.executors",
    "dare_bench.harness",
    "dare_bench.model_adapters",
    "dare_bench.tasks",
    "dare_bench.trainers",
)
GROUP = "dare_bench.plugins"
ENVIRONMENT = "DARE_BENCH_PLUGINS"
"""The variable that names the plugins to load, separated by commas; without it, all that are installed are loaded."""


@dataclass(frozen=True)
class Registration:
    """A name and its target. ``about`` has plain facts (never objects); ``plugin`` is the entry point that adds it."""

    kind: Kind
    name: str
    target: str
    origin: str
    about: Mapping[str, Any] = field(default_factory=dict)
    plugin: str | None = None

    def load(self, part: str | None = None) -> Any:
        """Import the target: ``module:attribute``; with ``part``, the target that ``about`` has under that name.

        Raises:
            UsageError: it is a plugin's and does not import, whatever it raises.
        """
        target = self.target if part is None else str(self.about[part])
        module, _, attribute = target.partition(":")
        try:
            with _only_real_interrupts():
                return getattr(importlib.import_module(module), attribute)
        except (KeyboardInterrupt, DareError):
            raise
        except BaseException as error:
            if self.plugin is None:
                raise
            raise UsageError(
                f"{self.kind} {self.name!r} of the plugin {self.plugin!r} does not import: {target} raises "
                f"{in_one_line(error)}; repair the plugin or uninstall it"
            ) from error


@dataclass(frozen=True)
class Plugin:
    """An installed entry point, and what it adds; ``error``: why it is left out."""

    name: str
    target: str
    distribution: str
    added: tuple[Registration, ...] = ()
    error: str | None = None


class Registry:
    """Names by kind. ``add`` refuses duplicates; ``get`` suggests similar names."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] = []
        self._entries: dict[tuple[str, str], Registration] = {}
        self._plugin: str | None = None

    def add(self, kind: Kind, name: str, target: str, *, origin: str, **about: Any) -> None:
        """Register ``name``. ``origin``: the registering module or distribution, for messages about duplicates.

        Args:
            target: ``module:attribute``, imported when it is needed; for the kinds in :data:`FILES` a path.
            about: facts that need no import: ``about`` (a sentence); of a family ``matches``, the pairs of
                ``model_type`` and ``architectures[0]`` in the config.json files that belong to it, ``reads``, the
                networks of transformers that it has, ``declines``, the model types and classes that no family opens,
                with the reason, and ``fields``, the decoding fields that no family of dare-bench has; of a task folder
                ``without``, names of subfolders that have no task files.

        Raises:
            UsageError: the kind is not one of ``Kind``, the target is not of that kind, or the name is taken.
        """
        if kind not in get_args(Kind):
            raise UsageError(f"{origin} registers {name!r} as {kind!r}; kinds are {', '.join(get_args(Kind))}")
        entry = Registration(kind, name, target, origin, about, self._plugin)
        _check(entry)
        seen = self._entries.get((kind, name))
        if seen is not None and seen != entry:
            raise UsageError(
                f"{kind} {name!r} is registered twice: {seen.target} by {seen.origin}, {target} by {origin}; rename one"
            )
        for other in self.entries("family") if kind == "family" else ():
            both = [match for match in _matches(entry) if match in _matches(other) and other.name != name]
            if both:
                raise UsageError(
                    f"checkpoints with model_type={both[0][0]!r}, architecture={both[0][1]!r} belong to two families: "
                    f"{other.name!r} by {other.origin}, {name!r} by {origin}; leave them to one"
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

    def plugged_in(self, kind: Kind) -> Iterator[tuple[Registration, Any]]:
        """The entries that plugins add, with their targets; what does not import is left out with a warning."""
        for entry in self.entries(kind):
            if entry.plugin is None:
                continue
            try:
                target = entry.load()
            except UsageError as error:
                warnings.warn(str(error), PluginWarning, stacklevel=2)
                continue
            yield entry, target

    def plug_in(self, point: EntryPoint) -> None:
        """Add all that a plugin registers, or, with a warning, nothing: it raises, or takes a name that is taken."""
        before, self._plugin = dict(self._entries), point.name
        package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            with _only_real_interrupts():
                register: Callable[[Registry], None] = point.load()
                register(self)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: no plugin ends a command that does not need it
            self._entries, reason = before, in_one_line(error)
            self.plugins.append(Plugin(point.name, point.value, package, error=reason))
            warnings.warn(
                f"plugin {point.name!r} ({point.value}) is left out: {reason}; see dare-bench doctor",
                PluginWarning,
                stacklevel=3,
            )
        else:
            added = tuple(entry for key, entry in self._entries.items() if key not in before)
            self.plugins.append(Plugin(point.name, point.value, package, added))
        finally:
            self._plugin = None


def _check(entry: Registration) -> None:
    """Raise UsageError for a registration whose target could not be used."""
    place = f"{entry.origin} registers {entry.kind} {entry.name!r}"
    for value in (entry.name, entry.target):
        if not isinstance(value, str) or not value:
            raise UsageError(f"{place}: {value!r} is not a string; name and target must be strings")
    if entry.kind in FILES:
        if not Path(entry.target).exists():
            raise UsageError(f"{place}: there is no {entry.target}; give the path of an existing file or folder")
    elif not all(entry.target.partition(":")[::2]):
        raise UsageError(f"{place}: {entry.target!r} is not a target; write module:attribute")
    matches = entry.about.get("matches", [])
    pairs = isinstance(matches, list | tuple) and all(isinstance(m, list | tuple) and len(m) == 2 for m in matches)
    if entry.kind == "family" and not pairs:
        raise UsageError(f"{place}: matches={matches!r} must be a list of [model_type, architecture]")
    fields = entry.about.get("fields", [])
    if not isinstance(fields, list | tuple) or not all(isinstance(name, str) for name in fields):
        raise UsageError(f"{place}: fields={fields!r} must be a list of names")


def _matches(family: Registration) -> list[tuple[Any, Any]]:
    """The (model_type, architecture) of the checkpoints of a family."""
    return [(model_type, architecture) for model_type, architecture in family.about.get("matches", [])]


def load_plugins(registry: Registry) -> None:
    """Register every installed plugin, or those that :data:`ENVIRONMENT` names, in the order of their names."""
    chosen = os.environ.get(ENVIRONMENT)
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        if chosen is None or point.name in chosen.split(","):
            registry.plug_in(point)


@contextlib.contextmanager
def _only_real_interrupts() -> Iterator[None]:
    """Inside, code of a plugin runs: a KeyboardInterrupt that no signal caused becomes an error as any other."""
    arrived: list[int] = []
    before: dict[signal.Signals, Callable[[int, Any], Any]] = {}

    def note(number: int, frame: Any) -> None:
        arrived.append(number)
        before[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():  # only it is interrupted, and only it may set handlers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, note)
    try:
        yield
    except KeyboardInterrupt as error:
        if arrived:
            raise
        raise RuntimeError("KeyboardInterrupt was raised, and not by Ctrl-C") from error
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # a handler may have set another one
                signal.signal(number, handler)


@cache
def registry() -> Registry:
    """The process's registry: built-in folders, then plugins."""
    entries = Registry()
    for name in BUILT_IN:
        importlib.import_module(name).register(entries)
    load_plugins(entries)
    return entries
