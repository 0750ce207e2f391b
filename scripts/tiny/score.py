"""Scores a network on our own tasks with its family's deterministic sampler: as many steps as tokens, the surest first.

A dozen lines each for use while training, without a cache; the figures on a card are checked against
``dare-bench eval`` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from data import TASKS
from tokenizers import Tokenizer
from torch import Tensor

from dare_bench.model_adapters.backbone import Plan

Decode = Callable[[Any, Tensor, int, int], Tensor]


@torch.no_grad()
def decode(
    network: Any,
    prompts_BP: Tensor,
    gen_length: int,
    mask_id: int,
    counts: Sequence[int] | None = None,
    shifted: bool = False,
) -> Tensor:
    """Responses [B, gen_length] to prompts of one length, greedily, the most probable position first, ``counts`` tokens
    in each step (one unless given). ``shifted``: the logits of the token before are the ones that count."""
    rows, start = prompts_BP.shape
    canvas = torch.cat([prompts_BP, torch.full((rows, gen_length), mask_id)], dim=1)
    each, first = torch.arange(rows)[:, None], start - int(shifted)
    for count in counts or [1] * gen_length:
        logits = network(canvas).logits[:, first : first + gen_length].float()
        sure, token = logits.softmax(-1).max(-1)
        best = sure.masked_fill(canvas[:, start:] != mask_id, -1.0).topk(count).indices
        canvas[each, start + best] = token[each, best]
    return canvas[:, start:]


def decode_dream(network: Any, prompts_BP: Tensor, gen_length: int, mask_id: int) -> Tensor:
    """As ``decode``, shifted, on Dream's own schedule (DreamLM generation_utils.py): of the masks left, the share
    1 - s/t between two levels, rounded down, so the first of ``gen_length`` steps writes none and the last one two."""
    t = torch.linspace(1, 1e-3, gen_length + 1)
    counts, left = list[int](), gen_length
    for share in (1 - t[1:] / t[:-1])[:-1]:
        counts.append(int(left * share))
        left -= counts[-1]
    return decode(network, prompts_BP, gen_length, mask_id, [*counts, left], shifted=True)


@torch.no_grad()
def decode_blocks(network: Any, prompts_BP: Tensor, gen_length: int, mask_id: int) -> Tensor:
    """As ``decode``, block by block on the grid that starts at the prompt's first token; a block sees itself and all
    before it. The canvas ends where the grid does; what is behind ``gen_length`` is cut off."""
    (rows, start), size = prompts_BP.shape, network.config.block_size
    end = -(-(start + gen_length) // size) * size
    canvas = torch.cat([prompts_BP, torch.full((rows, end - start), mask_id)], dim=1)
    each = torch.arange(rows)
    for stop in range(start // size * size + size, end + 1, size):
        for _ in range(max(start, stop - size), stop):
            plan = Plan.rows(rows, stop, size)
            logits = network(canvas[:, :stop].reshape(-1), None, plan).logits.view(rows, stop, -1)[:, stop - size :]
            sure, token = logits.float().softmax(-1).max(-1)
            best = sure.masked_fill(canvas[:, stop - size : stop] != mask_id, -1.0).argmax(-1)
            canvas[each, stop - size + best] = token[each, best]
    return canvas[:, start : start + gen_length]


def score(network: Any, decode: Decode, tokenizer: Tokenizer, name: str) -> dict[str, float]:
    """Mean metrics on the task's test set."""
    task, eos, mask_id = TASKS[name], network.config.eos_token_id, network.config.mask_token_id
    utils = task.module("utils")
    items = sorted(((tokenizer.encode(utils.prompt(d)).ids, d) for d in task.test()), key=lambda pair: len(pair[0]))
    results: list[dict[str, float]] = []
    network.eval()
    for _, same in groupby(items, key=lambda pair: len(pair[0])):
        group = list(same)
        out = decode(network, torch.tensor([ids for ids, _ in group]), task.gen_length, mask_id)
        for (_, doc), ids in zip(group, out.tolist(), strict=True):
            ids = ids[: ids.index(eos)] if eos in ids else ids
            results.append(utils.score(doc, [tokenizer.decode(ids, skip_special_tokens=False)]))
    network.train()
    return {metric: sum(r[metric] for r in results) / len(results) for metric in results[0]}
