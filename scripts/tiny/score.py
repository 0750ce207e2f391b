"""Scores a network on our own tasks with LLaDA's deterministic sampler: one token a step, the surest first.

A dozen lines for use while training; the figures on a card are checked against ``dare-bench eval`` afterwards.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from data import TASKS
from tokenizers import Tokenizer
from torch import Tensor


@torch.no_grad()
def decode(network: Any, prompts_BP: Tensor, gen_length: int, mask_id: int) -> Tensor:
    """Responses [B, gen_length] to prompts of one length, greedily, the most probable position first."""
    rows, start = prompts_BP.shape
    canvas = torch.cat([prompts_BP, torch.full((rows, gen_length), mask_id)], dim=1)
    each = torch.arange(rows)
    for _ in range(gen_length):
        logits = network(canvas).logits[:, start:].float()
        sure, token = logits.softmax(-1).max(-1)
        best = sure.masked_fill(canvas[:, start:] != mask_id, -1.0).argmax(-1)
        canvas[each, start + best] = token[each, best]
    return canvas[:, start:]


def score(network: Any, tokenizer: Tokenizer, name: str, eos: int, mask_id: int) -> dict[str, float]:
    """Mean metrics on the task's test set."""
    task = TASKS[name]
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
