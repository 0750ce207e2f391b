"""Models with random weights, and their answers to lists of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_bench.model_adapters.native import NativeModel
from dare_bench.types import LoopStats, ModelSpec, Request

Tokens = list[list[int]]


def native_model(family: Any, network: Any, spec: ModelSpec, wrapper: Any = None) -> NativeModel:
    """A model of a network in evaluation mode that never predicts the mask token. ``wrapper`` is called in place of the
    network."""
    network.eval()
    with torch.no_grad():
        network.get_output_embeddings().weight[spec.mask_id] = 0
    return NativeModel(family, wrapper or network, None, spec, Path())


def generate(
    model: NativeModel, prompts: Tokens, decoding: dict[str, Any], rows: int, stats: LoopStats | None = None
) -> Tokens:
    """The response to each prompt."""
    requests = [Request(str(i), "generate", prompt, decoding=decoding) for i, prompt in enumerate(prompts)]
    answers = {s.request.key: s.answer.tokens for s in model.generate(requests, max_rows=rows, stats=stats)}
    return [answers[str(i)] for i in range(len(prompts))]
