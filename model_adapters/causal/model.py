"""A causal language model of transformers behind the LoadedModel protocol."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dare_bench.errors import DareError, DecodingError, UsageError, brief
from dare_bench.model_adapters.adapters import is_adapted
from dare_bench.model_adapters.batches import SHORTER, Batches
from dare_bench.model_adapters.causal.fields import CausalFields, resolved
from dare_bench.model_adapters.causal.generation import CausalRow, generate_batch, hides_padding
from dare_bench.model_adapters.causal.network import CausalNetwork
from dare_bench.model_adapters.causal.scoring import score_texts
from dare_bench.model_adapters.causal.weights import load_network, under_file_names
from dare_bench.model_adapters.encoding import check_length, logits_tokens
from dare_bench.protocols import AdapterSettings
from dare_bench.types import Capabilities, Decoding, LoopStats, Request, Sample

WINDOW = 4
"""Batches whose requests are sorted by length together; one where ``max_rows`` says how many may be taken."""


class CausalModel(CausalNetwork):
    """Implements :class:`dare_bench.protocols.LoadedModel`. Open one with :func:`dare_bench.load`."""

    capabilities = Capabilities(
        near_tie=True, likelihood=True, rolling=True, row_keyed_randomness=True, weight_update=True
    )

    @cached_property
    def takes_mask(self) -> bool:
        """Can the network be told which tokens are padding? If not, prompts of one length share a batch."""
        some = [self.prefix_id, *(token % self.spec.vocab_size for token in range(3, 6))]
        return self._takes_mask and hides_padding(self.network, some, self.pad_id)

    # -- requests ------------------------------------------------------------------------------------------------

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        """All resolved decoding values; raises DecodingError."""
        return resolved(decoding, self.spec)

    def forwards(self, request: Request) -> int:
        """Upper bound of a request's forward passes."""
        if request.kind == "generate":
            return (
                self.resolve(request.decoding).gen_length if request.resolved is None else request.resolved.gen_length
            )
        if not request.rolling:
            return 1
        target = request.target if isinstance(request.target, str) else list(request.target or ())
        return max(1, -(-len(self.encode(target)) // self.spec.context_limit)) if len(target) else 1

    # -- generation ----------------------------------------------------------------------------------------------

    def row(self, request: Request) -> CausalRow:
        """The row of a request; raises DecodingError or PromptError."""
        decoding = request.resolved or self.resolve(request.decoding)
        if not isinstance(decoding, CausalFields):
            raise DecodingError(f"request {request.key}: its decoding was resolved by another family")
        for name in ("canvas", "end_forward"):
            if getattr(request, name) is not None:
                raise DecodingError(f"{name}: an autoregressive model writes from left to right; leave it out")
        prompt = self.encode(request.prompt) or [self.prefix_id]
        check_length(prompt, decoding.gen_length, self.spec)
        return CausalRow(request, prompt, decoding, self.weights_version)

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer generate requests; samples come back when their batch is finished."""
        stats = stats if stats is not None else LoopStats()
        batches = Batches(max_rows or self.default_rows, stats, self.device, SHORTER)
        source, window = iter(requests), WINDOW if max_rows is None else 1

        def forward(rows: Sequence[CausalRow]) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                generate_batch(self.network, rows, self.tokenizer, self.pad_id, stats, masked=self.takes_mask)

        while some := list(islice(source, window * (batches.rows or self.default_rows))):
            rows: list[CausalRow] = []
            for request in some:
                try:
                    rows.append(self.row(request))
                except DareError as error:
                    yield Sample(request, None, str(error))
            rows.sort(key=lambda row: (self._kind(row), -row.decoding.gen_length, -len(row.prompt)))
            for _, alike in groupby(rows, key=self._kind):
                for batch in batches.compute(list(alike), forward):
                    yield from (Sample(row.request, row.answer(self.tokenizer)) for row in batch)

    def _kind(self, row: CausalRow) -> tuple[float, ...]:
        """Rows of one kind can share a batch."""
        return row.kind if self.takes_mask else (*row.kind, len(row.prompt))

    # -- likelihood and logits -----------------------------------------------------------------------------------

    def score(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer score requests."""
        return score_texts(self, requests, max_rows or self.default_rows, stats if stats is not None else LoopStats())

    def logits(self, ids: Sequence[int], block_length: int | None = None) -> Tensor:
        """float32 [L, V]; row i scores token i (the first row, which nothing precedes, equals the second).

        Raises:
            DecodingError: a block length. PromptError: no tokens, too many, or ids outside the vocabulary.
            ModelOutputError: NaN logits.
        """
        if block_length is not None:
            raise DecodingError(f"block_length={brief(block_length)}: an autoregressive model has no blocks")
        tokens = logits_tokens(ids, self.encode, self.spec)
        return self.of_tokens(self.last_logits(torch.tensor([tokens]), len(tokens))[0].cpu())

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the layout that the folder has to ``path``, or the adapter if the network has one; raises SaveError."""
        if state_dict is None and not is_adapted(self.network):
            state_dict = self.published_weights()
        super().save(path, state_dict)

    def read_weights(self, path: str | Path) -> None:
        """Load the weights of a folder that ``save`` wrote into the network, in place; raises CheckpointError."""
        if is_adapted(self.network):
            super().read_weights(path)
            return
        base = self.network
        read = load_network(type(base), Path(path), base.config, base.dtype, torch.device("cpu"))
        base.load_state_dict(read.state_dict())

    def published_weights(self) -> Mapping[str, Tensor]:
        """The network's weights under their names in the folder's files."""
        return under_file_names(self.network, self.path)

    def add_adapter(self, settings: AdapterSettings) -> None:
        """Raise UsageError: the methods train diffusion models."""
        raise UsageError(f"{self.path} is an autoregressive model; adapters are trained on diffusion models")
