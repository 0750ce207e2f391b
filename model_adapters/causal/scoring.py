"""Log-likelihoods by the chain rule: one forward pass for all tokens of a target, exact.

Prompts and targets become tokens as in lm-eval's ``hf``, and windows of long texts begin where its windows do.

Shape letters: B rows, L tokens of the longest row, K last positions with logits, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from dare_bench.errors import DareError, ModelOutputError, PromptError
from dare_bench.model_adapters.batches import SHORTER, Batches
from dare_bench.model_adapters.causal.network import CausalNetwork
from dare_bench.model_adapters.encoding import split_texts
from dare_bench.model_adapters.opened_network import NAN_LOGITS
from dare_bench.model_adapters.scoring.rolling import rolling_windows
from dare_bench.types import Likelihood, LoopStats, Request, Sample

WINDOW = 2048
"""Requests that are sorted by length together; equal inputs among them are computed once."""
LOGITS = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Maximum number of logits of a forward pass."""


@dataclass(eq=False)
class ScoredText:
    """A score request on its way: the sums over its windows."""

    request: Request
    prompt_tokens: int
    target_tokens: int
    windows: list[tuple[list[int], list[int]]]
    """(context, target) of each; the context of a rolling window is one token or more."""
    value: float = 0.0
    is_greedy: bool = True

    def likelihood(self, seconds: float, weights_version: int) -> Likelihood:
        return Likelihood(
            value=self.value,
            stderr=0.0,
            is_greedy=self.is_greedy,
            nfe=len(self.windows),
            estimator="chain rule",
            target_tokens=self.target_tokens,
            prompt_tokens=self.prompt_tokens,
            tier="E1",
            seconds=seconds,
            weights_version=weights_version,
        )


@dataclass(eq=False)
class InputRow:
    """The tokens of one row of a forward pass, and the windows that it scores: all end with it, or one token later."""

    tokens: tuple[int, ...]
    uses: list[tuple[ScoredText, list[int]]] = field(default_factory=list)

    @property
    def scored(self) -> int:
        """Positions at the end whose logits are needed."""
        return max(len(target) for _, target in self.uses)


def score_texts(model: CausalNetwork, requests: Iterable[Request], max_rows: int, stats: LoopStats) -> Iterator[Sample]:
    """Answer score requests; one that cannot be scored comes back with ``error``."""
    batches, source = Batches(max_rows, stats, model.device, SHORTER), iter(requests)
    while some := list(islice(source, WINDOW)):
        begin = time.perf_counter()
        texts: list[ScoredText] = []
        for request in some:
            try:
                texts.append(scored_text(model, request))
            except DareError as error:
                yield Sample(request, None, str(error))
        _compute(model, texts, batches, stats)
        share = (time.perf_counter() - begin) / max(1, len(texts))
        for text in texts:
            yield Sample(text.request, text.likelihood(share, model.weights_version))


def _compute(model: CausalNetwork, texts: Sequence[ScoredText], batches: Batches, stats: LoopStats) -> None:
    """Fill the values of texts, the longest rows first."""
    rows: dict[tuple[int, ...], InputRow] = {}
    for text in texts:
        for context, target in text.windows:
            tokens = (*context, *target[:-1])
            rows.setdefault(tokens, InputRow(tokens)).uses.append((text, target))
    budget = LOGITS[model.device.type] // model.spec.vocab_size

    def fits(batch: Sequence[InputRow]) -> int:
        return budget // _kept(batch)

    ordered = sorted(rows.values(), key=lambda row: len(row.tokens), reverse=True)
    for _ in batches.compute(ordered, lambda batch: _forward(model, batch, stats), fits):
        pass


def _kept(batch: Sequence[InputRow]) -> int:
    """Last positions of a batch with a scored token in any row."""
    longest = max(len(row.tokens) for row in batch)
    return max(longest - len(row.tokens) + row.scored for row in batch)


@torch.no_grad()
def _forward(model: CausalNetwork, batch: Sequence[InputRow], stats: LoopStats) -> None:
    """Add the losses of a batch. Rows are padded on the right, which no token before it sees."""
    longest, kept = max(len(row.tokens) for row in batch), _kept(batch)
    tokens_BL = pad_sequence([torch.tensor(row.tokens) for row in batch], batch_first=True, padding_value=model.pad_id)
    logits_BKV = model.last_logits(tokens_BL, kept)
    uses = [(row, text, target) for row in batch for text, target in row.uses]
    places = {id(row): i for i, row in enumerate(batch)}
    first = longest - kept
    row_N = [places[id(row)] for row, _, target in uses for _ in target]
    column_N = [len(row.tokens) - len(target) + i - first for row, _, target in uses for i in range(len(target))]
    target_N = [token for _, _, target in uses for token in target]
    wanted_N = torch.tensor(target_N, device=logits_BKV.device)
    logprobs_BKV = torch.log_softmax(logits_BKV, -1)
    logprob_N = logprobs_BKV[row_N, column_N, wanted_N].double().tolist()
    greedy_N = (logits_BKV.argmax(-1)[row_N, column_N] == wanted_N).tolist()
    stats.count(len(batch), len(batch) * longest)
    at = 0
    for _, text, target in uses:
        span = slice(at, at := at + len(target))
        value = sum(logprob_N[span])
        if value != value:
            raise ModelOutputError(NAN_LOGITS)
        text.value += value
        text.is_greedy &= all(greedy_N[span])


def scored_text(model: CausalNetwork, request: Request) -> ScoredText:
    """The windows of a request; raises DecodingError or PromptError."""
    model.resolve_likelihood(request.decoding)
    if request.rolling:
        tokens = _target_tokens(model, request.target, special_tokens=True)
        windows = rolling_windows(tokens, model.prefix_id, model.spec.context_limit)
        return ScoredText(request, 0, len(tokens), windows)
    context, target = encode_pair(model, request)
    inputs = len(context) + len(target) - 1
    if inputs > model.spec.context_limit:
        raise PromptError(
            f"context of {len(context)} and target of {len(target)} tokens: {inputs} of them are read; "
            f"the model's context limit is {model.spec.context_limit}"
        )
    return ScoredText(request, len(context), len(target), [(context, target)])


def encode_pair(model: CausalNetwork, request: Request) -> tuple[list[int], list[int]]:
    """Context and target ids, those of texts by :func:`split_texts`. An empty context is the BOS token, or EOS where
    there is none.

    Raises:
        PromptError: an empty target.
    """
    prompt, target = request.prompt, request.target
    if isinstance(prompt, str) and isinstance(target, str) and prompt:
        context, tail = split_texts(prompt, target, model.encode)
    else:
        context = model.encode(prompt) if len(prompt) else []
        tail = _target_tokens(model, target)
    if not context and tail[:1] == [model.prefix_id]:
        context, tail = tail[:1], tail[1:]
    if not tail:
        raise PromptError(f"the target {target!r} adds no tokens to the context; nothing to score")
    return context or [model.prefix_id], tail


def _target_tokens(model: CausalNetwork, target: Any, *, special_tokens: bool = False) -> list[int]:
    if isinstance(target, str):
        return model.encode(target, special_tokens=special_tokens) if target else []
    return model.encode(list(target or ()))
