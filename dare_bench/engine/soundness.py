"""Checks that take no forward pass: would every answer of this checkpoint be wrong?

They are made whenever a checkpoint is opened for an evaluation;
:mod:`dare_bench.engine.validation` has the longer ones.
"""

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
    """One check: ``detail`` says what was seen, or why it failed. ``passed`` is None where it does not apply."""

    name: str
    passed: bool | None
    detail: str
    values: dict[str, Any] = field(default_factory=dict)
    """Measured numbers, for ``--json``."""


def cheap(model: Any) -> Iterator[Check]:
    """The checks that take no forward pass."""
    yield guarded("mask id", lambda: mask_id(model))
    yield guarded("tokenizer", lambda: tokenizer(model))


def refuse_unsound(model: Any, name: str) -> None:
    """Refuse a model that every answer of which would be wrong.

    Raises:
        CheckpointError: a cheap check fails.
    """
    for check in cheap(model):
        if check.passed is False:
            raise CheckpointError(
                f"{name}: {check.name} check failed: {check.detail}; give --model-args mask_id=... or fix the"
                " checkpoint's files (dare-bench validate makes all checks)"
            )


def guarded(name: str, check: Callable[[], tuple[Any, ...]]) -> Check:
    """The result of a check; one that raises has failed."""
    try:
        return Check(name, *check())
    except DareError as error:
        return Check(name, False, str(error))
    except Exception as error:  # a tokenizer's own code may raise anything
        return Check(name, False, f"{type(error).__name__}: {error}")


def refuse_unsound_ids(model: LoadedModel, decoding: Decoding) -> None:
    """Refuse special ids given as decoding fields that would be refused as settings for opening the model.

    Raises:
        DecodingError: the check of the mask id fails.
    """
    ids: dict[str, Any] = {"mask_id": decoding.mask_id, "eos_ids": decoding.eos_id, "eot_id": decoding.eot_id}
    given = replace(model.spec, **{name: value for name, value in ids.items() if value is not None})
    if given == model.spec:  # the checkpoint's own were checked when it was opened
        return
    passed, detail = mask_id(model, given)
    if not passed:
        raise DecodingError(f"decoding fields: {detail}; leave out mask_id, eos_id and eot_id for the checkpoint's own")


def mask_id(model: Any, given: ModelSpec | None = None) -> tuple[bool, str]:
    """In the vocabulary, no end or padding id, and the one that the tokenizer names. ``given``: other ids than the
    model's own."""
    spec = given or model.spec
    seen = f"mask id {spec.mask_id}"
    if not 0 <= spec.mask_id < spec.vocab_size:
        return False, f"{seen} is not in the vocabulary of {spec.vocab_size}; give --model-args mask_id=..."
    if spec.mask_id in (*spec.eos_ids, spec.eot_id, spec.pad_id):
        return False, f"{seen} is also an end or padding id ({spec.eos_ids}, {spec.eot_id}, {spec.pad_id})"
    theirs = getattr(model.tokenizer, "mask_token_id", None)
    if theirs is not None and theirs != spec.mask_id:
        return False, f"{seen}, but the tokenizer's mask token is {theirs}"
    return True, f"{seen}, end ids {', '.join(map(str, spec.eos_ids)) or 'none'}"


def tokenizer(model: Any) -> tuple[bool | None, str]:
    """Any text encodes to ids of the vocabulary and comes back."""
    spec, theirs = model.spec, model.tokenizer
    if theirs is None:
        return None, "none in the folder: the model takes token ids only"
    for text in _TEXTS:
        ids = getattr(model, "loaded", model).encode(text)
        if any(not 0 <= i < spec.vocab_size for i in ids):
            return False, f"{text!r} gives ids outside the vocabulary: {ids}"
        back = theirs.decode(ids, skip_special_tokens=True)
        if back.strip() != text.strip():
            return False, f"{text!r} comes back as {back!r}"
    chat = "with" if getattr(theirs, "chat_template", None) else "without"
    return True, f"{len(theirs)} tokens, text comes back unchanged, {chat} a chat template"
