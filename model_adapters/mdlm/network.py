"""The diffusion transformer of MDLM and BD3-LM: its published configurations and weight names, and what it adds to the
shared backbone.

Layer norms are shifted and scaled, and layers' outputs gated, by linear functions of a noise level (adaLN). Published
checkpoints are shown the level 0 whatever the noise (``time_conditioning`` is off), so these are constants.

Facts: models/hf of kuleshov-group/bd3lms and models/dit.py of kuleshov-group/mdlm; SUBS: arXiv 2406.07524.

Shape letters: T packed tokens, N selected tokens, D width, C width of the condition, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear, silu

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.backbone.attention import Attention
from dare_bench.model_adapters.backbone.head import Head, losses_of
from dare_bench.model_adapters.backbone.layers import Layer, attach
from dare_bench.model_adapters.configs import Count, Layers, PublishedConfig, refuse

NAMES = WeightNames(
    embed="backbone.vocab_embed",
    layers="backbone.blocks",
    final_norm="backbone.output_layer.norm_final",
    head="backbone.output_layer.linear",
    attn_norm="norm1",
    qkv="attn_qkv",
    o="attn_out",
    ff_norm="norm2",
    gate="",
    up="mlp.0",
    down="mlp.2",
)
FINAL_MODULATION = "backbone.output_layer.adaLN_modulation"
LEVELS = 256
"""Sines and cosines of a noise level."""
NEVER = -1e6
"""Added to the logit of the mask token, which is never predicted (SUBS)."""


class MDLMConfig(PublishedConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "mdlm"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "hidden_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_blocks",
        "max_position_embeddings": "model_length",
    }

    vocab_size: Count = 50258
    model_length: Count = 1024
    hidden_dim: Count = 768
    cond_dim: Count = 129
    n_blocks: Layers = 12
    n_heads: Count = 12
    time_conditioning: bool = False
    mask_token_id: Any = None
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = False


class BD3LMConfig(MDLMConfig):
    model_type = "bd3lm"

    block_size: Count = 1
    cross_attn: bool = True
    adaln: bool = True
    causal: bool = False


def mask_of(config: Any) -> int:
    """The mask token, published as the one behind the tokenizer's."""
    return config.vocab_size - 1 if config.mask_token_id is None else int(config.mask_token_id)


class LayerNorm(nn.Module):
    """Layer norm in float32, with a weight and no bias."""

    def __init__(self, width: int, eps: float, weight: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_ND: Tensor) -> Tensor:
        return layer_norm(x_ND.float(), x_ND.shape[-1:], None, None, self.eps).to(x_ND.dtype) * self.weight


class TokenTable(nn.Module):
    """An embedding under its published name."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab, width))

    def forward(self, tokens_T: Tensor) -> Tensor:
        return embedding(tokens_T, self.embedding)


class SubsHead(Head):
    """Logits of all tokens but the mask."""

    def __init__(self, width: int, vocab: int, mask: int) -> None:
        super().__init__(width, vocab)
        self.mask = mask

    def forward(self, hidden_ND: Tensor, targets_N: Tensor | None = None, scale: float = 1.0, rows: int = 1) -> Tensor:
        lowered_V = torch.zeros_like(self.bias)
        lowered_V[self.mask] = NEVER
        if targets_N is None:
            return linear(hidden_ND, self.weight, self.bias + lowered_V)
        return losses_of(hidden_ND, self.weight, self.bias + lowered_V, targets_N, scale, rows)


def modulated(x_ND: Tensor, shift_D: Tensor, scale_D: Tensor) -> Tensor:
    return x_ND * (1 + scale_D) + shift_D


class DiTLayer(Layer):
    """``x += gate Attn(modulated norm(x)); x += gate FF(modulated norm(x))``."""

    norm_class = LayerNorm
    adaLN_modulation: nn.Linear

    def forward(
        self,
        x_TD: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: Plan,
        attention: Attention,
        keep_N: Tensor | None = None,
        selected: Any = None,
        condition_C: Tensor | None = None,
    ) -> Tensor:
        shift, scale, gate, ff_shift, ff_scale, ff_gate = self.adaLN_modulation(condition_C).chunk(6, dim=-1)
        y_TD = modulated(self.part("attn_norm")(x_TD), shift, scale)
        y_ND = self._attended(y_TD, cos, sin, plan, attention, keep_N, selected)
        x_ND = (x_TD if keep_N is None else x_TD[keep_N]) + gate * y_ND
        y_ND = modulated(self.part("ff_norm")(x_ND), ff_shift, ff_scale)
        return x_ND + ff_gate * self._gated(y_ND, "gate", "up", "down")


class MDLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class: ClassVar[type[Any]] = MDLMConfig
    layer = DiTLayer
    unused: ClassVar[str | None] = r"^(backbone\.rotary_emb\.inv_freq|sampling_eps_(min|max))$"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        a, width = self.arch, config.cond_dim
        attach(self, NAMES.embed, TokenTable(a.vocab, a.width))
        attach(self, NAMES.head, SubsHead(a.width, a.vocab, mask_of(config)))
        levels = nn.Sequential(nn.Linear(LEVELS, width), nn.SiLU(), nn.Linear(width, width))
        attach(self, "backbone.sigma_map.mlp", levels)
        attach(self, FINAL_MODULATION, nn.Linear(width, 2 * a.width))
        for layer in self.at(NAMES.layers):
            layer.adaLN_modulation = nn.Linear(width, 6 * a.width)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, TokenTable):
            nn.init.normal_(module.embedding, 0.0, self.config.initializer_range)

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        name = cls.__name__
        refuse(config, name, {"time_conditioning": (False,), "causal": (False, None), "adaln": (True, None)})
        width, heads = config.hidden_dim, config.n_heads
        if width % heads or width // heads % 2:
            raise CheckpointError(
                f"{name} config has hidden_dim={width} and n_heads={heads}; heads need an even number of channels each"
            )
        blocks = getattr(config, "cross_attn", False) and config.block_size < config.model_length
        return Arch(
            names=NAMES,
            layers=config.n_blocks,
            width=width,
            heads=heads,
            kv_heads=heads,
            head_dim=width // heads,
            ff_width=4 * width,
            vocab=config.vocab_size,
            norm_eps=1e-5,
            rope_theta=10000.0,
            ff_bias=True,
            activation="gelu_tanh",
            block_length=config.block_size if blocks else None,
        )

    def condition(self, positions_T: Tensor) -> tuple[Tensor, ...]:
        """The embedding of the noise level 0, [C]."""
        levels = self.at("backbone.sigma_map.mlp")
        zero = torch.zeros(LEVELS // 2, dtype=levels[0].weight.dtype, device=levels[0].weight.device)
        return (silu(levels(torch.cat([zero.cos(), zero.sin()]))),)

    def normed(self, x_ND: Tensor, *condition: Tensor) -> Tensor:
        shift, scale = self.at(FINAL_MODULATION)(*condition).chunk(2, dim=-1)
        return modulated(super().normed(x_ND), shift, scale)


class BD3LM(MDLM):
    """MDLM with block-causal attention; a ``block_size`` of the whole length, or no ``cross_attn``, is MDLM's."""

    config_class: ClassVar[type[Any]] = BD3LMConfig
