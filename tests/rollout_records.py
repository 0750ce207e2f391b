"""A record of ``dare-bench rl replay --json``, written by hand."""

from __future__ import annotations

import math
from typing import Any


def completion(weights: list[float] | None, advantage: float, text: str = "3 2<eos>", **more: Any) -> dict[str, Any]:
    """A canvas of seven tokens: the second one was written first, and four times <eos> stands behind the answer."""
    return {
        "where": "dare_sort:7", "text": text, "reward": 0.25, "advantage": advantage, "prompt": [1, 2],
        "prompt_text": "sort 32=", "tokens": [3, 4, 5, 9, 9, 9, 9], "pieces": ["3", "2\n", "<eos>", *["<eos>"] * 4][:7],
        "scored": 3, "set_at": [1, 0, 2, 3, 4, 5, -1], "weights": weights,
        "logprobs": [math.log(p) for p in (0.5, 0.25, 1, 1, 1, 1, 1)], **more,
    }  # fmt: skip


def record(*groups: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Step 4 of 6 with these groups."""
    facts = {"step": 4, "steps": 6, "rollout": 1, "iteration": 1, "iterations": 2}
    names = {"sampled_from": "checkpoint-2", "updated_from": "checkpoint-3"}
    return {**facts, **names, "groups": list(groups), **more}


WEIGHTED = [
    completion([0.02, -0.0012, 0.0, 0.0, 0.0, 0.0, 0.0], 0.5),
    completion([0.0, 0.004, 0.0, 0.0, 0.0, -0.01, 0.0], -0.5),
]
