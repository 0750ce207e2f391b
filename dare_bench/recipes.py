"""Published scores as recipes: ``find("llada-8b-instruct/gsm8k")`` names the run that stands for one.

Recipes come from the registry (kind ``recipe``: one YAML file a checkpoint). Neither torch nor a harness is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dare_bench.config import DEFAULT_SEEDS, RunSpec, one_line, read_yaml
from dare_bench.errors import DataError, UsageError, unknown
from dare_bench.recipe_schema import RecipeEntry, RecipeFile
from dare_bench.registry import registry
from dare_bench.types import Decoding

SHARED = ("sources", "test_sets", "tasks", "notes", "variants", "tables")
"""Sections of the shared files: name -> what it stands for."""


@dataclass(frozen=True)
class Recipe:
    """One published score of a checkpoint. ``name`` is ``checkpoint/entry``."""

    name: str
    file: RecipeFile
    entry: RecipeEntry

    @property
    def entry_name(self) -> str:
        return self.name.partition("/")[2]

    def fields(self) -> dict[str, Any]:
        """The RunSpec fields of the run that stands for the score; what the recipe does not set is left out.

        Raises:
            UsageError: no harness here has the task.
        """
        run = self.entry.run
        if run is None:
            raise UsageError(f"recipe {self.name} cannot be run: {self.entry.doubts[0]}")
        made: dict[str, Any] = {
            "model": self.file.model,
            "family": self.file.family,
            "harness": run.harness,
            "tasks": run.tasks,
            "apply_chat_template": run.apply_chat_template,
            "repeats": run.repeats,
            "decoding": dict(run.decoding),
            "likelihood": dict(run.likelihood),
            "recipe": self.name,
        }
        for name in ("num_fewshot", "fewshot_as_multiturn", "system_instruction", "dtype"):
            if getattr(run, name) is not None:
                made[name] = getattr(run, name)
        return made

    def block(self) -> dict[str, Any]:
        """What a result file keeps of the recipe, as plain facts; ``published.value`` is a fraction of 1."""
        published, score = self.entry.published, self.entry.score
        return {
            "name": self.name,
            "published": {
                "value": published.fraction,
                "unit": published.unit,
                "n": published.test_set.documents,
                "metric": published.metric,
                "measures": published.measures,
                "mean_over": published.mean_over,
                "test_set": published.test_set.id,
                "repeats": published.repeats,
                "cache": published.cache,
                "hardware": published.hardware,
                "source": published.source.text(),
            },
            "score": score.model_dump() if score is not None else {},
            "settings": self.entry.settings,
            "missing": list(self.entry.missing),
            "doubts": list(self.entry.doubts),
        }


def load(checkpoint: str) -> RecipeFile:
    """The recipes of a checkpoint, by the file's name.

    Raises:
        UnknownNameError: no such file; the message names the three closest. DataError: the file is malformed.
    """
    return read(Path(registry().get("recipe", checkpoint).target))


def names() -> list[str]:
    """Every recipe: ``checkpoint/entry``."""
    return [f"{name}/{entry}" for name in registry().names("recipe") for entry in load(name).scores]


def find(name: str) -> list[Recipe]:
    """``checkpoint/entry``: that recipe alone; ``checkpoint``: all of its recipes, also those that cannot be run.

    Raises:
        UnknownNameError: no such checkpoint or entry; the message names the three closest.
    """
    checkpoint, slash, entry = name.partition("/")
    known = registry().names("recipe")
    if checkpoint not in known:
        error = unknown("recipe", name, [*known, *names()])
        raise type(error)(f"{error}; names are checkpoint or checkpoint/entry (dare-bench ls recipes)")
    file = load(checkpoint)
    if slash and entry not in file.scores:
        raise unknown("recipe", name, [f"{checkpoint}/{known}" for known in file.scores])
    wanted = [entry] if slash else list(file.scores)
    return [Recipe(f"{checkpoint}/{one}", file, file.scores[one]) for one in wanted]


def deviations(recipe: Recipe, spec: RunSpec) -> list[str]:
    """Settings of a final RunSpec that are not the recipe's, a sentence each; none if the run is exactly the recipe."""
    found = []
    wanted = recipe.fields()
    for name, value in wanted.items():
        if name in ("decoding", "likelihood", "recipe"):
            continue
        given = getattr(spec, name)
        if given != value and not (name == "family" and given is None):
            found.append(f"{name}: {_shown(given)} instead of {_shown(value)}")
    for name in ("num_fewshot", "system_instruction"):
        if name not in wanted and getattr(spec, name) is not None:
            found.append(f"{name}: {_shown(getattr(spec, name))}, which the recipe does not set")
    if "fewshot_as_multiturn" not in wanted and spec.apply_chat_template and not spec.fewshot_as_multiturn:
        found.append("fewshot_as_multiturn: false, which the recipe does not set")
    for group in ("decoding", "likelihood"):
        found += _different(group, plain(wanted[group]), plain(getattr(spec, group)))
    for name in ("model_args", "include_path", "limit", "samples"):
        if getattr(spec, name):
            found.append(f"{name}: {_shown(getattr(spec, name))}")
    if spec.seeds != DEFAULT_SEEDS:
        found.append(f"seeds: {_shown(spec.seeds)} instead of {_shown(DEFAULT_SEEDS)}")
    return found


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding fields under their first names; those that are null are not set."""
    return {Decoding.aliases.get(name, name): value for name, value in fields.items() if value is not None}


def _different(group: str, wanted: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    found = []
    for name in {**wanted, **given}:
        if name not in wanted:
            found.append(f"{group}.{name}: {_shown(given[name])}, which the recipe does not set")
        elif name not in given:
            found.append(f"{group}.{name}: not set instead of {_shown(wanted[name])}")
        elif given[name] != wanted[name]:
            found.append(f"{group}.{name}: {_shown(given[name])} instead of {_shown(wanted[name])}")
    return found


def _shown(value: Any) -> str:
    """Names as they are, collections as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return json.dumps(value)


@cache
def read(path: Path) -> RecipeFile:
    """A recipe file, names and defaults filled in.

    Raises:
        DataError: malformed; one line that names file and entry.
    """
    try:
        raw = read_yaml(path)
        if raw.get("checkpoint") != path.stem:
            raise DataError(f"checkpoint={raw.get('checkpoint')!r} must be the file's name, {path.stem!r}")
        shared = shared_facts(path.parent / "shared")
        defaults, variants, scores = (raw.pop(name, {}) for name in ("defaults", "variants", "scores"))
        for name, part in (("defaults", defaults), ("variants", variants), ("scores", scores)):
            if not isinstance(part, dict):
                raise DataError(f"{name!r} must be a mapping, found {type(part).__name__}")
        for name in variants.keys() & scores.keys():
            raise DataError(f"{name!r} is both a variant and a score; rename one")
        for name in shared["variants"].keys() & (variants.keys() | scores.keys()):
            raise DataError(f"{name!r} is already a variant in the shared files; rename this one")
        parts = {**shared["variants"], **variants, **scores}
        raw["scores"] = {name: _entry(str(name), parts, defaults, shared) for name in scores}
        return RecipeFile.model_validate(raw)
    except ValidationError as error:
        raise DataError(f"{path}: {one_line(error, 'a recipe file')}") from error
    except (DataError, UsageError) as error:
        raise DataError(f"{path}: {error}") from error


@cache
def shared_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """The sections of all files in ``folder`` together; a name may stand in one of them only."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in SHARED}
    for file in sorted(folder.glob("*.yaml")):
        for section, entries in read_yaml(file).items():
            if section not in sections:
                raise DataError(f"{file}: {unknown('section', section, SHARED)}")
            for name in set(entries) & set(sections[section]):
                raise DataError(f"{file}: {section} {name!r} is already defined in another file")
            sections[section].update(entries)
    return sections


def _entry(name: str, parts: Mapping[str, Any], defaults: Any, shared: dict[str, dict[str, Any]]) -> Any:
    """An entry as read: defaults < what it is ``like``, in order < its own words; names looked up."""
    try:
        made = _over(defaults, _own(name, parts, ()))
        doubts = made.get("doubts") or ()
        made["doubts"] = doubts["only"] if isinstance(doubts, dict) else doubts
        published = made.get("published")
        if isinstance(published, dict):
            for field, section in (("test_set", "test_sets"), ("source", "sources")):
                if isinstance(published.get(field), str):
                    published[field] = _named(section, published[field], shared)
        run = made.get("run")
        if isinstance(run, dict) and isinstance(run.get("tasks"), str):
            facts = shared["tasks"].get(f"{run.get('harness')}:{run['tasks']}", {})
            made["run"] = _merged({key: value for key, value in facts.items() if key not in ("score", "doubts")}, run)
            made["score"] = _merged(facts.get("score", {}), made.get("score") or {})
            made["doubts"] = _added(made["doubts"], facts.get("doubts", ()))
        for field in ("missing", "doubts"):
            made[field] = [
                _named("notes", text[1:], shared) if str(text).startswith("$") else text
                for text in made.get(field) or ()
            ]
        return made
    except (DataError, UsageError) as error:
        raise DataError(f"entry {name!r}: {error}") from error


def _own(name: str, parts: Mapping[str, Any], seen: tuple[str, ...]) -> dict[str, Any]:
    """An entry or variant with all that it is ``like`` (a name or several, later ones win) under its own words."""
    if name in seen:
        raise DataError(f"'like' is circular: {' -> '.join((*seen, name))}")
    if name not in parts:
        raise unknown("entry or variant", name, parts)
    own = parts[name]
    if not isinstance(own, dict):
        raise DataError(f"expected a mapping, found {type(own).__name__}")
    like = own.get("like", ())
    made: dict[str, Any] = {}
    for other in (like,) if isinstance(like, str) else like:
        made = _over(made, _own(str(other), parts, (*seen, name)))
    return _over(made, {key: value for key, value in own.items() if key != "like"})


def _over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``own`` merged over ``base``. ``doubts`` are added to those of ``base``; ``{only: [...]}`` takes their place."""
    made: dict[str, Any] = _merged(base, own)
    doubts, before = own.get("doubts") or (), base.get("doubts") or ()
    for found in (doubts, before):
        said = found.get("only") if isinstance(found, dict) and len(found) == 1 else found
        if not isinstance(said, list | tuple):
            raise DataError(f"'doubts' must be a list (added to inherited ones) or {{only: [...]}}, found {found!r}")
    if isinstance(doubts, dict):
        made["doubts"] = doubts
    elif isinstance(before, dict):
        made["doubts"] = {"only": _added(before["only"], doubts)}
    else:
        made["doubts"] = _added(before, doubts)
    return made


def _added(first: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Both, none of them twice."""
    return [*first, *(one for one in more if one not in first)]


def _merged(base: Any, over: Any) -> Any:
    """Mappings are merged, all else is replaced; a null in ``over`` takes a value away."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    made = {name: _merged(value, over[name]) if name in over else value for name, value in base.items()}
    return made | {name: value for name, value in over.items() if name not in base}


def _named(section: str, name: str, shared: dict[str, dict[str, Any]]) -> Any:
    if name not in shared[section]:
        raise unknown(section.rstrip("s").replace("_", " "), name, shared[section])
    return shared[section][name]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a recipe file as read."""
    made = RecipeFile.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made from dare_bench.recipe_schema; a test holds it equal. Files as read: see docs/recipes.md.",
        **made,
    }
