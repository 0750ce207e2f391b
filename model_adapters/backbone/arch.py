"""The architecture of a family's transformer as data: sizes, switches, and the published names of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WeightNames:
    """Published module names. The network is built under them, as checkpoints, peft and FSDP expect.

    The first four are paths from the model, the others from one layer. ``qkv`` stands in for ``q, k, v`` where they are
    published fused; without a ``gate`` the feed-forward is not gated. A layer with experts has ``router``, ``experts``
    and whatever else is published.
    """

    embed: str
    layers: str
    final_norm: str
    head: str
    attn_norm: str
    o: str
    ff_norm: str
    gate: str
    up: str
    down: str
    q: str = ""
    k: str = ""
    v: str = ""
    qkv: str = ""
    q_norm: str = ""
    k_norm: str = ""
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    expert_bias: str = ""
    shared_gate: str = ""
    shared_up: str = ""
    shared_down: str = ""
    attn_post_norm: str = ""
    ff_post_norm: str = ""


QWEN_NAMES: dict[str, str] = {
    "embed": "model.embed_tokens",
    "layers": "model.layers",
    "final_norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Names that Dream, SDAR and LLaDA-MoE share with Qwen2."""


@dataclass(frozen=True)
class MoE:
    """A mixture-of-experts feed-forward: every token goes through its ``top_k`` best of ``experts``.

    score: the router's values are a softmax over all experts, or a sigmoid each.
    bias: ``choice``: a stored bias decides which experts, the weights are without it (LLaDA2); ``weight``: the biased
        values are the weights too (LLaDA-MoE).
    groups, top_groups: only experts of the best groups may be chosen; a group is as good as its two best experts.
    pool, pool_block: only ``pool`` experts may be chosen in a block of ``pool_block`` columns: those with the highest
        value at any of its tokens (LLaDA2.2's block routing); 0: any.
    """

    layers: tuple[bool, ...]
    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    scale: float = 1.0
    bias: Literal["none", "choice", "weight"] = "none"
    groups: int = 1
    top_groups: int = 1
    pool: int = 0
    pool_block: int = 0
    float32: bool = False
    """Router and weighted sum in float32 also in a bfloat16 model."""
    stacked: bool = False
    """Are the experts of a layer published as two tensors, and not one by one?"""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaled rotary positions: frequencies whose wave is longer than ``original / low`` tokens are divided by
    ``factor``, those shorter than ``original / high`` stay, and those between are interpolated."""

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True)
class Yarn:
    """YaRN's scaled rotary positions (arXiv 2309.00071), without a factor on attention: frequencies whose wave turns
    more than ``fast`` times within the ``original`` length stay, those below ``slow`` turns are divided by ``factor``,
    and those between are interpolated by their number."""

    factor: float
    fast: float
    slow: float
    original: int


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer.

    rotary_width: the first channels of a head, at the frequencies ``theta ** -(2 i / rotary_width)`` of pairs that are
        half of them apart; only pairs i below ``rotated / 2`` are rotated.
    window: the number of tokens that a token attends to in causal attention, itself included; None: all.
    value_is_key: the values are the keys before norm and rotation; there is no value projection.
    """

    kv_heads: int
    head_dim: int
    theta: float
    rotary_width: int
    rotated: int
    window: int | None = None
    value_is_key: bool = False
    scaling: RopeScaling | Yarn | None = None

    @property
    def rotation(self) -> tuple[float, int, int, RopeScaling | Yarn | None]:
        """Layers with an equal value rotate alike."""
        return self.theta, self.rotary_width, self.rotated, self.scaling


@dataclass(frozen=True)
class Arch:
    """Sizes and switches of a pre-norm transformer with rotary positions and a gated feed-forward. Norms behind
    attention and feed-forward are there if ``names`` has them."""

    names: WeightNames
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ff_width: int
    vocab: int
    norm_eps: float
    rope_theta: float
    rope_in_float32: bool = True
    rope_scaling: RopeScaling | Yarn | None = None
    rotary_dim: int | None = None
    """Channels of a head that are rotated, the first ones; None: all."""
    norm_weight: bool = True
    qk_norm: bool = False
    clip_qkv: float | None = None
    qkv_bias: bool = False
    bias: bool = False
    """Biases on the output, feed-forward and head projections."""
    o_bias: bool = False
    ff_bias: bool = False
    """Biases on the output, or the feed-forward projections alone."""
    tied_head: bool = False
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    """Logits are ``cap tanh(logits / cap)``, in float32."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    v_norm: bool = False
    """Values are normed without a weight."""
    attention_scale: float | None = None
    """Of the products of queries and keys; None: head_dim^-0.5."""
    by_layer: tuple[LayerAttention, ...] = ()
    """The attention of each layer, where layers differ."""
    moe: MoE | None = None
    block_length: int | None = None
    """Default attention: None is bidirectional, else block-causal on a grid from the first token. A plan wins."""
    causal_prefix: bool = False
    """With ``block_length``: do the clean tokens before a block attend causally, and not by blocks?"""

    def attention(self, layer: int) -> LayerAttention:
        if self.by_layer:
            return self.by_layer[layer]
        rotated = self.rotary_dim or self.head_dim
        return LayerAttention(
            self.kv_heads, self.head_dim, self.rope_theta, rotated, rotated, scaling=self.rope_scaling
        )

    def is_moe(self, layer: int) -> bool:
        return self.moe is not None and self.moe.layers[layer]
