"""Stable-DiffCoder: its sampler against the published rules written down again, its ids, layout and training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import illada_folder
import pretend_device
import pytest
from safetensors import safe_open

import dare_bench
from dare_bench.errors import DecodingError
from dare_bench.loading import family_of

PROMPTS = ["12+34=", "sudoku\n.3.4\n4..3\n.431\n.14.\n=\n", "7-45"]
MASK, KEEP = illada_folder.MASK, {"text_after_eos": "keep", "early_stop": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return illada_folder.written(tmp_path_factory.mktemp("diffcoder") / "model", **illada_folder.DIFFCODER)


@pytest.fixture(scope="module")
def model(folder: Path) -> dare_bench.Model:
    return dare_bench.load(folder, device="cpu", dtype="float32")


def by_blocks(
    model: dare_bench.Model, prompt: list[int], gen_length: int, block: int, steps: int, threshold: float | None
) -> tuple[list[int], int]:
    """``generate_block`` at temperature 0, with whole block-causal forwards: the response, and the forwards made."""
    canvas, forwards = [*prompt, *[MASK] * gen_length], 0
    for start in range(len(prompt) // block * block, len(canvas), block):
        stop = min(start + block, len(canvas))
        masks = canvas[start:stop].count(MASK)
        for step in range(steps):
            due = masks // steps + (step < masks % steps)
            if not due or MASK not in canvas[start:stop]:
                continue
            forwards += 1
            probability, token = model.logits(canvas[:stop], block_length=block).double().softmax(-1).max(-1)
            open_ = sorted((i for i in range(start, stop) if canvas[i] == MASK), key=lambda i: -float(probability[i]))
            sure = open_[:due] if threshold is None else [i for i in open_ if probability[i] >= threshold] or open_[:1]
            for i in sure:
                canvas[i] = int(token[i])
    return canvas[len(prompt) :], forwards


@pytest.mark.parametrize("cache", ["exact", "none"])
@pytest.mark.parametrize(
    ("gen_length", "block", "steps", "threshold"),
    [(8, 4, 8, None), (12, 4, 6, None), (16, 8, 6, None), (8, 4, 8, 0.5), (12, 4, 12, 0.95)],
)
def test_the_sampler_is_the_published_rule(
    model: dare_bench.Model, gen_length: int, block: int, steps: int, threshold: float | None, cache: str
) -> None:
    """Prompts of 6, 26 and 4 tokens: two end inside a block, one at a border."""
    fields = {"gen_length": gen_length, "block_length": block, "steps": steps, "threshold": threshold, "cache": cache}
    answers = model.generate(PROMPTS, **fields, **KEEP)
    assert len({len(model.loaded.encode(prompt)) % 4 for prompt in PROMPTS}) > 1
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = model.loaded.encode(prompt)
        wanted, forwards = by_blocks(model, ids, gen_length, block, steps // (gen_length // block), threshold)
        blocks = -(-(len(ids) + gen_length) // block) - len(ids) // block
        assert (answer.tokens, answer.reference_nfe, answer.tier) == (wanted, forwards + blocks, "E1")


def test_an_eos_ends_the_answer(model: dare_bench.Model) -> None:
    whole = model.generate(PROMPTS, gen_length=16, **KEEP)
    eos = {token for answer in whole for token in answer.tokens[1:9]}.difference(*(a.tokens[:1] for a in whole)).pop()
    for answer, kept in zip(model.generate(PROMPTS, gen_length=16, eos_id=eos), whole, strict=True):
        end = kept.tokens.index(eos) + 1 if eos in kept.tokens else 16
        assert answer.tokens == kept.tokens[:end] and (end > 8 or answer.nfe < kept.nfe)


@pytest.mark.parametrize("fields", [{"temperature": 2.0}, {"remasking": "random"}])
def test_draws_depend_on_the_row_alone(model: dare_bench.Model, fields: dict[str, Any]) -> None:
    together = model.generate(PROMPTS, gen_length=8, seed=5, **fields)
    alone = [model.generate([prompt], gen_length=8, seed=5, **fields)[0] for prompt in PROMPTS]
    assert [a.tokens for a in together] == [a.tokens for a in alone] and {a.tier for a in together} == {"E2"}


def test_likelihoods_are_of_blocks(model: dare_bench.Model) -> None:
    ids, token = [8, 9, 10, 11, 12], 13
    (got,) = model.loglikelihood([(ids, [token])])
    want = model.logits([*ids, MASK], block_length=4).log_softmax(-1)[-1, token]
    assert got.estimator == "exact" and math.isclose(got.value, float(want), abs_tol=1e-5)


def test_the_device_computes_the_same(folder: Path, model: dare_bench.Model) -> None:
    with pretend_device.available():
        there = dare_bench.load(folder, device="pretend", dtype="float32")
        got, want = (m.generate(PROMPTS, gen_length=12) for m in (there, model))
        assert [a.tokens for a in got] == [a.tokens for a in want]


def test_ids_layout_and_refusals(folder: Path, model: dare_bench.Model, tmp_path: Path) -> None:
    spec = model.spec
    assert (spec.family, spec.mask, spec.block_length, spec.predicts) == ("stable_diffcoder", 5, 4, "same")
    model.save(tmp_path / "saved")
    assert family_of(tmp_path / "saved").name == "stable_diffcoder"
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "llama"
    with (
        safe_open(str(folder / "model.safetensors"), "pt") as before,
        safe_open(str(tmp_path / "saved" / "model.safetensors"), "pt") as after,
    ):
        assert set(before.keys()) == set(after.keys())
    with pytest.raises(DecodingError, match="gen_length=10 is not divisible by block_length=4"):
        model.generate(PROMPTS, gen_length=10)
    with pytest.raises(DecodingError, match="steps=9 is not divisible by the number of blocks"):
        model.generate(PROMPTS, gen_length=16, steps=9)
    with pytest.raises(DecodingError, match="rng='reference' is not known for this sampler"):
        model.generate(PROMPTS, gen_length=8, rng="reference")
