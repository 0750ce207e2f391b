"""Every family's published layout: opened, saved back tensor for tensor, refused in one line; who is opened as what."""

from __future__ import annotations

import json
import shutil

import golden
import numpy as np
import pytest
import torch
from published_layouts import KEYS, LAYOUTS, changed, config_of, made, rewritten, sharded, weights_of
from safetensors.torch import load_file

from dare_bench.cli import main
from dare_bench.cli.doctor import checkpoint
from dare_bench.errors import CheckpointError, UsageError
from dare_bench.loading import family_of, load, locate
from dare_bench.types import OpeningSettings

IDS = list(range(20))


# -- opening and saving ---------


@pytest.mark.parametrize("family", KEYS)
def test_the_reference_checkpoints_have_these_names(family):
    result = load_file(str(golden.PARITY / family / "model.safetensors"))
    assert {name: tuple(w.shape) for name, w in result.items()} == KEYS[family](config_of(family))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opened_and_saved_back_to_the_same_files(layout, tmp_path):
    source = made(tmp_path / "source", layout)
    model = load(source)
    want, before = model.logits(IDS), weights_of(source)
    model.save(tmp_path / "saved")
    after = weights_of(tmp_path / "saved")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    read = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "saved")]
    assert read[0] == read[1]
    sharded(source)
    again = load(source)
    assert torch.equal(again.logits(IDS), want)
    again.save(tmp_path / "from shards")
    assert weights_of(tmp_path / "from shards").keys() == before.keys()
    assert torch.equal(load(tmp_path / "from shards").logits(IDS), want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tensor_counts(layout, tmp_path):
    """A name that is read but leads nowhere would pass a round trip: each kind of tensor must move the logits."""
    source = made(tmp_path / "source", layout)
    model, before = load(source), weights_of(source)
    want = model.logits(IDS)
    last = f".{config_of(layout.split(',')[0], **LAYOUTS[layout])['num_hidden_layers'] - 1}."
    seen = set()
    for name, weight in before.items():
        kind = name.rpartition(".experts.")[2] if ".experts." in name else name.replace(last, ".N.")
        kind = kind.partition(".")[2] if ".experts." in name else kind
        if kind in seen or (".layers." in name and last not in name):
            continue
        seen.add(kind)
        stem = name.partition(".experts.")[0] + ".experts."
        other = {n: 2 * w + 0.5 for n, w in before.items() if n == name or (".experts." in name and n.startswith(stem))}
        moved = load(rewritten(source, **other)).logits(IDS)
        assert not torch.allclose(moved, want, atol=1e-5), f"{name} {tuple(weight.shape)} changes nothing"
        rewritten(source, **before)
    assert len(seen) >= 12


@pytest.mark.parametrize("family", ["llada_moe", "llada2", "fast_dllm_v2"])
def test_validate_passes(family, tmp_path, capsys):
    sharded(made(tmp_path / "source", family))
    with pytest.raises(SystemExit) as left:
        main(["validate", str(tmp_path / "source")])
    out = capsys.readouterr().out
    assert not left.value.code, out
    words = {line[6:].split(":")[0]: line[:4] for line in out.splitlines()}
    assert words.pop("tokenizer") == "skip"
    assert set(words.values()) == {"pass"}
    assert {"open", "mask id", "keys and round trip", "batch invariance"} <= set(words)


# -- who is opened as what ---------


@pytest.mark.parametrize(
    ("model_type", "architecture", "family"),
    [
        ("llada", "LLaDAModelLM", "llada"),
        ("llada", "LLaDAMoEModelLM", "llada_moe"),
        ("lladamoe", "LLaDAMoEModelLM", "llada_moe"),
        ("Dream", "DreamModel", "dream"),
        ("sdar", "SDARForCausalLM", "sdar"),
        ("sdar_moe", "SDARMoeForCausalLM", "sdar"),
        ("llada2_moe", "LLaDA2MoeModelLM", "llada2"),
        ("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", "fast_dllm_v2"),
    ],
)
def test_dispatch(model_type, architecture, family, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    assert family_of(tmp_path).name == family


def test_two_families_share_a_model_type():
    dense, moe = golden.model("llada"), golden.model("llada_moe")
    assert {config_of(family)["model_type"] for family in ("llada", "llada_moe")} == {"llada"}
    assert (dense.spec.family, moe.spec.family) == ("llada", "llada_moe")
    assert (type(dense.network).__name__, type(moe.network).__name__) == ("LLaDAModelLM", "LLaDAMoEModelLM")


def test_renamed_llada_moe_opens_too(tmp_path):
    want = load(made(tmp_path / "a", "llada_moe")).logits(IDS)
    assert torch.equal(load(changed(tmp_path / "a", model_type="lladamoe")).logits(IDS), want)


def test_dense_and_moe_sdar_are_one_family_with_two_networks():
    assert {golden.model(f).spec.family for f in ("sdar", "sdar_moe")} == {"sdar"}
    assert type(golden.model("sdar_moe").network).__name__ == "SDARMoeForCausalLM"


@pytest.mark.parametrize("family", KEYS)
def test_an_unknown_architecture_names_what_was_seen(family, tmp_path):
    source = changed(made(tmp_path / "a", family), architectures=["OtherLM"])
    with pytest.raises(
        CheckpointError, match=r"architecture='OtherLM' is of an unknown family .*; give --family NAME.*dream"
    ):
        load(source)
    selected = golden.model(family).spec.family
    assert load(source, family=selected).spec.family == selected


@pytest.mark.parametrize(
    ("family", "other"), [("dream", "sdar"), ("sdar", "dream"), ("llada2", "llada"), ("llada_moe", "llada2")]
)
def test_another_family_says_so_in_one_line(family, other, tmp_path):
    with pytest.raises(CheckpointError) as seen:
        load(made(tmp_path / "a", family), family=other)
    assert "\n" not in str(seen.value) and str(tmp_path / "a") in str(seen.value)


def test_unknown_family_names_the_closest():
    with pytest.raises(UsageError, match="unknown family 'llada21'; closest: llada2"):
        load(golden.PARITY / "llada2", family="llada21")


def test_llada21_is_asked_for():
    options = {"device": "cpu", "mask_id": golden.cases("llada21")["meta"]["mask_id"]}
    plain, edits = (
        load(golden.PARITY / "llada21", **options),
        load(golden.PARITY / "llada21", family="llada2.1", **options),
    )
    assert (plain.spec.family, edits.spec.family) == ("llada2", "llada2.1")
    names = ("editing", "editing_threshold", "max_post_steps", "num_to_transfer")

    def resolved(model, **fields):
        decoding = model.loaded.resolve(fields)
        return tuple(getattr(decoding, name) for name in names)

    assert resolved(plain) == (False, None, None, None)
    assert resolved(edits) == resolved(plain, editing=True) == (True, 0.9, 16, 1)
    assert resolved(plain, editing_threshold=0.5) == (True, 0.5, 16, 1)
    assert resolved(plain, max_post_steps=0) == (True, 0.9, 0, 1)
    assert resolved(plain, num_to_transfer=3) == (True, 0.9, 16, 3)
    assert resolved(edits, editing=False) == (False, None, None, None)
    case = next(c for c in golden.cases("llada21")["samplers"] if c["name"] == "default_post16")
    args = {k: v for k, v in case["args"].items() if k not in names}
    prompt = golden.unpadded(case)
    assert edits.generate(prompt, **args)[0].tokens == plain.generate(prompt, editing=True, **args)[0].tokens
    off = edits.generate(prompt, editing=False, **args)[0]
    assert off.nfe < edits.generate(prompt, **args)[0].nfe, "editing looks at every full block once more"


# -- what cannot be opened ---------

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
MOE = ["llada_moe", "sdar_moe", "llada2"]


def refused(folder, **options):
    with pytest.raises(CheckpointError) as seen:
        load(folder, **options)
    assert "\n" not in str(seen.value)
    return str(seen.value)


@pytest.mark.parametrize("family", MOE)
def test_a_missing_expert_is_named(family, tmp_path):
    output = refused(rewritten(made(tmp_path / "a", family), **{EXPERT: None}))
    assert "1 of " in output and f"weights missing, first {EXPERT!r}" in output


@pytest.mark.parametrize("family", MOE)
def test_an_expert_of_another_width_is_named(family, tmp_path):
    output = refused(rewritten(made(tmp_path / "a", family), **{EXPERT: torch.zeros(5, 64)}))
    assert f"{EXPERT} has shape [5, 64], config.json says [" in output


@pytest.mark.parametrize("family", MOE)
def test_nan_in_an_expert_is_found(family, tmp_path):
    source = made(tmp_path / "a", family)
    bad = weights_of(source)[EXPERT]
    bad[1, 2] = float("nan")
    output = refused(rewritten(source, **{EXPERT: bad}))
    assert "model.layers.1.mlp.experts" in output and "holds 1 NaN or infinite values" in output


@pytest.mark.parametrize("family", MOE)
def test_more_experts_than_the_config_says(family, tmp_path):
    source = made(tmp_path / "a", family)
    more = {EXPERT.replace(".3.", ".99."): torch.zeros(32, 64)}
    assert "weights that the family does not know" in refused(rewritten(source, **more))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("dream", {"use_sliding_window": True}),
        ("dream", {"hidden_act": "gelu"}),
        ("dream", {"rope_scaling": {"type": "yarn", "factor": 2.0}}),
        ("sdar", {"attention_bias": True}),
        ("sdar_moe", {"hidden_act": "gelu"}),
        ("llada_moe", {"attention_bias": True}),
        ("llada2", {"score_function": "softmax"}),
        ("llada2", {"use_sliding_window": True}),
        ("fast_dllm_v2", {"use_sliding_window": True}),
        ("fast_dllm_v2", {"rope_scaling": {"type": "yarn", "factor": 2.0}}),
    ],
)
def test_what_the_network_cannot_do_is_refused(family, fields, tmp_path):
    output = refused(changed(made(tmp_path / "a", family), **fields))
    ((name, value),) = fields.items()
    assert f"config has {name}=" in output and "supported: " in output
    if not isinstance(value, dict):
        assert repr(value) in output


@pytest.mark.parametrize(
    ("family", "fields", "says"),
    [
        ("llada2", {"n_group": 3}, "n_group=3; it must divide num_experts={experts}"),
        ("llada2", {"n_group": 0}, "n_group=0; it must be a whole number of at least 1"),
        ("llada2", {"n_group": 2, "topk_group": 3}, "topk_group=3; it must be at most n_group=2"),
        ("llada2", {"topk_group": 1.5}, "topk_group=1.5; it must be a whole number of at least 1"),
        ("llada2", {"num_experts_per_tok": 999}, "num_experts_per_tok=999; it must be at most num_experts={experts}"),
        (
            "llada2",
            {"n_group": 8, "topk_group": 1, "num_experts_per_tok": 3},
            "num_experts_per_tok=3; it must be at most 2, the experts in topk_group=1 of n_group=8 groups",
        ),
        ("llada2", {"block_size": 0}, "block_size=0; it must be a whole number of at least 1"),
        ("llada2", {"block_size": 1.5}, "block_size=1.5; it must be a whole number"),
        ("fast_dllm_v2", {"bd_size": 0}, "bd_size=0; it must be a whole number of at least 1"),
        ("sdar", {"block_size": -4}, "block_size=-4; it must be a whole number"),
        ("sdar", {"block_size": True}, "block_size=True; it must be a whole number"),
        ("sdar_moe", {"block_size": "4"}, "block_size='4'; it must be a whole number"),
        ("sdar_moe", {"num_experts_per_tok": 999}, "num_experts_per_tok=999; it must be at most num_experts={experts}"),
        ("sdar_moe", {"num_experts_per_tok": 0}, "num_experts_per_tok=0; it must be a whole number of at least 1"),
        ("sdar_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0; it must be a whole number of at least 1"),
        ("llada_moe", {"num_experts_per_tok": 99}, "num_experts_per_tok=99; it must be at most num_experts={experts}"),
        ("llada_moe", {"moe_layer_freq": [1]}, "moe_layer_freq=[1]; it must be null or a list with one entry for each"),
        ("llada_moe", {"moe_layer_freq": []}, "moe_layer_freq=[]; it must be null or a list"),
        ("llada_moe", {"moe_layer_freq": 1}, "moe_layer_freq"),
    ],
    ids=str,
)
def test_what_fails_in_a_forward_does_not_open(family, fields, says, tmp_path):
    output = refused(changed(made(tmp_path / "a", family), **fields))
    assert says.format(experts=config_of(family).get("num_experts")) in output


def test_null_groups_are_one(tmp_path):
    """The same experts as with one group: all of them may be chosen."""
    source = made(tmp_path / "a", "llada2")
    want = load(changed(source, n_group=1, topk_group=1)).logits(IDS)
    config = json.loads((source / "config.json").read_text()) | {"n_group": None, "topk_group": None}
    (source / "config.json").write_text(json.dumps(config))
    assert torch.equal(load(source).logits(IDS), want)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"mask_id": "7"}, UsageError, "mask_id='7' is not a token id; give a whole number"),
        ({"mask_id": True}, UsageError, "mask_id=True is not a token id"),
        ({"mask_id": 1.0}, UsageError, "mask_id=1.0 is not a token id"),
        ({"eos_id": "7"}, UsageError, "eos_id='7' is not a token id"),
        ({"eos_id": [5, "7"]}, UsageError, "eos_id='7' is not a token id"),
        ({"eos_id": [5, None]}, UsageError, "eos_id=None is not a token id"),
        ({"eot_id": [5]}, UsageError, r"eot_id=\[5\] is not a token id"),
        ({"eos_id": [-1, 5]}, CheckpointError, "eos_id=-1 is outside the vocabulary of "),
        ({"mask_id": 9999}, CheckpointError, "mask_id=9999 is outside the vocabulary of "),
        ({"eot_id": -1}, CheckpointError, "eot_id=-1 is outside the vocabulary of "),
        ({"mask_id": 5, "eos_id": [4, 5]}, CheckpointError, r"mask_id=5 is also an EOS id \(4, 5\); give mask_id= or"),
    ],
    ids=str,
)
def test_ids_given_to_load(options, error, says):
    with pytest.raises(error, match=says) as seen:
        load(golden.PARITY / "dream", **options)
    assert "\n" not in str(seen.value)


def test_ids_of_a_config_are_checked_too(tmp_path):
    source = made(tmp_path / "a", "dream")
    (source / "generation_config.json").unlink(missing_ok=True)
    assert "eos_id='9' is not a token id; give eos_id=" in refused(changed(source, eos_token_id=["9"]))
    assert load(source, eos_id=[np.int64(9)]).spec.eos_ids == (9,)


@pytest.mark.parametrize("family", KEYS)
def test_sizes_that_are_none_are_refused(family, tmp_path):
    output = refused(changed(made(tmp_path / "a", family), num_attention_heads=0))
    assert "num_attention_heads=0" in output


@pytest.mark.parametrize("family", ["sdar_moe", "llada2"])
def test_no_mask_id_anywhere(family, tmp_path):
    source = changed(made(tmp_path / "a", family), mask_token_id=None)
    assert (
        "no mask id: neither config.json (mask_token_id) nor the tokenizer names one; give --model-args mask_id=N"
        in refused(source)
    )
    assert load(source, mask_id=7).spec.mask_id == 7


# -- what a checkpoint decides itself ---------


@pytest.mark.parametrize(
    ("family", "block_size", "want"),
    [("sdar", 8, 8), ("sdar", 4, 4), ("sdar", None, 4), ("sdar_moe", None, 4), ("sdar_moe", 16, 16)],
)
def test_block_size_of_the_config(family, block_size, want, tmp_path):
    model = load(changed(made(tmp_path / "a", family), block_size=block_size))
    assert (model.spec.attention, model.spec.block_length) == ("block-causal", want)
    decoding = model.loaded.resolve({})
    assert (decoding.block_length, decoding.denoising_steps) == (want, want)
    assert torch.equal(model.logits(IDS), model.logits(IDS, block_length=want))
    assert not torch.allclose(model.logits(IDS), model.logits(IDS, block_length=want + 1), atol=1e-4)
    assert model.loaded.resolve({"block_length": 5}).denoising_steps == 5


def test_llada2_decodes_in_blocks_of_32():
    loaded = golden.model("llada2").loaded
    assert loaded.spec.block_length == 32
    decoding = loaded.resolve({})
    assert (decoding.block_length, decoding.steps, decoding.threshold) == (32, 32, 0.95)


def test_what_families_predict_and_see():
    seen = {f: (golden.model(f).spec.predicts, golden.model(f).spec.attention) for f in golden.FAMILIES}
    assert seen["dream"] == ("next", "bidirectional")
    assert seen["fast_dllm_v2"] == ("next", "block-causal")
    assert seen["llada"] == seen["llada_moe"] == ("same", "bidirectional")
    assert {seen[f] for f in golden.BLOCK_CAUSAL if f != "fast_dllm_v2"} == {("same", "block-causal")}


def test_sdar_stops_at_what_its_generation_config_names(tmp_path):
    source = made(tmp_path / "a", "sdar")
    named = json.loads((source / "generation_config.json").read_text())["eos_token_id"]
    assert load(source).spec.eos_ids == (tuple(named) if isinstance(named, list) else (named,))
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [11, 12]}))
    assert load(source).spec.eos_ids == (11, 12)
    assert load(source, eos_id=[13]).spec.eos_ids == (13,)
    assert load(changed(made(tmp_path / "b", "dream"), eos_token_id=9)).spec.eos_ids == (9,)


def test_dreamon_is_refused_with_its_reason(tmp_path):
    source = locate("tiny-dream")
    folder = shutil.copytree(source, tmp_path / "dreamon")
    words = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(words.replace("<|im_start|>", "<|expand|>"))
    with pytest.raises(
        CheckpointError, match=r"dreamon: a DreamOn checkpoint .*<\|expand\|>.*not implemented"
    ) as error:
        load(folder)
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="a DreamOn checkpoint"):
        list(checkpoint(str(folder), OpeningSettings()))
