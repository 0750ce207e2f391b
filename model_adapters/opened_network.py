"""The weights of an opened network: saved, read again, compared with their files, and the LoRA adapter on them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dare_bench.errors import ModelOutputError, UsageError
from dare_bench.model_adapters.adapters import holds_adapter, is_adapted, merge, read_adapter, wrap
from dare_bench.model_adapters.backbone.quantized import Rows, is_quantized, weights_of
from dare_bench.model_adapters.encoding import words_of
from dare_bench.model_adapters.saving import save_checkpoint
from dare_bench.model_adapters.weights import holds, into
from dare_bench.protocols import AdapterSettings
from dare_bench.types import ModelSpec

DEFAULT_ROWS = {"cpu": 16, "cuda": 64}
NAN_LOGITS = "the network gave NaN logits: check the weights (dare-bench validate) and the dtype"


class OpenedNetwork:
    """The part of :class:`dare_bench.protocols.LoadedModel` that concerns weights, and what all networks share."""

    weights_version = 0
    """Which weights the network holds: whoever changes them counts this up, and answers record it."""

    def __init__(
        self, network: Any, tokenizer: Any | None, spec: ModelSpec, path: Path, adapter: Path | None = None
    ) -> None:
        self.network: Any = network  # wrapped in a PeftModel while it has an adapter
        self.tokenizer, self.spec, self.path = tokenizer, spec, path
        self.device = torch.device(spec.device)
        self._adapter, self._words = adapter, words_of(tokenizer)

    @property
    def default_rows(self) -> int:
        """Maximum number of rows at a time if ``max_rows`` is not given."""
        return DEFAULT_ROWS.get(self.device.type, DEFAULT_ROWS["cpu"])

    def of_tokens(self, logits_LV: Tensor) -> Tensor:
        """The logits that score each token, from those of each state: the first row, which nothing precedes, equals the
        second where a state predicts the next token. Raises ModelOutputError: NaN."""
        if bool(torch.isnan(logits_LV).any()):
            raise ModelOutputError(NAN_LOGITS)
        return torch.cat([logits_LV[:1], logits_LV[:-1]]) if self.spec.predicts == "next" else logits_LV

    def pretrained(self) -> Any:
        """The network, which is transformers' ``PreTrainedModel`` (with an adapter, a PeftModel) from now on."""
        from dare_bench.model_adapters.backbone.pretrained import as_pretrained

        return self.network if is_adapted(self.network) else as_pretrained(self.network)

    def save(self, path: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the published layout to ``path``, or the adapter if the network has one; raises SaveError."""
        self._check_whole()
        save_checkpoint(self.pretrained(), self.path, Path(path), self.spec.family, state_dict)

    def read_weights(self, path: str | Path) -> None:
        """Load the weights of a folder that ``save`` wrote into the network, in place; raises CheckpointError."""
        self._check_whole()
        folder = Path(path)
        if is_adapted(self.network):
            read_adapter(self.network, folder)
        else:
            into(self.network, folder)

    def _check_whole(self) -> None:
        """Raise UsageError if the weights that are saved (the adapter's, if there is one) are quantized or away."""
        if is_quantized(self.network) and not is_adapted(self.network):
            raise UsageError(f"{self.path} is open with quantized weights; open it without, to save or change them")
        self._check_placed()

    def _check_placed(self) -> None:
        """Raise UsageError if weights are outside the network between forward passes."""
        away = [name for name, weight in self.network.named_parameters() if weight.is_meta]
        if away:
            raise UsageError(
                f"{len(away)} weights of {self.path} are not on the device that computes (first {away[0]}); open it on "
                "one device, not with device='auto', to save or change them"
            )

    def is_as_opened(self) -> bool:
        """Are weights and tokenizer those in the folders that they were opened from?"""
        dtype = getattr(torch, self.spec.dtype)
        if words_of(self.tokenizer) != self._words or is_adapted(self.network) != (self._adapter is not None):
            return False
        if self._adapter is not None:
            return holds_adapter(self.network, self.path, self._adapter, dtype)
        return holds(self.published_weights(), self.path, dtype, self.network)

    def published_weights(self) -> Mapping[str, Tensor | Rows]:
        """The network's weights under their names in the folder's files."""
        return weights_of(self.network)

    def add_adapter(self, settings: AdapterSettings) -> None:
        """Add a new LoRA adapter to the network and freeze all other weights; raises UsageError."""
        self._check_placed()
        self.network = wrap(self.network, settings)

    def merge_adapter(self) -> None:
        """Add the adapter's update to the weights and remove the adapter; raises UsageError."""
        self.network = merge(self.network)

    def without_adapter(self) -> AbstractContextManager[None]:
        """Inside, the network is the base, bit for bit; raises UsageError where it has no adapter."""
        if not is_adapted(self.network):
            raise UsageError("the model has no adapter, so no base behind it; open a second model as reference")
        without: AbstractContextManager[None] = self.network.disable_adapter()
        return without
