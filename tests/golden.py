"""The reference vectors kept in the repo: a tiny random LLaDA in the published layout, with what the published code
gave on it (ML-GSAI/LLaDA generate.py and get_log_likelihood.py, NVlabs/Fast-dLLM without cache)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from dare_bench.loading import load
from dare_bench.model import Model

FOLDER = Path(__file__).parent / "parity" / "llada"


@cache
def cases() -> dict[str, Any]:
    return json.loads(gzip.decompress((FOLDER / "cases.json.gz").read_bytes()))


def tensors(name: str) -> dict[str, Tensor]:
    return load_file(str(FOLDER / f"{name}.safetensors"))


@cache
def model() -> Model:
    """Opened once a process: nothing in the tests changes its weights."""
    meta = cases()["meta"]
    ids = {k: meta[k] for k in ("mask_id", "eos_id", "eot_id")}
    return load(FOLDER, device="cpu", dtype="float32", **ids)


def unpadded(case: dict[str, Any]) -> list[list[int]]:
    """The prompts of a vector without the left padding that the reference needs."""
    masks = case["attention_mask"] or [[1] * len(p) for p in case["prompt_ids"]]
    return [[t for t, m in zip(p, mask, strict=True) if m] for p, mask in zip(case["prompt_ids"], masks, strict=True)]


def wanted(case: dict[str, Any], row: int) -> list[int]:
    return case["output_ids"][row][len(case["prompt_ids"][row]) :]


def draws(case: dict[str, Any]) -> bool:
    return case["args"].get("remasking") == "random" or case["args"].get("temperature", 0) > 0
