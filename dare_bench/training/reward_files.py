"""Rewards that the command line names by file and function: ``--reward FILE.py:FUNCTION``.

The file is the user's own code, which runs as Python does; nothing else is imported for it: its folder is not searched.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from dare_bench.errors import UsageError, in_one_line, unknown
from dare_bench.training.reward_calls import frames

SUFFIX = ".py"


def names_functions(reward: Any) -> bool:
    """Does the value of ``--reward`` name functions, and not options?"""
    return isinstance(reward, str) and (f"{SUFFIX}:" in reward or reward.endswith(SUFFIX))


def reward_functions(text: str) -> list[Any]:
    """The rewards that ``FILE.py:FUNCTION``, separated by commas, names; other parts are names of registered rewards.

    Raises:
        UsageError: no such file or function, options among them, or an error of the file's code.
    """
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
