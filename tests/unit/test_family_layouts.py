"""Every family's published layout: opened, saved back tensor for tensor, refused in one line; who is opened as what;
and each rule of the families' decoding schemas."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import golden
import pytest
import torch
from safetensors.torch import load_file, save_file

from dare_bench.cli import main
from dare_bench.errors import CheckpointError, DareError, DecodingError, UsageError
from dare_bench.loading import family_of, load

IDS = list(range(20))
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
SWIGLU = {"gate_proj": "up", "up_proj": "up", "down_proj": "down"}


# -- the names and shapes that the publishers' files have, written down without our network's help -------------------------


def swiglu(path, width, inner):
    return {f"{path}.{p}.weight": (width, inner) if way == "down" else (inner, width) for p, way in SWIGLU.items()}


def experts(path, count, width, inner):
    found = {}
    for e in range(count):
        found |= swiglu(f"{path}.{e}", width, inner)
    return found


def attention(at, c, channels, biases=False, norms=False):
    d, q, kv = c["hidden_size"], c["num_attention_heads"] * channels, c["num_key_value_heads"] * channels
    outs = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    found = {f"{at}.self_attn.{name}.weight": (out, d) for name, out in outs.items()}
    found[f"{at}.self_attn.o_proj.weight"] = (d, q)
    if biases:
        found |= {f"{at}.self_attn.{name}.bias": (out,) for name, out in outs.items()}
    if norms:
        found |= {f"{at}.self_attn.{name}.weight": (channels,) for name in ("q_norm", "k_norm")}
    return found


def around(c, embed="embed_tokens"):
    d, v = c["hidden_size"], c["vocab_size"]
    found = {f"model.{embed}.weight": (v, d), "model.norm.weight": (d,), "lm_head.weight": (v, d)}
    for i in range(c["num_hidden_layers"]):
        found |= {f"model.layers.{i}.{n}.weight": (d,) for n in ("input_layernorm", "post_attention_layernorm")}
    return found


def dream_keys(c):
    found, d = around(c), c["hidden_size"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found |= attention(at, c, d // c["num_attention_heads"], biases=True)
        found |= swiglu(f"{at}.mlp", d, c["intermediate_size"])
    return found


def sdar_keys(c):
    found, d, moe = around(c), c["hidden_size"], c["model_type"] == "sdar_moe"
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found |= attention(at, c, c["head_dim"], norms=True)
        if moe and i not in c["mlp_only_layers"] and (i + 1) % c["decoder_sparse_step"] == 0:
            found[f"{at}.mlp.gate.weight"] = (c["num_experts"], d)
            found |= experts(f"{at}.mlp.experts", c["num_experts"], d, c["moe_intermediate_size"])
        else:
            found |= swiglu(f"{at}.mlp", d, c["intermediate_size"])
    return found


def llada_moe_keys(c):
    found, d = around(c), c["hidden_size"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found |= attention(at, c, d // c["num_attention_heads"], norms=c["qk_layernorm"])
        if not c["moe_layer_freq"][i]:
            found |= swiglu(f"{at}.mlp", d, c["dense_intermediate_size"])
            continue
        found[f"{at}.mlp.gate.weight"] = (c["num_experts"], d)
        found |= experts(f"{at}.mlp.experts", c["num_experts"], d, c["expert_intermediate_size"])
        if c["moe_router_enable_expert_bias"]:
            found[f"{at}.mlp.expert_bias"] = (c["num_experts"],)
        if c["shared_expert_intermediate_size"]:
            found |= swiglu(f"{at}.shared_expert", d, c["shared_expert_intermediate_size"])
    return found


def llada2_keys(c):
    found, d = around(c, "word_embeddings"), c["hidden_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found[f"{at}.attention.query_key_value.weight"] = (q + 2 * kv, d)
        found[f"{at}.attention.dense.weight"] = (d, q)
        found |= {f"{at}.attention.{n}.weight": (c["head_dim"],) for n in ("query_layernorm", "key_layernorm")}
        if i < c["first_k_dense_replace"]:
            found |= swiglu(f"{at}.mlp", d, c["intermediate_size"])
            continue
        found |= {f"{at}.mlp.gate.weight": (c["num_experts"], d), f"{at}.mlp.gate.expert_bias": (c["num_experts"],)}
        found |= experts(f"{at}.mlp.experts", c["num_experts"], d, c["moe_intermediate_size"])
        found |= swiglu(f"{at}.mlp.shared_experts", d, c["moe_intermediate_size"] * c["num_shared_experts"])
    return found


KEYS = {
    "dream": dream_keys,
    "sdar": sdar_keys,
    "sdar_moe": sdar_keys,
    "llada_moe": llada_moe_keys,
    "llada2": llada2_keys,
}
LAYOUTS = {
    "dream": {},
    "sdar": {},
    "sdar_moe": {},
    "llada_moe": {},
    "llada2": {},
    "sdar_moe, some layers dense": {"num_hidden_layers": 3, "mlp_only_layers": [0], "decoder_sparse_step": 1},
    "llada_moe, shared expert and bias": {
        "moe_layer_freq": [0, 1],
        "shared_expert_intermediate_size": 24,
        "moe_router_enable_expert_bias": True,
    },
    "llada2, two shared experts": {"num_shared_experts": 2, "first_k_dense_replace": 2},
}


def config_of(family, **changes):
    return {**json.loads((golden.PARITY / family / "config.json").read_text()), **changes}


def write(folder, family, config, weights):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generation = golden.PARITY / family / "generation_config.json"
    if generation.is_file():
        shutil.copyfile(generation, folder / generation.name)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def made(folder, layout, **changes):
    """A folder of random weights in a published layout."""
    family = layout.split(",")[0]
    config = config_of(family, **LAYOUTS[layout], **changes)
    config.setdefault("mask_token_id", golden.cases(family)["meta"]["mask_id"])
    generator = torch.Generator().manual_seed(5)
    shapes = KEYS[family](config)
    weights = {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}
    weights |= {name: 1 + w for name, w in weights.items() if name.endswith("norm.weight")}
    write(folder, family, config, weights)
    return folder


def changed(folder, **fields):
    """Edit config.json; None removes a field."""
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def weights_of(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(str(file))
    return found


def rewritten(folder, **changes):
    """Tensors replaced; None removes one."""
    weights = {**weights_of(folder), **changes}
    kept = {name: w for name, w in weights.items() if w is not None}
    save_file(kept, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def sharded(folder, parts=3):
    """As the hub has it: shards that cut through layers and experts, and an index."""
    weights = weights_of(folder)
    (folder / "model.safetensors").unlink()
    names, where = sorted(weights), {}
    for i in range(parts):
        file = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
        part = {name: weights[name] for name in names[i::parts]}
        save_file(part, str(folder / file), metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# -- opening and saving ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", KEYS)
def test_the_reference_checkpoints_have_these_names(family):
    found = load_file(str(golden.PARITY / family / "model.safetensors"))
    assert {name: tuple(w.shape) for name, w in found.items()} == KEYS[family](config_of(family))


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


@pytest.mark.parametrize("family", KEYS)
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


# -- who is opened as what -------------------------------------------------------------------------------------------------


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
    ],
)
def test_dispatch(model_type, architecture, family, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    assert family_of(tmp_path).name == family


def test_two_families_share_a_model_type():
    dense, moe = golden.model("llada"), golden.model("llada_moe")
    assert [json.loads((golden.PARITY / f / "config.json").read_text())["model_type"] for f in ("llada", "llada_moe")]
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
    with pytest.raises(CheckpointError, match=r"architecture='OtherLM' is of no known family; known: .*DreamModel"):
        load(source)
    mine = golden.model(family).spec.family
    assert load(source, family=mine).spec.family == mine


@pytest.mark.parametrize(("family", "other"), [("dream", "sdar"), ("sdar", "dream"), ("llada2", "llada"), ("llada_moe", "llada2")])
def test_another_family_says_so_in_one_line(family, other, tmp_path):
    with pytest.raises(CheckpointError) as seen:
        load(made(tmp_path / "a", family), family=other)
    assert "\n" not in str(seen.value) and str(tmp_path / "a") in str(seen.value)


def test_unknown_family_names_the_closest():
    with pytest.raises(UsageError, match="unknown family 'llada21'; closest: llada2"):
        load(golden.PARITY / "llada2", family="llada21")


def test_llada21_is_asked_for():
    options = {"device": "cpu", "mask_id": golden.cases("llada21")["meta"]["mask_id"]}
    plain, edits = load(golden.PARITY / "llada21", **options), load(golden.PARITY / "llada21", family="llada2.1", **options)
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


# -- what cannot be opened -------------------------------------------------------------------------------------------------

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
MOE = ["llada_moe", "sdar_moe", "llada2"]


def refused(folder, **options):
    with pytest.raises(CheckpointError) as seen:
        load(folder, **options)
    assert "\n" not in str(seen.value)
    return str(seen.value)


@pytest.mark.parametrize("family", MOE)
def test_a_missing_expert_is_named(family, tmp_path):
    said = refused(rewritten(made(tmp_path / "a", family), **{EXPERT: None}))
    assert "1 of " in said and f"weights missing, first {EXPERT!r}" in said


@pytest.mark.parametrize("family", MOE)
def test_an_expert_of_another_width_is_named(family, tmp_path):
    said = refused(rewritten(made(tmp_path / "a", family), **{EXPERT: torch.zeros(5, 64)}))
    assert f"{EXPERT} has shape [5, 64], config.json says [" in said


@pytest.mark.parametrize("family", MOE)
def test_nan_in_an_expert_is_found(family, tmp_path):
    source = made(tmp_path / "a", family)
    bad = weights_of(source)[EXPERT]
    bad[1, 2] = float("nan")
    said = refused(rewritten(source, **{EXPERT: bad}))
    assert "model.layers.1.mlp.experts" in said and "holds 1 NaN or infinite values" in said


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
    ],
)
def test_what_the_network_cannot_do_is_refused(family, fields, tmp_path):
    said = refused(changed(made(tmp_path / "a", family), **fields))
    ((name, value),) = fields.items()
    assert f"config has {name}=" in said and "supported: " in said
    if not isinstance(value, dict):
        assert repr(value) in said


@pytest.mark.parametrize("family", KEYS)
def test_sizes_that_are_none_are_refused(family, tmp_path):
    said = refused(changed(made(tmp_path / "a", family), num_attention_heads=0))
    assert "num_attention_heads=0" in said


@pytest.mark.parametrize("family", ["sdar_moe", "llada2"])
def test_no_mask_id_anywhere(family, tmp_path):
    source = changed(made(tmp_path / "a", family), mask_token_id=None)
    assert "no mask id: neither config.json (mask_token_id) nor the tokenizer names one; give mask_id=" in refused(source)
    assert load(source, mask_id=7).spec.mask_id == 7


# -- what a checkpoint decides itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "block_size", "want"), [("sdar", 8, 8), ("sdar", 4, 4), ("sdar", None, 4), ("sdar_moe", None, 4), ("sdar_moe", 16, 16)]
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
    assert seen["llada"] == seen["llada_moe"] == ("same", "bidirectional")
    assert {seen[f] for f in golden.BLOCK_CAUSAL} == {("same", "block-causal")}


def test_sdar_stops_at_what_its_generation_config_names(tmp_path):
    source = made(tmp_path / "a", "sdar")
    named = json.loads((source / "generation_config.json").read_text())["eos_token_id"]
    assert load(source).spec.eos_ids == (tuple(named) if isinstance(named, list) else (named,))
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [11, 12]}))
    assert load(source).spec.eos_ids == (11, 12)
    assert load(source, eos_id=[13]).spec.eos_ids == (13,)
    assert load(changed(made(tmp_path / "b", "dream"), eos_token_id=9)).spec.eos_ids == (9,)


# -- decoding fields -------------------------------------------------------------------------------------------------------

TAKES = {
    "dream": {"alg", "alg_temp", "eps", "max_new_tokens", "steps", "top_p", "top_k", "threshold", "cache"},
    "sdar": {"block_length", "denoising_steps", "remasking_strategy", "confidence_threshold", "eb_threshold"},
    "llada2": {"block_length", "steps", "threshold", "minimal_topk", "eos_early_stop", "editing_threshold"},
    "llada_moe": {"steps", "block_length", "cfg_scale", "remasking", "threshold", "factor", "cache"},
}


@pytest.mark.parametrize("family", TAKES)
def test_an_unknown_field_names_those_there_are(family):
    with pytest.raises(DecodingError, match=f"{family} has no decoding field 'alpha'; closest: ") as seen:
        golden.model(family).generate([[1]], alpha=1)
    listed = str(seen.value).rpartition("it has ")[2].split(", ")
    assert set(listed) >= TAKES[family] | {"gen_length", "temperature", "early_stop"}
    assert listed == sorted(listed)


REFUSED = [
    ("dream", {"remasking": "random"}, "dream has no decoding field 'remasking'"),
    ("dream", {"alg": "margin"}, "alg='margin' cannot be: allowed are 'origin', 'maskgit_plus', 'topk_margin', 'entropy'"),
    ("dream", {"steps": 0}, "steps=0 must be at least 1"),
    ("dream", {"steps": True}, "steps=True cannot be: must be a whole number"),
    ("dream", {"max_new_tokens": 0}, "gen_length=0 must be at least 1"),
    ("dream", {"max_new_tokens": 8, "gen_length": 9}, "max_new_tokens=8 and gen_length=9 are names of one field"),
    ("dream", {"alg_temp": -1}, "alg_temp=-1 cannot be"),
    ("dream", {"eps": 0}, "eps=0 cannot be"),
    ("dream", {"eps": 1}, "eps=1 cannot be"),
    ("dream", {"temperature": -0.5}, r"temperature=-0.5 must be 0 \(greedy\) or more"),
    ("dream", {"top_p": 0}, r"top_p=0.0 must be above 0 and at most 1 \(off\)"),
    ("dream", {"top_p": 1.5}, "top_p=1.5 must be above 0"),
    ("dream", {"top_k": -1}, r"top_k=-1 must be 0 \(off\) or more"),
    ("dream", {"top_k": False}, "top_k=False cannot be: must be a whole number"),
    ("dream", {"threshold": 0.5}, "threshold=0.5 belongs to alg='confidence_threshold', not to 'entropy'"),
    ("dream", {"alg": "confidence_threshold", "threshold": 2}, "threshold=2 cannot be"),
    ("dream", {"block_length": 8}, "block_length=8 belongs to cache='prefix' or 'dual'"),
    (
        "dream",
        {"alg": "confidence_threshold", "gen_length": 16, "steps": 5},
        "steps=5 must divide gen_length=16 with alg='confidence_threshold'; allowed: 1, 2, 4, 8, 16",
    ),
    ("dream", {"cache": "exact"}, "cache='exact' cannot be: allowed are 'none', 'prefix' or 'dual'"),
    ("dream", {"cache": "dual", "block_length": 0}, "block_length=0 must be at least 1"),
    ("dream", {"cache": "dual", "gen_length": 30, "block_length": 8}, "gen_length=30 is not divisible by block_length=8"),
    (
        "dream",
        {"cache": "prefix", "gen_length": 16, "block_length": 8, "steps": 9},
        "steps=9 is not divisible by the number of blocks, gen_length/block_length=2; nearest allowed: 8 or 10",
    ),
    ("dream", {"cache": "dual", "alg": "origin"}, "cache='dual' decodes by alg='entropy' or 'confidence_threshold'"),
    ("dream", {"cache": "dual", "alg_temp": 0.2}, "without alg_temp; given alg='entropy', alg_temp=0.2"),
    ("dream", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("sdar", {"steps": 4}, "sdar has no decoding field 'steps'; closest: .*denoising_steps"),
    ("sdar", {"remasking_strategy": "random"}, "allowed are 'sequential', 'low_confidence_static'"),
    ("sdar", {"block_length": 0}, "block_length=0 must be at least 1"),
    ("sdar", {"denoising_steps": 0}, "denoising_steps=0 must be at least 1"),
    ("sdar", {"block_length": True}, "block_length=True cannot be: must be a whole number"),
    ("sdar", {"gen_length": 0}, "gen_length=0 must be at least 1"),
    ("sdar", {"confidence_threshold": 1.1}, "confidence_threshold=1.1 cannot be"),
    ("sdar", {"eb_threshold": 0.2}, "eb_threshold=0.2 belongs to remasking_strategy='entropy_bounded', not to 'low_con"),
    ("sdar", {"remasking_strategy": "entropy_bounded", "eb_threshold": -1}, "eb_threshold=-1 cannot be"),
    ("sdar", {"temperature": -1}, "temperature=-1.0 must be 0"),
    ("sdar", {"top_k": -2}, "top_k=-2 must be 0"),
    ("sdar", {"top_p": 0.0}, "top_p=0.0 must be above 0"),
    ("sdar", {"cache": "prefix"}, "cache='prefix' cannot be: allowed are 'exact' or 'none'"),
    ("sdar", {"stopping_criteria_idx": "x"}, "stopping_criteria_idx='x' cannot be"),
    ("sdar", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("llada2", {"alg": "entropy"}, "llada2 has no decoding field 'alg'"),
    ("llada2", {"steps": 0}, "steps=0 must be at least 1"),
    ("llada2", {"gen_length": 0}, "gen_length=0 must be at least 1"),
    ("llada2", {"block_length": 0}, "block_length=0 must be at least 1"),
    ("llada2", {"minimal_topk": 0}, "minimal_topk=0 must be at least 1"),
    ("llada2", {"minimal_topk": 9, "gen_length": 8}, "minimal_topk=9 must be at most gen_length=8"),
    ("llada2", {"steps": True}, "steps=True cannot be: must be a whole number"),
    ("llada2", {"threshold": -0.1}, "threshold=-0.1 cannot be"),
    ("llada2", {"editing_threshold": 1.1}, "editing_threshold=1.1 cannot be"),
    ("llada2", {"editing": False, "max_post_steps": 3}, "max_post_steps=3 needs editing, but editing=False"),
    ("llada2", {"num_to_transfer": 0}, "num_to_transfer=0 must be at least 1"),
    ("llada2", {"max_post_steps": -1}, "max_post_steps=-1 must be 0 or more"),
    ("llada2", {"max_post_steps": True}, "max_post_steps=True cannot be: must be a whole number"),
    ("llada2", {"top_k": -1}, "top_k=-1 must be 0"),
    ("llada2", {"top_p": 2}, "top_p=2.0 must be above 0"),
    ("llada2", {"temperature": -1}, "temperature=-1.0 must be 0"),
    ("llada2", {"cache": "dual"}, "cache='dual' cannot be: allowed are 'exact' or 'none'"),
    ("llada2", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("llada_moe", {"gen_length": 30, "block_length": 8}, "gen_length=30 is not divisible by block_length=8"),
    ("llada_moe", {"cache": "dual", "cfg_scale": 1.0}, "is Fast-dLLM's sampler, which has no cfg_scale"),
    ("llada_moe", {"cfg_scale": -1}, r"cfg_scale=-1.0 must be 0 \(off\) or more"),
]


@pytest.mark.parametrize(("family", "fields", "says"), REFUSED, ids=lambda v: str(v) if isinstance(v, dict | str) else None)
def test_decoding_rules(family, fields, says):
    with pytest.raises(DecodingError, match=says) as seen:
        golden.model(family).loaded.resolve(fields)
    assert "\n" not in str(seen.value)


def test_users_names_and_defaults():
    dream = golden.model("dream").loaded.resolve({"max_new_tokens": 24})
    assert (dream.gen_length, dream.steps, dream.alg, dream.cache, dream.block_length) == (24, 24, "entropy", "none", None)
    cached = golden.model("dream").loaded.resolve({"cache": "dual", "alg": "confidence_threshold", "max_new_tokens": 64})
    assert (cached.block_length, cached.threshold) == (32, 0.9)
    sdar = golden.model("sdar").loaded.resolve({"remasking_strategy": "entropy_bounded"})
    assert (sdar.eb_threshold, sdar.confidence_threshold) == (0.35, 0.85)
    assert golden.model("sdar").loaded.resolve({}).remasking_strategy == "low_confidence_dynamic"
    none = golden.model("sdar").loaded.resolve({"block_length": None, "top_k": 3})
    assert (none.block_length, none.top_k) == (4, 3), "None means not given"


def test_every_error_is_one_of_ours():
    assert issubclass(CheckpointError, DareError) and issubclass(DecodingError, DareError)
    assert Path(golden.PARITY).is_dir()
