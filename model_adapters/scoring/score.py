"""Score requests in windows of pairs: their losses, and whether greedy decoding would give their targets."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import torch

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import DareError, MemoryLimitError
from dare_bench.model_adapters.batches import Batches, out_of_memory
from dare_bench.model_adapters.sampling.loop import denoise
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.scoring.adaptive import drawn_on
from dare_bench.model_adapters.scoring.clean import CleanPrefixes
from dare_bench.model_adapters.scoring.forwards import PACK_TOKENS, fill_losses, losses_at
from dare_bench.model_adapters.scoring.pairs import ScoredPair, make_pair
from dare_bench.model_adapters.scoring.revealed import fill_revealed
from dare_bench.model_adapters.scoring.scored_model import ScoredModel
from dare_bench.types import LoopStats, Request, Sample

WINDOW = 1024
"""Number of canvases in a window; equal ones are computed once."""
CLEAN_TOKENS = {"cpu": 32768, "cuda": 131072}
"""Maximum number of clean columns that the pairs of a window hold in the cache."""


def score_pairs(
    model: ScoredModel, requests: Iterable[Request], *, max_rows: int | None, stats: LoopStats
) -> Iterator[Sample]:
    """Score requests in windows; a request that cannot be scored comes back with ``error``."""
    scorer = _Scorer(model, max_rows, stats)
    window: list[ScoredPair] = []
    for request in requests:
        try:
            pair = make_pair(model, request)
        except DareError as error:
            yield Sample(request, None, str(error))
            continue
        joins = bool(window) and pair.is_adaptive and window[-1].request.document == request.document
        while not joins and scorer.is_full(window):
            window = yield from scorer.advance(window)
        window.append(pair)
    while window:
        window = yield from scorer.advance(window)


class _Scorer:
    """One pass over requests: batches that fit into memory, and clean prefixes that requests share."""

    def __init__(self, model: ScoredModel, max_rows: int | None, stats: LoopStats) -> None:
        self.model, self.stats = model, stats
        self.batches = Batches(max_rows, stats, model.device)
        self.prefixes: CleanPrefixes | None = None

    def is_full(self, window: Sequence[ScoredPair]) -> bool:
        columns = sum(pair.clean for pair in window)
        return sum(pair.work for pair in window) >= WINDOW or columns >= CLEAN_TOKENS[self.model.device.type]

    def advance(self, pairs: list[ScoredPair]) -> Generator[Sample, None, list[ScoredPair]]:
        """Compute a pass over a window, yield the samples that it finishes, and return the pairs that go on."""
        started = time.perf_counter()
        self._losses(pairs)
        going_on = drawn_on(pairs)
        finished = [pair for pair in pairs if pair not in going_on]
        if wanting := [pair for pair in finished if pair.request.want_greedy]:
            _greedy(self.model, wanting, self.batches.rows, self.stats)
        share = (time.perf_counter() - started) / len(pairs)
        for pair in pairs:
            pair.seconds += share
        for pair in finished:
            answer = pair.likelihood(self.model.weights_version)
            yield Sample(pair.request, replace(answer, tier="A") if self.model.spec.quantize else answer)
        return going_on

    def _losses(self, pairs: list[ScoredPair]) -> None:
        """Fill all losses; where the clean prefixes of all pairs do not fit into memory, of half of them at a time."""
        cached = any(pair.clean for pair in pairs)
        try:
            if cached:
                self.prefixes = self.prefixes or CleanPrefixes(self.model.network, self.model.device)
                self.prefixes.compute(pairs, self.batches.rows, PACK_TOKENS[self.model.device.type], self.stats)
            revealed = [pair for pair in pairs if pair.estimator.reveals(pair.settings)]
            others = [pair for pair in pairs if not pair.estimator.reveals(pair.settings)]
            fill_losses(self.model, others, self.prefixes.store if self.prefixes else None, self.batches)
            spec, device = self.model.spec, self.model.device.type
            fill_revealed(partial(losses_at, self.model), spec.open_id, device, revealed, self.batches)
        except (RuntimeError, MemoryError, MemoryLimitError) as error:
            crowded = cached and len(pairs) > 1
            if not (isinstance(error, MemoryLimitError) and crowded) and not out_of_memory(error):
                raise
            if not crowded:
                longest = max(len(pair.whole) for pair in pairs)
                raise MemoryLimitError(
                    f"one pair of {longest} tokens does not fit into memory on {self.model.device}"
                ) from error
        else:
            if self.prefixes is not None:
                self.prefixes.release(pairs)
            return
        self.prefixes = None  # a cache cannot be used after it ran out of memory while growing
        for pair in pairs:
            pair.pages = type(pair.pages)()
        half = len(pairs) // 2
        self.stats.halvings.append({"rows": len(pairs), "now": half})
        self._losses(pairs[:half])
        self._losses(pairs[half:])


def _greedy(model: ScoredModel, pairs: Sequence[ScoredPair], max_rows: int | None, stats: LoopStats) -> None:
    """Would greedy decoding, one most confident token at a time on the family's own grid, give the target? (LLaDA
    eval_llada.py, suffix_greedy_prediction.)"""
    if pairs[0].estimator.causal:
        _greedy_causal(model, pairs, stats)
        return
    for length, same in groupby(sorted(pairs, key=lambda p: p.block_length or 0), key=lambda p: p.block_length):
        spec = replace(model.spec, block_length=length)
        rows = []
        for pair in same:
            sampler = model.greedy_sampler(len(pair.answer), spec, pair.guidance)
            rows.append(RowState(pair.context, sampler, 0, model.spec.mask, tag=pair))
        loop = denoise(
            model.network,
            rows,
            mask_id=model.spec.mask,
            vocab=model.spec.vocab_size,
            max_rows=max_rows or 16,
            device=model.device,
            stats=stats,
        )
        for row in loop:
            row.tag.is_greedy = row.response() == row.tag.answer
            row.tag.greedy_forwards = row.forward


@torch.no_grad()
def _greedy_causal(model: ScoredModel, pairs: Sequence[ScoredPair], stats: LoopStats) -> None:
    """Is each token of a target the most probable one behind those before it?"""
    for pair in pairs:
        whole = torch.tensor(pair.whole, device=model.device)
        at = torch.arange(len(pair.context) - 1, len(whole) - 1, device=model.device)
        logits_NV = model.network(whole, plan=Plan((len(whole),), clean=(len(whole),)), logits_at=at).logits
        pair.is_greedy = bool((logits_NV.argmax(-1) == whole[at + 1]).all())
        pair.greedy_forwards = 1
        stats.count(1, len(whole))
