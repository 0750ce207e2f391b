"""What a family's transformer looks like, as data: sizes, switches, and the published names of its weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Published module names. The network is built under them, so checkpoints, peft and FSDP see what they know.

    The first four are paths from the model, the others from one layer.
    """

    embed: str
    layers: str
    final_norm: str
    head: str
    attn_norm: str
    q: str
    k: str
    v: str
    o: str
    ff_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True)
class Arch:
    """Sizes and switches of a pre-norm transformer with rotary positions and a SwiGLU feed-forward."""

    names: Names
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
    norm_weight: bool = True
    qkv_bias: bool = False
    bias: bool = False
    """Biases on the output, feed-forward and head projections."""
    tied_head: bool = False
    embed_scale: float = 1.0
    logit_scale: float = 1.0
