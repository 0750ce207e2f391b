"""A2D's published configurations and weight names over the shared backbone: Qwen2, Qwen3 and Llama without a causal
mask.

Facts: ZHZisZZ/dllm, pipelines/a2d/models; the weight names are those of transformers' own classes. Layers that a config
marks as sliding attend to everything, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dare_bench.errors import CheckpointError, brief
from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, RopeScaling, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from

MASK = "<|mask|>"
BLOCK_LENGTH = 32
"""The block length of the published BD3LM sampler; no config names it."""


class A2DConfig(StandardConfig):
    """The fields of all three; others are kept and saved unchanged."""

    vocab_size: Count = 151936
    hidden_size: Count = 1024
    intermediate_size: Count = 3072
    num_hidden_layers: Layers = 28
    num_attention_heads: Count = 16
    num_key_value_heads: Count = 8
    max_position_embeddings: Count = 40960
    rope_theta: Positive = 1000000.0
    tie_word_embeddings: bool = True
    right_shift_logits: bool = False
    """Does a state predict the next token, as in the autoregressive model? Published checkpoints do not say it."""


class A2DQwen2Config(A2DConfig):
    """Qwen2's fields."""

    model_type = "a2d-qwen2"


class A2DQwen3Config(A2DConfig):
    """Qwen3's fields."""

    model_type = "a2d-qwen3"

    head_dim: Count | None = 128


class Llama3Rope(BaseModel):
    """The ``rope_scaling`` of Llama 3.1 and later; transformers 5 has theta among them."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    factor: Annotated[float, Field(ge=1)]
    low_freq_factor: Annotated[float, Field(gt=0)]
    high_freq_factor: Annotated[float, Field(gt=0)]
    original_max_position_embeddings: Annotated[int, Field(ge=1)]
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None


class A2DLlamaConfig(A2DConfig):
    """Llama's fields. ``llama3_rope`` holds a ``rope_scaling`` of the type llama3 while the configuration is open."""

    model_type = "a2d-llama"

    head_dim: Count | None = None
    rope_theta: Positive = 10000.0
    tie_word_embeddings: bool = False
    llama3_rope: Any = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        raw, scaling = dict(config_dict), None
        for name in ("rope_parameters", "rope_scaling"):
            rope = raw.get(name)
            if isinstance(rope, dict) and "llama3" in (rope.get("rope_type"), rope.get("type")):
                scaling = _llama3(rope, name)
                raw[name] = None
                if scaling["rope_theta"] is not None:
                    raw["rope_theta"] = scaling["rope_theta"]
        return super().from_dict({**raw, **({"llama3_rope": scaling} if scaling else {})}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        fields = dict(super().to_dict())
        if scaling := fields.pop("llama3_rope", None):
            names = {name: value for name, value in scaling.items() if name not in ("type", "rope_theta")}
            fields["rope_scaling"] = {**names, "rope_type": "llama3"}
        return fields


def _llama3(rope: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A scaling of the type llama3 by its published names; raises CheckpointError."""
    try:
        scaling = Llama3Rope.model_validate(rope)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"A2DLlama config has {name}={brief(rope)}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise CheckpointError(
            f"A2DLlama config has {name}={brief(rope)}: low_freq_factor must be below high_freq_factor"
        )
    return scaling.model_dump()


class A2DNetwork(DiffusionNetwork):
    """Bidirectional, or block-causal on a grid of ``block_length`` columns."""

    block_length: ClassVar[int | None] = None


class A2DQwen2LMHeadModel(A2DNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = A2DQwen2Config

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        names = WeightNames(**QWEN_NAMES)
        return arch_from(config, "A2D-Qwen2", names, {}, qkv_bias=True, block_length=cls.block_length)


class A2DQwen3LMHeadModel(A2DNetwork):
    """The published class name."""

    config_class = A2DQwen3Config

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        names = WeightNames(**QWEN_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
        supported = {"attention_bias": (False, None)}
        return arch_from(config, "A2D-Qwen3", names, supported, qk_norm=True, block_length=cls.block_length)


class A2DLlamaLMHeadModel(A2DNetwork):
    """The published class name."""

    config_class = A2DLlamaConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        supported = {"attention_bias": (False, None), "mlp_bias": (False, None)}
        rope, scaling = config.llama3_rope, None
        if rope is not None:
            scaling = RopeScaling(
                factor=rope["factor"],
                low=rope["low_freq_factor"],
                high=rope["high_freq_factor"],
                original=rope["original_max_position_embeddings"],
            )
        names = WeightNames(**QWEN_NAMES)
        return arch_from(config, "A2D-Llama", names, supported, block_length=cls.block_length, rope_scaling=scaling)


NETWORKS: tuple[type[A2DNetwork], ...] = (A2DQwen2LMHeadModel, A2DQwen3LMHeadModel, A2DLlamaLMHeadModel)


def network_of(model_type: Any, block_length: int | None) -> type[A2DNetwork]:
    """The network of a config's ``model_type``, with that default attention; raises CheckpointError."""
    for network in NETWORKS:
        if network.config_class.model_type == model_type:
            return _IN_BLOCKS[network] if block_length else network
    known = ", ".join(network.config_class.model_type for network in NETWORKS)
    raise CheckpointError(
        f"model_type={brief(model_type)} in config.json is none of A2D's, which are {known}; leave --family out"
    )


_IN_BLOCKS: Mapping[type[A2DNetwork], type[A2DNetwork]] = {
    network: type(network.__name__, (network,), {"block_length": BLOCK_LENGTH, "__doc__": network.__doc__})
    for network in NETWORKS
}
"""The same networks, block-causal, by the same names."""
