"""Published scores with their settings: ``find("llada-8b-instruct/gsm8k")``.

Recipes come from the registry (kind ``recipe``: one YAML file for each checkpoint), without torch or a harness.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
"""Sections of the shared files; each maps names to definitions."""


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
        """The RunSpec fields that the recipe sets.

        Raises:
            UsageError: the recipe cannot be run.
        """
        run = self.entry.run
        if run is None:
            raise UsageError(f"recipe {self.name} cannot be run: {self.entry.doubts[0]}")
        required = {"harness", "tasks", "apply_chat_template", "repeats", "decoding", "likelihood"}
        optional = {"num_fewshot", "fewshot_as_multiturn", "system_instruction", "dtype", "engine"}
        return {
            "model": self.file.model,
            "family": self.file.family,
            **run.model_dump(include=required),
            "recipe": self.name,
            **run.model_dump(include=optional, exclude_none=True),
        }

    def block(self) -> dict[str, Any]:
        """The recipe as stored in a result file; ``published.value`` is a fraction of 1."""
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
        UnknownNameError: no such file. DataError: the file is malformed.
    """
    return read(Path(registry().get("recipe", checkpoint).target))


def names() -> list[str]:
    """Every recipe: ``checkpoint/entry``."""
    return [f"{name}/{entry}" for name in registry().names("recipe") for entry in load(name).scores]


def find(name: str) -> list[Recipe]:
    """The recipe ``checkpoint/entry``, or all recipes of ``checkpoint``, including those that cannot be run.

    Raises:
        UnknownNameError: no such checkpoint or entry.
    """
    checkpoint, slash, entry = name.partition("/")
    known = registry().names("recipe")
    if checkpoint not in known:
        error = unknown("recipe", name, [*known, *names()])
        raise type(error)(f"{error}; names are checkpoint or checkpoint/entry (dare-bench ls recipes)")
    file = load(checkpoint)
    if slash and entry not in file.scores:
        raise unknown("recipe", name, [f"{checkpoint}/{known}" for known in file.scores])
    entries = {entry: file.scores[entry]} if slash else file.scores
    return [Recipe(f"{checkpoint}/{name}", file, recipe) for name, recipe in entries.items()]


def deviations(recipe: Recipe, spec: RunSpec) -> list[str]:
    """Settings of a final RunSpec that differ from the recipe's, a sentence each; empty if none does."""
    fields = recipe.fields()
    expected = {name: value for name, value in fields.items() if name not in ("decoding", "likelihood", "recipe")}
    if spec.family is None:
        del expected["family"]
    actual = {name: getattr(spec, name) for name in expected}
    for name in ("num_fewshot", "system_instruction"):
        if (value := getattr(spec, name)) is not None:
            actual[name] = value
    if spec.engine != "native":
        actual["engine"] = spec.engine
    if spec.apply_chat_template and not spec.fewshot_as_multiturn:
        actual["fewshot_as_multiturn"] = False
    sentences = list(_differences("", expected, actual))
    for group in ("decoding", "likelihood"):
        sentences += _differences(f"{group}.", plain(fields[group]), plain(getattr(spec, group)))
    for name in ("model_args", "include_path", "limit", "until_halfwidth", "samples"):
        if value := getattr(spec, name):
            sentences.append(f"{name}: {_text(value)}")
    return [*sentences, *_differences("", {"seeds": DEFAULT_SEEDS}, {"seeds": spec.seeds})]


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding fields by their first names, without those that are None."""
    return {Decoding.aliases.get(name, name): value for name, value in fields.items() if value is not None}


def _differences(prefix: str, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    for name in {**expected, **actual}:
        if name not in expected:
            yield f"{prefix}{name}: {_text(actual[name])}, which the recipe does not set"
        elif name not in actual:
            yield f"{prefix}{name}: not set instead of {_text(expected[name])}"
        elif actual[name] != expected[name]:
            yield f"{prefix}{name}: {_text(actual[name])} instead of {_text(expected[name])}"


def _text(value: Any) -> str:
    """Text unchanged, lists of text separated by commas, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return json.dumps(value)


@cache
def read(path: Path) -> RecipeFile:
    """A recipe file with names and defaults resolved.

    Raises:
        DataError: malformed; the message names file and entry.
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
    """The sections of all files in ``folder`` together; a name may be defined only once."""
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
    """A resolved entry: defaults, then the entries it is ``like`` in order, then its fields; names looked up."""
    try:
        entry = _overlay(defaults, _inherited(name, parts, ()))
        entry["doubts"], _ = _doubts(entry)
        published = entry.get("published")
        if isinstance(published, dict):
            for field, section in (("test_set", "test_sets"), ("source", "sources")):
                if isinstance(published.get(field), str):
                    published[field] = _named(section, published[field], shared)
        run = entry.get("run")
        if isinstance(run, dict) and isinstance(run.get("tasks"), str):
            facts = shared["tasks"].get(f"{run.get('harness')}:{run['tasks']}", {})
            entry["run"] = _merged({key: value for key, value in facts.items() if key not in ("score", "doubts")}, run)
            entry["score"] = _merged(facts.get("score", {}), entry.get("score") or {})
            entry["doubts"] = _appended(entry["doubts"], facts.get("doubts", ()))
        for field in ("missing", "doubts"):
            entry[field] = [
                _named("notes", text[1:], shared) if str(text).startswith("$") else text
                for text in entry.get(field) or ()
            ]
        return entry
    except (DataError, UsageError) as error:
        raise DataError(f"entry {name!r}: {error}") from error


def _inherited(name: str, parts: Mapping[str, Any], children: tuple[str, ...]) -> dict[str, Any]:
    """An entry or variant over all that it is ``like`` (a name or several, later ones take precedence)."""
    if name in children:
        raise DataError(f"'like' is circular: {' -> '.join((*children, name))}")
    if name not in parts:
        raise unknown("entry or variant", name, parts)
    part = parts[name]
    if not isinstance(part, dict):
        raise DataError(f"expected a mapping, found {type(part).__name__}")
    like = part.get("like", ())
    base: dict[str, Any] = {}
    for other in (like,) if isinstance(like, str) else like:
        base = _overlay(base, _inherited(str(other), parts, (*children, name)))
    return _overlay(base, {key: value for key, value in part.items() if key != "like"})


def _overlay(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """``part`` merged over ``base``. Its ``doubts`` are appended to those of ``base``; ``{only: [...]}`` replaces
    them."""
    merged: dict[str, Any] = _merged(base, part)
    (inherited, base_only), (doubts, only) = _doubts(base), _doubts(part)
    if not only:
        doubts = _appended(inherited, doubts)
    merged["doubts"] = {"only": doubts} if only or base_only else doubts
    return merged


def _doubts(part: Mapping[str, Any]) -> tuple[Sequence[Any], bool]:
    """The doubts of a part, and whether they replace inherited ones."""
    doubts: Any = part.get("doubts") or ()
    only = isinstance(doubts, dict) and list(doubts) == ["only"]
    items = doubts["only"] if only else doubts
    if not isinstance(items, list | tuple):
        raise DataError(f"'doubts' must be a list (added to inherited ones) or {{only: [...]}}, found {doubts!r}")
    return items, only


def _appended(first: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Both, without repetitions."""
    return [*first, *(item for item in more if item not in first)]


def _merged(base: Any, over: Any) -> Any:
    """Mappings are merged, all else is replaced; a null in ``over`` removes a value."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{name: _merged(base.get(name), value) for name, value in over.items()}}


def _named(section: str, name: str, shared: dict[str, dict[str, Any]]) -> Any:
    if name not in shared[section]:
        raise unknown(section.rstrip("s").replace("_", " "), name, shared[section])
    return shared[section][name]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a resolved recipe file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Generated from dare_bench.recipe_schema, for resolved files: see docs/recipes.md.",
        **RecipeFile.model_json_schema(),
    }
