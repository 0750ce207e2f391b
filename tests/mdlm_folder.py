"""MDLM and BD3-LM checkpoints in their published layouts, with weights by a rule that needs no random numbers, and a
tokenizer in GPT-2's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import Tensor

WIDTH, HEADS, BLOCKS, CONDITION, LENGTH = 32, 4, 2, 16, 64
END = "<|endoftext|>"
MERGES = ["t h", "th e", "Ġ the", "a n", "Ġ a", "i n"]
TEXTS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), END]
VOCABULARY = {text: token for token, text in enumerate(TEXTS)}
MASK = len(VOCABULARY)
"""As published: behind the tokens of the tokenizer."""


def shapes(vocab: int = MASK + 1) -> dict[str, tuple[int, ...]]:
    """Published names and shapes."""
    found: dict[str, tuple[int, ...]] = {
        "backbone.vocab_embed.embedding": (vocab, WIDTH),
        "backbone.sigma_map.mlp.0.weight": (CONDITION, 256),
        "backbone.sigma_map.mlp.0.bias": (CONDITION,),
        "backbone.sigma_map.mlp.2.weight": (CONDITION, CONDITION),
        "backbone.sigma_map.mlp.2.bias": (CONDITION,),
        "backbone.rotary_emb.inv_freq": (WIDTH // HEADS // 2,),
        "backbone.output_layer.norm_final.weight": (WIDTH,),
        "backbone.output_layer.linear.weight": (vocab, WIDTH),
        "backbone.output_layer.linear.bias": (vocab,),
        "backbone.output_layer.adaLN_modulation.weight": (2 * WIDTH, CONDITION),
        "backbone.output_layer.adaLN_modulation.bias": (2 * WIDTH,),
    }
    for i in range(BLOCKS):
        of_block: dict[str, tuple[int, ...]] = {
            "norm1.weight": (WIDTH,),
            "attn_qkv.weight": (3 * WIDTH, WIDTH),
            "attn_out.weight": (WIDTH, WIDTH),
            "norm2.weight": (WIDTH,),
            "mlp.0.weight": (4 * WIDTH, WIDTH),
            "mlp.0.bias": (4 * WIDTH,),
            "mlp.2.weight": (WIDTH, 4 * WIDTH),
            "mlp.2.bias": (WIDTH,),
            "adaLN_modulation.weight": (6 * WIDTH, CONDITION),
            "adaLN_modulation.bias": (6 * WIDTH,),
        }
        found |= {f"backbone.blocks.{i}.{name}": shape for name, shape in of_block.items()}
    return found


def weights() -> dict[str, Tensor]:
    """Numbers that look random, of the size that trained weights have."""
    made: dict[str, Tensor] = {}
    for number, (name, shape) in enumerate(sorted(shapes().items()), 1):
        count = torch.Size(shape).numel()
        noise = torch.frac(torch.sin(torch.arange(1, count + 1, dtype=torch.float64) * (12.9898 + number)) * 43758.5453)
        centered = 2 * noise.abs() - 1
        scale = 0.3 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5
        made[name] = (name.endswith(("norm1.weight", "norm2.weight", "final.weight")) + scale * centered).view(shape)
    channels = torch.arange(0, WIDTH // HEADS, 2, dtype=torch.float64)
    made["backbone.rotary_emb.inv_freq"] = 1.0 / 10000 ** (channels / (WIDTH // HEADS))
    return {name: weight.float() for name, weight in made.items()}


def config(block_size: int | None = None, **changes: Any) -> dict[str, Any]:
    """A published config.json: MDLM's, or with a block size BD3-LM's."""
    fields = {
        "cond_dim": CONDITION,
        "dropout": 0.1,
        "hidden_dim": WIDTH,
        "model_length": LENGTH,
        "n_blocks": BLOCKS,
        "n_heads": HEADS,
        "time_conditioning": False,
        "torch_dtype": "float32",
        "transformers_version": "4.38.2",
        "vocab_size": MASK + 1,
    }
    if block_size is None:
        name = "MDLM"
    else:
        name = "BD3LM"
        fields |= {"adaln": True, "attn_backend": "flex", "block_size": block_size, "causal": False, "cross_attn": True}
        fields |= {"return_dict": False, "sampling_eps_max": 0.999, "sampling_eps_min": 0.001, "var_min": True}
    auto = {"AutoConfig": f"configuration_{name.lower()}.{name}Config", "AutoModelForMaskedLM": f"modeling.{name}"}
    return {"architectures": [name], "auto_map": auto, "model_type": name.lower(), **fields, **changes}


def written(folder: Path, block_size: int | None = None, tokenizer: bool = True, **changes: Any) -> Path:
    """A folder, with these fields of config.json changed. As published it has no tokenizer; GPT-2's is put beside."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(block_size, **changes)))
    state = weights()
    if block_size is not None:
        state |= {"sampling_eps_min": torch.tensor(0.001), "sampling_eps_max": torch.tensor(0.999)}
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    if tokenizer:
        (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES))
        settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "add_prefix_space": False}
        settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
