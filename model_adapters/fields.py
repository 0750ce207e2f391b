"""Field types and checks that the families' decoding schemas share. A check raises ValueError."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from dare_bench.config import not_valid, reason
from dare_bench.errors import DecodingError, closest
from dare_bench.types import Decoding, ModelSpec

MAX_COUNT = 65_536
"""Maximum number of tokens, blocks or steps of one answer; published settings stay below 33,000."""
NaturalNumber = Annotated[int, Field(ge=0), BeforeValidator(Decoding._whole)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), BeforeValidator(Decoding._whole)]
"""Bounds come first, for the JSON schema. A field's own bounds would be lost here: such a field has its own type."""
Probability = Annotated[float, Field(ge=0, le=1)]
TopP = Annotated[float, Field(gt=0, le=1)]


def resolve_fields(
    kind: type[Decoding], fields: Mapping[str, Any], spec: ModelSpec, defaults: Mapping[str, Any] | None = None
) -> Decoding:
    """Validated decoding of the class ``kind`` with every value resolved, including the special ids of ``spec``.

    Args:
        defaults: values that the checkpoint determines.

    Raises:
        DecodingError: a field that the class does not have, or an invalid value.
    """
    known = [*kind.model_fields, *kind.aliases]
    fields = without_aliases(kind, fields)
    for field in fields:
        if field not in known:
            raise unknown_field(spec.family, field, known)
    given = {k: v for k, v in fields.items() if v is not None}
    ids = {"mask_id": spec.mask_id, "eos_id": spec.eos_ids, "eot_id": spec.eot_id}
    try:
        decoding = kind(**{**ids, **(defaults or {}), **given})
    except ValidationError as error:
        raise DecodingError(first_error(error)) from error
    if getattr(decoding, "strategy", None) is not None:
        _check_own(decoding, given, spec.family)
    _check_ids(decoding, spec)
    return decoding


def _check_own(decoding: Any, given: Mapping[str, Any], family: str) -> None:
    """Raise DecodingError for a given field of the family's own strategies beside another strategy, unless the strategy
    has it, too, or it only repeats the default."""
    for name in sorted(decoding.own_strategy & given.keys() - decoding.strategy.keeps):
        default = type(decoding).model_fields[name].default
        if (given[name] or None) != (default or None):
            raise DecodingError(
                f"{name}={given[name]!r} belongs to {family}'s own strategies, not to strategy="
                f"{given['strategy']!r}: give the strategy's own fields, as JSON: "
                '{"strategy": {"name": ..., "field": value}}'
            )


def unknown_field(of: str, name: str, known: Iterable[str]) -> DecodingError:
    """The refusal of a name that is not a decoding field ``of`` a family or engine."""
    names = sorted(known)
    near = closest(name, names)
    hint = f"closest: {', '.join(near)}; " if near else ""
    return DecodingError(f"{of} has no decoding field {name!r}; {hint}it has {', '.join(names)}")


def without_aliases(kind: type[Decoding], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with aliases replaced by their names; raises DecodingError where two names disagree."""
    plain = dict(fields)
    for alias, name in kind.aliases.items():
        value = plain.pop(alias, None)
        if value is None:
            continue
        if plain.get(name) not in (None, value):
            raise DecodingError(f"{alias}={value} and {name}={plain[name]} are names of one field; give one of them")
        plain[name] = value
    return plain


def _check_ids(decoding: Decoding, spec: ModelSpec) -> None:
    """Raise DecodingError for ids outside the vocabulary and for an EOS that is the mask."""
    for name in decoding.id_fields:
        value = getattr(decoding, name)
        for token in value if isinstance(value, tuple) else () if value is None else (value,):
            if not 0 <= token < spec.vocab_size:
                raise DecodingError(f"{name}={token} is outside the vocabulary; allowed: 0 to {spec.vocab_size - 1}")
            if isinstance(value, tuple) and token == decoding.mask_id:
                raise DecodingError(f"{name}={token} is the mask id, which cannot end an answer; give another id")


def first_error(error: ValidationError) -> str:
    """The first error in one line, with field and value; an unknown field before a missing one, which it may mean."""
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    text = str(first["msg"]).removeprefix("Value error, ")
    if not first["loc"]:
        return text
    allowed = first.get("ctx", {}).get("expected")
    field = ".".join(part for part in first["loc"] if isinstance(part, str))
    if first["type"] == "missing":
        return f'{field} is missing; give it as JSON: {{"strategy": {{"name": ..., "{field}": VALUE}}}}'
    if first["type"] == "extra_forbidden":
        return f"it has no field {field!r}"
    return not_valid(field, first["input"], f"must be {allowed}" if allowed else reason(first))


def divisors(n: int, most: int = 12) -> str:
    """The divisors of n for a message, abbreviated if there are many."""
    every = [str(i) for i in range(1, n + 1) if n % i == 0]
    return ", ".join(every if len(every) <= most else [*every[: most - 1], "...", every[-1]])


def divides(gen_length: int, block_length: int) -> None:
    """Raise ValueError unless the answer consists of whole blocks."""
    if gen_length % block_length:
        raise ValueError(
            f"gen_length={gen_length} is not divisible by block_length={block_length}; "
            f"allowed block lengths: {divisors(gen_length)}"
        )


def idle_steps(steps: int, block_length: int) -> str:
    """A sentence where a block has more ``steps`` than tokens, for a sampler that unmasks at least one token a step;
    empty otherwise. Published samplers compute the steps without a token too, or leave them out: the same answer."""
    if steps <= block_length:
        return ""
    return (
        f"{steps} steps for a block of {block_length} tokens: each step unmasks at least one token, so that the last "
        f"{steps - block_length} change nothing and are left out"
    )


def steps_fit(steps: int, blocks: int) -> None:
    """Raise ValueError unless every block has the same number of steps."""
    if steps % blocks:
        raise ValueError(
            f"steps={steps} is not divisible by the number of blocks, gen_length/block_length={blocks}; "
            f"nearest allowed: {max(blocks, steps // blocks * blocks)} or {(steps // blocks + 1) * blocks}"
        )
