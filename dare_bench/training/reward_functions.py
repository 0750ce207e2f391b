"""Rewards that are functions, of a Python call or named by ``--reward FILE.py:FUNCTION``: names, weights, identity.
Such a file is the user's code, which runs as Python does; its folder is not searched."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from dare_bench.config import parse_pairs
from dare_bench.errors import UsageError, in_one_line, unknown
from dare_bench.registry import registry
from dare_bench.training.reward_calls import RewardFunction, frames

REWARD, WEIGHTS = "reward", "reward_weights"


def take_functions(fields: dict[str, Any]) -> dict[str, RewardFunction]:
    """The functions of ``train(reward=...)`` by name. In ``fields`` the names and weights of all rewards replace them.

    ``reward`` is a function, a list of functions and of names of registered rewards, or a mapping of names to
    functions; ``reward_weights`` is a list in the same order, or a mapping. Options of rewards stay as they are. Raises
    UsageError: two rewards of one name, weights that do not belong to the rewards.
    """
    given = _by_name(fields.get(REWARD))
    if given is None:
        return {}
    del fields[REWARD]
    weights = fields.get(WEIGHTS)
    if isinstance(weights, str):
        weights = parse_pairs(weights)
    if weights is None:
        weights = [1.0] * len(given)
    if not isinstance(weights, Mapping) and isinstance(weights, Sequence) and len(weights) == len(given):
        weights = dict(zip(given, weights, strict=True))
    if not isinstance(weights, Mapping) or weights.keys() != given.keys():
        raise UsageError(
            f"reward_weights={weights!r:.80} are not those of the rewards {', '.join(given)}; give one each"
        )
    fields[WEIGHTS] = dict(weights)
    functions = {name: target for name, target in given.items() if callable(target)}
    if taken := sorted(functions.keys() & set(registry().names("reward"))):
        raise UsageError(f"there is a registered reward {taken[0]!r} too; rename the function, or give its name alone")
    return functions


def _by_name(reward: Any) -> dict[str, Any] | None:
    """Functions, or names of registered rewards, by name; None if these are options."""
    if isinstance(reward, Mapping):
        return dict(reward) if any(map(callable, reward.values())) else None
    if reward is None or isinstance(reward, str):
        return None
    targets = list(reward) if isinstance(reward, list | tuple) else [reward]
    if wrong := [target for target in targets if not callable(target) and not isinstance(target, str)]:
        remedy = "give functions, names of rewards, or their options"
        raise UsageError(f"reward={wrong[0]!r:.80} is not a function; {remedy}")
    named = {target if isinstance(target, str) else _name(target): target for target in targets}
    if len(named) < len(targets):
        raise UsageError("two rewards have one name; give them as a mapping of names to functions")
    return named


def _name(function: RewardFunction) -> str:
    return getattr(_defined(function), "__name__", type(function).__name__)


def _defined(function: Any) -> Any:
    """What was written: the function of a partial one, the class of an object that is called."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def identity(function: RewardFunction) -> str:
    """What tells one reward of the user's from another: its qualified name, and a hash of its source (without it, where
    there is no source) and of what a partial function is given."""
    defined = _defined(function)
    try:
        source = inspect.getsource(defined)
    except (OSError, TypeError):
        source = ""
    given: list[Any] = []
    while isinstance(function, partial):
        given.append([function.args, function.keywords])
        function = function.func
    content = source + json.dumps(given, default=lambda value: type(value).__qualname__, sort_keys=True, skipkeys=True)
    return f"{defined.__module__}.{defined.__qualname__} (sha256:{hashlib.sha256(content.encode()).hexdigest()[:16]})"


SUFFIX = ".py"


def names_functions(reward: Any) -> bool:
    """Does the value of ``--reward`` name functions, and not options?"""
    return isinstance(reward, str) and (f"{SUFFIX}:" in reward or reward.endswith(SUFFIX))


def reward_functions(text: str) -> list[Any]:
    """The rewards that ``FILE.py:FUNCTION``, separated by commas, names; other parts are names of registered rewards.
    Raises UsageError: no such file or function, options among them, or an error of the file's code."""
    parts, modules = [part.strip() for part in text.split(",") if part.strip()], dict[str, ModuleType]()
    rewards: list[Any] = []
    for part in parts:
        file, is_file, name = part.rpartition(f"{SUFFIX}:")
        if not is_file:
            if part.endswith(SUFFIX):
                raise UsageError(f"reward={text!r:.120}: name the function too, as {part}:FUNCTION")
            if "=" in part:
                raise UsageError(f"reward={text!r:.120}: {part!r:.60} is an option; rewards of your own take none")
            rewards.append(part)
            continue
        if file not in modules:
            modules[file] = _module(Path(file + SUFFIX))
        rewards.append(_function(modules[file], name, file + SUFFIX))
    return rewards


def _function(module: ModuleType, name: str, file: str) -> Any:
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise unknown("function", name, own, place=file)
    return function


def _module(file: Path) -> ModuleType:
    """The module of a file. Its name does not depend on the folder, since it is part of what a training is."""
    if not file.is_file():
        raise UsageError(f"reward: there is no file {file}; give FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(f"dare_bench_reward_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"reward: {file} raised {in_one_line(error)}{frames(error, __file__)}") from error
    return module
