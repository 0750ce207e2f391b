"""iLLaDA: variable length, the end of thoughts and the likelihoods against the published rules written down again; its
ids, layout and training."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import illada_folder
import pretend_device
import pytest
import torch
from require import need_package
from safetensors.torch import load_file, save_file

import dare_bench
from dare_bench.errors import CheckpointError, DecodingError
from dare_bench.harness.lm_eval.lm import AnsweringLM
from dare_bench.model_adapters.sampling import drafts

PROMPTS = ["12+34=", "sudoku\n.3.4\n4..3\n.431\n.14.\n=\n", "make 24 from 3 5 9="]
MASK = illada_folder.MASK
KEEP: dict[str, Any] = {"text_after_eos": "keep"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return illada_folder.written(tmp_path_factory.mktemp("illada") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> dare_bench.Model:
    return dare_bench.load(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def llada() -> dare_bench.Model:
    return dare_bench.load(illada_folder.LLADA, device="cpu", dtype="float32")


def boosted(
    logits: torch.Tensor, canvas: list[int], prompt: int, end: list[int], gen_length: int, boost: float, power: float
) -> torch.Tensor:
    """The boost of the end of thoughts, at the first mask of the canvas."""
    text = canvas[prompt:]
    if any(text[i : i + len(end)] == end for i in range(len(text))):
        return logits
    place = text.index(MASK)
    done = max((k for k in range(len(end)) if k <= place and text[place - k : place] == end[:k]), default=0)
    logits = logits.clone()
    logits[prompt + place, end[done]] += boost * ((place + 1) / gen_length) ** power
    return logits


def by_blocks(
    model: dare_bench.Model, prompt: list[int], gen_length: int, block: int, steps: int, stop: int | None, **think: Any
) -> tuple[list[int], int]:
    """LLaDA's ``var_generate`` at temperature 0: the response, and the forwards made."""
    canvas, forwards = list(prompt), 0
    for _ in range(gen_length // block):
        canvas += [MASK] * block
        for step in range(steps):
            logits = model.logits(canvas)
            forwards += 1
            if think and MASK in canvas:
                logits = boosted(logits, canvas, len(prompt), think["end"], gen_length, think["boost"], think["power"])
            probability, token = logits.softmax(-1).max(-1)
            due = block // steps + (step < block % steps)
            open_ = [i for i, old in enumerate(canvas) if old == MASK]
            for i in sorted(open_, key=lambda i: -float(probability[i]))[:due]:
                canvas[i] = int(token[i])
        if stop is not None and stop in canvas[len(prompt) :]:
            break
    return canvas[len(prompt) :], forwards


@pytest.mark.parametrize("fields", [{}, {"block_length": 4, "steps": 8}, {"block_length": 8, "cfg_scale": 0.5}])
def test_the_sampler_is_lladas(model: dare_bench.Model, llada: dare_bench.Model, fields: dict[str, Any]) -> None:
    named = {"gen_length": 16, **fields}
    swapped = {MASK: llada.spec.mask, llada.spec.mask: MASK}
    got, want = model.generate(PROMPTS, **named), llada.generate(PROMPTS, **named)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.tokens == [swapped.get(token, token) for token in theirs.tokens]
        assert (ours.nfe, ours.reference_nfe) == (theirs.nfe, theirs.reference_nfe)


@pytest.mark.parametrize(("block", "steps"), [(4, 4), (8, 3), (4, 2)])
def test_variable_length_has_no_masks_behind_the_block(model: dare_bench.Model, block: int, steps: int) -> None:
    named = {"gen_length": 16, "block_length": block, "steps": steps, "variable_length": True}
    whole = model.generate(PROMPTS, **named, **KEEP)
    cut = model.generate(PROMPTS, **named)
    ends = 0
    for prompt, kept, answer in zip(PROMPTS, whole, cut, strict=True):
        ids, eos = model.loaded.encode(prompt), model.spec.eos_ids[0]
        assert kept.tokens == by_blocks(model, ids, 16, block, steps, None)[0]
        want, forwards = by_blocks(model, ids, 16, block, steps, eos)
        end = want.index(eos) + 1 if eos in want else len(want)
        assert answer.tokens == want[:end] and answer.reference_nfe == forwards
        ends += forwards < kept.reference_nfe
    assert ends, "one of the answers ends early"


def test_steps_are_those_of_a_block(model: dare_bench.Model) -> None:
    named = {"gen_length": 16, "block_length": 8, "variable_length": True}
    decoding = model.loaded.resolve(named)
    assert decoding.steps == 8 and model.loaded.resolve({"gen_length": 16, "block_length": 8}).steps == 16
    assert model.generate(PROMPTS[1:2], **named, **KEEP)[0].nfe == 16


def test_rows_of_variable_length_do_not_depend_on_each_other(model: dare_bench.Model) -> None:
    named = {"gen_length": 16, "block_length": 4, "variable_length": True, "temperature": 2.0, "seed": 4}
    together = model.generate(PROMPTS, **named)
    assert [a.tokens for a in together] == [model.generate([p], **named)[0].tokens for p in PROMPTS]


def test_drafts_change_no_answer_of_variable_length(model: dare_bench.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 1 << 40)
    named = {"gen_length": 16, "block_length": 8, "variable_length": True, "max_rows": 1}
    plain, drafted = model.generate(PROMPTS, **named), model.generate(PROMPTS, **named, draft_steps=2)
    assert [(a.tokens, a.reference_nfe) for a in drafted] == [(a.tokens, a.reference_nfe) for a in plain]
    assert sum(a.nfe for a in drafted) < sum(a.nfe for a in plain)


def test_guidance_hides_the_finished_blocks_too(model: dare_bench.Model) -> None:
    ids = model.loaded.encode(PROMPTS[1])
    named = {"gen_length": 8, "block_length": 4, "variable_length": True, "cfg_scale": 1.0, **KEEP}
    (answer,) = model.generate([ids], **named)
    canvas = list(ids)
    for _ in range(2):
        known = len(canvas)
        canvas += [MASK] * 4
        for _ in range(4):
            plain, blind = model.logits(canvas), model.logits([MASK] * known + canvas[known:])
            probability, token = (blind + 2 * (plain - blind)).softmax(-1).max(-1)
            best = max((i for i, old in enumerate(canvas) if old == MASK), key=lambda i: float(probability[i]))
            canvas[best] = int(token[best])
    assert answer.tokens == canvas[len(ids) :]


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("end", [[52], [53, 10, 53]])
def test_the_end_of_thoughts_becomes_likelier(model: dare_bench.Model, variable: bool, end: list[int]) -> None:
    block = 8 if variable else 16
    named = {
        "gen_length": 16, "block_length": block, "variable_length": variable, "end_think_token_ids": end,
        "end_think_logit_boost": 60.0, "end_think_boost_power": 1.5, **KEEP,
    }  # fmt: skip
    plain = model.generate(PROMPTS, gen_length=16, block_length=block, variable_length=variable, **KEEP)
    changed = 0
    for prompt, without, answer in zip(PROMPTS, plain, model.generate(PROMPTS, **named), strict=True):
        ids, canvas = model.loaded.encode(prompt), []
        if variable:
            canvas, _ = by_blocks(model, ids, 16, block, block, None, end=end, boost=60.0, power=1.5)
        else:
            canvas, _ = by_blocks(model, ids, 16, 16, 16, None, end=end, boost=60.0, power=1.5)
        assert answer.tokens == canvas
        changed += answer.tokens != without.tokens
    assert changed


def test_a_device_gives_the_same_answers(model: dare_bench.Model, folder: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"variable_length": True, "block_length": 4},
        {"variable_length": True, "block_length": 8, "cfg_scale": 0.5},
        {"end_think_token_ids": [53, 10], "end_think_logit_boost": 60.0},
    ]
    pair = model.loaded.encode("12+34="), [52, 54]
    with pretend_device.available():
        there = dare_bench.load(folder, device="pretend", dtype="float32")
        for way in ways:
            got, want = (m.generate(PROMPTS, gen_length=16, **way) for m in (there, model))
            assert [a.tokens for a in got] == [a.tokens for a in want]
        (got_pair,) = there.loglikelihood([pair], llh="confidence", padd_eos=True)
    assert math.isclose(
        got_pair.value, model.loglikelihood([pair], llh="confidence", padd_eos=True)[0].value, abs_tol=1e-4
    )


def test_the_end_of_thoughts_is_the_tokenizers(model: dare_bench.Model) -> None:
    ids = tuple(model.tokenizer("</think>", add_special_tokens=False)["input_ids"])  # type: ignore[misc]
    assert model.loaded.resolve({"end_think_logit_boost": 1.0}).end_think_token_ids == ids and ids


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("guided", [0.0, 0.5])
def test_confidence_reveals_the_most_probable_token(model: dare_bench.Model, padded: bool, guided: float) -> None:
    pairs = [(model.loaded.encode("12+34="), [52, 54, 49]), (model.loaded.encode("7-45="), [45, 51, 56, 49])]
    got = model.loglikelihood(pairs, llh="confidence", padd_eos=padded, cfg_scale=guided, want_greedy=False)
    behind = [model.spec.eos_ids[0]] if padded else []
    for (context, target), answer in zip(pairs, got, strict=True):
        hidden, total = list(range(len(target))), 0.0
        while hidden:
            shown = [MASK if i in hidden else token for i, token in enumerate(target)]
            logits = model.logits([*context, *shown, *behind])
            if guided:
                blind = model.logits([*[MASK] * len(context), *shown, *behind])
                logits = blind + (guided + 1) * (logits - blind)
            losses = {i: -float(logits.log_softmax(-1)[len(context) + i, target[i]]) for i in hidden}
            best = min(losses, key=lambda i: losses[i])
            total -= losses[best]
            hidden.remove(best)
        assert math.isclose(answer.value, total, abs_tol=1e-4) and answer.stderr == 0
        assert (answer.nfe, answer.target_tokens) == (len(target) * (2 if guided else 1), len(target))


def test_monte_carlo_scores_before_a_visible_eos(model: dare_bench.Model) -> None:
    context, target = model.loaded.encode("12+34="), [52]
    (got,) = model.loglikelihood([(context, target)], padd_eos=True, estimator="mc", mc_num=16)
    want = model.logits([*context, MASK, model.spec.eos_ids[0]]).log_softmax(-1)[len(context), 52]
    assert math.isclose(got.value, float(want), abs_tol=1e-5)
    (without,) = model.loglikelihood([(context, target)])
    assert not math.isclose(got.value, without.value, abs_tol=1e-4)


def test_the_mask_is_known_by_the_family(
    model: dare_bench.Model, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert model.spec.family == "illada" and model.spec.mask == 5
    assert "mask_token_id" not in json.loads((folder / "config.json").read_text())
    dare_bench.load(folder)
    assert "its tokenizer has no mask token <[MASK]>; mask id 5, as published, which is" in caplog.text
    caplog.clear()
    assert dare_bench.load(folder, mask_id=7).spec.mask == 7 and not caplog.text


def test_a_saved_model_is_published_again(model: dare_bench.Model, folder: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "saved"))
    assert before | {"torch_dtype": "float32"} == after
    again = dare_bench.load(tmp_path / "saved", device="cpu", dtype="float32")
    assert torch.equal(again.logits([1, 2, 3]), model.logits([1, 2, 3]))


def test_published_shapes_with_a_tied_head(tmp_path: Path) -> None:
    tied = dare_bench.load(illada_folder.written(tmp_path / "tied", tie_word_embeddings=True), dtype="float32")
    assert tied.logits([8, 9]).shape == (2, 305)


@pytest.mark.parametrize(
    ("field", "projections"),
    [("attention_bias", ("q_proj", "k_proj", "v_proj", "o_proj")), ("mlp_bias", ("gate_proj", "up_proj", "down_proj"))],
)
def test_biases_where_the_config_has_them(
    model: dare_bench.Model, tmp_path: Path, field: str, projections: tuple[str, ...]
) -> None:
    folder = illada_folder.written(tmp_path / "biased", **{field: True})
    weights = load_file(str(folder / "model.safetensors"))
    for name, weight in list(weights.items()):
        if name.split(".")[-2] in projections:
            weights[name.replace(".weight", ".bias")] = torch.zeros(len(weight), dtype=weight.dtype)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    assert torch.equal(dare_bench.load(folder, dtype="float32").logits([8, 9]), model.logits([8, 9]))
    last = next(name for name in weights if name.endswith(f"{projections[-1]}.bias"))
    weights[last] += 1.0
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    assert not torch.equal(dare_bench.load(folder, dtype="float32").logits([8, 9]), model.logits([8, 9]))


def test_refusals(model: dare_bench.Model, tmp_path: Path) -> None:
    cases = {
        "holds the masks behind a block": {"variable_length": True, "cache": "prefix", "block_length": 4},
        "end_think_logit_boost=1 needs the ids": {"end_think_logit_boost": 1.0, "end_think_token_ids": []},
        "the boost depends on what": {"end_think_logit_boost": 1.0, "draft_steps": 1},
    }
    for message, fields in cases.items():
        with pytest.raises(DecodingError, match=message):
            model.generate(PROMPTS, gen_length=8, **fields)
    for fields, message in (
        ({"llh": "confidence", "estimator": "exact"}, "llh='confidence' is not a bound"),
        ({"llh": "greedy"}, "llh='greedy' is not known"),
        ({"padd_eos": 1}, "padd_eos=1 must be True or False"),
    ):
        with pytest.raises(DecodingError, match=message):
            model.loglikelihood([("1+1=", "2")], **fields)
    with pytest.raises(CheckpointError, match="iLLaDA config has layer_norm_eps="):
        dare_bench.load(illada_folder.written(tmp_path / "norm", layer_norm_eps=1e-5))


def test_reinforcement_learning_needs_masks_behind_a_block(folder: Path, tmp_path: Path) -> None:
    need_package("accelerate")
    with pytest.raises(DecodingError, match="variable_length=True no masks stand behind a block"):
        dare_bench.train(
            method="d1", model=str(folder), task="dare_arithmetic", rows=8, rollout={"variable_length": True},
            device="cpu", num_generations=2, per_device_train_batch_size=2, max_steps=1, output_path=str(tmp_path),
        )  # fmt: skip


SYSTEM, USER, REPLY = ({"role": role, "content": role.upper()} for role in ("system", "user", "assistant"))
TURNS = "{%- for m in messages -%}[{{ m['role'] }}:{{ m['content'] }}]{%- endfor -%}"
REFUSAL = "{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}"


@pytest.mark.parametrize(
    ("template", "messages", "prompt"),
    [
        (REFUSAL + TURNS, [SYSTEM, USER, REPLY, USER], "[user:SYSTEM\n\nUSER][assistant:ASSISTANT][user:USER]"),
        (REFUSAL + TURNS, [SYSTEM, SYSTEM, USER], "[user:SYSTEM\n\nSYSTEM\n\nUSER]"),
        (REFUSAL + TURNS, [SYSTEM, REPLY], "[user:SYSTEM][assistant:ASSISTANT]"),
        (REFUSAL + TURNS, [USER, REPLY], "[user:USER][assistant:ASSISTANT]"),
        (TURNS, [SYSTEM, USER], "[system:SYSTEM][user:USER]"),
    ],
)
def test_a_template_that_refuses_system_messages_has_them_before_the_users(
    template: str, messages: list[dict[str, str]], prompt: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model/tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    model = dare_bench.load(tmp_path / "model", device="cpu", dtype="float32")
    assert model.tokenizer.decode(model.loaded.encode(messages)) == prompt
    lm = AnsweringLM(model.loaded, template=True)
    assert lm.apply_chat_template([dict(message) for message in messages]) == prompt
    assert not lm.notes
