"""LLaDA2.x's published configuration and weight names over the shared backbone.

Facts: inclusionAI/LLaDA2.0-mini and LLaDA2.1-mini config.json (equal) and the key names of their shards; LLaDA2.2-flash
has the same names, and ``expert_capacity`` experts for a block of ``block_size`` instead of groups (sgl-project/sglang
pull request 31768, FLX-OSS/FluxServe dev-notes on LLaDA2.2).
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork, MoE, WeightNames
from dare_bench.model_adapters.configs import (
    Count,
    Experts,
    Layers,
    Natural,
    Positive,
    Share,
    StandardConfig,
    arch_from,
)

BLOCK_LENGTH = 32
"""The block length that LLaDA2.x was trained with; its config does not name it. A config that has ``block_size`` was
trained with that."""
NAMES = WeightNames(
    embed="model.word_embeddings",
    layers="model.layers",
    final_norm="model.norm",
    head="lm_head",
    attn_norm="input_layernorm",
    qkv="attention.query_key_value",
    o="attention.dense",
    q_norm="attention.query_layernorm",
    k_norm="attention.key_layernorm",
    ff_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    expert_bias="mlp.gate.expert_bias",
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_sliding_window": (False, None),
    "use_bias": (False, None),
    "use_rmsnorm": (True, None),
    "norm_head": (False, None),
    "score_function": ("sigmoid", None),
}


class LLaDA2MoeConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "llada2_moe"

    vocab_size: Count = 157184
    hidden_size: Count = 2048
    intermediate_size: Count = 5120
    num_hidden_layers: Layers = 20
    num_attention_heads: Count = 16
    num_key_value_heads: Count = 4
    head_dim: Count | None = 128
    max_position_embeddings: Count = 32768
    rope_theta: Positive = 600000.0
    partial_rotary_factor: Share = 0.5
    use_qk_norm: bool = True
    use_qkv_bias: bool = False
    moe_intermediate_size: Count = 512
    num_experts: Experts = 256
    num_experts_per_tok: Count = 8
    num_shared_experts: Natural | None = 1
    first_k_dense_replace: Natural = 1
    n_group: Count | None = 8
    topk_group: Count | None = 4
    routed_scaling_factor: Positive = 2.5
    moe_router_enable_expert_bias: bool = True
    block_size: Count | None = None
    expert_capacity: Natural | None = None


class LLaDA2MoeModelLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = LLaDA2MoeConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        return arch_from(
            config,
            "LLaDA2",
            NAMES,
            SUPPORTED,
            qk_norm=config.use_qk_norm,
            qkv_bias=config.use_qkv_bias,
            moe=MoE(
                layers=tuple(i >= config.first_k_dense_replace for i in range(config.num_hidden_layers)),
                experts=config.num_experts,
                top_k=config.num_experts_per_tok,
                width=config.moe_intermediate_size,
                shared_width=config.moe_intermediate_size * (config.num_shared_experts or 0),
                score="sigmoid",
                renormalize=True,
                scale=config.routed_scaling_factor,
                bias="choice" if config.moe_router_enable_expert_bias else "none",
                groups=1 if config.expert_capacity else config.n_group or 1,
                top_groups=1 if config.expert_capacity else config.topk_group or 1,
                pool=config.expert_capacity or 0,
                pool_block=config.block_size or BLOCK_LENGTH,
                float32=True,
            ),
            block_length=config.block_size or BLOCK_LENGTH,
        )
