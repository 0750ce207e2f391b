"""Qwen3 adapted to masked diffusion: dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1 and other Tiny-A2D checkpoints.

The network is Qwen3 without its causal mask, and a position predicts its own token. The published sampler
(dllm/core/samplers/mdlm.py of github.com/ZHZisZZ/dllm) is LLaDA's, so decoding fields, likelihoods and defaults are
LLaDA's too. Its siblings "bd3lm" have the same configuration and another sampler, which this family does not have.
"""

from __future__ import annotations

from pydantic import model_validator

from dare_bench.model_adapters.backbone import QWEN_NAMES, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from
from dare_bench.model_adapters.llada.family import LLaDA, LLaDADecoding

NAMES = WeightNames(**QWEN_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
SUPPORTED = {"use_sliding_window": (False, None), "attention_bias": (False, None)}
"""Values of the configuration that the network implements; any other is refused when a checkpoint is opened."""


class A2DQwen3Config(StandardConfig):
    """The fields of config.json that the network needs, with their types; the others are kept and saved unchanged."""

    model_type = "a2d-qwen3"

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


class A2DQwen3LMHeadModel(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = A2DQwen3Config

    @classmethod
    def arch_of(cls, config):
        """What to build of the shared backbone, under which names; ``block_length=`` would make it block-causal."""
        return arch_from(config, "A2D-Qwen3", NAMES, SUPPORTED, qk_norm=True)


class A2DQwen3Decoding(LLaDADecoding):
    """LLaDA's fields, limited to what both samplers do alike."""

    @model_validator(mode="after")
    def _even(self):
        steps = self.steps * self.block_length // self.gen_length
        if self.block_length % steps:
            raise ValueError(
                f"steps={self.steps} gives {steps} steps for a block of {self.block_length} tokens; the published "
                "sampler rounds uneven steps differently from LLaDA's: choose steps that divide the block"
            )
        return self


class A2DQwen3(LLaDA):
    """LLaDA's sampler over another network, with other special tokens; the end of a turn is the EOS token."""

    name = "a2d_qwen3"
    network = A2DQwen3LMHeadModel
    decoding = A2DQwen3Decoding
    chat_template = None  # each checkpoint has its own
    mask_texts = ("<|mask|>",)
    eot_text = None


FAMILY = A2DQwen3()
