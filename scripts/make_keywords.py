"""Write ``dare_bench/keywords.py``: the keywords of Python calls, from the schemas that check them (``make keywords``).

``--check`` writes nothing, and fails if the file is not current.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import dare_bench
from dare_bench.config import RunSpec
from dare_bench.diffusion.controlled import PARTS
from dare_bench.registry import Kind, registry
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Decoding, ModelSpec, OpeningSettings

FILE = Path(dare_bench.__file__).parent / "keywords.py"
HEAD = '''"""The keywords of Python calls, for editors and type checkers: those of all families and methods together.

``make keywords`` writes this file from ``RunSpec``, ``OpeningSettings``, ``TrainSpec`` and the settings of families
and methods, where each is described. A plugin's own family or method may have more: ``generate(..., **fields)`` with
``fields: dict[str, Any]`` passes them, and so do ``evaluate(decoding=...)`` and ``train(options=...)``.
"""
# fmt: off
# ruff: noqa: E501, UP013

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict
'''
WIDER = {
    "data": "str | Iterable[Mapping[str, Any]] | None",
    "reward": "Mapping[str, Any] | str | Callable[..., Any] | Sequence[Callable[..., Any] | str]",
    "reward_weights": "Mapping[str, float] | Sequence[float] | str",
    "max_memory": "Mapping[int | str, int | str] | None",
}
"""Keywords whose values a JSON schema cannot describe: functions, rows, keys that are numbers."""
PLAIN = {"boolean": "bool", "integer": "int", "null": "None", "number": "float", "string": "str"}


def kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """The types that a JSON schema allows, as Python writes them; a fixed value as its repr."""
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from kinds(part)
    elif "enum" in schema or "const" in schema:
        yield from (f"={value!r}" for value in schema.get("enum", [schema.get("const")]))
    elif schema.get("format") == "path":
        yield "Path"
    elif "prefixItems" in schema:
        yield f"tuple[{', '.join(union(kinds(item)) for item in schema['prefixItems'])}]"
    elif schema.get("type") == "array":
        yield f"Sequence[{union(kinds(schema['items']))}]"
    elif schema.get("type") == "object" or "$ref" in schema:
        values = schema.get("additionalProperties")
        yield f"Mapping[str, {union(kinds(values)) if isinstance(values, dict) else 'Any'}]"
    else:
        yield PLAIN.get(schema.get("type", ""), "Any")


def union(found: Iterable[str]) -> str:
    """One type from several; fixed values in one Literal, None at the end."""
    names = dict.fromkeys(found)
    if "Any" in names:
        return "Any"
    values = ", ".join(name[1:].replace("'", '"') for name in names if name[0] == "=")
    types = [name for name in names if name[0] != "=" and name != "None"]
    return " | ".join([*([f"Literal[{values}]"] if values else []), *types, *(["None"] if "None" in names else [])])


def of_models(*models: type[BaseModel]) -> dict[str, list[str]]:
    """The types of the fields of models, all together."""
    found: dict[str, list[str]] = {}
    for model in models:
        for name, schema in model.model_json_schema()["properties"].items():
            found.setdefault(name, []).extend(kinds(schema))
    return found


SPECIAL = Decoding.hidden | {*Decoding.id_fields}
"""Decoding fields whose defaults are of no interest."""
BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
"""Bounds of a JSON schema, and their names in pydantic."""


def bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds of a number, by pydantic's names."""
    parts = [bounds(part) for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    return {new: schema[old] for old, new in BOUNDS.items() if old in schema} if not parts else parts[0]


def limits(models: Iterable[type[Decoding]]) -> str:
    """The bounds of decoding fields that all families which have the field agree on."""
    found: dict[str, list[dict[str, Any]]] = {}
    for model in models:
        schemas = model.model_json_schema()["properties"]
        for name in (*schemas, *model.aliases):
            found.setdefault(name, []).append(bounds(schemas[model.aliases.get(name, name)]))
    agreed = {
        name: {kind: value for kind, value in every[0].items() if all(other.get(kind) == value for other in every)}
        for name, every in found.items()
    }
    lines = ["DECODING_LIMITS: Mapping[str, Mapping[str, Any]] = {"]
    lines += [f'    "{name}": {values!r},'.replace("'", '"') for name, values in agreed.items() if values]
    return "\n".join([*lines, "}", '"""Bounds of fields, on which all families that have the field agree."""', ""])


def defaults(families: Iterable[Any]) -> str:
    """The defaults of each family's decoding fields, where they do not depend on checkpoint or other fields."""
    lines = ["DECODING_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"]
    for family in families:
        fields = {name: field for name, field in family.decoding.model_fields.items() if name not in SPECIAL}
        known = {name: field.default for name, field in fields.items() if field.default is not PydanticUndefined}
        lines.append(f'    "{family.name}": {known!r},')
    return "\n".join([*lines, "}", '"""Defaults that do not depend on the checkpoint, by family."""', ""])


def follows(families: Iterable[Any]) -> str:
    """The decoding fields of each family whose default is the value of another field, with that field."""
    lines = ["DECODING_FOLLOWS: Mapping[str, Mapping[str, str]] = {"]
    for family in families:
        names = {name: name for name in family.decoding.model_fields}
        found = {}
        for name, field in family.decoding.model_fields.items():
            with contextlib.suppress(TypeError):  # a default that is computed from the other field's number
                found[name] = field.get_default(call_default_factory=True, validated_data=names)
        lines.append(
            f'    "{family.name}": { {name: other for name, other in found.items() if other in names.values()}!r},'
        )
    return "\n".join([*lines, "}", '"""Fields whose default is the value of another field, by family."""', ""])


def estimators(families: Iterable[Any]) -> str:
    """The names of likelihood estimators of all families."""
    spec = ModelSpec("any", 0, (), None, None, 1, 1, block_length=32)
    found = [family.likelihood_estimator(spec) for family in families if hasattr(family, "likelihood_estimator")]
    names = [name for each in found if each is not None for name in each.choices["estimator"]]
    values = ", ".join(f'"{name}"' for name in dict.fromkeys([*names, *PARTS]))
    return f"ESTIMATORS = ({values})\n" + '"""Estimators of likelihoods; the last ones can be joined by +."""\n'


def of_likelihoods(families: Iterable[Any]) -> dict[str, list[str]]:
    """The types of the likelihood fields of families, with attention blocks and without, besides ``estimator``."""
    found: dict[str, list[str]] = {}
    for family in families:
        for block in (None, 32):
            spec = ModelSpec(family.name, 0, (), None, None, 1, 1, block_length=block)
            estimator = family.likelihood_estimator(spec) if hasattr(family, "likelihood_estimator") else None
            fields = {} if estimator is None else estimator.fields(spec)
            if "mc_num" in fields:
                fields["level"] = estimator.level  # which adaptive has
            for name, value in fields.items():
                values = [f"={choice!r}" for choice in estimator.choices.get(name, ())]
                found.setdefault(name, []).extend(values or ([] if value is None else [type(value).__name__]))
    return {name: types for name, types in found.items() if name != "estimator"}


def written(name: str, fields: Mapping[str, Iterable[str]], more: tuple[str, ...] = ()) -> str:
    """The definition of a TypedDict; ``more``: types that every field has too."""
    items = (f'"{field}": {WIDER.get(field) or union([*types, *more])}' for field, types in fields.items())
    kept = ", ".join(item.replace(" ", "\0") if len(item) < 110 else item for item in items)  # on one line
    body = textwrap.fill(kept, 116, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
    return f'{name} = TypedDict("{name}", {{\n{textwrap.indent(body, "    ")},\n}}, total=False)\n'


def strategies() -> str:
    """What is known of each decoding strategy."""
    lines = ["STRATEGIES: Mapping[str, Mapping[str, Any]] = {"]
    for entry in registry().entries("strategy"):
        if entry.plugin is None:
            lines.append(f'    "{entry.name}": {entry.load().facts()!r},')
    return "\n".join([*lines, "}", '"""What is known of each strategy."""', ""])


def loaded(kind: Kind) -> list[Any]:
    """What dare-bench registers, without plugins."""
    return [entry.load() for entry in registry().entries(kind) if entry.plugin is None]


def text() -> str:
    """The content of the file."""
    families, run = loaded("family"), of_models(RunSpec)
    del run["model"]  # evaluate() takes open models too
    decoding = of_models(*(family.decoding for family in families))
    decoding |= {alias: decoding[name] for family in families for alias, name in family.decoding.aliases.items()}
    parts = (
        written("OpeningKeywords", of_models(OpeningSettings)),
        written("RunKeywords", run),
        written("TrainKeywords", of_models(TrainSpec, *(method.Options for method in loaded("trainer")))),
        written("DecodingKeywords", decoding, more=("None",)),
        written("LikelihoodKeywords", of_likelihoods(families), more=("None",)),
        limits(family.decoding for family in families),
        defaults(families),
        follows(families),
        estimators(families),
        strategies(),
    )
    return "\n".join((HEAD, *parts))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(text())
    elif FILE.read_text() != text():
        sys.exit(f"{FILE} is not current; run: make keywords")
