"""Open-dCoder: its algorithms against the published rules written down again, its ids and layout, and its training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import open_dcoder_folder
import pytest
import torch
from require import need_package
from safetensors import safe_open

import dare_bench
from dare_bench.errors import CheckpointError, DareError, DecodingError, UsageError
from dare_bench.loading import family_of
from dare_bench.model_adapters.sampling import drafts
from dare_bench.types import Request

PROMPTS = ["12+34=", "sudoku\n.3.4\n4..3\n.431\n.14.\n=\n", "7-45="]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return open_dcoder_folder.written(tmp_path_factory.mktemp("open_dcoder") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> dare_bench.Model:
    return dare_bench.load(folder, family="open_dcoder", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def dream() -> dare_bench.Model:
    return dare_bench.load(open_dcoder_folder.DREAM, device="cpu", dtype="float32")


def path_planned(model: dare_bench.Model, canvas: list[int], steps: int) -> tuple[list[int], int]:
    """Open-dLLM's ``alg="p2"`` at temperature 0, one position at a time: the canvas, and the forwards made."""
    mask = model.spec.mask
    free = [i for i, token in enumerate(canvas) if token == mask]
    for step in range(steps):
        if mask not in canvas:
            return canvas, step
        probability = model.logits(canvas).softmax(-1)
        sure, token = probability.max(-1)
        share = torch.tensor(float(len(free))) * (1 - (step + 1) / steps)
        hidden = sorted(free, key=lambda i: float(sure[i]))[: int(share)]
        canvas = [mask if i in hidden else int(token[i]) if canvas[i] == mask else old for i, old in enumerate(canvas)]
    return canvas, steps


@pytest.mark.parametrize(("length", "steps"), [(12, 12), (12, 5), (10, 10), (8, 14), (1, 3)])
def test_p2_is_the_published_rule(model: dare_bench.Model, length: int, steps: int) -> None:
    answers = model.generate(PROMPTS, gen_length=length, steps=steps, text_after_eos="keep", trajectory=True)
    remasked = 0
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = model.loaded.encode(prompt)
        wanted, forwards = path_planned(model, [*ids, *[model.spec.mask] * length], steps)
        assert (answer.tokens, answer.nfe, answer.reference_nfe) == (wanted[len(ids) :], forwards, forwards)
        remasked += sum(event.op == "remask" for event in answer.trajectory or ())
    assert remasked or steps >= length or length < 12, "these prompts show that written tokens are masked again"


def test_p2_leaves_given_tokens(model: dare_bench.Model) -> None:
    mask, prompt = model.spec.mask, model.loaded.encode(PROMPTS[1])
    canvas = [mask, mask, 52, mask, mask, mask, 53, mask]
    decoding = {"gen_length": 8, "steps": 4, "text_after_eos": "keep"}
    (sample,) = model.loaded.generate([Request("0", "generate", prompt, decoding=decoding, canvas=canvas)])
    assert sample.error is None and sample.answer.tokens[2] == 52 and sample.answer.tokens[6] == 53
    assert [*prompt, *sample.answer.tokens] == path_planned(model, [*prompt, *canvas], 4)[0]


@pytest.mark.parametrize("fields", [{"alg": "maskgit_plus"}, {"alg": "topk_margin", "steps": 5}, {"alg": "entropy"}])
def test_the_other_algorithms_are_dreams(
    model: dare_bench.Model, dream: dare_bench.Model, fields: dict[str, Any]
) -> None:
    named = {"gen_length": 12, **fields}
    got, want = model.generate(PROMPTS, **named), dream.generate(PROMPTS, **named)
    assert [(a.tokens, a.nfe, a.reference_nfe) for a in got] == [(a.tokens, a.nfe, a.reference_nfe) for a in want]


@pytest.mark.parametrize("alg", ["p2", "origin", "entropy"])
@pytest.mark.parametrize("rng", ["ours", "reference"])
def test_draws_depend_on_the_row_alone(model: dare_bench.Model, alg: str, rng: str) -> None:
    named = {"gen_length": 10, "steps": 6, "alg": alg, "temperature": 4.0, "top_p": 0.99, "rng": rng, "seed": 5}
    together = model.generate(PROMPTS, **named)
    alone = [model.generate([prompt], **named)[0] for prompt in PROMPTS]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    other = model.generate(PROMPTS, **{**named, "seed": 6})
    assert [a.tokens for a in together] != [a.tokens for a in other]
    assert {a.tier for a in together} == {"E1" if rng == "reference" else "E2"}


def test_a_temperature_of_positions_draws_their_order(model: dare_bench.Model) -> None:
    named = {"gen_length": 12, "alg": "maskgit_plus", "alg_temp": 2.0, "trajectory": True}
    orders = [
        [event.position for event in model.generate(PROMPTS[:1], **named, seed=seed, rng=rng)[0].trajectory or ()]
        for seed in (1, 2)
        for rng in ("ours", "reference")
    ]
    assert len({tuple(order) for order in orders}) == 4 and all(len(order) == 12 for order in orders)


def test_likelihoods_are_of_the_shifted_network(model: dare_bench.Model) -> None:
    ids, mask = model.loaded.encode("12+34="), model.spec.mask
    token = model.loaded.encode("4")[0]
    (got,) = model.loglikelihood([(ids, [token])])
    want = model.logits([*ids, mask]).log_softmax(-1)[-1, token]
    assert got.estimator == "exact" and math.isclose(got.value, float(want), abs_tol=1e-5)


def test_the_mask_is_the_tokenizers(folder: Path, tmp_path: Path, model: dare_bench.Model) -> None:
    assert model.spec.mask == model.tokenizer.mask_token_id == 301 and model.spec.predicts == "next"  # type: ignore[union-attr]
    other = open_dcoder_folder.written(tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).unlink()
    with pytest.raises(CheckpointError, match=r"no mask id: .* give --model-args mask_id=N, in Python mask_id="):
        dare_bench.load(other, family="open_dcoder")
    assert dare_bench.load(other, family="open_dcoder", mask_id=7).spec.mask == 7


def test_a_saved_model_is_qwen2_again(model: dare_bench.Model, folder: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    assert family_of(tmp_path / "saved").name == "open_dcoder"
    with (
        safe_open(str(folder / "model.safetensors"), "pt") as before,
        safe_open(str(tmp_path / "saved" / "model.safetensors"), "pt") as after,
    ):
        assert set(before.keys()) == set(after.keys())
    again = dare_bench.load(tmp_path / "saved", family="open_dcoder", device="cpu", dtype="float32")
    assert torch.equal(again.logits([1, 2, 3]), model.logits([1, 2, 3]))


def test_a_tied_head_has_no_weights_of_its_own(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tied = open_dcoder_folder.written(tmp_path / "tied", tie_word_embeddings=True)
    weights = load_file(str(tied / "model.safetensors"))
    del weights["lm_head.weight"]
    save_file(weights, str(tied / "model.safetensors"), metadata={"format": "pt"})
    network = dare_bench.load(tied, family="open_dcoder", device="cpu", dtype="float32")
    states = network.loaded.pretrained().get_input_embeddings().weight  # type: ignore[union-attr]
    assert network.logits([5, 6]).shape == (2, len(states))


def test_drafts_change_no_answer(model: dare_bench.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 1 << 40)
    named = {"gen_length": 12, "alg": "maskgit_plus", "max_rows": 1}
    plain, drafted = model.generate(PROMPTS, **named), model.generate(PROMPTS, **named, draft_steps=2)
    assert [(a.tokens, a.reference_nfe) for a in drafted] == [(a.tokens, a.reference_nfe) for a in plain]
    assert sum(a.nfe for a in drafted) < sum(a.nfe for a in plain)
    with pytest.raises(DareError, match="strategy 'p2' writes over tokens"):
        model.generate(PROMPTS, draft_steps=2)


def test_refusals(model: dare_bench.Model, tmp_path: Path) -> None:
    with pytest.raises(DecodingError, match=r"alg_temp=0.5 does nothing with alg='p2'"):
        model.generate(PROMPTS, alg_temp=0.5)
    sliding = open_dcoder_folder.written(tmp_path / "sliding", use_sliding_window=True)
    with pytest.raises(CheckpointError, match="use_sliding_window=True; supported: False"):
        dare_bench.load(sliding, family="open_dcoder")


def test_reinforcement_learning_needs_tokens_that_stay(folder: Path, tmp_path: Path) -> None:
    need_package("accelerate")
    with pytest.raises(UsageError, match=r"rewrites tokens \(alg='p2'\).*; give --rollout alg=entropy"):
        dare_bench.train(
            method="cj_grpo", model=str(folder), family="open_dcoder", task="dare_arithmetic", rows=8, device="cpu",
            num_generations=2, per_device_train_batch_size=2, max_steps=1, output_path=str(tmp_path),
        )  # fmt: skip
