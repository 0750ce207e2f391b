"""The network behind every family: a ``PreTrainedModel`` over the shared layers.

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
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from dare_bench.diffusion.chunked import CHUNK_ELEMENTS
from dare_bench.diffusion.plan import Plan, select_queries
from dare_bench.model_adapters.backbone.arch import Arch
from dare_bench.model_adapters.backbone.head import Head, TiedEmbedding
from dare_bench.model_adapters.backbone.layers import Layer, RMSNorm, attach, rotary
from dare_bench.model_adapters.backbone.moe import Experts

SELECT_FROM = 64
"""Number of tokens without requested logits from which the last layer is computed only for the others; with fewer,
selecting the queries costs more than it saves."""


@dataclass
class NetworkOutput(ModelOutput):
    """``logits`` [T, V], [N, V] or [B, L, V] in the model's dtype, or ``nll`` [N] in float32 (nats)."""

    logits: Tensor | None = None
    nll: Tensor | None = None


class DiffusionNetwork(PreTrainedModel):
    """A family subclasses this with ``config_class`` and ``arch_of(config)``; everything else is shared."""

    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules: ClassVar[list[str]] = ["Layer"]

    def __init__(self, config: Any) -> None:
        config._attn_implementation = "sdpa"  # a hint for the published code; here the plan determines the attention
        super().__init__(config)
        self.arch = arch = self.arch_of(config)
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Any] = partial(checkpoint, use_reentrant=False)
        self._checkpoint_every = 1
        n = arch.names
        attach(self, n.embed, (TiedEmbedding if arch.tied_head else nn.Embedding)(arch.vocab, arch.width))
        attach(self, n.layers, nn.ModuleList(Layer(arch, i) for i in range(arch.layers)))
        attach(self, n.final_norm, RMSNorm(arch.width, arch.norm_eps, arch.norm_weight))
        if not arch.tied_head:
            attach(self, n.head, Head(arch.width, arch.vocab, bias=arch.bias))
        self.post_init()

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
        elif isinstance(module, RMSNorm) and module.weight is not None:
            nn.init.ones_(module.weight)

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = checkpoint, every_n_layers: int = 1
    ) -> None:
        """Called by ``activation_checkpointing_enable`` of transformers, with all its options."""
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func)
        self._checkpoint_every = every_n_layers

    def head(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, V] of final hidden states."""
        a = self.arch
        if a.tied_head:
            logits = self.at(a.names.embed)(hidden_ND)
        else:
            logits = self.at(a.names.head)(hidden_ND)
        return logits if a.logit_scale == 1.0 else logits * a.logit_scale

    def hidden(self, tokens_T: Tensor, positions_T: Tensor, plan: Plan, logits_at: Tensor | None) -> Tensor:
        """Normed final states, [T, D] or, where ``logits_at`` is given, [N, D]."""
        a = self.arch
        x = self.get_input_embeddings()(tokens_T)
        if a.embed_scale != 1.0:
            x = x * a.embed_scale
        cos, sin = rotary(positions_T, a.rotated, a.rope_theta)
        layers = self.at(a.names.layers)
        # Without any token, every layer is computed in full, so that all parameters get a gradient, if only zero.
        whole = a.moe is not None and a.moe.pool > 0  # the experts of a block are chosen by all of its tokens
        few = not whole and logits_at is not None and 0 < len(logits_at) <= len(tokens_T) - SELECT_FROM
        few = few and plan.sequence is None
        queries = select_queries(plan, logits_at) if few and logits_at is not None else None
        for i, layer in enumerate(layers):
            last = few and i == len(layers) - 1
            args = (x, cos, sin, plan, logits_at if last else None, queries if last else None)
            if self.gradient_checkpointing and self.training and i % self._checkpoint_every == 0:
                x = self._gradient_checkpointing_func(layer, *args)
            else:
                x = layer(*args)
        if logits_at is not None and not few:
            x = x[logits_at.to(x.device)]
        return self.at(a.names.final_norm)(x)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        plan: Plan | None = None,
        logits_at: Tensor | None = None,
        targets: Tensor | None = None,
        temperature: float = 1.0,
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
        """
        shape = input_ids.shape
        if plan is None:
            lengths = (shape[1],) * shape[0] if input_ids.dim() == 2 else (shape[0],)
            plan = Plan(lengths, self.arch.block_length)
        tokens = input_ids.reshape(-1)
        if positions is None:
            positions = plan.positions(tokens.device)
        if plan.sequence is None:
            result = self._results(tokens, positions, plan, logits_at, targets, temperature)
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
    ) -> Tensor:
        """Logits, or with targets losses, of the pack or of this rank's part of it."""
        hidden = self.hidden(tokens_T, positions_T, plan, logits_at)
        return self.head(hidden) if targets_N is None else self._nll(hidden, targets_N, 1.0 / temperature)

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor, scale: float) -> Tensor:
        a = self.arch
        rows = max(1, CHUNK_ELEMENTS // a.vocab)
        head = self.at(a.names.embed if a.tied_head else a.names.head)
        if isinstance(head, Head | TiedEmbedding):
            losses: Tensor = head(hidden_ND, targets_N, a.logit_scale * scale, rows)
            return losses
        # It was replaced (LoRA, quantization): called chunk by chunk, or once if calls are collective, since processes
        # may have different numbers of chunks.
        rows = max(1, len(targets_N)) if isinstance(self, FSDPModule) else rows
        chunk = partial(self._chunk_nll, scale=scale)
        if torch.is_grad_enabled():
            chunk = partial(checkpoint, chunk, use_reentrant=False)
        parts = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([chunk(hidden_RD, targets_R) for hidden_RD, targets_R in parts])

    def _chunk_nll(self, hidden_RD: Tensor, targets_R: Tensor, scale: float) -> Tensor:
        logits_RV = self.head(hidden_RD).float()
        return cross_entropy(logits_RV if scale == 1.0 else logits_RV * scale, targets_R, reduction="none")
