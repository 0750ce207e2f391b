"""The shape of a network: its matrices and numbers of parameters, from the facts of a recipe or an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.recipe_schema import Facts

BYTES = 2
"""Size of a weight or a cached value: bfloat16 or float16."""


@dataclass(frozen=True)
class Matrix:
    """``count`` matrices of the network, from ``inputs`` to ``outputs`` channels; ``group``: of LoRA targets.
    ``reads``: matrices of a layer with the same value have the same input; empty: attention keeps it anyway."""

    group: str
    reads: str
    inputs: int
    outputs: int
    count: int

    @property
    def parameters(self) -> float:
        """Of all of them."""
        return float(self.inputs * self.outputs * self.count)


def matrices(net: Facts, fused_qkv: bool = False) -> list[Matrix]:
    """The linear maps of all layers, without the LM head; with ``fused_qkv`` queries, keys and values are one."""
    d, layers, (width, narrow), moe = net.d_model, net.layers, attention_widths(net), net.experts
    routed = max(0, layers - moe.dense_layers) if moe else 0
    qkv = [width + 2 * narrow] if fused_qkv else [width, narrow, narrow]
    maps = [Matrix("attention", "attention", d, outputs, layers) for outputs in qkv]
    # Queries of grouped heads are reordered, so that their result is not kept by attention itself.
    maps.append(Matrix("attention", "" if width == narrow else "mixed", width, d, layers))

    def feed_forward(group: str, wide: int, count: int) -> list[Matrix]:
        return [Matrix(group, group, d, wide, count)] * 2 + [Matrix(group, f"{group} product", wide, d, count)]

    maps += feed_forward("mlp", net.ff or 0, layers - routed)
    if moe:
        maps += feed_forward("experts", moe.ff, routed * moe.count)
        maps += feed_forward("mlp", moe.shared_ff, routed)
        maps.append(Matrix("router", "mlp", d, moe.count, routed))
    return [matrix for matrix in maps if matrix.count and matrix.inputs and matrix.outputs]


@dataclass(frozen=True)
class NetworkShape:
    """Numbers of parameters: ``body`` that a token uses, ``weights`` without the experts, ``experts`` of all experts.
    ``active``: the share of the experts that a token uses."""

    body: float
    head: float
    weights: float
    experts: float
    active: float
    attention: float
    """Operations per token and context token."""
    cached: float
    """Bytes of keys and values per token."""


def network_shape(facts: Facts, notes: list[str]) -> NetworkShape:
    """The numbers of parameters of a network; what is not known of it is added to ``notes``."""
    d, layers = facts.d_model, facts.layers
    width, narrow = attention_widths(facts)
    if facts.heads is None:
        notes.append("heads are not known: attention as wide as the model, without shared keys")
    if facts.vocab is None:
        notes.append("the vocabulary's size is not known: without the LM head")
    experts = sum(matrix.parameters for matrix in matrices(facts) if matrix.group == "experts")
    always = sum(matrix.parameters for matrix in matrices(facts)) - experts
    head, moe = float(d * (facts.vocab or 0)), facts.experts
    return NetworkShape(
        body=always + (experts / moe.count * moe.active if moe else 0),
        head=head,
        weights=always + head,
        experts=experts,
        active=moe.active / moe.count if moe else 0.0,
        attention=4.0 * layers * width,
        cached=2.0 * layers * narrow * BYTES,
    )


def attention_widths(facts: Facts) -> tuple[int, int]:
    """Channels of a token's queries, and of its keys."""
    width = facts.heads * facts.head_dim if facts.heads and facts.head_dim else facts.d_model
    return width, facts.kv_heads * facts.head_dim if facts.kv_heads and facts.head_dim else width
