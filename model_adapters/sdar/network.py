"""SDAR's published configurations and weight names, dense and MoE, over the shared backbone.

Facts: JetLM/SDAR-8B-Chat and SDAR-30B-A3B-Chat config.json and the key names of their shards (Qwen3's).
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, MoE, WeightNames
from dare_bench.model_adapters.configs import Count, Experts, Layers, Positive, StandardConfig, arch_from

BLOCK_LENGTH = 4
"""The block length of every SDAR-Chat; the config of 30B-A3B does not name it."""
NAMES = WeightNames(**QWEN_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")

SUPPORTED: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False, None), "attention_bias": (False, None)}


class SDARConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "sdar"

    vocab_size: Count = 151936
    hidden_size: Count = 4096
    intermediate_size: Count = 12288
    num_hidden_layers: Layers = 36
    num_attention_heads: Count = 32
    num_key_value_heads: Count = 8
    head_dim: Count | None = 128
    max_position_embeddings: Count = 32768
    rope_theta: Positive = 1000000.0
    block_size: Count | None = BLOCK_LENGTH


class SDARMoeConfig(SDARConfig):
    """The configuration of the mixture-of-experts models."""

    model_type = "sdar_moe"

    num_experts: Experts = 128
    num_experts_per_tok: Count = 8
    moe_intermediate_size: Count = 768
    norm_topk_prob: bool = True
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None


class SDARForCausalLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = SDARConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        block_length = config.block_size or BLOCK_LENGTH
        return arch_from(config, "SDAR", NAMES, SUPPORTED, cls.moe_of(config), qk_norm=True, block_length=block_length)

    @classmethod
    def moe_of(cls, config: Any) -> MoE | None:
        """The experts of a config; None for a dense model."""
        return None


class SDARMoeForCausalLM(SDARForCausalLM):
    """The published class name of the mixture-of-experts model."""

    config_class = SDARMoeConfig

    @classmethod
    def moe_of(cls, config: Any) -> MoE | None:
        dense, every = set(config.mlp_only_layers or ()), config.decoder_sparse_step
        layers = tuple(
            i not in dense and config.num_experts > 0 and (i + 1) % every == 0 for i in range(config.num_hidden_layers)
        )
        return MoE(
            layers=layers,
            experts=config.num_experts,
            top_k=config.num_experts_per_tok,
            width=config.moe_intermediate_size,
            renormalize=config.norm_topk_prob,
        )
