"""Checks of a checkpoint: would an evaluation of it mean what it says?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dare_bench.checkpoint_files import read_header
from dare_bench.errors import CheckpointError, DareError, DecodingError
from dare_bench.protocols import LoadedModel
from dare_bench.types import Decoding, ModelSpec

_WHOLE = {"early_stop": False, "text_after_eos": "keep"}
"""Compare whole answers: an end in the first token would hide the rest."""
_TEXTS = ("2 + 3 = 5", "Grüße, 你好, 🙂\n\tend ")


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``detail`` says what was seen, or why it failed. ``passed`` is None where it does not apply."""

    name: str
    passed: bool | None
    detail: str
    values: dict[str, Any] = field(default_factory=dict)
    """Measured numbers, for ``--json``."""


def validate(checkpoint: str, **arguments: Any) -> Iterator[Check]:
    """Check a checkpoint; results come as they are found. ``arguments`` go to ``load`` (float32 unless said).

    Raises:
        UsageError: unknown device, dtype or family.
    """
    from dare_bench.engine.opening import open_checkpoint
    from dare_bench.loading import locate

    try:
        path = locate(checkpoint)
        model = open_checkpoint(checkpoint, {"dtype": "float32", **arguments})
    except CheckpointError as error:
        yield Check("open", False, str(error))
        return
    spec = model.spec
    yield Check("open", True, f"{spec.family}, {spec.parameters:,} parameters, vocabulary {spec.vocab_size}")
    yield from cheap(model)
    for name, check in (
        ("keys and round trip", lambda: round_trip(model, path, arguments)),
        ("batch invariance", lambda: batch_invariance(model)),
        ("bfloat16 flips", lambda: bfloat16_flips(model, checkpoint, arguments)),
    ):
        yield _guarded(name, check)


def cheap(model: Any) -> Iterator[Check]:
    """The checks that take no forward pass."""
    yield _guarded("mask id", lambda: mask_id(model))
    yield _guarded("tokenizer", lambda: tokenizer(model))


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


def _guarded(name: str, check: Callable[[], tuple[Any, ...]]) -> Check:
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


def round_trip(model: Any, path: Path, arguments: dict[str, Any]) -> tuple[bool, str]:
    """Save, reopen: the same names in the files, the same logits to the bit."""
    import torch

    from dare_bench.loading import load

    ids = _ids(model, 24)
    before = model.logits(ids)
    with tempfile.TemporaryDirectory(prefix="dare-bench-") as folder:
        model.save(folder)
        ours, theirs = tensor_names(Path(folder)), tensor_names(path)
        if ours != theirs:
            odd = sorted(ours ^ theirs)
            return False, f"{len(odd)} tensor names differ between the folder and what is saved, first {odd[0]!r}"
        again = load(folder, **{"dtype": "float32", **arguments, "mask_id": model.spec.mask_id})
        after = again.logits(ids)
    if not torch.equal(before, after):
        return False, f"logits differ by up to {(before - after).abs().max().item():.3g} after saving and reopening"
    return True, f"{len(theirs)} tensors under their published names, equal logits after saving and reopening"


def tensor_names(folder: Path) -> set[str]:
    """The names in a folder's safetensors headers."""
    return {name for file in sorted(folder.glob("*.safetensors")) for name in read_header(file)}


def batch_invariance(model: Any) -> tuple[bool, str]:
    """Rows one at a time, and three at a time in another order: the same tokens."""
    prompts = [_ids(model, n, shift) for shift, n in enumerate((5, 17, 9, 30))]
    settings: dict[str, Any] = {"gen_length": 16, "temperature": 0.7, "seed": 1, **_WHOLE}
    alone = model.generate(prompts, max_rows=1, **settings)
    together = model.generate(prompts[::-1], max_rows=3, **settings)[::-1]
    for i, (one, other) in enumerate(zip(alone, together, strict=True)):
        if one.tokens != other.tokens:
            first = next(k for k, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)) if a != b)
            return False, f"prompt {i + 1} of {len(prompts)} differs from token {first} on when rows share a forward"
    return (
        True,
        f"{len(prompts)} prompts, {sum(len(g.tokens) for g in alone)} tokens, equal with 1 and 3 rows at a time",
    )


def bfloat16_flips(model: Any, checkpoint: str, arguments: dict[str, Any]) -> tuple[bool, str, dict[str, Any]]:
    """How many tokens another batch, and how many bfloat16 itself, turns over. Measured and reported, never failed: in
    bfloat16 near ties fall as the rounding of a forward's shape decides, so the rate belongs beside bfloat16 scores."""
    from dare_bench.loading import load

    half = load(checkpoint, **{**arguments, "dtype": "bfloat16"})
    prompts = [_ids(half, 5 + 7 * (i % 4), i) for i in range(12)]
    settings: dict[str, Any] = {"gen_length": 16, "temperature": 0.0, **_WHOLE}
    exact = [g.tokens for g in model.generate(prompts, **settings)]
    alone = [g.tokens for g in half.generate(prompts, max_rows=1, **settings)]
    together = [g.tokens for g in half.generate(prompts[::-1], max_rows=6, **settings)][::-1]
    total = sum(map(len, alone))
    values = {
        "tokens": total,
        "batch_flip_rate": _flips(alone, together) / total,
        "float32_flip_rate": _flips(alone, exact) / total,
    }
    return (
        True,
        f"{values['batch_flip_rate']:.2%} of {total} tokens change when rows share a forward, "
        f"{values['float32_flip_rate']:.2%} against float32",
        values,
    )


def _flips(ours: list[list[int]], theirs: list[list[int]]) -> int:
    """Positions that differ, missing ones included."""
    return sum(
        sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))
        for one, other in zip(ours, theirs, strict=True)
    )


def _ids(model: Any, count: int, shift: int = 0) -> list[int]:
    """Ordinary token ids, spread over the vocabulary."""
    spec = model.spec
    special = {spec.mask_id, spec.eot_id, spec.pad_id, *spec.eos_ids}
    ordinary = [i for i in range(spec.vocab_size) if i not in special]
    return [ordinary[(7 + 31 * shift + 13 * i) % len(ordinary)] for i in range(count)]
