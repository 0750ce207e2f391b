"""Keeps the experts of a mixture evenly busy without a loss term: each expert's bias, which only decides who is chosen,
moves after every step by a fixed amount, down when the expert had more than its share of tokens and up when it had less
(arXiv 2408.15664)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.moe import Experts


class Balance:
    """Counts what every layer's router chose in training, and moves the biases at each ``step``; nothing to do for a
    network without experts."""

    def __init__(self, network: torch.nn.Module, rate: float) -> None:
        self.rate = rate
        self.loads: dict[str, Tensor] = {}
        self.biases = {n.removesuffix(".gate.expert_bias"): b for n, b in network.named_buffers() if "expert_bias" in n}
        for name, module in network.named_modules():
            if isinstance(module, Experts):
                module.register_forward_pre_hook(self._counter(name.removesuffix(".experts")))

    def _counter(self, name: str) -> Any:
        def count(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if module.training:
                self.loads[name] = torch.bincount(inputs[1].reshape(-1), minlength=len(self.biases[name]))

        return count

    @torch.no_grad()
    def step(self) -> None:
        for name, load in self.loads.items():
            self.biases[name] -= self.rate * torch.sign(load - load.double().mean()).to(self.biases[name].dtype)
