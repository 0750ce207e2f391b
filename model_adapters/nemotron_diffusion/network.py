"""Nemotron-Labs-Diffusion's published configuration and weight names over the shared backbone: Ministral's layers, with
YaRN, and with queries that grow with their position beyond the original context.

Facts: configuration_, modeling_nemotron_labs_diffusion.py and modeling_ministral.py of
nvidia/Nemotron-Labs-Diffusion-8B. One head serves both kinds of attention, which no weight tells apart.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from dare_bench.errors import CheckpointError, brief
from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames, Yarn
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from

NAMES = WeightNames(
    **{
        **QWEN_NAMES,
        "embed": "encoder.embed_tokens",
        "layers": "encoder.layers",
        "final_norm": "encoder.norm",
        "head": "diffusion_head",
    }
)
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "dlm_paradigm": ("bidirectional", "block_diff"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
}


class YarnRope(BaseModel):
    """The published ``rope_parameters``."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Annotated[float, Field(gt=1)] = 1000000.0
    factor: Annotated[float, Field(gt=0)]
    original_max_position_embeddings: Annotated[int, Field(ge=1)]
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    mscale: Annotated[float, Field(gt=0)] | None = None
    mscale_all_dim: Annotated[float, Field(gt=0)] | None = None
    llama_4_scaling_beta: Annotated[float, Field(ge=0)] = 0.0


class NemotronLabsDiffusionConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged. ``yarn`` holds ``rope_parameters`` while the
    configuration is open."""

    model_type = "nemotron_labs_diffusion"

    vocab_size: Count = 131072
    hidden_size: Count = 4096
    intermediate_size: Count = 14336
    num_hidden_layers: Layers = 34
    num_attention_heads: Count = 32
    num_key_value_heads: Count = 8
    head_dim: Count | None = 128
    max_position_embeddings: Count = 262144
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 1000000.0
    dlm_paradigm: str = "bidirectional"
    block_size: Count = 32
    yarn: Any = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        raw = dict(config_dict)
        given = [rope for name in ("rope_parameters", "rope_scaling") if (rope := raw.pop(name, None)) is not None]
        if not given or any(rope != given[0] for rope in given):
            raise CheckpointError(
                f"NemotronLabsDiffusion config has rope_parameters or rope_scaling {brief(given)}; one is needed, and "
                "where there are both they must be equal"
            )
        yarn = _yarn(given[0], raw.get("max_position_embeddings", cls.max_position_embeddings))
        return super().from_dict({**raw, "rope_theta": yarn["rope_theta"], "yarn": yarn}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        fields = dict(super().to_dict())
        if yarn := fields.pop("yarn", None):
            fields["rope_parameters"] = {name: value for name, value in yarn.items() if value is not None}
        return fields


def _yarn(rope: Any, context: int) -> dict[str, Any]:
    """Rotary positions of the type yarn by their published names; raises CheckpointError. Versions of transformers
    differ where ``factor`` is not the ratio of both contexts, and a factor on attention is none of the published ones.
    """
    seen = f"NemotronLabsDiffusion config has rope_parameters={brief(rope)}"
    try:
        yarn = YarnRope.model_validate(rope)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{seen}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if {yarn.rope_type, yarn.type} - {None} != {"yarn"}:
        raise CheckpointError(f"{seen}; supported is the rope_type 'yarn'")
    if yarn.factor > 1 and (yarn.mscale is None or yarn.mscale != yarn.mscale_all_dim):
        raise CheckpointError(f"{seen}; supported are mscale and mscale_all_dim that are equal")
    if yarn.factor * yarn.original_max_position_embeddings != context:
        raise CheckpointError(
            f"{seen} and max_position_embeddings={context}; it must be factor times original_max_position_embeddings"
        )
    return yarn.model_dump()


class NemotronLabsDiffusionModel(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs. Blocks of ``block_size`` attend
    to themselves and to the tokens before them, which attend causally."""

    config_class = NemotronLabsDiffusionConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        y = config.yarn
        yarn = Yarn(y["factor"], y["beta_fast"], y["beta_slow"], y["original_max_position_embeddings"])
        name, length = "NemotronLabsDiffusion", config.block_size
        return arch_from(config, name, NAMES, SUPPORTED, rope_scaling=yarn, block_length=length, causal_prefix=True)

    def condition(self, positions_T: Tensor) -> tuple[Tensor, ...]:
        """What queries are multiplied by, float32 [T]: 1 within the original context."""
        beta, original = self.config.yarn["llama_4_scaling_beta"], self.config.yarn["original_max_position_embeddings"]
        return (1 + beta * (positions_T // original + 1).float().log(),) if beta else ()
