"""Log-likelihoods of targets: masks from an estimator, packed forwards over all requests, losses back to values.

Shape letters: M masks (draws) of one target, n target tokens, N masked positions of a pack, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.likelihood import Draws, combine, draw
from dare_bench.errors import DareError, MemoryLimitError, ModelOutputError, PromptError
from dare_bench.model_adapters.backbone.plan import Plan
from dare_bench.model_adapters.sampling.guidance import guided
from dare_bench.model_adapters.sampling.loop import denoise, out_of_memory
from dare_bench.model_adapters.sampling.rows import Row
from dare_bench.model_adapters.sampling.rule import Rule
from dare_bench.types import Likelihood, LoopStats, Request, Sample

if TYPE_CHECKING:
    from dare_bench.model_adapters.native import NativeModel

WINDOW = 1024
"""Canvases looked at together; equal ones are computed once."""
PACK_TOKENS = {"cpu": 4096, "cuda": 65536}


@dataclass(eq=False)
class Pair:
    """One request on its way."""

    request: Request
    context: list[int]
    target: list[int]
    settings: dict[str, Any]
    draws: Draws
    loss_M: Tensor = field(init=False)
    is_greedy: bool | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.loss_M = torch.zeros(len(self.draws.weights_M), dtype=torch.float64)

    @property
    def cfg_scale(self) -> float:
        return float(self.settings.get("cfg_scale", 0.0))


@dataclass(frozen=True)
class Canvas:
    """One masked copy of a pair, as it goes through the network; ``key`` is equal for equal work."""

    tokens: tuple[int, ...]
    masked: tuple[int, ...]
    targets: tuple[int, ...]
    context: int
    cfg_scale: float


def encode_pair(model: NativeModel, request: Request) -> tuple[list[int], list[int]]:
    """Context and target ids. Strings follow lm-eval's rule: trailing spaces of the context move to the target, the
    whole is tokenised, and the target is what the whole has beyond the context's tokens.

    Raises:
        PromptError: an empty target, or more tokens than the context limit.
    """
    prompt, target = request.prompt, request.target
    if isinstance(prompt, str) and isinstance(target, str):
        stripped = prompt.rstrip()
        target = prompt[len(stripped) :] + target
        context = model.encode(stripped) if stripped else []
        whole = model.encode(stripped + target)
        context, tail = context, whole[len(context) :]
    else:
        context = model.encode(prompt)
        tail = model.encode(target if isinstance(target, str) else list(target or ()))
    if not tail:
        raise PromptError(f"the target {target!r} adds no tokens to the context; nothing to score")
    total = len(context) + len(tail)
    if total > model.spec.context_limit:
        raise PromptError(
            f"context of {len(context)} and target of {len(tail)} tokens are {total}; "
            f"the model's context limit is {model.spec.context_limit}"
        )
    return context, tail


def score_pairs(
    model: NativeModel, requests: Iterable[Request], *, max_rows: int | None, stats: LoopStats
) -> Iterator[Sample]:
    """Score requests in windows; a request that cannot be scored comes back with ``error``."""
    window: list[Pair] = []
    canvases = 0
    slots = [max_rows]  # shrinks when memory runs out, and stays so
    for request in requests:
        try:
            context, target = encode_pair(model, request)
            settings = model.resolve_likelihood(request.decoding)
            pair = Pair(request, context, target, settings, draw(len(target), settings, request.seed))
        except DareError as error:
            yield Sample(request, None, str(error))
            continue
        window.append(pair)
        canvases += len(pair.loss_M)
        if canvases >= WINDOW:
            yield from _finish(model, window, slots, stats)
            window, canvases = [], 0
    if window:
        yield from _finish(model, window, slots, stats)


def _finish(model: NativeModel, pairs: list[Pair], slots: list[int | None], stats: LoopStats) -> Iterator[Sample]:
    started = time.perf_counter()
    _losses(model, pairs, slots, stats)
    wanting = [pair for pair in pairs if pair.request.want_greedy]
    if wanting:
        _greedy(model, wanting, slots[0], stats)
    share = (time.perf_counter() - started) / len(pairs)
    for pair in pairs:
        value, stderr = combine(pair.draws, pair.loss_M)
        distinct = len(set(map(tuple, pair.draws.masks_Mn.tolist())))  # equal canvases go through once
        passes = distinct + (len(pair.target) if pair.request.want_greedy else 0)
        exact = pair.draws.round_size == 0 or len(pair.target) == 1
        yield Sample(
            pair.request,
            Likelihood(
                value=value,
                stderr=stderr,
                is_greedy=pair.is_greedy,
                nfe=passes * (2 if pair.cfg_scale > 0 else 1),
                estimator=pair.draws.estimator,
                draws=len(pair.loss_M),
                target_tokens=len(pair.target),
                prompt_tokens=len(pair.context),
                tier="E1" if exact else "E2",
                seconds=share,
            ),
        )


def _canvases(pair: Pair, mask_id: int) -> Iterator[Canvas]:
    for mask in pair.draws.masks_Mn.tolist():
        masked = tuple(len(pair.context) + i for i, hidden in enumerate(mask) if hidden)
        body = [mask_id if hidden else token for token, hidden in zip(pair.target, mask, strict=True)]
        targets = tuple(token for token, hidden in zip(pair.target, mask, strict=True) if hidden)
        yield Canvas((*pair.context, *body), masked, targets, len(pair.context), pair.cfg_scale)


def _losses(model: NativeModel, pairs: Sequence[Pair], slots: list[int | None], stats: LoopStats) -> None:
    """Fill every pair's ``loss_M``. Draws that show the network the same canvas share one forward row: repeated masks,
    and the one-token choices of a question, which all look at the same masked position."""
    wanted: dict[tuple[Any, ...], list[tuple[Pair, int, Canvas]]] = {}
    for pair in pairs:
        for m, canvas in enumerate(_canvases(pair, model.spec.mask_id)):
            wanted.setdefault((canvas.tokens, canvas.context, canvas.cfg_scale), []).append((pair, m, canvas))
    work = sorted(wanted.values(), key=lambda users: (users[0][2].cfg_scale, -len(users[0][2].tokens)))
    limit = slots[0] or len(work) or 1
    budget = PACK_TOKENS.get(model.device.type, 4096)
    at = 0
    while at < len(work):
        count, tokens, scale = 0, 0, work[at][0][2].cfg_scale
        while at + count < len(work) and count < limit and work[at + count][0][2].cfg_scale == scale:
            tokens += len(work[at + count][0][2].tokens)
            if count and tokens > budget:
                break
            count += 1
        try:
            _forward(model, work[at : at + count], scale)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if count == 1:
                raise MemoryLimitError(
                    f"one canvas of {len(work[at][0][2].tokens)} tokens does not fit into memory on {model.device}"
                ) from error
            limit = slots[0] = count // 2
            stats.halvings.append({"rows": count, "now": limit})
            continue
        stats.forwards += 1
        stats.row_forwards += count
        stats.slot_forwards += count
        stats.tokens_processed += sum(len(users[0][2].tokens) for users in work[at : at + count])
        at += count


@torch.no_grad()
def _forward(model: NativeModel, work: Sequence[Sequence[tuple[Pair, int, Canvas]]], cfg_scale: float) -> None:
    """One packed forward over distinct canvases; every user reads its own targets' losses from the shared logits."""
    firsts = [users[0][2] for users in work]
    lengths = tuple(len(c.tokens) for c in firsts)
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    tokens = torch.tensor([t for c in firsts for t in c.tokens], dtype=torch.long)
    at = torch.tensor([starts[i] + p for i, c in enumerate(firsts) for p in c.masked], dtype=torch.long)
    single = all(len(users) == 1 or all(u[2].targets == users[0][2].targets for u in users) for users in work)
    device = model.device
    if cfg_scale == 0.0 and single:
        targets = torch.tensor([t for c in firsts for t in c.targets], dtype=torch.long)
        out = model.network(tokens.to(device), plan=Plan(lengths), logits_at=at.to(device), targets=targets.to(device))
        nll_N, logits_NV = out.nll.cpu(), None
    elif cfg_scale == 0.0:
        nll_N, logits_NV = None, model.network(tokens.to(device), plan=Plan(lengths), logits_at=at.to(device)).logits
    else:
        hidden = tokens.clone()
        for i, c in enumerate(firsts):
            hidden[starts[i] : starts[i] + c.context] = model.spec.mask_id
        both = model.network(
            torch.cat([tokens, hidden]).to(device),
            plan=Plan(lengths * 2),
            logits_at=torch.cat([at, at + len(tokens)]).to(device),
        ).logits.float()
        nll_N, logits_NV = None, guided(both[: len(at)], both[len(at) :], cfg_scale)
    offset = 0
    for users in work:
        count = len(users[0][2].masked)
        for pair, m, canvas in users:
            if nll_N is not None:
                losses = nll_N[offset : offset + count]
            else:
                assert logits_NV is not None
                goal = torch.tensor(canvas.targets, dtype=torch.long, device=device)
                losses = cross_entropy(logits_NV[offset : offset + count].float(), goal, reduction="none").cpu()
            pair.loss_M[m] = losses.double().sum()
        offset += count
    if not all(bool(torch.isfinite(pair.loss_M).all()) for users in work for pair, _, _ in users):
        raise ModelOutputError(
            "the network gave NaN or infinite losses: check the weights (dare-bench validate) and the dtype"
        )


def _greedy(model: NativeModel, pairs: Sequence[Pair], max_rows: int | None, stats: LoopStats) -> None:
    """Would greedy decoding, one most confident token at a time, give the target? (eval_llada.py
    suffix_greedy_prediction.) That is the denoising loop with one block of n tokens and n steps."""
    rows = []
    for pair in pairs:
        n = len(pair.target)
        rule = replace(Rule(n, n, n), cfg_scale=pair.cfg_scale)
        rows.append(Row(pair.context, rule, 0, model.spec.mask_id, tag=pair))
    loop = denoise(
        model.network,
        rows,
        mask_id=model.spec.mask_id,
        vocab=model.spec.vocab_size,
        max_rows=max_rows or 16,
        device=model.device,
        stats=stats,
    )
    for row in loop:
        row.tag.is_greedy = row.response() == row.tag.target
