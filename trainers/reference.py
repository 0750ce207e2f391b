"""The policy that a method compares with: the model without its adapter, or a checkpoint of its own.

Its token losses are computed without a graph, and kept by the key of an item's noise: the same noise again (an epoch
with kept noise, several updates on one batch) costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.forward import Inputs
from dare_bench.errors import UsageError
from dare_bench.protocols import LoadedModel
from dare_bench.trainers.method import Method, TokenLosses
from dare_bench.trainers.steps import Micro
from dare_bench.training.spec import TrainSpec


class Reference:
    """Token losses of the reference policy."""

    def __init__(self, method: Method, spec: TrainSpec, model: LoadedModel, device: torch.device) -> None:
        raise UsageError("no reference yet")

    def losses(self, micro: Micro, policy: Any) -> TokenLosses:
        def token_losses(given: Inputs) -> Tensor:
            raise NotImplementedError

        return token_losses
