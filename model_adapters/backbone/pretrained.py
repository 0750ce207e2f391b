"""The networks as transformers' ``PreTrainedModel``: for training, ``save_pretrained``, peft and the Auto classes.

To answer requests a network needs none of this, and the import takes longer than that of PyTorch. So a network is
opened as a plain module, which :func:`as_pretrained` turns into a ``PreTrainedModel`` where one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from dare_bench.model_adapters.backbone.network import DiffusionNetwork


def as_pretrained(network: Any) -> Any:
    """The same network, which is a ``PreTrainedModel`` from now on; its weights and hooks stay."""
    if not isinstance(network, PreTrainedModel):
        plain: Any = type(network)
        network.__class__ = pretrained(plain)
        network.complete()
    return network


@cache
def pretrained(network: Any) -> Any:
    """A family's network, a subclass of ``DiffusionNetwork``, as a class of transformers under the same name."""
    fields = {
        "plain": network,
        "_no_split_modules": [network.layer.__name__],
        "__module__": network.__module__,
        "__doc__": network.__doc__,
    }
    whole = type(network.__name__, (_Pretrained, network, PreTrainedModel), fields)
    register_checkpoint_conversion_mapping(network.__name__, _stack_experts(), overwrite=True)
    return whole


def register_auto(network: Any) -> None:
    """Let ``AutoConfig``, ``AutoModel`` and ``AutoModelForCausalLM`` open the checkpoints of a family's network."""
    AutoConfig.register(network.config_class.model_type, network.config_class, exist_ok=True)
    for auto in (AutoModel, AutoModelForCausalLM):
        auto.register(network.config_class, pretrained(network), exist_ok=True)


class _Pretrained:
    """What transformers reads of its models."""

    plain: ClassVar[type[DiffusionNetwork]]
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: Any) -> None:
        self.plain.__init__(self, config)  # type: ignore[arg-type]
        self.complete()

    def complete(self) -> None:
        """Add the attributes of a ``PreTrainedModel`` to those of the network, whose weights stay."""
        network: Any = self
        own = dict(vars(network))
        network.config._attn_implementation = "sdpa"  # a hint for the published code; the plan determines the attention
        PreTrainedModel.__init__(network, network.config)
        vars(network).update(own)
        with torch.device("meta"):  # on which transformers initializes no weights
            network.post_init()

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = checkpoint, every_n_layers: int = 1
    ) -> None:
        """Called by ``activation_checkpointing_enable`` of transformers, with all its options."""
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func)  # type: ignore[misc]
        self._checkpoint_every = every_n_layers


def _stack_experts(experts: str = "mlp.experts") -> list[WeightConverter]:
    """Experts, which published files store one by one, as two tensors a layer."""
    return [
        WeightConverter(
            source_patterns=[f"{experts}.*.gate_proj.weight", f"{experts}.*.up_proj.weight"],
            target_patterns=f"{experts}.gate_up_proj",
            operations=[MergeModulelist(dim=0), Concatenate(dim=1)],
        ),
        WeightConverter(
            source_patterns=f"{experts}.*.down_proj.weight",
            target_patterns=f"{experts}.down_proj",
            operations=[MergeModulelist(dim=0)],
        ),
    ]
