"""A Qwen3 without its causal mask, trained as a masked diffusion model under a model_type of your own.

A position predicts its own token, and the sampler is LLaDA's, so decoding fields, likelihoods and defaults are LLaDA's
too. Replace what is different in your model.
"""

from __future__ import annotations

from dare_bench.model_adapters.backbone import QWEN_NAMES, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from
from dare_bench.model_adapters.llada.family import LLaDA

NAMES = WeightNames(**QWEN_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
SUPPORTED = {"use_sliding_window": (False, None), "attention_bias": (False, None)}
"""Values of the configuration that the network implements; any other is refused when a checkpoint is opened."""


class MaskedQwen3Config(StandardConfig):
    """The fields of config.json that the network needs, with their types; the others are kept and saved unchanged."""

    model_type = "masked-qwen3"

    vocab_size: Count = 151936
    hidden_size: Count = 1024
    intermediate_size: Count = 3072
    num_hidden_layers: Layers = 28
    num_attention_heads: Count = 16
    num_key_value_heads: Count = 8
    head_dim: Count | None = 128
    max_position_embeddings: Count = 40960
    rope_theta: Positive = 1000000.0
    tie_word_embeddings: bool = True


class MaskedQwen3LMHeadModel(DiffusionNetwork):
    """The class name in config.json, so that ``architectures`` is correct in saved configs."""

    config_class = MaskedQwen3Config

    @classmethod
    def arch_of(cls, config):
        """What to build of the shared backbone, under which names; ``block_length=`` would make it block-causal."""
        return arch_from(config, "MaskedQwen3", NAMES, SUPPORTED, qk_norm=True)


class MaskedQwen3(LLaDA):
    """LLaDA's sampler over another network, with other special tokens; the end of a turn is the EOS token."""

    name = "masked_qwen3"
    network = MaskedQwen3LMHeadModel
    chat_template = None  # each checkpoint has its own
    mask_texts = ("<|mask|>",)
    eot_text = None


FAMILY = MaskedQwen3()
