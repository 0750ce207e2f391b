"""The family of autoregressive models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_bench.checkpoint_files import read_config
from dare_bench.model_adapters.causal.fields import NAME, CausalFields, resolved
from dare_bench.model_adapters.causal.open_causal import network_of, open_causal
from dare_bench.types import Decoding, ModelSpec, OpeningSettings


class Causal:
    """Opens checkpoints of transformers' own causal language models."""

    name = NAME
    decoding = CausalFields

    def open(self, path: Path, settings: OpeningSettings) -> Any:
        """Open a folder (see ``open_causal.open_causal``)."""
        return open_causal(path, settings)

    def facts(self, path: Path) -> Iterator[tuple[str, str]]:
        """How it decodes; raises CheckpointError for a folder that does not open."""
        _, network = network_of(path, read_config(path))
        yield "mask", "none: an autoregressive model"
        yield "sampler", f"generate of transformers' {network.__name__}, from left to right"

    def planned(self, path: Path, settings: OpeningSettings) -> Iterator[tuple[str, str]]:
        """Where its layers go: they are not divided."""
        yield "layers", "an autoregressive model is opened whole on the device of --device; auto does not divide it"

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        """All decoding values; ``early_stop`` is on where the text is cut at EOS. Raises DecodingError."""
        return resolved(fields, spec)


FAMILY = Causal()
