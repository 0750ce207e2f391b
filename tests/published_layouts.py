"""The published layouts written down by hand: tensor names and shapes of each family's files, and folders of random
weights in them. Sources: the configurations and weight indices of the published checkpoints."""

from __future__ import annotations

import json
import shutil

import golden
import torch
from safetensors.torch import load_file, save_file

SWIGLU = {"gate_proj": "up", "up_proj": "up", "down_proj": "down"}


def swiglu(path, width, inner):
    return {f"{path}.{p}.weight": (width, inner) if way == "down" else (inner, width) for p, way in SWIGLU.items()}


def experts(path, count, width, inner):
    result = {}
    for e in range(count):
        result |= swiglu(f"{path}.{e}", width, inner)
    return result


def attention(at, c, channels, biases=False, norms=False):
    d, q, kv = c["hidden_size"], c["num_attention_heads"] * channels, c["num_key_value_heads"] * channels
    outs = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    result = {f"{at}.self_attn.{name}.weight": (out, d) for name, out in outs.items()}
    result[f"{at}.self_attn.o_proj.weight"] = (d, q)
    if biases:
        result |= {f"{at}.self_attn.{name}.bias": (out,) for name, out in outs.items()}
    if norms:
        result |= {f"{at}.self_attn.{name}.weight": (channels,) for name in ("q_norm", "k_norm")}
    return result


def around(c, embed="embed_tokens"):
    d, v = c["hidden_size"], c["vocab_size"]
    result = {f"model.{embed}.weight": (v, d), "model.norm.weight": (d,), "lm_head.weight": (v, d)}
    for i in range(c["num_hidden_layers"]):
        result |= {f"model.layers.{i}.{n}.weight": (d,) for n in ("input_layernorm", "post_attention_layernorm")}
    return result


def dream_keys(c):
    result, d = around(c), c["hidden_size"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        result |= attention(at, c, d // c["num_attention_heads"], biases=True)
        result |= swiglu(f"{at}.mlp", d, c["intermediate_size"])
    return result


def fast_dllm_v2_keys(c):
    result = dream_keys(c)
    if c["tie_word_embeddings"]:
        del result["lm_head.weight"]
    return result


def sdar_keys(c):
    result, d, moe = around(c), c["hidden_size"], c["model_type"] == "sdar_moe"
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        result |= attention(at, c, c["head_dim"], norms=True)
        if moe and i not in c["mlp_only_layers"] and (i + 1) % c["decoder_sparse_step"] == 0:
            result[f"{at}.mlp.gate.weight"] = (c["num_experts"], d)
            result |= experts(f"{at}.mlp.experts", c["num_experts"], d, c["moe_intermediate_size"])
        else:
            result |= swiglu(f"{at}.mlp", d, c["intermediate_size"])
    return result


def llada_moe_keys(c):
    result, d = around(c), c["hidden_size"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        result |= attention(at, c, d // c["num_attention_heads"], norms=c["qk_layernorm"])
        if not c["moe_layer_freq"][i]:
            result |= swiglu(f"{at}.mlp", d, c["dense_intermediate_size"])
            continue
        result[f"{at}.mlp.gate.weight"] = (c["num_experts"], d)
        result |= experts(f"{at}.mlp.experts", c["num_experts"], d, c["expert_intermediate_size"])
        if c["moe_router_enable_expert_bias"]:
            result[f"{at}.mlp.expert_bias"] = (c["num_experts"],)
        if c["shared_expert_intermediate_size"]:
            result |= swiglu(f"{at}.shared_expert", d, c["shared_expert_intermediate_size"])
    return result


def llada2_keys(c):
    result, d = around(c, "word_embeddings"), c["hidden_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        result[f"{at}.attention.query_key_value.weight"] = (q + 2 * kv, d)
        result[f"{at}.attention.dense.weight"] = (d, q)
        result |= {f"{at}.attention.{n}.weight": (c["head_dim"],) for n in ("query_layernorm", "key_layernorm")}
        if i < c["first_k_dense_replace"]:
            result |= swiglu(f"{at}.mlp", d, c["intermediate_size"])
            continue
        result |= {f"{at}.mlp.gate.weight": (c["num_experts"], d), f"{at}.mlp.gate.expert_bias": (c["num_experts"],)}
        result |= experts(f"{at}.mlp.experts", c["num_experts"], d, c["moe_intermediate_size"])
        result |= swiglu(f"{at}.mlp.shared_experts", d, c["moe_intermediate_size"] * c["num_shared_experts"])
    return result


KEYS = {
    "dream": dream_keys,
    "sdar": sdar_keys,
    "sdar_moe": sdar_keys,
    "llada_moe": llada_moe_keys,
    "llada2": llada2_keys,
    "fast_dllm_v2": fast_dllm_v2_keys,
}
LAYOUTS = {
    "dream": {},
    "sdar": {},
    "sdar_moe": {},
    "llada_moe": {},
    "llada2": {},
    "fast_dllm_v2": {},
    "fast_dllm_v2, tied": {"tie_word_embeddings": True},
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
    result = {}
    for file in folder.glob("*.safetensors"):
        result |= load_file(str(file))
    return result


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
