"""The runs that a command asks for: a suite or a recipe stands for the settings of many runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench import recipes, suites
from dare_bench.errors import UsageError

log = logging.getLogger("dare_bench")


@dataclass(frozen=True)
class PlannedRun:
    """One run to be made: its name among the others, the fields of its :class:`~dare_bench.config.RunSpec`, and what a
    suite says of it."""

    name: str
    fields: dict[str, Any]
    note: str = ""
    recipe: recipes.Recipe | None = field(default=None, compare=False)


def plan(fields: Mapping[str, Any]) -> list[PlannedRun]:
    """The runs that ``fields`` ask for: one, unless ``tasks`` names a suite or ``recipe`` several published scores.

    What the user gives wins over suite and recipe.

    Raises:
        UnknownNameError: a recipe nobody knows.
        UsageError: a recipe beside tasks, a suite beside a harness.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if "recipe" in given:
        return _recipes(given)
    words = given.get("tasks", ())
    tasks = [part.strip() for part in words.split(",") if part.strip()] if isinstance(words, str) else list(words)
    named = {word: suite for word in tasks if (suite := suites.find(word)) is not None}
    if not named:
        return [PlannedRun("", given)]
    planned = [
        PlannedRun(entry.name, {**made, "part_of": suite.name}, entry.note)
        for suite in named.values()
        for entry, made in suite.specs(given)
    ]
    rest = [word for word in tasks if word not in named]
    if rest:
        planned.append(PlannedRun(",".join(rest), {**given, "tasks": tuple(rest)}))
    return planned


def _recipes(given: Mapping[str, Any]) -> list[PlannedRun]:
    if "tasks" in given or "harness" in given:
        raise UsageError("--recipe names tasks and harness by itself; leave --tasks and --harness out")
    names = [name.strip() for name in str(given["recipe"]).split(",") if name.strip()]
    found = [recipe for name in names for recipe in recipes.find(name)]
    if not found:
        raise UsageError("--recipe names nothing; give checkpoint/entry (dare-bench ls recipes lists them)")
    able = [recipe for recipe in found if recipe.entry.run is not None]
    if not able:
        found[0].fields()  # says why not
    for recipe in found:
        if recipe.entry.run is None:
            log.warning("%s cannot be run and is left out: %s", recipe.name, recipe.entry.doubts[0])
    return [
        PlannedRun(recipe.name, suites.merged(recipe.fields(), {**given, "recipe": recipe.name}), recipe=recipe)
        for recipe in able
    ]
