"""DiffusionGemma's published configuration, and the attention of its layers.

Facts: transformers, models/diffusion_gemma (configuration), google/diffusiongemma-26B-A4B-it config.json.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationError
from transformers import PreTrainedConfig

from dare_bench.errors import CheckpointError, brief
from dare_bench.model_adapters.backbone import LayerAttention
from dare_bench.model_adapters.configs import Count, Experts, Layers, Positive, Rope, Share, check_types

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": ("vision", None),
}
"""Values of ``text_config``; the first is the one of a missing field."""
ROTATIONS = {"sliding_attention": "default", "full_attention": "proportional"}
"""The rotation of each kind of layer."""
DEFAULT_ROPES = {
    "sliding_attention": {"rope_theta": 1e4},
    "full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
Object = Annotated[dict[str, Any], Field(description="an object")]


class DiffusionGemmaTextConfig(PreTrainedConfig):
    """The published fields of ``text_config``; others are kept and saved unchanged."""

    model_type = "diffusion_gemma_text"

    vocab_size: Count = 262144
    hidden_size: Count = 2304
    intermediate_size: Count = 9216
    num_hidden_layers: Layers = 30
    num_attention_heads: Count = 8
    num_key_value_heads: Count = 4
    num_global_key_value_heads: Count | None = None
    head_dim: Count = 256
    global_head_dim: Count = 512
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: Count = 131072
    initializer_range: float = 0.02
    rms_norm_eps: Share = 1e-6
    tie_word_embeddings: bool = True
    rope_parameters: Any = None
    attention_bias: bool = False
    sliding_window: Annotated[int, Field(ge=2, description="a whole number of at least 2")] = 512
    layer_types: list[str] | None = None
    final_logit_softcapping: Positive | None = 30.0
    use_bidirectional_attention: str | None = None
    num_experts: Experts | None = None
    top_k_experts: Count | None = None
    moe_intermediate_size: Count | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.of_layers = kwargs.pop("per_layer_config", None)
        """What current versions of transformers write instead of the global sizes: the sizes of single layers."""
        super().__post_init__(**kwargs)


class DiffusionGemmaConfig(PreTrainedConfig):
    """The published fields; others, such as those of the vision tower, are kept and saved unchanged."""

    model_type = "diffusion_gemma"
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": DiffusionGemmaTextConfig}

    text_config: Object | None = None
    canvas_length: Count = 256
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        text: Any = self.text_config or {}
        if isinstance(text, dict):
            check_types(DiffusionGemmaTextConfig, text)
            text = DiffusionGemmaTextConfig(**text)
        self.text_config = text
        super().__post_init__(**kwargs)

    @property
    def max_position_embeddings(self) -> int:
        return int(self.get_text_config().max_position_embeddings)


def attention_of(text: Any) -> tuple[LayerAttention, ...]:
    """The attention of each layer; raises CheckpointError."""
    count = text.num_hidden_layers
    # The published configuration class fills in every sixth layer, and the last one.
    sixth = ["full_attention" if i % 6 == 5 or i == count - 1 else "sliding_attention" for i in range(count)]
    kinds = text.layer_types or sixth
    if len(kinds) != count or kinds[-1] != "full_attention" or set(kinds) - set(ROTATIONS):
        raise CheckpointError(
            f"DiffusionGemma config has layer_types={brief(kinds)}; it must name sliding_attention or "
            f"full_attention for each of num_hidden_layers={count} layers, and full_attention for the last"
        )
    rotations = {kind: _rotation(text, kind) for kind in set(kinds)}
    layers = []
    for i, kind in enumerate(kinds):
        full = kind == "full_attention"
        heads, channels = _sizes(text, i, full)
        if text.num_attention_heads % heads or channels % 2:
            raise CheckpointError(
                f"DiffusionGemma config has {heads} key heads of {channels} channels in {kind} layers; their number "
                f"must divide num_attention_heads={text.num_attention_heads}, and their channels must be even"
            )
        theta, share = rotations[kind]
        rotated = 2 * int(share * channels // 2)
        window = None if full else text.sliding_window
        layers.append(LayerAttention(heads, channels, theta, channels, rotated, window, value_is_key=full))
    return tuple(layers)


def _sizes(text: Any, layer: int, full: bool) -> tuple[int, int]:
    """Key heads of a layer, and channels of a head; raises CheckpointError."""
    if text.of_layers is None:
        heads = (full and text.num_global_key_value_heads) or text.num_key_value_heads
        return heads, text.global_head_dim if full else text.head_dim
    own = text.of_layers.get(str(layer), {}) if isinstance(text.of_layers, dict) else None
    sizes = {"num_key_value_heads": text.num_key_value_heads, "head_dim": text.head_dim}
    if not isinstance(own, dict) or own.keys() - sizes.keys():
        raise CheckpointError(
            f"DiffusionGemma config has per_layer_config={brief(text.of_layers)}; it must be an object of layers "
            "with their num_key_value_heads and head_dim"
        )
    check_types(DiffusionGemmaTextConfig, own)
    sizes |= own
    return sizes["num_key_value_heads"], sizes["head_dim"]


def _rotation(text: Any, kind: str) -> tuple[float, float]:
    """Theta, and the share of a head's channels that are rotated; raises CheckpointError."""
    given: Any = DEFAULT_ROPES if text.rope_parameters is None else text.rope_parameters
    rope = given.get(kind) if isinstance(given, dict) else None
    try:
        known = Rope.model_validate(rope)
    except ValidationError:
        known = Rope()
    share = known.partial_rotary_factor or 1.0
    partial = kind == "sliding_attention" and share != 1
    if known.rope_theta is None or partial or known.rope_type not in (None, ROTATIONS[kind]):
        raise CheckpointError(
            f"DiffusionGemma config has rope_parameters={brief(given)}; supported are sliding_attention of the type "
            "default and full_attention of the type proportional, each with a rope_theta above 0, without a factor"
        )
    return known.rope_theta, share
