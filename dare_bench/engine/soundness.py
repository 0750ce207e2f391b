"""Checks without a forward pass, run whenever a checkpoint is opened for an evaluation: if one fails, every answer
would be wrong. :mod:`dare_bench.engine.validation` has the longer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dare_bench.errors import CheckpointError, DareError, DecodingError
from dare_bench.protocols import LoadedModel
from dare_bench.types import Decoding, ModelSpec

_TEXTS = ("2 + 3 = 5", "Grüße, 你好, 🙂\n\tend ")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; ``detail``: the values seen, or why it failed. ``passed``: None if it does not apply."""

    name: str
    passed: bool | None
    detail: str
    values: dict[str, Any] = field(default_factory=dict)
    """Measured numbers, for ``--json``."""


def cheap(model: Any) -> Iterator[Check]:
    """The checks without a forward pass."""
    yield guarded("mask id", lambda: mask_id(model))
    yield guarded("tokenizer", lambda: tokenizer(model))


def refuse_unsound(model: Any, name: str) -> None:
    """Refuse a model whose answers would all be wrong. Raises CheckpointError: a cheap check fails."""
    for check in cheap(model):
        if check.passed is False:
            raise CheckpointError(
                f"{name}: {check.name} check failed: {check.detail}; give --model-args mask_id=... or fix the"
                " checkpoint's files (dare-bench validate runs all checks)"
            )


def guarded(name: str, check: Callable[[], tuple[Any, ...]]) -> Check:
    """The result of a check; an exception is a failure."""
    try:
        return Check(name, *check())
    except DareError as error:
        return Check(name, False, str(error))
    except Exception as error:  # a tokenizer's code may raise anything
        return Check(name, False, f"{type(error).__name__}: {error}")


def refuse_unsound_ids(model: LoadedModel, decoding: Decoding) -> None:
    """Refuse special ids in decoding fields that would be refused when opening the model. Raises DecodingError: the
    check of the mask id fails."""
    ids: dict[str, Any] = {"mask_id": decoding.mask_id, "eos_ids": decoding.eos_id, "eot_id": decoding.eot_id}
    given = replace(model.spec, **{name: value for name, value in ids.items() if value is not None})
    if given == model.spec:  # those of the checkpoint were checked when it was opened
        return
    passed, detail = mask_id(model, given)
    if passed is False:
        raise DecodingError(f"decoding fields: {detail}; leave out mask_id, eos_id and eot_id for the checkpoint's own")


def mask_id(model: Any, spec: ModelSpec | None = None) -> tuple[bool | None, str]:
    """Is the mask id in the vocabulary, no end or padding id, and the tokenizer's? ``spec``: ids in place of the
    model's."""
    spec = spec or model.spec
    if spec.mask_id is None:
        return None, f"the model has none; {_end_ids(spec)}"
    seen = f"mask id {spec.mask_id}"
    if not 0 <= spec.mask_id < spec.vocab_size:
        return False, f"{seen} is not in the vocabulary of {spec.vocab_size}; give --model-args mask_id=..."
    if spec.mask_id in (*spec.eos_ids, spec.eot_id, spec.pad_id):
        return False, f"{seen} is also an end or padding id ({spec.eos_ids}, {spec.eot_id}, {spec.pad_id})"
    token = getattr(model.tokenizer, "mask_token_id", None)
    if token is not None and token != spec.mask_id:
        return False, f"{seen}, but the tokenizer's mask token is {token}"
    return True, f"{seen}, {_end_ids(spec)}"


def _end_ids(spec: ModelSpec) -> str:
    return f"end ids {', '.join(map(str, spec.eos_ids)) or 'none'}"


def tokenizer(model: Any) -> tuple[bool | None, str]:
    """Does text encode to ids of the vocabulary and decode to itself?"""
    spec, tokenizer = model.spec, model.tokenizer
    if tokenizer is None:
        return None, "none in the folder: the model takes token ids only"
    for text in _TEXTS:
        ids = getattr(model, "loaded", model).encode(text)
        if any(not 0 <= i < spec.vocab_size for i in ids):
            return False, f"{text!r} gives ids outside the vocabulary: {ids}"
        back = tokenizer.decode(ids, skip_special_tokens=True)
        if back.strip() != text.strip():
            return False, f"{text!r} decodes to {back!r}"
    chat = "with" if getattr(tokenizer, "chat_template", None) else "without"
    return True, f"{len(tokenizer)} tokens, text survives encoding and decoding, {chat} a chat template"
