"""The memory of a device in a training, by part, from the shape of the network and the settings.

Held throughout: weights, adapter, gradients, AdamW's two moments, a reference that is a second network. With FSDP over
n processes each holds 1/n of them, and gathers two layers and the LM head at a time; a reference is not sharded. Each
phase has its own tensors besides. Activations are the tensors that a layer keeps for its backward, counted as the
backbone's code keeps them (a test compares them with PyTorch's own saved tensors); with sequence parallelism over n
processes each holds those of 1/n of the tokens. Not counted: the CUDA context, fragmentation, buffers of collectives,
masks of block-causal attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, lcm

from dare_bench.costs.network import Matrix, attention_widths, matrices
from dare_bench.costs.sizes import CheckpointSize, Dimensions, TrainingRows
from dare_bench.errors import unknown
from dare_bench.training.spec import TrainSpec

DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
CHUNK_ELEMENTS = 1 << 25
"""Logits that the loss computes at a time (``diffusion.chunked``)."""


@dataclass(frozen=True)
class Precision:
    """Bytes of a number: of the frozen ``weights`` (all of them without LoRA) as held, of ``trained`` ones, of matrix
    products, of the ``stream`` between layers, of the trained matrices as they are ``seen`` by a forward, and of their
    inputs, which are ``kept`` for the gradients."""

    weights: int
    trained: int
    products: int
    stream: int
    seen: int
    kept: int

    @property
    def casts(self) -> bool:
        """Does autocast hold a bfloat16 copy of all weights? FSDP gathers them in bfloat16 instead."""
        return self.products < self.weights and self.stream == self.weights

    @property
    def separate(self) -> bool:
        """Does each trained matrix keep its own converted copy of its input?"""
        return self.kept != self.stream or self.seen != self.stream


@dataclass(frozen=True)
class Division:
    """The part of an optimizer step on one device: ``items`` (rows, pairs, completions) with ``looks`` noised rows in
    all, in ``forwards`` of at most ``tokens`` tokens and ``scored`` scored ones. With sequence parallelism several
    devices have the same items and looks, a part of the tokens each, and each samples ``samples`` of the completions.
    """

    items: int
    looks: float
    forwards: int
    tokens: float
    scored: float
    samples: int


@dataclass(frozen=True)
class DeviceTraining:
    """A training as one of its devices sees it. ``spec`` has the defaults of its method; each of the ``processes`` has
    a device."""

    spec: TrainSpec
    rows: TrainingRows
    size: CheckpointSize
    processes: int = 1

    @cached_property
    def precision(self) -> Precision:
        """On a GPU; raises UnknownNameError."""
        spec = self.spec
        name = spec.dtype or (self.size.dtype if spec.peft else "float32")
        if name not in DTYPES:
            raise unknown("dtype", name, DTYPES)
        weights = DTYPES[name]
        trained = 4 if spec.peft else weights  # peft keeps adapters in float32
        products = min(weights, 2) if spec.bf16 else weights
        stream, seen = (products, 2) if spec.bf16 and spec.fsdp else (weights, trained)  # FSDP gathers in bfloat16
        return Precision(weights, trained, products, stream, seen, 2 if spec.bf16 else seen)

    @cached_property
    def trained(self) -> float | None:
        """Parameters that are trained; None if they are not known, or LoRA's targets are not groups of matrices."""
        spec, net = self.spec, self.size.dimensions
        if not spec.peft:
            return self.size.parameters
        if net is None or not set(spec.lora_targets) <= {"attention", "mlp", "router"}:
            return None
        adapted = [matrix for matrix in matrices(net, net.fused_qkv) if matrix.group in spec.lora_targets]
        return float(sum(spec.lora[0] * (matrix.inputs + matrix.outputs) * matrix.count for matrix in adapted))

    @cached_property
    def division(self) -> Division | None:
        """How a step is divided; None if the forwards are not known."""
        spec, rows = self.spec, self.rows
        if rows.forwards is None:
            return None
        items, count = spec.rows_per_forward * spec.gradient_accumulation_steps, spec.gradient_accumulation_steps
        looks = items * rows.forwards[2]
        if spec.looks_per_forward is not None:
            count = max(count, ceil(looks / spec.looks_per_forward))
        each, copies = ceil(looks / count) / self.sequence, 2 if self.size.two_copies else 1
        samples = ceil(items / self.sequence)
        return Division(items, looks, count, each * rows.tokens * copies, each * rows.answer, samples)

    @property
    def sequence(self) -> int:
        """The devices that compute the same rows together."""
        return self.spec.sequence_parallel_size

    @property
    def groups(self) -> int:
        """How many of them have rows of their own."""
        return self.processes // self.sequence

    def exchanged(self, net: Dimensions) -> tuple[float, float]:
        """Channels of a token's keys as devices that compute together exchange them, repeated if there are fewer heads
        than devices; and the query heads for each of them."""
        width, narrow = attention_widths(net)
        heads, kv_heads = net.heads or 1, net.kv_heads or net.heads or 1
        repeated = lcm(kv_heads, self.sequence)
        return narrow * repeated / kv_heads, heads / repeated if width != narrow else 1.0

    @property
    def share(self) -> float:
        """The share of sharded tensors on the device."""
        return 1 / self.processes if self.spec.fsdp else 1.0


def layer_activations(training: DeviceTraining, net: Dimensions, trained: bool = True) -> float:
    """Bytes per token that all layers together keep for the backward; with ``trained`` False as if all weights were
    frozen, which is about what a forward without gradients holds in them."""
    of, d, (width, narrow), moe = training.precision, net.d_model, attention_widths(net), net.experts
    routed = net.layers - moe.dense_layers if moe else 0
    learned = trained and not training.spec.peft  # the normed values are kept for the gradient of a norm's weight
    norms = 2 * (4 + of.stream * learned) * d
    if net.qk_norm:
        copied = of.products < 4 or not net.fused_qkv or training.sequence > 1
        norms += (4 * copied + of.products * learned) * (width + narrow)
    # Values that are a part of one matrix's result keep all of it, and norms in float32 read the same tensor.
    kept: float = 3 * width + 3 * narrow if net.fused_qkv else 2 * width + 2 * narrow
    if training.sequence > 1:  # all heads are one tensor, from which queries of grouped heads are copied
        keys, grouped = training.exchanged(net)
        kept = 2 * width + 2 * keys + (width if grouped > 1 else 0)
    attention = of.products * kept + 4 * (net.heads or 0)
    total = net.layers * (norms + attention) + (net.layers - routed) * 3 * of.products * (net.ff or 0)
    if moe:
        total += routed * of.products * 3 * moe.shared_ff
        total += routed * of.stream * moe.active * (3 * moe.ff + d)  # autocast does not cast the experts' product
    return total + (_inputs(training, net) if trained else 0)


def _inputs(training: DeviceTraining, net: Dimensions) -> float:
    """Bytes per token of the inputs that trained matrices keep, and of what is between the two of an adapter."""
    spec, of = training.spec, training.precision
    total, known = 0.0, set[Matrix]()
    for matrix in matrices(net, net.fused_qkv):
        if spec.peft and matrix.group not in spec.lora_targets:
            continue
        count, size, separate = float(matrix.count), of.kept, of.separate
        if net.experts and matrix.group == "experts":
            count, size, separate = count / net.experts.count * net.experts.active, of.stream, False
        input_of = replace(matrix, outputs=0)
        own = bool(matrix.reads) or training.sequence > 1  # attention's result becomes another tensor when exchanged
        if (separate and (own or spec.peft)) or (own and input_of not in known):
            total += size * count * matrix.inputs
        known.add(input_of)
        total += size * count * spec.lora[0] if spec.peft else 0
    return total


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes by part: those ``held`` throughout, and of each phase those besides. None: unknown."""

    held: Mapping[str, float | None]
    phases: Mapping[str, Mapping[str, float]]

    def needed(self, phase: str) -> float:
        """Bytes in a phase, without unknown parts. While the model is opened, its weights alone count."""
        own = sum(self.phases[phase].values())
        return own if phase == "loading" else own + sum(part or 0.0 for part in self.held.values())

    @property
    def peak(self) -> str:
        """The phase with most."""
        return max(self.phases, key=self.needed)


def memory_of(training: DeviceTraining) -> DeviceMemory | None:
    """The memory of the device; None if the shape of the network or the forwards of a rollout are not known."""
    net, parameters, division = training.size.dimensions, training.size.parameters, training.division
    if net is None or parameters is None or division is None:
        return None
    loading = {"weights": parameters * training.precision.weights}
    if training.spec.fsdp:
        loading["their shard"] = loading["weights"] * training.share
    return DeviceMemory(
        _held(training, parameters), {"loading": loading, **_phases(training, net, parameters, division)}
    )


def _held(training: DeviceTraining, parameters: float) -> dict[str, float | None]:
    """What is held throughout."""
    spec, of = training.spec, training.precision
    trained = None if training.trained is None else training.share * training.trained * of.trained
    held: dict[str, float | None] = {"weights": training.share * parameters * of.weights}
    if spec.peft:
        held["adapter"] = trained
    buckets = 2 if training.processes > 1 and not spec.fsdp else 1  # DDP reduces copies of the gradients
    held["gradients"] = None if trained is None else trained * buckets
    held["optimizer"] = None if trained is None else trained * 2
    if training.rows.second_network:
        held["reference"] = parameters * of.weights
    if of.casts:
        held["bfloat16 copies"] = parameters * 2
    return held


def _phases(
    training: DeviceTraining, net: Dimensions, parameters: float, division: Division
) -> dict[str, dict[str, float]]:
    """What each phase of a step holds besides. With FSDP the next layer is gathered ahead; gradients are whole until
    they are sharded, at once or, if several forwards are accumulated, at the end."""
    spec, rows, of, vocab = training.spec, training.rows, training.precision, net.vocab or 0
    head = net.d_model * vocab
    layer = (parameters - 2 * head) / net.layers
    gathered = {"gathered weights": (2 * layer + head) * min(of.weights, of.stream)} if spec.fsdp else {}
    forward = layer_activations(training, net, trained=False) / net.layers
    logits = min(division.scored * vocab, CHUNK_ELEMENTS) * 8  # in float32, in the dtype of products, their gradient
    states = division.scored * net.d_model * (4 + 2 * of.stream)
    update = {
        "activations": division.tokens * _saved(training, net) + states,
        "logits": logits + (0 if spec.peft else 4 * head),  # the gradient of the LM head is summed in float32
        **gathered,
    }
    if spec.fsdp:
        update["whole gradients"] = (training.trained or 0.0) * 4 / (1 if division.forwards > 1 else net.layers)
    phases = {"update": update}
    assert rows.forwards is not None
    if rows.forwards[1]:
        phases["score"] = {"activations": division.tokens * forward + states, "logits": logits, **gathered}
    if rows.forwards[0]:
        batch, causal = min(spec.rows_per_forward, division.samples), net.block_length is not None
        phases["rollout"] = {
            "activations": batch * (rows.open if causal else rows.tokens) * forward,
            "logits": batch * rows.open * vocab * of.products,
            **(
                {"cache": batch * rows.tokens * 2 * net.layers * attention_widths(net)[1] * of.products}
                if causal
                else {}
            ),
            **gathered,
        }
    return phases


def _saved(training: DeviceTraining, net: Dimensions) -> float:
    """Bytes per token of the activations at their peak: those that are kept, and the gradients of one layer's."""
    kept = layer_activations(training, net)
    if training.spec.gradient_checkpointing:
        return net.layers * training.precision.stream * net.d_model + 2 * kept / net.layers
    return kept + kept / net.layers
