"""A model of each family that tests train: a bundled base, or a random checkpoint in the published layout."""

from __future__ import annotations

from golden import PARITY, special_ids

from dare_bench.loading import load
from dare_bench.protocols import LoadedModel

FAMILIES = ("llada", "dream", "sdar", "llada2", "fast_dllm_v2")
UNBUNDLED = ("fast_dllm_v2",)


def opened(family: str) -> LoadedModel:
    """A new model, in float32: a test may change its weights."""
    if family in UNBUNDLED:
        return load(PARITY / family, device="cpu", dtype="float32", **special_ids(family)).loaded
    return load(f"tiny-{family}-base", device="cpu", dtype="float32").loaded
