"""LLaDA's published configuration and weight names over the shared backbone.

Facts: GSAI-ML/LLaDA-8B-Instruct config.json and the key names of its shards.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, PublishedConfig, Share, refuse

NAMES = WeightNames(
    embed="model.transformer.wte",
    layers="model.transformer.blocks",
    final_norm="model.transformer.ln_f",
    head="model.transformer.ff_out",
    attn_norm="attn_norm",
    q="q_proj",
    k="k_proj",
    v="v_proj",
    o="attn_out",
    ff_norm="ff_norm",
    gate="ff_proj",
    up="up_proj",
    down="ff_out",
)

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "activation_type": ("silu", "swiglu"),
    "rope": (True,),
    "alibi": (False, None),
    "partial_rotary_factor": (1, None),
    "attention_layer_norm": (False, None),
    "bias_for_layer_norm": (False, None),
}


class LLaDAConfig(PublishedConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "llada"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
    }

    d_model: Count = 4096
    n_heads: Count = 32
    n_kv_heads: Count | None = None
    n_layers: Layers = 32
    mlp_ratio: Count = 4
    mlp_hidden_size: Count | None = None
    vocab_size: Count = 126464
    embedding_size: Count | None = None
    max_sequence_length: Count = 4096
    rms_norm_eps: Share = 1e-5
    rope_theta: Positive = 500000.0
    rope_full_precision: bool = True
    mask_token_id: Any = None
    multi_query_attention: bool | None = None
    include_bias: bool = False
    include_qkv_bias: bool | None = False
    layer_norm_with_affine: bool = True
    input_emb_norm: bool = False
    scale_logits: bool = False
    weight_tying: bool = False
    init_std: float = 0.02
    use_cache: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = False  # a tied head has no separate module here, so there is nothing to tie


class LLaDAModelLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = LLaDAConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        refuse(config, "LLaDA", SUPPORTED)
        heads = config.n_heads
        if config.d_model % heads:
            raise CheckpointError(f"LLaDA config has d_model={config.d_model}, not divisible by n_heads={heads}")
        if (rows := config.embedding_size) is not None and rows < config.vocab_size:
            raise CheckpointError(f"LLaDA config has embedding_size={rows}, fewer than vocab_size={config.vocab_size}")
        kv_heads = config.n_kv_heads or (1 if config.multi_query_attention else heads)
        if heads % kv_heads or config.d_model // heads % 2:
            raise CheckpointError(
                f"LLaDA config has d_model={config.d_model}, n_heads={heads}, n_kv_heads={kv_heads}; heads must be a "
                "multiple of n_kv_heads, of an even number of channels each"
            )
        root = float(config.d_model) ** 0.5
        return Arch(
            names=NAMES,
            layers=config.n_layers,
            width=config.d_model,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.d_model // heads,
            ff_width=config.mlp_hidden_size or config.mlp_ratio * config.d_model,
            vocab=config.embedding_size or config.vocab_size,
            norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            rope_in_float32=config.rope_full_precision,
            norm_weight=config.layer_norm_with_affine,
            qkv_bias=bool(config.include_bias or config.include_qkv_bias),
            bias=bool(config.include_bias),
            tied_head=config.weight_tying,
            embed_scale=root if config.input_emb_norm else 1.0,
            logit_scale=1.0 / root if config.scale_logits else 1.0,
        )
