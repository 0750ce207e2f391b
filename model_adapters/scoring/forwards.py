"""Compute the losses of masked canvases: packed, equal canvases once, for every draw that needs them.

Shape letters: N scored positions of a pack, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.batches import Batches
from dare_bench.model_adapters.sampling.logits import guided
from dare_bench.model_adapters.scoring.pairs import CanvasUse, MaskedCanvas, ScoredPair, canvases
from dare_bench.model_adapters.scoring.scored_model import ScoredModel

PACK_TOKENS = {"cpu": 4096, "cuda": 65536}
READ_TOKENS = {"cpu": 65536, "cuda": 262144}
"""Cached columns that the rows of one forward may read: each layer gathers them."""

_NOT_FINITE = "the network gave NaN or infinite losses: check the weights (dare-bench validate) and the dtype"

Work = Sequence[list[CanvasUse]]
"""By canvas, all uses of its losses."""


def fill_losses(model: ScoredModel, pairs: Sequence[ScoredPair], store: KVStore | None, batches: Batches) -> None:
    """Fill every pair's losses. Draws that show the network the same canvas share one forward row: repeated masks, and
    the one-token choices of a question, which all look at the same masked position."""
    device = model.device.type

    def name(uses: list[CanvasUse]) -> str:
        return f"one canvas of {len(uses[0].canvas.tokens)} tokens"

    done = batches.compute(
        _work(model, pairs), lambda work: _forward(model, work, store), lambda work: fits(work, device), name
    )
    for work in done:
        passes = 2 if work[0][0].canvas.guidance > 0 else 1
        batches.stats.count(len(work) * passes, sum(len(uses[0].canvas.tokens) for uses in work))


def _work(model: ScoredModel, pairs: Sequence[ScoredPair]) -> Work:
    """The distinct canvases, in an order that packs well."""
    wanted: dict[tuple[Any, ...], list[CanvasUse]] = {}
    for pair in pairs:
        keys = set[Any]()
        for use in canvases(pair, model.spec.open_id):
            key = use.canvas.key
            wanted.setdefault(key, []).append(use)
            keys.add(key)
        pair.canvases = pair.seen + len(keys)

    def order(uses: list[CanvasUse]) -> tuple[float, int, int, int]:
        canvas = uses[0].canvas
        return canvas.guidance, canvas.block_length or 0, -len(canvas.tokens), -canvas.start

    return sorted(wanted.values(), key=order)


def fits(work: Work, device: str) -> int:
    """The number of canvases that the next forward pass takes."""
    count, tokens, widest, first = 0, 0, 0, work[0][0].canvas
    for uses in work:
        canvas = uses[0].canvas
        tokens, widest = tokens + len(canvas.tokens), max(widest, canvas.start)
        full = tokens > PACK_TOKENS[device] or widest * (count + 1) > READ_TOKENS[device]
        same = (canvas.guidance, canvas.block_length) == (first.guidance, first.block_length)
        if not same or (count and full):
            break
        count += 1
    return count


@torch.no_grad()
def _forward(model: ScoredModel, work: Work, store: KVStore | None) -> None:
    """One packed forward over different canvases; each use takes the losses of its own targets."""
    firsts = [uses[0].canvas for uses in work]
    single = all(all(use.canvas.targets == uses[0].canvas.targets for use in uses) for uses in work)
    nll_N, logits_NV = _outputs(model, firsts, store, work[0][0].pair.estimator.causal, single)
    offset = 0
    for uses in work:
        count = len(uses[0].canvas.scored)
        for use in uses:
            if nll_N is not None:
                losses = nll_N[offset : offset + count]
            else:
                losses = _losses(logits_NV[offset : offset + count], use.canvas.targets)
            use.pair.losses[use.part][use.m, use.pair.parts[use.part].scores_Mn[use.m]] = losses.double()
        offset += count
    for use in (use for uses in work for use in uses):
        if not bool(torch.isfinite(use.pair.losses[use.part][use.m]).all()):
            raise ModelOutputError(_NOT_FINITE)


def losses_at(model: ScoredModel, canvases: Sequence[MaskedCanvas]) -> Tensor:
    """The losses of all scored tokens of whole canvases in one forward, float32 [N]."""
    nll_N, logits_NV = _outputs(model, canvases, None, causal=False, single=True)
    losses_N = _losses(logits_NV, [t for c in canvases for t in c.targets]) if nll_N is None else nll_N
    if not bool(torch.isfinite(losses_N).all()):
        raise ModelOutputError(_NOT_FINITE)
    return losses_N


def _outputs(
    model: ScoredModel, canvases: Sequence[MaskedCanvas], store: KVStore | None, causal: bool, single: bool
) -> tuple[Tensor | None, Any]:
    """Losses or logits of the scored tokens of all canvases. ``single``: the targets are those of the canvases."""
    starts = torch.tensor([0, *(len(c.tokens) for c in canvases)]).cumsum(0).tolist()
    tokens = torch.tensor([t for c in canvases for t in c.tokens], dtype=torch.long)
    # If the state before a position predicts its token, the logits are there; the first position has only its own.
    shift = int(causal or model.spec.predicts == "next")
    places = [starts[i] + max(p - shift, 0) for i, c in enumerate(canvases) for p in c.scored]
    at = torch.tensor(places, dtype=torch.long)
    if canvases[0].guidance > 0:
        return None, _guided(model, canvases, tokens, starts, at)
    device, plan = model.device, _plan(model, canvases, store, causal)
    targets = torch.tensor([t for c in canvases for t in c.targets], dtype=torch.long).to(device) if single else None
    out = model.network(tokens.to(device), plan=plan, logits_at=at.to(device), targets=targets)
    return None if out.nll is None else out.nll.cpu(), out.logits


def _losses(logits_NV: Tensor, targets: Sequence[int]) -> Tensor:
    goal = torch.tensor(targets, dtype=torch.long, device=logits_NV.device)
    return cross_entropy(logits_NV.float(), goal, reduction="none").cpu()


def _plan(model: ScoredModel, firsts: Sequence[MaskedCanvas], store: KVStore | None, causal: bool) -> Plan:
    """Whole canvases attend to themselves; a block attends to itself and the clean columns before it."""
    lengths, grid = tuple(len(c.tokens) for c in firsts), firsts[0].block_length
    if causal:
        return Plan(lengths, clean=lengths)
    if not any(c.start for c in firsts):
        return Plan(lengths, grid)
    assert store is not None
    nothing = torch.zeros(0, dtype=torch.long, device=model.device)
    cached = Cached(store, tuple(c.slots for c in firsts), nothing, nothing)
    return Plan(lengths, grid, starts=tuple(c.start for c in firsts), cached=cached)


def _guided(
    model: ScoredModel, firsts: Sequence[MaskedCanvas], tokens: Tensor, starts: Sequence[int], at: Tensor
) -> Tensor:
    """Guided logits [N, V]: every canvas is computed a second time with the condition masked."""
    hidden = tokens.clone()
    for i, c in enumerate(firsts):
        hidden[starts[i] + c.hidden.start : starts[i] + c.hidden.stop] = model.spec.mask
    lengths = tuple(len(c.tokens) for c in firsts)
    both = model.network(
        torch.cat([tokens, hidden]).to(model.device),
        plan=Plan(lengths * 2),
        logits_at=torch.cat([at, at + len(tokens)]).to(model.device),
    ).logits.float()
    return guided(both[: len(at)], both[len(at) :], firsts[0].guidance)
