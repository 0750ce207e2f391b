"""The families of the tiny checkpoints: configuration, network, tokenizer, and text for the model card."""

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
    """``title``, ``article``, ``sampler`` and ``objective`` are text for the model card; ``sizes`` makes the fields of
    the configuration that a recipe decides; ``decoding`` are the settings of that sampler. ``bos`` and ``stop`` are the
    tokens of the published generation_config.json, if there is one."""

    title: str
    special: tokenizer.Special
    sizes: Callable[[TinyRecipe], dict[str, Any]]
    network: type[Any]
    sampler: str
    objective: tuple[str, ...]
    article: str = "A"
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


LEVEL = "a noise level t uniform on (0.001, 1) for each row; response tokens masked with probability t; "
TWO_COPIES = (
    "Every row has a noisy and a clean copy: a noisy block attends to itself and the clean blocks before it. Blocks of "
    "4 tokens, counted from the first token of the prompt; the last block of a canvas is filled with EOS as well."
)

FAMILIES = {
    "llada": TinyFamily(
        title="LLaDA",
        special=tokenizer.LLADA,
        sizes=llada_sizes,
        network=LLaDAModelLM,
        sampler="the deterministic low-confidence sampler",
        objective=(f"LLaDA's supervised loss: {LEVEL}cross-entropy divided by t and by the length of the response.",),
    ),
    "dream": TinyFamily(
        title="Dream",
        special=tokenizer.DREAM,
        sizes=dream_sizes,
        network=DreamModel,
        decoding={"alg": "maskgit_plus"},
        sampler="the most probable token first (`alg=maskgit_plus`), temperature 0",
        objective=(
            f"Dream's supervised loss, without its optional context weights: {LEVEL}cross-entropy divided by t and by "
            "the length of the response.",
            "The head is shifted, as in every Dream: a token is predicted from the state of the previous one.",
        ),
    ),
    "sdar": TinyFamily(
        title="SDAR",
        article="An",
        special=tokenizer.SDAR,
        sizes=sdar_sizes,
        network=SDARForCausalLM,
        decoding={"remasking_strategy": "low_confidence_static"},
        sampler="blocks of 4, the most probable token first (`low_confidence_static`), temperature 0",
        objective=(
            f"SDAR's supervised loss: {LEVEL}cross-entropy divided by t and by the response tokens of the batch.",
            TWO_COPIES,
        ),
        bos=tokenizer.EOS,
        stop=("<|im_end|>", tokenizer.EOS),
    ),
    "llada2": TinyFamily(
        title="LLaDA2",
        special=tokenizer.LLADA2,
        sizes=llada2_sizes,
        network=LLaDA2MoeModelLM,
        decoding={"threshold": 1.0},
        sampler="blocks of 4, the most probable token first (`threshold=1`), temperature 0",
        objective=(
            "LLaDA2's supervised loss: a noise level t uniform on (0.3, 0.8) for each row; response tokens masked with "
            "probability t; the plain mean of the cross-entropy over masked tokens.",
            TWO_COPIES,
        ),
    ),
}
