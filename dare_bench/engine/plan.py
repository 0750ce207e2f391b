"""The runs of a command: a suite or a recipe stands for the settings of several runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench import recipes, suites
from dare_bench.errors import UsageError
from dare_bench.loading import is_remote
from dare_bench.log import log


@dataclass(frozen=True)
class PlannedRun:
    """One run: its name among the others, the fields of its :class:`~dare_bench.config.RunSpec`, and a suite's note."""

    name: str
    fields: dict[str, Any]
    note: str = ""
    recipe: recipes.Recipe | None = field(default=None, compare=False)


def plan(fields: Mapping[str, Any]) -> list[PlannedRun]:
    """The runs for ``fields``: one, unless ``tasks`` names a suite or ``recipe`` several published scores. The user's
    fields take precedence over suite and recipe. Raises UnknownNameError: an unknown recipe; UsageError: a recipe with
    tasks, a suite with a harness."""
    given = {name: value for name, value in fields.items() if value is not None}
    if "recipe" in given:
        return _recipes(given)
    words = given.get("tasks", ())
    tasks = [part.strip() for part in words.split(",") if part.strip()] if isinstance(words, str) else list(words)
    named = {word: suite for word in tasks if (suite := suites.find(word)) is not None}
    if not named:
        return [PlannedRun("", given)]
    planned = [
        PlannedRun(entry.name, {**settings, "part_of": suite.name}, entry.note)
        for suite in named.values()
        for entry, settings in suite.specs(given)
    ]
    rest = [word for word in tasks if word not in named]
    if rest:
        planned.append(PlannedRun(",".join(rest), {**given, "tasks": tuple(rest)}))
    return planned


def _recipes(given: Mapping[str, Any]) -> list[PlannedRun]:
    if "tasks" in given or "harness" in given:
        raise UsageError("--recipe sets the tasks and the harness; omit --tasks and --harness")
    names = [name.strip() for name in str(given["recipe"]).split(",") if name.strip()]
    matches = [recipe for name in names for recipe in recipes.find(name)]
    if not matches:
        raise UsageError("--recipe is empty; give checkpoint/entry (dare-bench ls recipes lists them)")
    runnable = [recipe for recipe in matches if recipe.entry.run is not None]
    if not runnable:
        matches[0].fields()  # raises UsageError with the reason
    for recipe in matches:
        if recipe.entry.run is None:
            log.warning("%s cannot be run and is left out: %s", recipe.name, recipe.entry.doubts[0])
    return [PlannedRun(recipe.name, _fields(recipe, given), recipe=recipe) for recipe in runnable]


def _fields(recipe: recipes.Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe's run. A served engine opens the checkpoint itself: what the recipe says of opening it
    here is left out."""
    own = recipe.fields()
    engine = str(given.get("engine", own.get("engine", "native")))
    if engine != "native":
        del own["family"]
        if is_remote(engine):
            own.pop("dtype", None)
    return suites.merged(own, {**given, "recipe": recipe.name})
