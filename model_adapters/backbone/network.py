"""The network behind every family: a plain module over the shared layers, which imports nothing of transformers that
answering does not need (``pretrained.py`` makes it a ``PreTrainedModel``).

It has one entry point, ``forward``: packed tokens, positions and a plan in; logits where requested (``logits_at``),
or token losses (``targets``) without ever holding all logits. So the hooks of peft, FSDP and DDP always run.

Shape letters: B rows, L positions, T packed tokens, N selected tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from dare_bench.diffusion.chunked import CHUNK_ELEMENTS
from dare_bench.diffusion.lockstep import is_sharded
from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.backbone.arch import Arch
from dare_bench.model_adapters.backbone.attention import BACKENDS, Attention
from dare_bench.model_adapters.backbone.head import Head, TiedEmbedding
from dare_bench.model_adapters.backbone.layers import Layer, attach, rotary
from dare_bench.model_adapters.backbone.moe import Experts

SELECT_FROM = 64
"""Number of tokens without requested logits from which the last layer is computed only for the others; with fewer,
selecting the queries costs more than it saves."""


@dataclass
class NetworkOutput(ModelOutput):
    """``logits`` [T, V], [N, V] or [B, L, V] in the model's dtype, or ``nll`` [N] in float32 (nats)."""

    logits: Tensor | None = None
    nll: Tensor | None = None


class DiffusionNetwork(nn.Module):
    """A family subclasses this with ``config_class`` and ``arch_of(config)``; everything else is shared."""

    config_class: ClassVar[type[Any]]
    layer: ClassVar[type[Layer]] = Layer
    conditions: ClassVar[bool] = False
    """Does a forward take ``soft``, which the network's own ``soft`` makes of an earlier forward's logits and of the
    embeddings? Such a network is not divided among devices."""
    unused: ClassVar[str | None] = None
    """A pattern of the weights in published files that the network does not have by design: a vision tower's."""

    def __init__(self, config: Any) -> None:
        nn.Module.__init__(self)
        self.config, self.name_or_path = config, config.name_or_path
        self.attention: Attention = BACKENDS["sdpa"]
        self.arch = arch = self.arch_of(config)
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Any] = partial(checkpoint, use_reentrant=False)
        self._checkpoint_every = 1
        n = arch.names
        attach(self, n.embed, (TiedEmbedding if arch.tied_head else nn.Embedding)(arch.vocab, arch.width))
        attach(self, n.layers, nn.ModuleList(self.layer(arch, i) for i in range(arch.layers)))
        attach(self, n.final_norm, self.layer.norm_class(arch.width, arch.norm_eps, arch.norm_weight))
        if not arch.tied_head:
            attach(self, n.head, Head(arch.width, arch.vocab, bias=arch.bias))
        self.apply(self._init_weights)

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        """The architecture that a config describes; raises CheckpointError for values that are not supported."""
        raise NotImplementedError(f"{cls.__name__} must implement arch_of(config)")

    def at(self, path: str) -> Any:
        return attrgetter(path)(self)

    def get_input_embeddings(self) -> nn.Module:
        return self.at(self.arch.names.embed)

    def set_input_embeddings(self, value: nn.Module) -> None:
        attach(self, self.arch.names.embed, value)

    def get_output_embeddings(self) -> nn.Module | None:
        return None if self.arch.tied_head else self.at(self.arch.names.head)

    def _init_weights(self, module: nn.Module) -> None:
        std = getattr(self.config, "init_std", None) or getattr(self.config, "initializer_range", None) or 0.02
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0.0, std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Experts):
            nn.init.normal_(module.gate_up_proj, 0.0, std)
            nn.init.normal_(module.down_proj, 0.0, std)
        elif isinstance(module, self.layer.norm_class) and module.weight is not None:
            nn.init.ones_(module.weight)

    def head(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, V] of final hidden states."""
        a = self.arch
        if a.tied_head:
            logits = self.at(a.names.embed)(hidden_ND)
        else:
            logits = self.at(a.names.head)(hidden_ND)
        if a.logit_cap is not None:
            return torch.tanh(logits.float() / a.logit_cap) * a.logit_cap
        return logits if a.logit_scale == 1.0 else logits * a.logit_scale

    def embedded(self, tokens_T: Tensor, plan: Plan, soft_TD: Tensor | None) -> Tensor:
        """What the first layer is given, [T, D]."""
        x = self.get_input_embeddings()(tokens_T)
        return x if self.arch.embed_scale == 1.0 else x * self.arch.embed_scale

    def condition(self, positions_T: Tensor) -> tuple[Tensor, ...]:
        """What all layers and the final norm are given besides states."""
        return ()

    def normed(self, x_ND: Tensor, *condition: Tensor) -> Tensor:
        """The output of the last layer as the head is given it."""
        normed_ND: Tensor = self.at(self.arch.names.final_norm)(x_ND)
        return normed_ND

    def after_layer(self, x_TD: Tensor, index: int, clean_T: Tensor | None) -> Tensor:
        """The output of a layer as the next one is given it; ``clean_T`` as in :meth:`Plan.clean_tokens`."""
        return x_TD

    def hidden(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        plan: Plan,
        logits_at: Tensor | None,
        soft_TD: Tensor | None = None,
    ) -> Tensor:
        """Normed final states, [T, D] or, where ``logits_at`` is given, [N, D]."""
        a = self.arch
        x = self.embedded(tokens_T, plan, soft_TD)
        clean_T, condition = plan.clean_tokens(x.device), self.condition(positions_T)
        turns: dict[Any, tuple[Tensor, Tensor]] = {}
        layers = self.at(a.names.layers)
        # Without any token, every layer is computed in full, so that all parameters get a gradient, if only zero.
        whole = a.moe is not None and a.moe.pool > 0  # the experts of a block are chosen by all of its tokens
        few = not whole and logits_at is not None and 0 < len(logits_at) <= len(tokens_T) - SELECT_FROM
        few = few and plan.sequence is None
        selected = self.attention.select(plan, logits_at) if few and logits_at is not None else None
        for i, layer in enumerate(layers):
            last, own = few and i == len(layers) - 1, a.attention(i)
            if own.rotation not in turns:
                turns[own.rotation] = rotary(positions_T, own, torch.float32 if a.rope_in_float32 else x.dtype)
            whom = plan.within(own.window)
            only = (logits_at, selected) if last else (None, None)
            args = (x, *turns[own.rotation], whom, self.attention, *only, *condition)
            if self.gradient_checkpointing and self.training and i % self._checkpoint_every == 0:
                x = self._gradient_checkpointing_func(layer, *args)
            else:
                x = layer(*args)
            x = self.after_layer(x, i, clean_T[logits_at] if last and clean_T is not None else clean_T)
        if logits_at is not None and not few:
            x = x[logits_at.to(x.device)]
        return self.normed(x, *condition)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        plan: Plan | None = None,
        logits_at: Tensor | None = None,
        targets: Tensor | None = None,
        temperature: float = 1.0,
        soft: Tensor | None = None,
    ) -> NetworkOutput:
        """Logits or losses of a pack.

        Args:
            input_ids: packed ids [T] with ``plan``; or [B, L], B rows of one length, without.
            positions: [T], by row; None: counted from 0.
            plan: which tokens attend to which (see :class:`Plan`); None: the default attention of the family. With a
                sequence-parallel group, all of its ranks are given the same pack and return the same results.
            logits_at: sorted packed indices [N]; only these are projected through the head.
            targets: [N] ids (at ``logits_at``, or at all T): return ``nll`` instead of logits, with the head
                applied in chunks, so that no [N, V] tensor exists, not even in the backward pass.
            temperature: divides the logits of the losses.
            soft: [T, D], the mean embedding of what an earlier forward predicted for each token (zero: nothing), for
                families that condition on it.
        """
        shape = input_ids.shape
        if plan is None:
            lengths = (shape[1],) * shape[0] if input_ids.dim() == 2 else (shape[0],)
            plan = Plan(lengths, self.arch.block_length)
        tokens = input_ids.reshape(-1)
        if positions is None:
            positions = plan.positions(tokens.device)
        if plan.sequence is None:
            result = self._results(tokens, positions, plan, logits_at, targets, temperature, soft)
        else:
            own = plan.sequence.part(tokens, positions, logits_at, targets)
            result = self._results(own.tokens_P, own.positions_P, plan, own.at_M, own.targets_M, temperature)
            result = plan.sequence.gathered(result, own.counts_W)
        if targets is not None:
            return NetworkOutput(nll=result)
        return NetworkOutput(logits=result.view(*shape, -1) if logits_at is None and len(shape) == 2 else result)

    def _results(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        plan: Plan,
        logits_at: Tensor | None,
        targets_N: Tensor | None,
        temperature: float,
        soft_TD: Tensor | None = None,
    ) -> Tensor:
        """Logits, or with targets losses, of the pack or of this rank's part of it."""
        hidden = self.hidden(tokens_T, positions_T, plan, logits_at, soft_TD)
        return self.head(hidden) if targets_N is None else self._nll(hidden, targets_N, 1.0 / temperature)

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor, scale: float) -> Tensor:
        a = self.arch
        rows = max(1, CHUNK_ELEMENTS // a.vocab)
        head = self.at(a.names.embed if a.tied_head else a.names.head)
        if isinstance(head, Head | TiedEmbedding) and a.logit_cap is None:
            losses: Tensor = head(hidden_ND, targets_N, a.logit_scale * scale, rows)
            return losses
        # It is capped, or was replaced (LoRA, quantization): called chunk by chunk, or once if calls are collective,
        # since processes may have different numbers of chunks.
        rows = max(1, len(targets_N)) if is_sharded(self) else rows
        chunk = partial(self._chunk_nll, scale=scale)
        if torch.is_grad_enabled():
            chunk = partial(checkpoint, chunk, use_reentrant=False)
        parts = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([chunk(hidden_RD, targets_R) for hidden_RD, targets_R in parts])

    def _chunk_nll(self, hidden_RD: Tensor, targets_R: Tensor, scale: float) -> Tensor:
        logits_RV = self.head(hidden_RD).float()
        return cross_entropy(logits_RV if scale == 1.0 else logits_RV * scale, targets_R, reduction="none")


def shapes_of(network: type[DiffusionNetwork], config: Any) -> DiffusionNetwork:
    """A network without weights, on the meta device."""
    with torch.device("meta"), _NoInitialization():
        return network(config)


class _NoInitialization(TorchFunctionMode):
    """Skips the initialization of weights, for which torch would import its compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return None  # nobody reads it
        return func(*args, **(kwargs or {}))
