"""All published scores as one Markdown document: the tables of their sources, each score with its recipe or the reason
why there is none. The documentation's site has this document of the bundled recipes as a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dare_bench.config import one_line
from dare_bench.errors import DataError
from dare_bench.recipe_schema import Source, Table
from dare_bench.recipes import Recipe, find, shared_facts
from dare_bench.registry import registry

HEAD = """# Published scores and their recipes

Made by `dare-bench ls recipes --markdown`. Each source has one table of its scores of the supported checkpoints. A
score has a recipe, with how completely its settings are recorded ([terms](recipes.md#fields)), or the reason why there
is none.
"""


def markdown() -> str:
    """The document."""
    groups = by_source()
    all_recipes = [recipe for *_, recipes in groups for recipe in recipes]
    runnable = sum(recipe.entry.run is not None for recipe in all_recipes)
    lines = [HEAD, f"{len(all_recipes)} recipes, {runnable} of them can be run.", ""]
    for source, table, recipes in groups:
        lines += [
            f"## {source.title}: {source.table or 'scores'}",
            "",
            source.text() + ".",
            _counts(table, recipes),
            "",
        ]
        if recipes:
            lines += ["| recipe | published | run | settings |", "|---|---|---|---|"]
            lines += [f"| {' | '.join(_row(recipe))} |" for recipe in recipes]
            lines += [""]
        for left in table.left_out:
            columns = f", in {left.columns} columns" if left.columns > 1 else ""
            lines += [f"Without a recipe ({left.why}): {', '.join(left.rows)}{columns}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def by_source() -> list[tuple[Source, Table, list[Recipe]]]:
    """Every source with its table and recipes, in the order of the shared files."""
    tables: dict[Source, Table] = {}
    recipes: dict[Source, list[Recipe]] = {}
    for checkpoint in registry().names("recipe"):
        shared = shared_facts(Path(registry().get("recipe", checkpoint).target).parent / "shared")
        for name, facts in shared["sources"].items():
            tables[Source.model_validate(facts)] = _table(name, shared["tables"].get(name, {"scores": None}))
        for recipe in find(checkpoint):
            recipes.setdefault(recipe.entry.published.source, []).append(recipe)
    sources = dict.fromkeys([*tables, *recipes])
    return [(source, tables.get(source, Table(scores=None)), recipes.get(source, [])) for source in sources]


def _table(name: str, facts: Any) -> Table:
    try:
        return Table.model_validate(facts)
    except ValidationError as error:
        raise DataError(f"table {name!r} of the shared recipe files: {one_line(error, 'a table')}") from error


def _counts(table: Table, recipes: list[Recipe]) -> str:
    if table.scores is None:
        return f"The table itself was not read: {len(recipes)} scores of it are known."
    left = sum(part.scores for part in table.left_out)
    return f"{table.scores} scores: {len(recipes)} with a recipe, {left} without."


def _row(recipe: Recipe) -> Iterator[str]:
    published, run = recipe.entry.published, recipe.entry.run
    value = f"{published.value:g}" + ("%" if published.unit == "percent" else "")
    yield f"`{recipe.name}`"
    yield value if published.measures == "accuracy" else f"{value} ({published.measures})"
    yield f"`{run.harness}:{','.join(run.tasks)}`" if run else f"cannot be run: {recipe.entry.doubts[0]}"
    yield recipe.entry.settings
