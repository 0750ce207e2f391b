"""The families of the tiny checkpoints: configuration, network and tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tokenizer
from recipe import TinyRecipe

from dare_bench.loading import locate
from dare_bench.model_adapters.dream.network import DreamModel
from dare_bench.model_adapters.llada.network import LLaDAModelLM
from dare_bench.model_adapters.llada2.network import LLaDA2MoeModelLM
from dare_bench.model_adapters.sdar.network import SDARForCausalLM


@dataclass(frozen=True)
class TinyFamily:
    """``sizes`` makes the fields of the configuration that a recipe decides; ``decoding`` are the settings with which a
    checkpoint is scored. ``bos`` and ``stop`` are the tokens of the published generation_config.json, if there is one.
    """

    special: tokenizer.Special
    sizes: Callable[[TinyRecipe], dict[str, Any]]
    network: type[Any]
    decoding: dict[str, Any] = field(default_factory=dict)
    bos: str = ""
    stop: tuple[str, ...] = ()

    def config(self, recipe: TinyRecipe) -> Any:
        """The configuration of the family's bundled checkpoint, with the sizes of the recipe."""
        bundled = locate(f"tiny-{recipe.family}")
        return self.network.config_class.from_pretrained(bundled, dtype=None, **self.sizes(recipe))


def llada_sizes(recipe: TinyRecipe) -> dict[str, Any]:
    return {
        "d_model": recipe.width,
        "n_layers": recipe.layers,
        "n_heads": recipe.heads,
        "n_kv_heads": recipe.kv_heads,
        "mlp_hidden_size": recipe.ff_width,
    }


def dream_sizes(recipe: TinyRecipe) -> dict[str, Any]:
    return {
        "hidden_size": recipe.width,
        "intermediate_size": recipe.ff_width,
        "num_hidden_layers": recipe.layers,
        "max_window_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
    }


def sdar_sizes(recipe: TinyRecipe) -> dict[str, Any]:
    return {**dream_sizes(recipe), "head_dim": recipe.head_dim, "block_size": recipe.block_length}


def llada2_sizes(recipe: TinyRecipe) -> dict[str, Any]:
    """``block_size`` is in no published LLaDA2, whose blocks always have 32 tokens."""
    moe = recipe.experts
    assert moe is not None, "an LLaDA2 recipe needs experts"
    return {
        **sdar_sizes(recipe),
        "rotary_dim": recipe.head_dim // 2,
        "moe_intermediate_size": moe.width,
        "num_experts": moe.count,
        "num_experts_per_tok": moe.top_k,
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "routed_scaling_factor": moe.scale,
    }


FAMILIES = {
    "llada": TinyFamily(tokenizer.LLADA, llada_sizes, LLaDAModelLM),
    "dream": TinyFamily(tokenizer.DREAM, dream_sizes, DreamModel, {"alg": "maskgit_plus"}),
    "sdar": TinyFamily(
        tokenizer.SDAR,
        sdar_sizes,
        SDARForCausalLM,
        {"remasking_strategy": "low_confidence_static"},
        bos=tokenizer.EOS,
        stop=("<|im_end|>", tokenizer.EOS),
    ),
    "llada2": TinyFamily(tokenizer.LLADA2, llada2_sizes, LLaDA2MoeModelLM, {"threshold": 1.0}),
}
