"""All published scores as one Markdown document: table by table of their sources, each with its recipe, or why it has
none. ``docs/published-scores.md`` is this text for the recipes that come with dare-bench."""

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

Made by `dare-bench ls recipes --markdown`. One table for each source: every score of our checkpoints that stands there,
with its recipe and how much of its settings is recorded, or why there is none ([what the words mean](recipes.md)).
"""


def markdown() -> str:
    """The document."""
    groups = by_source()
    runnable = sum(recipe.entry.run is not None for _, _, found in groups for recipe in found)
    lines = [HEAD, f"{sum(len(found) for *_, found in groups)} recipes, {runnable} of them can be run.", ""]
    for source, table, found in groups:
        lines += [f"## {source.title}: {source.table or 'scores'}", "", source.text() + ".", _counted(table, found), ""]
        lines += ["| recipe | published | run | settings |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(_row(recipe))} |" for recipe in found]
        lines += [""]
        for left in table.left_out:
            lines += [f"Without a recipe ({left.why}): {_several(left.rows, left.columns)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def by_source() -> list[tuple[Source, Table, list[Recipe]]]:
    """Every source with what is known of its table and its recipes, in the order of the shared files."""
    known: dict[Source, Table] = {}
    found: dict[Source, list[Recipe]] = {}
    for checkpoint in registry().names("recipe"):
        shared = shared_facts(Path(registry().get("recipe", checkpoint).target).parent / "shared")
        for name, facts in shared["sources"].items():
            known[Source.model_validate(facts)] = _table(name, shared["tables"].get(name, {"scores": None}))
        for recipe in find(checkpoint):
            found.setdefault(recipe.entry.published.source, []).append(recipe)
    sources = dict.fromkeys([*known, *found])
    return [(one, known.get(one, Table(scores=None)), found.get(one, [])) for one in sources]


def _table(name: str, facts: Any) -> Table:
    try:
        return Table.model_validate(facts)
    except ValidationError as error:
        raise DataError(f"table {name!r} of the shared recipe files: {one_line(error, 'a table')}") from error


def _counted(table: Table, found: list[Recipe]) -> str:
    if table.scores is None:
        return f"The table itself was not read: {len(found)} scores of it are known."
    left = sum(part.scores for part in table.left_out)
    return f"{table.scores} scores: {len(found)} with a recipe, {left} without."


def _several(rows: tuple[str, ...], columns: int) -> str:
    return ", ".join(rows) + (f", in {columns} columns" if columns > 1 else "")


def _row(recipe: Recipe) -> Iterator[str]:
    published, run = recipe.entry.published, recipe.entry.run
    value = f"{published.value:g}" + ("%" if published.unit == "percent" else "")
    yield f"`{recipe.name}`"
    yield value if published.measures == "accuracy" else f"{value} ({published.measures})"
    yield f"`{run.harness}:{','.join(run.tasks)}`" if run else f"cannot be run: {recipe.entry.doubts[0]}"
    yield recipe.entry.settings
