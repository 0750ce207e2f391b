"""``dare-bench validate`` and ``convert --to a2d``: sound checkpoints pass, and each thing that can be wrong is
found or refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from a2d_checkpoints import BASES, MASK, VOCAB, causal, with_tokenizer
from published_layouts import sharded
from safetensors.torch import load_file

import dare_bench
from dare_bench.cli import main
from dare_bench.engine import soundness, validation
from dare_bench.loading import family_of, load
from dare_bench.model import Model

NAMES = ["open", "mask id", "tokenizer", "keys and round trip", "batch invariance", "bfloat16 flips"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "checkpoint"
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden.FOLDER / name, target / name)
    return target


class Stub:
    """A tokenizer that does one thing wrong."""

    def __init__(self, mask: int | None = None, shout: bool = False, breaks: bool = False) -> None:
        self.mask_token_id, self.shout, self.breaks = mask, shout, breaks

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        if self.breaks:
            raise OverflowError("no such piece")
        return {"input_ids": [ord(c) % 100 for c in text]}

    def encode(self, text: str, **_: Any) -> list[int]:
        return self(text)["input_ids"]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "other text"


def opened(folder: Path, tokenizer: Any = None, **ids: Any) -> Model:
    model = load(folder, device="cpu", dtype="float32", **ids)
    model.loaded.tokenizer = tokenizer
    return model


def test_a_sound_checkpoint_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["validate", str(folder)])
    out = capsys.readouterr().out
    assert not left.value.code
    assert [line[:4] for line in out.splitlines()] == ["pass", "pass", "skip", "pass", "pass", "pass"]
    with pytest.raises(SystemExit):
        main(["validate", str(folder), "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in checks] == NAMES
    assert set(checks[-1]["values"]) == {"tokens", "batch_flip_rate", "float32_flip_rate"}
    assert checks[-1]["values"]["tokens"] == 12 * 16


def test_a_cut_file_does_not_open(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SystemExit) as left:
        main(["validate", str(folder)])
    out = capsys.readouterr().out
    assert left.value.code == 1 and out.startswith("FAIL  open: ") and out.count("\n") == 1


def test_a_mask_id_that_cannot_be_is_found(folder: Path) -> None:
    spec = golden.model().spec
    model = opened(folder)
    model.loaded.spec = replace(spec, eot_id=spec.mask_id)
    passed, detail = soundness.mask_id(model)
    assert passed is False and "also an end" in detail
    passed, detail = soundness.mask_id(opened(folder, Stub(mask=3)))
    assert passed is False and "the tokenizer's mask token is 3" in detail


def test_a_tokenizer_that_changes_text_is_found(folder: Path) -> None:
    passed, detail = soundness.tokenizer(opened(folder, Stub()))
    assert passed is False and "decodes to 'other text'" in detail


def test_a_tokenizer_that_breaks_is_a_failed_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(folder, Stub(breaks=True))
    for module in ("engine.validation", "engine.opener"):
        monkeypatch.setattr(f"dare_bench.{module}.load", lambda *_, **__: model)
    result = {check.name: check for check in validation.validate(str(folder))}
    assert result["tokenizer"].passed is False and "no such piece" in result["tokenizer"].detail
    assert list(result) == NAMES, "the other checks must still be made"


@pytest.mark.parametrize(("prefix", "factor", "said"), [("new.", 1.0, "42 tensor names"), ("", 1.01, "logits differ")])
def test_a_bad_round_trip_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, factor: float, said: str
) -> None:
    from safetensors.torch import load_file, save_file

    save = Model.save

    def spoiled(self: Model, path: str | Path) -> None:
        save(self, path)
        file = Path(path) / "model.safetensors"
        changed = {prefix + name: tensor * factor for name, tensor in load_file(str(file)).items()}
        save_file(changed, str(file), metadata={"format": "pt"})

    monkeypatch.setattr(Model, "save", spoiled)
    passed, detail = validation.round_trip(opened(folder), folder, {"device": "cpu"})
    assert passed is False and said in detail


def test_rows_that_depend_on_their_neighbors_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Model.generate

    def leaky(self: Model, prompts: Any, *, max_rows: int | None = None, **settings: Any) -> Any:
        built = generate(self, prompts, max_rows=max_rows, **settings)
        if max_rows == 3:
            built[0].tokens[7] += 1
        return built

    monkeypatch.setattr(Model, "generate", leaky)
    passed, detail = validation.batch_invariance(opened(folder))
    assert passed is False and "prompt 4 of 4 differs from token 7" in detail


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return command(capsys, "convert", *words)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(words)
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out.strip(), err.strip()


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return with_tokenizer(causal(tmp_path / "qwen"), mask=None)


def test_the_network_is_the_same_and_its_tokenizer_has_a_mask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = list(range(40))
    for base in BASES:
        llama = base == "Llama"
        source = with_tokenizer(causal(tmp_path / base, base, tied=not llama, scaled=llama), mask=None)
        before = dare_bench.load(source, device="cpu", family="causal")
        out = tmp_path / f"{base}-mdlm"
        code, printed, note = run(capsys, str(source), "--to", "a2d", "-o", str(out))
        assert (code, printed) == (0, str(out)), note
        assert note.splitlines()[-1].startswith(
            f"the mask token is id {MASK}; train it before use: dare-bench train sft --model "
        )
        tensors = [load_file(folder / "model.safetensors") for folder in (source, out)]
        assert tensors[0].keys() == tensors[1].keys()
        assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
        config = json.loads((out / "config.json").read_text())
        assert config["architectures"] == [f"A2D{base}LMHeadModel"] and "rope_parameters" not in config
        model = dare_bench.load(out, device="cpu", family="a2d_bd3lm")
        assert model.spec.mask_id == MASK
        got, want = model.logits(ids, block_length=1)[:-1], before.logits(ids)[1:]  # which predict the next token
        assert torch.allclose(got, want, atol=2e-5), "causal, as it was"
        assert model.tokenizer is not None and before.tokenizer is not None
        assert model.tokenizer.mask_token_id == MASK
        text = "A few words, 12+34."
        assert model.tokenizer(text)["input_ids"] == before.tokenizer(text)["input_ids"]
        assert family_of(out).name == "a2d_mdlm"


def test_with_shift_the_causal_half_is_the_model_that_it_was(
    qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of one token are causal attention: answers and log-likelihoods are those of the source."""
    out, prompt, target = tmp_path / "out", [5, 80, 200, 7], [9, 33, 120]
    assert run(capsys, str(qwen), "--to", "a2d", "--shift", "-o", str(out))[0] == 0
    before = dare_bench.load(qwen, device="cpu", family="causal")
    after = dare_bench.load(out, device="cpu", family="a2d_bd3lm")
    assert after.spec.predicts == "next" and after.loaded.resolve({}).right_shift_logits is True
    kept = {"gen_length": 6, "text_after_eos": "keep"}
    assert after.generate([prompt], block_length=1, **kept)[0].tokens == before.generate([prompt], **kept)[0].tokens
    (wanted,) = before.loglikelihood([(prompt, target)])
    (got,) = after.loglikelihood([(prompt, target)], block_length=1)
    assert got.value == pytest.approx(wanted.value, abs=1e-4) and got.is_greedy == wanted.is_greedy
    after.save(tmp_path / "saved")
    saved = dare_bench.load(tmp_path / "saved", device="cpu")
    assert (saved.spec.family, saved.spec.predicts) == ("a2d_bd3lm", "next")
    masked = dare_bench.load(out, device="cpu", family="a2d_mdlm")
    given = masked.loaded.resolve({}), masked.loaded.resolve({"right_shift_logits": False})
    assert [decoding.right_shift_logits for decoding in given] == [True, False]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_without_a_row_for_the_mask_the_mean_of_all_is_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tied: bool, parts: int
) -> None:
    source = with_tokenizer(causal(tmp_path / "qwen", tied=tied, vocab=VOCAB - 1), mask=None)
    before = load_file(source / "model.safetensors")
    if parts > 1:
        sharded(source, parts)
    out = tmp_path / "out"
    code, _, note = run(capsys, str(source), "--to", "a2d", "-o", str(out))
    assert code == 0, note
    model = dare_bench.load(out, device="cpu", family="a2d_mdlm")
    assert (model.spec.mask_id, model.spec.vocab_size) == (MASK, VOCAB)
    after = {name: w for file in out.glob("*.safetensors") for name, w in load_file(file).items()}
    assert before.keys() == after.keys() and ("lm_head.weight" in after) is not tied
    for name, weight in before.items():
        assert torch.equal(after[name][: len(weight)], weight), name
        if len(after[name]) != len(weight):
            assert torch.allclose(after[name][-1], weight.mean(0), atol=1e-6)
    for file in out.glob("*.index.json"):
        total = json.loads(file.read_text())["metadata"]["total_size"]
        assert total == sum(weight.nbytes for weight in after.values())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "model_type='gpt2'"),
    "another class": ({"architectures": ["Qwen3Model"]}, "one of qwen2/Qwen2ForCausalLM"),
    "a mask already": ({"mask_token_id": 7}, "seems to be a diffusion model already"),
    "biases": ({"attention_bias": True}, "attention_bias=True"),
    "quantized": ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_one_line(qwen: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    change, message = REFUSED[what]
    file = qwen / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    code, out, err = run(capsys, str(qwen), "--to", "a2d", "-o", str(qwen.parent / "out"))
    assert code != 0 and not out and message in err and "\n" not in err
    assert sorted(path.name for path in qwen.parent.iterdir()) == ["qwen"]


def test_words_and_folders_that_are_wrong(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(qwen.parent / "out")
    assert "--to mdlm: not known; allowed: a2d" in run(capsys, str(qwen), "--to", "mdlm", "-o", out)[2]
    assert "exists; give a new folder" in run(capsys, str(qwen), "--to", "a2d", "-o", str(qwen))[2]
    shutil.copyfile(qwen / "config.json", qwen / "tokenizer.json")
    assert "no tokenizer.json with a vocabulary" in run(capsys, str(qwen), "--to", "a2d", "-o", out)[2]


SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.041666666666666664, "is_llama_config": True,
    "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 9,
    "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
    "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": True,
}  # fmt: skip
"""config.json of SmolLM2-135M-Instruct, without its sizes (30 layers, width 576, 1536, 49152 tokens)."""
CHAT = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def smollm2(folder: Path) -> Path:
    """SmolLM2 in its published layout, small and random: bfloat16, tied embeddings with one row for each token of a
    byte-level tokenizer that splits digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<empty_output>"]
    letters = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(special)
    sizes = {"hidden_size": 36, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": len(letters)}
    torch.manual_seed(3)
    network = LlamaForCausalLM(LlamaConfig(**{**SMOLLM2, **sizes})).to(torch.bfloat16)
    network.save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    named |= {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 2048, "add_prefix_space": False}
    (folder / "config.json").write_text(json.dumps({**SMOLLM2, **sizes}))
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": CHAT}))
    generation = {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_from_an_autoregressive_checkpoint_to_a_scored_diffusion_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/convert.md: convert, train, score before and after, ask."""
    monkeypatch.chdir(tmp_path)
    source = smollm2(tmp_path / "smollm2")
    before = load_file(source / "model.safetensors")
    assert "lm_head.weight" not in before and before["model.embed_tokens.weight"].dtype == torch.bfloat16

    def done(*words: str) -> str:
        code, out, err = command(capsys, *words)
        assert code == 0, err
        return out

    done("convert", "smollm2", "--to", "a2d", "-o", "smollm2-mdlm")
    train = "train sft --model smollm2-mdlm --task dare_arithmetic --report-to none --learning-rate 5e-3 --max-steps"
    done(*train.split(), "60", "-o", "sums")
    assert family_of(tmp_path / "sums").name == "a2d_mdlm", "the folder opens by itself"
    pairs = [(f"{a}+{b}=", str(a + b)) for a, b in ((12, 34), (45, 21), (77, 11))]
    loss = [
        -sum(answer.value for answer in dare_bench.load(folder, device="cpu").loglikelihood(pairs, mc_num=16))
        for folder in ("smollm2-mdlm", "sums")
    ]
    assert loss[1] < 0.75 * loss[0]
    scored = json.loads(done("eval", "--model", "sums", "--tasks", "dare_arithmetic", "--limit", "4", "--json"))
    assert scored
    code, _, err = command(capsys, "generate", "--model", "sums", "--gen-length", "4", "12+34=")
    assert code == 0 and len(err.splitlines()) == 1, "nothing but the speed: no warnings of libraries"
