"""Opening, refusing and saving checkpoints in the published layout."""

from __future__ import annotations

import json
import os
import shutil
import sys

import golden
import pytest
import torch
from safetensors.torch import load_file, save_file

from dare_bench.cli import main
from dare_bench.errors import CheckpointError, DecodingError, ModelOutputError, PromptError, UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.open_native import _why_not_framed
from dare_bench.types import OpeningSettings

IDS = list(range(20))


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny LLaDA to damage."""
    target = tmp_path / "ckpt"
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden.FOLDER / name, target / name)
    return target


def edit(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "delete"}))


def shard(folder, parts=3):
    """Rewrite the weights as the hub does: shards and an index."""
    weights = load_file(str(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    names, where = sorted(weights), {}
    for i in range(parts):
        file = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
        part = {n: weights[n] for n in names[i::parts]}
        save_file(part, str(folder / file), metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_sharded_equals_single(folder):
    want = load(folder).logits(IDS)
    shard(folder)
    assert torch.equal(load(folder).logits(IDS), want)


def test_saved_equals_opened_and_keeps_the_published_layout(folder, tmp_path):
    (folder / "modeling_llada.py").write_text("# published code travels along\n")
    model = load(folder)
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(again.logits(IDS), model.logits(IDS))
    assert (
        load_file(str(tmp_path / "saved/model.safetensors")).keys()
        == load_file(str(folder / "model.safetensors")).keys()
    )
    before, after = (json.loads((d / "config.json").read_text()) for d in (folder, tmp_path / "saved"))
    assert before == after
    assert (tmp_path / "saved/modeling_llada.py").is_file()


def test_published_config_fields(tmp_path, folder):
    """Grouped-query heads, tied head, ratios instead of widths: what the published configuration allows."""
    from dare_bench.model_adapters.backbone.pretrained import pretrained
    from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM

    raw = json.loads((folder / "config.json").read_text())
    raw |= {"n_kv_heads": 2, "mlp_hidden_size": None, "mlp_ratio": 2, "weight_tying": True, "include_qkv_bias": True}
    torch.manual_seed(0)
    pretrained(LLaDAModelLM)(LLaDAConfig.from_dict(raw)).save_pretrained(tmp_path / "new")
    (tmp_path / "new/config.json").write_text(json.dumps(raw))
    model = load(tmp_path / "new")
    names = load_file(str(tmp_path / "new/model.safetensors"))
    assert "model.transformer.ff_out.weight" not in names
    assert names["model.transformer.blocks.0.k_proj.weight"].shape == (32, 64)
    assert names["model.transformer.blocks.0.ff_proj.weight"].shape == (128, 64)
    assert "model.transformer.blocks.0.q_proj.bias" in names
    assert model.logits(IDS).shape == (20, 128)


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_type", "sequential"), ("alibi", True), ("layer_norm_type", "default"), ("rope", False)],
)
def test_what_the_network_cannot_do_is_refused(folder, name, value):
    edit(folder, **{name: value})
    with pytest.raises(CheckpointError, match=f"config has {name}={value!r}; supported"):
        load(folder)


def test_ids_override_config(folder):
    assert load(folder).spec.mask_id == 126
    spec = load(folder, mask_id=5, eos_id=[7, 8], eot_id=9).spec
    assert (spec.mask_id, spec.eos_ids, spec.eot_id) == (5, (7, 8), 9)
    edit(folder, mask_token_id=None)
    with pytest.raises(CheckpointError, match="no mask id"):
        load(folder)
    assert load(folder, mask_id=3).spec.mask_id == 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"model_type": "qwen3", "architectures": ["Other"], "auto_map": {"AutoModel": "m.EfficientDLM"}},
            "is Efficient-DLM, which does not open",
        ),
        (
            {"model_type": "edlm", "architectures": None},
            "is Efficient-DLM, which does not open: no public code states its mask id, its weight names",
        ),
        ({"model_type": "qwen3", "architectures": ["EfficientDLM"]}, "is Efficient-DLM, which does not open"),
    ],
)
def test_published_models_that_no_family_opens(folder, fields, says, capsys):
    edit(folder, **fields)
    with pytest.raises(CheckpointError, match=says) as refusal:
        load(folder)
    assert "use its authors' code, or add the family by a plugin" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(SystemExit):
        main(["doctor", "--model", str(folder)])
    assert says in capsys.readouterr().err


def test_another_family_names_what_was_seen(folder):
    edit(folder, model_type="gpt2", architectures=["GPT2LMHeadModel"])
    with pytest.raises(
        CheckpointError, match=r"architecture='GPT2LMHeadModel', but config.json names a mask token .*--family NAME"
    ):
        load(folder)
    edit(folder, model_type="mine", architectures=["Mine"])
    with pytest.raises(
        CheckpointError,
        match=r"'Mine' is of an unknown family \(transformers has no model_type 'mine'\); .* a2d_bd3lm",
    ):
        load(folder)
    assert load(folder, family="llada").logits(IDS).shape == (20, 128)
    with pytest.raises(UsageError, match="unknown family 'lada'; closest: llada"):
        load(folder, family="lada")


def test_the_attention_backend_changes_no_logits(folder):
    model = load(folder)
    assert model.spec.attention_backend == "sdpa" and model.load_settings == {}
    for name in ("padded", "flex"):
        other = load(folder, attention=name)
        assert (other.spec.attention_backend, other.network.attention.name) == (name, name)
        assert torch.allclose(other.logits(IDS), model.logits(IDS), atol=1e-5)
    with pytest.raises(UsageError, match="attention='fast' is not known; allowed: auto, sdpa"):
        load(folder, attention="fast")


def test_compiled_steps_take_padded_attention_and_one_device(folder):
    assert not load(folder).spec.compiled
    model = load(folder, compile=True)
    assert (model.spec.compiled, model.spec.attention_backend) == (True, "padded")
    assert model.load_settings == {"compile": True}
    with pytest.raises(UsageError, match="compile=True takes attention='padded', not 'sdpa'; leave attention out"):
        load(folder, compile=True, attention="sdpa")
    with pytest.raises(UsageError, match="compile=True takes one device, not device='auto'"):
        load(folder, compile=True, device="auto")


@pytest.mark.parametrize(
    ("family", "dtype", "capability", "settings", "reason"),
    [
        ("llada", "float32", 8, {}, ""),
        ("llada", "float32", 8, {"attention": "padded"}, ""),
        ("llada", "bfloat16", 9, {"attention": "varlen"}, "takes attention='padded', not 'varlen'"),
        ("llada", "bfloat16", 9, {"device": "auto"}, "takes one device"),
        ("llada", "bfloat16", 9, {"adapter": "lora"}, "takes no adapter"),
        ("llada_moe", "bfloat16", 9, {}, ""),
        ("llada_moe", "float32", 9, {}, "takes experts in bfloat16 only"),
        ("llada_moe", "bfloat16", 12, {}, "on a GPU of compute capability 9 or 10"),
    ],
)
def test_steps_that_can_be_captured_on_a_gpu(family, dtype, capability, settings, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    loaded = golden.model(family).loaded
    given = torch.device("cuda"), getattr(torch, dtype), OpeningSettings(**settings)
    found = _why_not_framed(loaded.family, loaded.network.arch, *given)
    assert found == "" if reason == "" else reason in found


def test_missing_shard(folder):
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="1 of 3 shards missing"):
        load(folder)


def test_truncated_shard(folder):
    shard(folder)
    file = folder / "model-00003-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        load(folder)


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        framed(b"not json at all!"),
        framed(b"[]"),
        framed(b'{"a": 1}'),
        framed(b'{"a": {"shape": [1]}}'),
    ],
)
def test_damaged_weights(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="safetensors file"):
        load(folder)


def test_a_pickle_is_never_loaded(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle, which is never loaded"):
        load(folder)


def test_an_adapter_inside_a_checkpoint_is_refused(folder):
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(CheckpointError, match=r"both a checkpoint and an adapter .* move the adapter"):
        load(folder, device="cpu")


def test_missing_and_surplus_weights(folder):
    weights = load_file(str(folder / "model.safetensors"))
    lost = dict(weights)
    lost.pop("model.transformer.ln_f.weight")
    save_file(lost, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="1 of 21 weights missing"):
        load(folder)
    save_file({**weights, "model.extra": torch.zeros(1)}, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"'model\.extra'"):
        load(folder)


def test_wrong_vocabulary(folder):
    edit(folder, embedding_size=200, vocab_size=200)
    with pytest.raises(CheckpointError, match=r"shape \[128, 64\], config.json says \[200, 64\]"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "value"), [("n_heads", 0), ("d_model", "64"), ("vocab_size", None), ("max_sequence_length", None)]
)
def test_sizes_that_are_none(folder, name, value):
    edit(folder, **{name: value})
    with pytest.raises(CheckpointError, match=f"{name}={value!r}|describes no network"):
        load(folder)


def test_a_failed_save_says_so_and_leaves_the_target_as_it_was(folder, tmp_path, monkeypatch):
    import errno

    from safetensors import SafetensorError

    from dare_bench.errors import SaveError

    model = load(folder)
    model.save(tmp_path / "saved")
    before = {p.name: p.read_bytes() for p in (tmp_path / "saved").iterdir()}
    for error in (OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left on device")):

        def full(path, error=error):
            raise error

        monkeypatch.setattr(model.network, "save_pretrained", full)
        with pytest.raises(SaveError, match=r"cannot save the checkpoint to .*saved: No space left"):
            model.save(tmp_path / "saved")
    assert {p.name: p.read_bytes() for p in (tmp_path / "saved").iterdir()} == before
    assert {p.name for p in tmp_path.iterdir()} == {"saved", "ckpt"}
    with pytest.raises(SaveError, match="the folder the model was opened from"):
        model.save(folder)


@pytest.mark.parametrize(("damage", "says"), [("text", "is damaged: not JSON"), ("fifo", "it is a FIFO")])
def test_a_source_that_was_damaged_since_is_a_save_error(folder, tmp_path, damage, says):
    from dare_bench.errors import SaveError

    model = load(folder)
    (folder / "config.json").unlink()
    if damage == "fifo":
        os.mkfifo(folder / "config.json")
    else:
        (folder / "config.json").write_text("{")
    with pytest.raises(SaveError, match=says):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_what_a_killed_save_leaves_is_gone_after_the_next(folder, tmp_path, monkeypatch):
    model = load(folder)
    with monkeypatch.context() as patch:
        patch.setattr("dare_bench.model_adapters.saving._put", lambda *_: sys.exit("killed here"))
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(SystemExit):
            model.save(tmp_path / "saved")
    assert len(list(tmp_path.iterdir())) == 2
    model.save(tmp_path / "saved")
    assert {p.name for p in tmp_path.iterdir()} == {"saved", "ckpt"}


def test_saving_over_a_sharded_checkpoint_leaves_no_stale_index(folder, tmp_path):
    target = tmp_path / "old"
    shutil.copytree(folder, target)
    shard(target)
    model = load(folder)
    model.save(target)
    assert sorted(p.name for p in target.glob("model*")) == ["model.safetensors"]
    assert torch.equal(load(target).logits(IDS), model.logits(IDS))


def test_broken_config(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is damaged: not JSON"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load(folder)


def test_no_such_checkpoint():
    with pytest.raises(CheckpointError, match=r"no checkpoint 'tiny-lada': .* bundled name"):
        load("tiny-lada")


@pytest.mark.parametrize("name", ["hf", "vllm"])
def test_lm_evals_kinds_of_model_are_told_apart_from_checkpoints(name):
    with pytest.raises(CheckpointError, match=r"model is the checkpoint itself.*use --model X"):
        load(name)


@pytest.mark.parametrize(("name", "near"), [("tiny-lada", "closest: tiny-llada"), ("qqq", "")])
def test_no_name_is_near_where_none_is_alike(name, near):
    with pytest.raises(CheckpointError) as caught:
        load(name)
    assert near in str(caught.value) and ("closest" in str(caught.value)) == bool(near)


def test_nan_weights_are_named(folder):
    weights = load_file(str(folder / "model.safetensors"))
    weights["model.transformer.blocks.1.q_proj.weight"][0, 0] = float("nan")
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"blocks\.1\.q_proj\.weight holds 1 NaN"):
        load(folder)


def test_nan_logits_are_an_error(folder):
    model = load(folder)
    with torch.no_grad():
        model.network.model.transformer.ln_f.weight[0] = float("nan")
    with pytest.raises(ModelOutputError, match="logits must be finite"):
        model.generate([[1, 2]], gen_length=8)
    with pytest.raises(ModelOutputError, match="NaN or infinite losses"):
        model.loglikelihood([([1], [2, 3])])
    with pytest.raises(ModelOutputError, match="NaN logits"):
        model.logits([1, 2])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"gen_length": 30, "block_length": 8}, "gen_length=30 is not divisible by block_length=8; allowed"),
        ({"gen_length": 32, "block_length": 8, "steps": 10}, "nearest allowed: 8 or 12"),
        ({"gen_length": 0}, "gen_length=0 is not valid: it must be .* 1"),
        ({"gen_lenght": 8}, "closest: gen_length"),
        ({"remasking": "entropy"}, "must be 'low_confidence' or 'random'"),
        ({"temperature": -1}, "temperature=-1 is not valid: it must be .* 0"),
        ({"threshold": 0.9, "factor": 1.0}, "exclude each other"),
        ({"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
        ({"rng": "mine"}, "must be 'ours' or 'reference'"),
        ({"eos_id": 9999}, "eos_id=9999 is outside the vocabulary; allowed: 0 to 127"),
        ({"mask_id": -1}, "mask_id=-1 is outside the vocabulary"),
        ({"eot_id": "abc"}, "eot_id='abc' is not valid"),
        ({"temperature": float("nan")}, "temperature=nan is not valid: it must be a finite number"),
        ({"threshold": 1.5}, "threshold=1.5 is not valid"),
        ({"factor": -1}, "factor=-1 is not valid"),
        ({"steps": True}, "steps=True is not valid: it must be a whole number"),
    ],
)
def test_decoding_fields_are_checked(fields, says):
    with pytest.raises(DecodingError, match=says) as seen:
        golden.model().generate([[1, 2]], **fields)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([1] * 250, r"250 tokens \+ gen_length=16 is 266 tokens; the model's context limit is 256"),
        ([1, 500], "token id 500 is outside the vocabulary; allowed: 0 to 127"),
        ([1, "x"], "prompt item 'x' is not a token id"),
        ("text", "has no tokenizer, so it cannot read text"),
        ([{"role": "user", "content": "x"}], "has no tokenizer, so it cannot read messages"),
    ],
)
def test_prompts_are_checked(prompt, says):
    with pytest.raises(PromptError, match=says):
        golden.model().generate([prompt], gen_length=16)


def test_devices_and_dtypes_are_checked():
    with pytest.raises(UsageError, match="allowed: float32"):
        load(golden.FOLDER, dtype="int8")
    with pytest.raises(UsageError, match="device 'gpu' is not known"):
        load(golden.FOLDER, device="gpu")


def test_bfloat16_runs():
    answer = load(golden.FOLDER, dtype="bfloat16").generate([[1, 2, 3]], gen_length=8)[0]
    assert len(answer.tokens) == 8
