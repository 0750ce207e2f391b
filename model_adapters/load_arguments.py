"""What was given to ``load``, read and checked: device, dtype, special ids."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from dare_bench.errors import CheckpointError, UsageError, brief, unknown_device
from dare_bench.log import log
from dare_bench.model_adapters.encoding import as_id
from dare_bench.types import ModelSpec, OpeningSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
TINY = 20_000_000
"""Number of weights below which the dtype hardly matters on a CPU."""


def pick_device(device: str | None) -> torch.device:
    """The requested device, or CUDA if available (under torchrun, that of this process); raises UsageError."""
    if device is None:
        local = os.environ.get("LOCAL_RANK")
        gpu = "cuda" if local is None else f"cuda:{local}"
        return torch.device(gpu if torch.cuda.is_available() else "cpu")
    try:
        requested = torch.device(device) if isinstance(device, str) else None
    except RuntimeError:
        requested = None
    if requested is None or requested.type not in ("cpu", "cuda"):
        raise unknown_device(device)
    if requested.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {device!r} is not available: PyTorch finds no GPU; use device='cpu'")
    return requested


def pick_dtype(dtype: Any, device: torch.device, config: dict[str, Any], parameters: int) -> torch.dtype:
    """The requested dtype; None: float32 on a CPU and the checkpoint's on a GPU; ``auto``: bfloat16 also on a CPU, if
    the checkpoint is published in it, this CPU multiplies in it, and the network is not tiny. What else a CPU could do
    is logged.

    Raises:
        UsageError: an unknown dtype.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype in (None, "auto"):
        published = config.get("torch_dtype") or config.get("dtype")
        if device.type != "cpu":
            dtype = published or "bfloat16"
        elif published != "bfloat16" or parameters < TINY or not _multiplies_in_bfloat16():
            dtype = "float32"
        elif dtype is None:
            log.info("computes in float32; --dtype auto: in bfloat16, as published, which is faster on this CPU")
            dtype = "float32"
        else:
            log.info("computes in bfloat16, as published, which is fast on this CPU; --dtype float32: other rounding")
            dtype = "bfloat16"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not known; allowed: {', '.join(DTYPES)} and auto")
    return DTYPES[dtype]


def _multiplies_in_bfloat16() -> bool:
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def given_ids(settings: OpeningSettings) -> dict[str, Any]:
    """The special ids that were given, by the fields of ``SpecialIds``; raises UsageError."""
    ids: dict[str, Any] = {}
    if settings.mask_id is not None:
        ids["mask"] = _given_id("mask_id", settings.mask_id)
    for name in ("eot", "pad"):
        if (value := getattr(settings, f"{name}_id")) is not None:
            ids[name] = _given_id(f"{name}_id", value)
    if settings.eos_id is not None:
        several = settings.eos_id if isinstance(settings.eos_id, list | tuple) else (settings.eos_id,)
        ids["eos"] = tuple(_given_id("eos_id", item) for item in several)
    return ids


def adapter_folder(settings: OpeningSettings) -> Path | None:
    """The folder of the adapter, which ``load`` has located."""
    return None if settings.adapter is None else Path(settings.adapter)


def _given_id(name: str, value: Any) -> int:
    """A special id that was given to ``load``; raises UsageError."""
    token = as_id(value)
    if token is None:
        raise UsageError(f"{name}={brief(value)} is not a token id; give a whole number")
    return token


def check_ids(spec: ModelSpec, path: Path) -> None:
    """Raise CheckpointError for invalid special ids."""
    eot = () if spec.eot_id is None else (spec.eot_id,)
    if spec.pad_id is not None and as_id(spec.pad_id) is None:
        raise CheckpointError(f"{path}: pad_token_id={brief(spec.pad_id)} is not a token id; it must be one, or null")
    mask = () if spec.mask_id is None else (spec.mask_id,)
    named = (("mask_id", mask), ("eos_id", spec.eos_ids), ("eot_id", eot), ("edit ids", spec.edit_ids))
    for name, ids in named:
        for token in ids:
            if as_id(token) is None:
                raise CheckpointError(f"{path}: {name}={brief(token)} is not a token id; give {name}=")
            if not 0 <= token < spec.vocab_size:
                raise CheckpointError(f"{path}: {name}={token} is outside the vocabulary of {spec.vocab_size} rows")
    if spec.mask_id in spec.eos_ids:
        raise CheckpointError(
            f"{path}: mask_id={spec.mask_id} is also an EOS id ({', '.join(map(str, spec.eos_ids))}); give mask_id= or "
            "eos_id="
        )
