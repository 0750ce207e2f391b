"""An iLLaDA checkpoint in its published layout, with the trained weights of a tiny LLaDA under Llama's names. As
published, nothing names its mask id 5: the embeddings of that token and of LLaDA's mask are exchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dare_bench.loading import locate

LLADA, MASK = "tiny-llada", 5
DIFFCODER: dict[str, Any] = {
    "architectures": ["StableDiffcoderForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_stable_diffcoder.StableDiffcoderForCausalLM"},
    "model_type": "llama",
}
"""What a Stable-DiffCoder checkpoint has instead; its network has the same shape and mask id."""
NAMES = {
    "transformer.wte": "embed_tokens",
    "transformer.ln_f": "norm",
    "transformer.blocks": "layers",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
}


def _renamed(name: str) -> str:
    if name == "model.transformer.ff_out.weight":
        return "lm_head.weight"
    for old, new in NAMES.items():
        name = name.replace(f"{old}.", f"{new}.")
    for part in "qkv":
        name = name.replace(f".{part}_proj.", f".self_attn.{part}_proj.")
    return name.replace(".ff_out.", ".mlp.down_proj.")


def written(folder: Path, **changes: Any) -> Path:
    """The folder, with these fields of config.json changed."""
    source = locate(LLADA)
    shutil.copytree(source, folder)
    old = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer.pop("mask_token", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = {
        "architectures": ["ILLaDAForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_illada.ILLaDAForCausalLM"},
        "model_type": "illada",
        "attention_bias": False,
        "mlp_bias": False,
        "layer_norm_eps": None,
        "hidden_act": "silu",
        "hidden_size": old["d_model"],
        "intermediate_size": old["mlp_hidden_size"],
        "max_position_embeddings": old["max_sequence_length"],
        "num_attention_heads": old["n_heads"],
        "num_hidden_layers": old["n_layers"],
        "num_key_value_heads": old["n_kv_heads"],
        "rms_norm_eps": old["rms_norm_eps"],
        "rope_scaling": None,
        "rope_theta": old["rope_theta"],
        "eos_token_id": old["eos_token_id"],
        "pad_token_id": old["pad_token_id"],
        "tie_word_embeddings": False,
        "vocab_size": old["embedding_size"],
        "torch_dtype": "bfloat16",
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {_renamed(name): value for name, value in load_file(str(source / "model.safetensors")).items()}
    order = torch.arange(config["vocab_size"])
    order[[MASK, old["mask_token_id"]]] = order[[old["mask_token_id"], MASK]]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][order].contiguous()
    if config["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder
