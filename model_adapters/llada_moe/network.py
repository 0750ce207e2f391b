"""LLaDA-MoE's published configuration and weight names over the shared backbone.

Facts: inclusionAI/LLaDA-MoE-7B-A1B-Base configuration and modeling files. Its ``model_type`` is LLaDA's own, so the
two are distinguished by ``architectures``; ``norm_topk_prob`` and ``moe_router_score_function`` are in the
config, but the published code reads neither.
"""

from __future__ import annotations

from typing import Any

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, MoE, WeightNames
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

NAMES = WeightNames(
    **QWEN_NAMES,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    expert_bias="mlp.expert_bias",
    shared_gate="shared_expert.gate_proj",
    shared_up="shared_expert.up_proj",
    shared_down="shared_expert.down_proj",
)

SUPPORTED: dict[str, tuple[Any, ...]] = {"attention_bias": (False, None)}


class LLaDAMoEConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "llada"

    vocab_size: Count = 157184
    hidden_size: Count = 2048
    dense_intermediate_size: Count = 8192
    expert_intermediate_size: Count = 1024
    shared_expert_intermediate_size: Natural | None = None
    num_hidden_layers: Layers = 16
    num_attention_heads: Count = 16
    num_key_value_heads: Count = 16
    num_experts: Experts = 64
    num_experts_per_tok: Count = 8
    moe_layer_freq: list[int] | None = None
    moe_router_enable_expert_bias: bool = False
    qk_layernorm: bool = True
    clip_qkv: Positive | None = None
    partial_rotary_factor: Share = 1.0
    max_position_embeddings: Count = 4096
    rms_norm_eps: Share = 1e-5
    rope_theta: Positive = 50000.0


class LLaDAMoEModelLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = LLaDAMoEConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        layers, kinds = config.num_hidden_layers, config.moe_layer_freq
        if kinds is not None and len(kinds) < layers:
            raise CheckpointError(
                f"LLaDA-MoE config has moe_layer_freq={kinds!r}; it must be null or a list with one entry for each of "
                f"num_hidden_layers={layers}"
            )
        return arch_from(
            config,
            "LLaDA-MoE",
            NAMES,
            SUPPORTED,
            ff_width=config.dense_intermediate_size,
            qk_norm=config.qk_layernorm,
            clip_qkv=config.clip_qkv,
            moe=MoE(
                layers=tuple(map(bool, [1] * layers if kinds is None else kinds)),
                experts=config.num_experts,
                top_k=config.num_experts_per_tok,
                width=config.expert_intermediate_size,
                shared_width=config.shared_expert_intermediate_size or 0,
                bias="weight" if config.moe_router_enable_expert_bias else "none",
            ),
        )
