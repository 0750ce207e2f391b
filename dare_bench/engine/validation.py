"""The checks of `dare-bench validate`: can scores of this checkpoint be trusted?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dare_bench.checkpoint_files import read_header
from dare_bench.engine.opener import open_checkpoint
from dare_bench.engine.soundness import Check, cheap, guarded
from dare_bench.errors import CheckpointError
from dare_bench.loading import load, locate

_COMPLETE = {"early_stop": False, "text_after_eos": "keep"}
"""Decode complete answers: an EOS as the first token would hide all others."""


def validate(checkpoint: str, quantize: str | None = None, **arguments: Any) -> Iterator[Check]:
    """Check a checkpoint; yields each result. ``quantize``: also compare weights quantized so with the full ones;
    ``arguments``: those of ``load`` (default dtype: float32). Raises UsageError: unknown device, dtype, family,
    quantization."""
    try:
        path = locate(checkpoint)
        model = open_checkpoint(checkpoint, {"dtype": "float32", **arguments})
    except CheckpointError as error:
        yield Check("open", False, str(error))
        return
    spec = model.spec
    yield Check("open", True, f"{spec.family}, {spec.parameters:,} parameters, vocabulary {spec.vocab_size}")
    yield from cheap(model)
    if quantize is not None:
        small = open_checkpoint(checkpoint, {"dtype": "float32", **arguments, "quantize": quantize})
        yield guarded(f"{quantize} against full weights", lambda: quantization(model, small))
    for name, check in (
        ("keys and round trip", lambda: round_trip(model, path, arguments)),
        ("batch invariance", lambda: batch_invariance(model)),
        ("bfloat16 flips", lambda: bfloat16_flips(model, checkpoint, arguments)),
    ):
        yield guarded(name, check)


def round_trip(model: Any, path: Path, arguments: dict[str, Any]) -> tuple[bool, str]:
    """Save and reopen: equal tensor names, bitwise equal logits."""
    import torch

    tokens = _ids(model, 24)
    before = model.logits(tokens)
    with tempfile.TemporaryDirectory(prefix="dare-bench-") as folder:
        model.save(folder)
        names = tensor_names(path)
        if differing := sorted(names ^ tensor_names(Path(folder))):
            return False, f"{len(differing)} tensor names differ in the saved checkpoint, first {differing[0]!r}"
        ids = {} if model.spec.mask_id is None else {"mask_id": model.spec.mask_id}
        # Not every config.json says the family: a checkpoint's name may, which the copy does not have.
        again = load(folder, **{"dtype": "float32", "family": model.spec.family, **arguments, **ids})
        after = again.logits(tokens)
    if not torch.equal(before, after):
        return False, f"logits differ by up to {(before - after).abs().max().item():.3g} after saving and reopening"
    return True, f"{len(names)} tensors under their published names, equal logits after saving and reopening"


def tensor_names(folder: Path) -> set[str]:
    """The names in a folder's safetensors headers."""
    return {name for file in sorted(folder.glob("*.safetensors")) for name in read_header(file)}


def batch_invariance(model: Any) -> tuple[bool, str]:
    """One row at a time, and three in another order, give the same tokens."""
    prompts = [_ids(model, n, shift) for shift, n in enumerate((5, 17, 9, 30))]
    settings: dict[str, Any] = {"gen_length": 16, "temperature": 0.7, "seed": 1, **_COMPLETE}
    alone = model.generate(prompts, max_rows=1, **settings)
    together = model.generate(prompts[::-1], max_rows=3, **settings)[::-1]
    for i, (expected, actual) in enumerate(zip(alone, together, strict=True)):
        if expected.tokens != actual.tokens:
            first = next(k for k, (a, b) in enumerate(zip(expected.tokens, actual.tokens, strict=False)) if a != b)
            return False, f"prompt {i + 1} of {len(prompts)} differs from token {first} on when rows share a forward"
    tokens = sum(len(generation.tokens) for generation in alone)
    return True, f"{len(prompts)} prompts, {tokens} tokens, equal with 1 and 3 rows at a time"


def bfloat16_flips(model: Any, checkpoint: str, arguments: dict[str, Any]) -> tuple[bool, str, dict[str, Any]]:
    """Measure the share of tokens that another batch, and bfloat16 itself, changes. It is reported and never fails: in
    bfloat16 the rounding, which depends on the shape of a forward pass, decides near ties."""
    half = load(checkpoint, **{**arguments, "dtype": "bfloat16"})
    prompts = _prompts(half)
    exact, alone = _answers(model, prompts), _answers(half, prompts, max_rows=1)
    together = _answers(half, prompts[::-1], max_rows=6)[::-1]
    total = sum(map(len, alone))
    values = {
        "tokens": total,
        "batch_flip_rate": _flips(alone, together) / total,
        "float32_flip_rate": _flips(alone, exact) / total,
    }
    batch, exact_rate = values["batch_flip_rate"], values["float32_flip_rate"]
    detail = f"{batch:.2%} of {total} tokens change when rows share a forward, {exact_rate:.2%} against float32"
    return True, detail, values


def quantization(model: Any, small: Any) -> tuple[bool, str, dict[str, Any]]:
    """Measure what quantized weights change: the share of greedy tokens, and at masks behind each prompt the mean KL
    divergence from the distributions of the full weights, in nats. It is reported and never fails."""
    prompts, divergences = _prompts(model), []
    exact, approximate = _answers(model, prompts), _answers(small, prompts)
    for prompt in prompts:
        tokens = [*prompt, *[model.spec.mask] * 16]
        full, other = (opened.logits(tokens)[len(prompt) :].log_softmax(-1) for opened in (model, small))
        divergences.append(float((full.exp() * (full - other)).sum(-1).mean()))
    total = sum(map(len, exact))
    values: dict[str, Any] = {
        "tokens": total,
        "flip_rate": _flips(exact, approximate) / total,
        "kl_divergence": sum(divergences) / len(divergences),
        "weight_bytes": [sum(w.nbytes for w in opened.network.parameters()) for opened in (model, small)],
    }
    sizes = " to ".join(f"{size / 1e9:.3g}" for size in values["weight_bytes"])
    detail = f"{values['flip_rate']:.2%} of {total} tokens change, KL divergence {values['kl_divergence']:.2g} nats"
    return True, f"{detail}; weights from {sizes} GB", values


def _prompts(model: Any) -> list[list[int]]:
    """Prompts for greedy answers."""
    return [_ids(model, 5 + 7 * (i % 4), i) for i in range(12)]


def _answers(model: Any, prompts: list[list[int]], max_rows: int | None = None) -> list[list[int]]:
    """Greedy answers, complete."""
    answers = model.generate(prompts, max_rows=max_rows, gen_length=16, temperature=0.0, **_COMPLETE)
    return [answer.tokens for answer in answers]


def _flips(first: list[list[int]], second: list[list[int]]) -> int:
    """Number of positions that differ, missing ones included."""
    return sum(a != b for pair in zip(first, second, strict=True) for a, b in zip_longest(*pair))


def _ids(model: Any, count: int, shift: int = 0) -> list[int]:
    """Ordinary token ids, spread over the vocabulary."""
    spec = model.spec
    special = {spec.mask_id, spec.eot_id, spec.pad_id, *spec.eos_ids}
    ordinary = [i for i in range(spec.vocab_size) if i not in special]
    return [ordinary[(7 + 31 * shift + 13 * i) % len(ordinary)] for i in range(count)]
