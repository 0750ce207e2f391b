"""A2D's published layouts: which sampler, special ids, chat prompt, saved files, what is refused; training on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from a2d_checkpoints import BASES, BOS, EOS, MASK, made, with_tokenizer
from require import need_package
from safetensors.torch import load_file

import dare_bench
from dare_bench.cli.doctor import checkpoint
from dare_bench.engine.validation import validate
from dare_bench.errors import CheckpointError, UsageError
from dare_bench.loading import family_of
from dare_bench.types import OpeningSettings

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(made(tmp_path_factory.mktemp("a2d") / "Qwen3-diffusion-mdlm"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy whose name does not say which sampler it needs."""
    return Path(shutil.copytree(whole, tmp_path / "checkpoint"))


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("name", ["Qwen3-0.6B-diffusion-mdlm-v0.1", "x-BD3LM-y", "bd3lm", "my_mdlm"])
def test_the_published_name_says_which_sampler(folder: Path, name: str) -> None:
    wanted = "a2d_bd3lm" if "bd3lm" in name.lower() else "a2d_mdlm"
    local = folder.rename(folder.with_name(name))
    assert family_of(local).name == wanted
    cached = local.parent / f"models--dllm-hub--{name}" / "snapshots" / "0123"
    assert family_of(Path(shutil.copytree(local, cached))).name == wanted


@pytest.mark.parametrize("name", ["checkpoint", "mdlm-or-bd3lm", "amdlm"])
def test_another_name_needs_the_family(folder: Path, name: str) -> None:
    folder = folder.rename(folder.with_name(name))
    message = "give --family a2d_bd3lm or --family a2d_mdlm"
    for check in (lambda: dare_bench.load(folder), lambda: list(checkpoint(str(folder), OpeningSettings()))):
        with pytest.raises(CheckpointError, match=message) as error:
            check()
        assert "\n" not in str(error.value) and f"'{name}'" in str(error.value)
    for family in ("a2d_mdlm", "a2d_bd3lm"):
        assert dare_bench.load(folder, family=family, device="cpu").spec.family == family


def test_it_is_never_causal(folder: Path) -> None:
    for opening in (
        lambda: dare_bench.load(folder, family="causal"),
        lambda: list(checkpoint(str(folder), OpeningSettings(family="causal"))),
    ):
        with pytest.raises(CheckpointError, match="code of a checkpoint is never run"):
            opening()
    edit(folder / "config.json", architectures=["A2DQwen3ForCausalLM"])
    with pytest.raises(CheckpointError, match=r"one of a2d_bd3lm, a2d_mdlm \(which have its network\)$"):
        dare_bench.load(folder)


def test_facts(whole: Path) -> None:
    mdlm, bd3lm = (dare_bench.load(whole, family=family, device="cpu") for family in ("a2d_mdlm", "a2d_bd3lm"))
    assert (mdlm.spec.mask_id, mdlm.spec.eos_ids, mdlm.spec.eot_id, mdlm.spec.pad_id) == (MASK, (EOS, 301), 301, EOS)
    assert mdlm.spec.bos_id == BOS
    assert (mdlm.spec.attention, mdlm.spec.block_length) == ("bidirectional", None)
    assert (bd3lm.spec.attention, bd3lm.spec.block_length) == ("block-causal", 32)
    assert (bd3lm.spec.blocks_from, mdlm.spec.blocks_from) == ("answer", "start")
    assert dare_bench.load(whole, device="cpu", pad_id=7).spec.pad_id == 7
    with pytest.raises(UsageError, match="pad_id='x' is not a token id"):
        dare_bench.load(whole, device="cpu", pad_id="x")  # type: ignore[arg-type]
    defaults = bd3lm.loaded.resolve({})
    assert (defaults.gen_length, defaults.block_length, defaults.steps) == (128, 32, 128)  # type: ignore[attr-defined]
    defaults = mdlm.loaded.resolve({})
    assert (defaults.gen_length, defaults.block_length, defaults.steps) == (128, 128, 128)  # type: ignore[attr-defined]


def test_chat_prompts_ask_for_no_thoughts(whole: Path) -> None:
    model = dare_bench.load(whole, device="cpu")
    assert model.tokenizer is not None

    def shown(**options: Any) -> str:
        assert model.tokenizer is not None
        return str(model.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True, **options))

    without = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert shown() == shown(enable_thinking=False) == without
    assert shown(enable_thinking=True) == without.removesuffix("<think>\n\n</think>\n\n")
    assert model.loaded.encode(MESSAGES) == model.loaded.encode(without)  # type: ignore[arg-type]


def test_a_missing_mask_token_is_added_as_dllms_loader_does(folder: Path, tmp_path: Path) -> None:
    with_tokenizer(folder, mask=None)
    model = dare_bench.load(folder, family="a2d_mdlm", device="cpu")
    assert model.spec.mask_id == MASK and model.tokenizer is not None
    assert model.tokenizer.convert_tokens_to_ids("<|mask|>") == model.tokenizer.mask_token_id == MASK
    model.save(tmp_path / "saved-mdlm")
    assert dare_bench.load(tmp_path / "saved-mdlm", device="cpu").spec.mask_id == MASK
    edit(folder / "config.json", vocab_size=MASK)
    state = load_file(folder / "model.safetensors")
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"][:MASK].clone()
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"no mask token '<\|mask\|>', and the embedding has no row left"
    ) as error:
        dare_bench.load(folder, family="a2d_mdlm", device="cpu")
    assert "\n" not in str(error.value)


def test_without_tokenizer_and_mask_id_it_is_refused(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match=r"no mask id.*give --model-args mask_id=N, in Python mask_id="):
        dare_bench.load(folder, family="a2d_mdlm", device="cpu")
    assert dare_bench.load(folder, family="a2d_mdlm", device="cpu", mask_id=MASK).spec.mask_id == MASK


Change = Callable[[Path], None]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another family": ({"model_type": "qwen3"}, "model_type='qwen3' in config.json is none of A2D's"),
    "biases": ({"attention_bias": True}, "attention_bias=True; supported: False"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    "scaled positions": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
    "words for sizes": ({"hidden_size": "wide"}, "hidden_size='wide'"),
    "other sizes": ({"intermediate_size": 40}, "has shape"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_one_line(folder: Path, what: str) -> None:
    change, message = REFUSED[what]
    edit(folder / "config.json", **change)
    with pytest.raises(CheckpointError, match=message) as error:
        dare_bench.load(folder, family="a2d_mdlm", device="cpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"factor": 0.5}, "factor"), ({"low_freq_factor": 4.0}, "low_freq_factor must be below"), ({"more": 1}, "more")],
)
def test_llama_scalings_that_are_none(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = made(tmp_path / "mdlm", "Llama", tied=False, scaled=True)
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    edit(folder / "config.json", rope_scaling=scaling | change)
    with pytest.raises(CheckpointError, match=message) as error:
        dare_bench.load(folder, device="cpu", mask_id=MASK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
@pytest.mark.parametrize("base", BASES)
def test_saved_as_published(tmp_path: Path, base: str, family: str) -> None:
    source = made(tmp_path / "source", base, tied=base != "Llama", scaled=base == "Llama")
    ids = list(range(50))
    model = dare_bench.load(source, family=family, device="cpu", mask_id=MASK)
    model.save(tmp_path / "saved")
    config, saved = (json.loads((place / "config.json").read_text()) for place in (source, tmp_path / "saved"))
    assert saved == config | {"dare_bench_family": family}
    before, after = (load_file(place / "model.safetensors") for place in (source, tmp_path / "saved"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    again = dare_bench.load(tmp_path / "saved", device="cpu", mask_id=MASK)
    assert again.spec.family == family and torch.equal(again.logits(ids), model.logits(ids))
    assert model.network is not None
    model.network.save_pretrained(tmp_path / "by transformers")
    again = dare_bench.load(tmp_path / "by transformers", family=family, device="cpu", mask_id=MASK)
    assert torch.equal(again.logits(ids), model.logits(ids))


@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
def test_validate_passes(whole: Path, family: str) -> None:
    checks = list(validate(str(whole), family=family, device="cpu"))
    assert checks and not [check for check in checks if not check.passed]


@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
def test_likelihoods_and_their_greedy_flag(whole: Path, family: str) -> None:
    model = dare_bench.load(whole, family=family, device="cpu")
    context, target = list(range(9, 40)), [5, 6, 7]
    fields = {} if family == "a2d_mdlm" else {"block_length": 4}
    (exact,), (drawn,) = (
        model.loglikelihood([(context, target)], estimator=kind, **fields)
        for kind in ("exact", "reference")  # type: ignore[arg-type]
    )
    assert exact.value < 0 and exact.stderr == 0
    assert abs(drawn.value - exact.value) < 6 * max(drawn.stderr, 0.05)
    assert exact.is_greedy is False


@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
def test_what_is_trained_keeps_its_family(whole: Path, tmp_path: Path, family: str) -> None:
    """Whatever its folder is called: named by the base's name or by hand, evaluated then and later."""
    need_package("accelerate")
    need_package("lm_eval")
    source = shutil.copytree(whole, tmp_path / ("mdlm" if family == "a2d_mdlm" else "checkpoint"))
    named = {} if family == "a2d_mdlm" else {"family": family}
    trained = dare_bench.train(
        method="sft", model=str(source), task="dare_sort", rows=16, max_steps=1, device="cpu", report_to="none",
        eval={"tasks": "dare_sort", "limit": 1}, output_path=str(tmp_path / "out"), **named,
    )  # fmt: skip
    families = [run.block.model.family for run in trained.runs if run.block is not None]
    assert families == [family]
    assert dare_bench.load(trained.path, device="cpu").spec.family == family
    again = dare_bench.train(
        method="sft", model=str(trained.path), task="dare_sort", rows=16, max_steps=1, device="cpu", report_to="none",
        output_path=str(tmp_path / "more"),
    )  # fmt: skip
    assert dare_bench.load(again.path, device="cpu").spec.family == family
