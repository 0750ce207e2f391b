"""Folders whose config.json transformers 4 or 5 saved: the same network, with the theta that the file has."""

from __future__ import annotations

import json

import golden
import pytest
import torch
from published_layouts import changed, config_of, made
from saved_configs import CHANGED, FAMILIES, saved
from transformers import AutoConfig

from dare_bench.errors import CheckpointError
from dare_bench.loading import load
from dare_bench.model_adapters.backbone.pretrained import register_auto

IDS = list(range(20))
VERSIONS = ("4.57.6", "5.0.0", "5.23.0")


def weights(folder, family):
    """A folder with the weights of a family, and its reference config."""
    if family == "llada":
        folder.mkdir()
        (folder / "model.safetensors").symlink_to(golden.PARITY / "llada" / "model.safetensors")
    else:
        made(folder, "llada2" if family == "llada22" else family)
    return with_config(folder, config_of(family))


def with_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(folder, family):
    return load(folder, mask_id=golden.cases(family)["meta"]["mask_id"]).logits(IDS)


def with_changes(folder, family):
    """The folder with the reference config and the changed values, where transformers 4 writes them."""
    known = config_of(family)
    return with_config(folder, known | {name: value for name, value in CHANGED.items() if name in known})


@pytest.mark.parametrize("family", FAMILIES)
def test_all_versions_describe_one_network(family, tmp_path):
    folder = weights(tmp_path / "a", family)
    default = logits(folder, family)
    want = logits(with_changes(folder, family), family)
    assert not torch.allclose(want, default, atol=1e-4), "theta and share change nothing"
    for version in VERSIONS:
        config = saved(version, family)
        model = load(with_config(folder, config), mask_id=golden.cases(family)["meta"]["mask_id"])
        assert torch.equal(model.logits(IDS), want), version
        model.save(tmp_path / version)
        assert json.loads((tmp_path / version / "config.json").read_text()) == config
        assert torch.equal(logits(tmp_path / version, family), want)


@pytest.mark.parametrize(
    ("field", "theta", "version"),
    [
        ("rope_parameters", 10001.0, "5.0.0"),
        ("rope_parameters", 10000.0, "4.57.6"),
        ("rope_parameters", 10000.0, None),
        ("rope_scaling", 10000.0, "5.0.0"),
    ],
)
def test_two_thetas_are_refused(field, theta, version, tmp_path):
    """But the 10000.0 that transformers 5.0 writes for the theta of LLaDA2 and LLaDA-MoE."""
    config = {**saved("5.0.0", "llada2"), "transformers_version": version, "rope_parameters": None}
    config[field] = {"rope_type": "default", "rope_theta": theta}
    with pytest.raises(CheckpointError, match=rf"rope_theta=123\.0, and rope_theta={theta} in {field}; keep the one"):
        load(with_config(weights(tmp_path / "a", "llada2"), config))


def flat(folder, **rope):
    """A folder as transformers' own classes describe it: nothing at the top level."""
    return changed(folder, rope_theta=None, rope_scaling=None, partial_rotary_factor=None, rope_parameters=rope)


def test_theta_and_share_are_read_where_transformers_5_writes_them(tmp_path):
    folder = with_changes(weights(tmp_path / "a", "llada2"), "llada2")
    want = logits(folder, "llada2")
    assert torch.equal(logits(flat(folder, rope_type="default", **CHANGED), "llada2"), want)
    rope = {"rope_type": "default", "attention_factor": None, "original_max_position_embeddings": None, **CHANGED}
    for by_kind in ({"full_attention": rope}, {"full_attention": rope, "sliding_attention": rope}):
        assert torch.equal(logits(flat(folder, **by_kind), "llada2"), want)


def test_auto_config_reads_them_too(tmp_path):
    folder = flat(made(tmp_path / "a", "dream"), rope_type="default", rope_theta=123.0)
    register_auto(golden.model("dream").loaded.family.network)
    config = AutoConfig.from_pretrained(folder)
    assert config.rope_theta == 123.0
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["rope_theta"] == 123.0 and not written.get("rope_parameters")


PLAIN = {"rope_type": "default", "rope_theta": 1e4}
REFUSED = [
    (
        "rope_parameters",
        {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
        },
        "(rope_type='yarn')",
    ),
    ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 1.0}, "(rope_type='linear')"),
    ("rope_parameters", {"type": "dynamic", "rope_theta": 1e4}, "(rope_type='dynamic')"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "factor": 2.0}, "'factor': 2.0"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": -1.0}, "'rope_theta': -1.0"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2]}, "mrope_section"),
    ("rope_parameters", {"rope_type": "default"}, "without rope_theta; add it"),
    ("rope_parameters", [1e4], "[10000.0]"),
    ("rope_parameters", {"full_attention": PLAIN, "sliding_attention": {**PLAIN, "rope_type": "yarn"}}, "'yarn')"),
    ("rope_parameters", {"full_attention": PLAIN, "sliding_attention": {"rope_theta": 1e5}}, "equal for all kinds"),
    ("rope_parameters", {"full_attention": PLAIN, "rope_theta": 1e4}, "supported: null, or"),
    ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "(rope_type='llama3')"),
    ("rope_scaling", "yarn", "'yarn'"),
]


@pytest.mark.parametrize("family", ["dream", "llada"])
@pytest.mark.parametrize(("field", "value", "says"), REFUSED, ids=str)
def test_scaled_positions_are_refused_by_the_field_that_the_file_has(family, field, value, says, tmp_path):
    (tmp_path / "model.safetensors").symlink_to(golden.PARITY / family / "model.safetensors")
    config = config_of(family)
    known = {name: v for name, v in config.items() if name not in ("rope_theta", "rope_scaling")}
    with pytest.raises(CheckpointError) as seen:
        load(with_config(tmp_path, {**known, field: value}))
    assert f"config has {field}=" in str(seen.value) and says in str(seen.value)


def test_a_share_that_llada_does_not_have_is_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(golden.PARITY / "llada" / "model.safetensors")
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor=0\.5; supported: 1"):
        load(with_config(tmp_path, config_of("llada") | {"rope_parameters": rope}))
