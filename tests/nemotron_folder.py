"""A Nemotron-Labs-Diffusion checkpoint in its published layout, with the trained weights of a tiny LLaDA. The original
context is 16 tokens, so that longer rows have scaled positions and queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import illada_folder
from safetensors.torch import load_file, save_file

MASK, ORIGINAL, BETA = illada_folder.MASK, 16, 0.1
ROPE: dict[str, Any] = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": BETA,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": ORIGINAL,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
}


def written(folder: Path, **changes: Any) -> Path:
    """The folder, with these fields of config.json changed."""
    illada_folder.written(folder)
    old = json.loads((folder / "config.json").read_text())
    heads = old["num_attention_heads"]
    config = {
        "architectures": ["NemotronLabsDiffusionModel"],
        "auto_map": {"AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel"},
        "model_type": "nemotron_labs_diffusion",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "ar_loss_weight": 1.0,
        "block_size": 4,
        "bos_token_id": 1,
        "dlm_loss_weight": None,
        "dlm_paradigm": "bidirectional",
        "dp_varying_mask_ratio": False,
        "eos_token_id": old["eos_token_id"],
        "head_dim": old["hidden_size"] // heads,
        "hidden_act": "silu",
        "hidden_size": old["hidden_size"],
        "intermediate_size": old["intermediate_size"],
        "mask_token_id": MASK,
        "max_position_embeddings": int(ROPE["factor"] * ORIGINAL),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": old["num_hidden_layers"],
        "num_key_value_heads": old["num_key_value_heads"],
        "rms_norm_eps": 1e-5,
        "rope_parameters": ROPE,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "vocab_size": old["vocab_size"],
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    file = str(folder / "model.safetensors")
    weights = {
        "diffusion_head.weight" if name == "lm_head.weight" else name.replace("model.", "encoder.", 1): value
        for name, value in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
    return folder
