"""Losses of targets whose tokens are revealed one after another, the most probable first (iLLaDA's ``confidence``).

Shape letters: N masked tokens of all canvases, n of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dare_bench.model_adapters.batches import Batches
from dare_bench.model_adapters.scoring.forwards import Work, fits
from dare_bench.model_adapters.scoring.pairs import CanvasUse, MaskedCanvas, ScoredPair

Losses = Callable[[Sequence[MaskedCanvas]], Tensor]
"""The losses of the scored tokens of canvases, in one forward, [N]."""


def fill_revealed(losses: Losses, mask_id: int, device: str, pairs: Sequence[ScoredPair], batches: Batches) -> None:
    """Fill the losses of pairs whose estimator ``reveals``: loss j is the smallest one of the tokens that are masked in
    forward j, among equal ones of the leftmost. ``device``: its type."""
    hidden = {id(pair): list(range(len(pair.losses[0]))) for pair in pairs}
    for turn in range(max(map(len, hidden.values()), default=0)):
        work = [
            [CanvasUse(pair, 0, turn, _canvas(pair, left, mask_id))] for pair in pairs if (left := hidden[id(pair)])
        ]
        done = batches.compute(
            work,
            lambda some: _reveal(losses, some, hidden),
            lambda some: fits(some, device),
            lambda uses: f"one canvas of {len(uses[0].canvas.tokens)} tokens",
        )
        for some in done:
            passes = 2 if some[0][0].canvas.guidance > 0 else 1
            batches.stats.count(len(some) * passes, sum(len(uses[0].canvas.tokens) for uses in some))
    for pair in pairs:
        pair.canvases = len(pair.losses[0])


def _canvas(pair: ScoredPair, masked: Sequence[int], mask_id: int) -> MaskedCanvas:
    """A pair with these tokens of its target masked."""
    scored = tuple(len(pair.context) + i for i in masked)
    tokens = [mask_id if i in set(scored) else token for i, token in enumerate(pair.whole)]
    context = (
        pair.estimator.hidden(len(pair.context), len(pair.target), pair.settings) if pair.guidance > 0 else range(0)
    )
    targets = tuple(pair.whole[i] for i in scored)
    nothing = torch.zeros(0, dtype=torch.long)
    return MaskedCanvas(tuple(tokens), scored, targets, pair.guidance, context, None, 0, nothing, b"")


@torch.no_grad()
def _reveal(losses: Losses, work: Work, hidden: dict[int, list[int]]) -> None:
    """One forward over canvases, and for each the token of its target with the smallest loss."""
    canvases = [uses[0].canvas for uses in work]
    losses_N = losses(canvases)
    for (use,), losses_n in zip(work, losses_N.split([len(canvas.scored) for canvas in canvases]), strict=True):
        least = int(losses_n.argmin())
        use.pair.losses[0][use.m, hidden[id(use.pair)].pop(least)] = losses_n[least].double()
