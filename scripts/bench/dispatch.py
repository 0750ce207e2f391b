"""Count what a generation costs on a GPU besides computing: launches, copies to the device, and waits of the host.

    python scripts/bench/dispatch.py [--models tiny-llada] [--attention padded] [--rows 32] [--names]

Counted on the pretend device of the tests (``tests/pretend_device.py``), in the mean of a forward over a whole
generation, entries of blocks and writes to the cache included, for one row and for 32 rows of different length.
``steady`` are the launches of the forward with the fewest: it enters no block and fills no cache.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

import pretend_device

import dare_bench
from dare_bench.model_adapters.backbone.attention import BACKENDS

MODELS = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2-base")
BLOCK = 4
KINDS = ("launches", "copies", "waits")


@dataclass(frozen=True)
class Counts:
    """What was counted in a generation: before its first forward, then from each forward to the next."""

    parts: list[Counter[str]]

    @property
    def steady(self) -> int:
        """Launches of the forward with the fewest, the last one excepted."""
        return min(part["launches"] for part in self.parts[1:-1])

    def mean(self, name: str) -> float:
        """The mean of a forward."""
        return sum(part[name] for part in self.parts) / (len(self.parts) - 1)

    def names(self) -> dict[str, float]:
        """The mean of a forward by kind and operation, the most frequent first."""
        means = {name: self.mean(name) for part in self.parts for name in part if name not in KINDS}
        return dict(sorted(means.items(), key=lambda item: -item[1]))


def prompts(rows: int) -> list[list[int]]:
    """Prompts of different length: 8, 12, ... tokens, so that all of them end with a block."""
    return [[5 + (7 * i + j) % 200 for j in range(8 + BLOCK * i)] for i in range(rows)]


def count(model: Any, rows: int, decoding: dict[str, Any]) -> Counts:
    """What decoding ``rows`` prompts together costs."""
    parts: list[Counter[str]] = []
    with ExitStack() as forward:  # which counts until the next one begins

        def begin(*_: Any) -> None:
            forward.close()
            parts.append(forward.enter_context(pretend_device.counted()))

        handle = model.network.register_forward_pre_hook(begin)
        begin()
        try:
            model.generate(prompts(rows), max_rows=rows, **decoding)
        finally:
            handle.remove()
    return Counts(parts)


def opened(name: str, attention: str) -> Any:
    """A bundled model on the pretend device."""
    return dare_bench.load(name, device=pretend_device.NAME, dtype="float32", attention=attention)


def decodings(name: str) -> dict[str, dict[str, Any]]:
    """The decodings that are counted for a model, by the name of the cache."""
    if name in ("tiny-llada", "tiny-dream"):
        length = {"gen_length": 4 * BLOCK, "steps": 4 * BLOCK}
        return {"none": {**length, "cache": "none"}, "dual": {**length, "cache": "dual", "block_length": 2 * BLOCK}}
    static = {"remasking_strategy": "low_confidence_static", "denoising_steps": BLOCK}
    schedule = {"threshold": 1.0} if "llada2" in name else static
    length = {"gen_length": 2 * BLOCK, "block_length": BLOCK}
    return {cache: {**length, **schedule, "cache": cache} for cache in ("none", "exact")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--attention", nargs="*", default=["padded"], choices=list(BACKENDS))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--names", action="store_true", help="list the operations of a forward")
    args = parser.parse_args()
    print(f"{'model':18} {'cache':6} {'attention':9} {'rows':>4} {'steady':>6} {' '.join(f'{k:>8}' for k in KINDS)}")
    with pretend_device.available():
        for name in args.models:
            for attention in args.attention:
                model = opened(name, attention)
                for cache, decoding in decodings(name).items():
                    for rows in (1, args.rows):
                        counts = count(model, rows, decoding)
                        means = " ".join(f"{counts.mean(kind):8.1f}" for kind in KINDS)
                        print(f"{name:18} {cache:6} {attention:9} {rows:4} {counts.steady:6} {means}", flush=True)
                        if args.names:
                            print("   ", ", ".join(f"{k} {n:.1f}" for k, n in counts.names().items()))


if __name__ == "__main__":
    main()
