"""The recipes of the tiny checkpoints: data mixture, schedule, seed. A checkpoint is one step of a recipe; sizes and
tokenizer are those of the bundled checkpoint of its family."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class TinyRecipe:
    """One training run. ``rows``: number of rows of each task in a batch; ``snapshots``: names of checkpoints and the
    steps after which they are taken (the last one is the end of the run)."""

    rows: dict[str, int]
    snapshots: dict[str, int]
    family: str = "llada"
    start: str | None = None
    """The bundled checkpoint that is trained further; None: random weights."""
    seed: int = 1
    balance_rate: float | None = None
    """Change of an expert's bias per step (see ``balance``)."""
    noise: str | None = None
    """The noise schedule; None: that of the family."""
    warm_up: int = 200
    decoding: dict[str, Any] = field(default_factory=dict)
    """The settings with which a checkpoint is scored on the tasks ``scored``."""
    scored: tuple[str, ...] = ()
    limit: int | None = None
    """Number of documents of each task that are scored; None: all."""

    @property
    def steps(self) -> int:
        return max(self.snapshots.values())


SDAR: dict[str, Any] = {"family": "sdar", "decoding": {"remasking_strategy": "low_confidence_static"}}
LLADA2: dict[str, Any] = {"family": "llada2", "decoding": {"threshold": 1.0}, "balance_rate": 1e-3}
SORT: dict[str, Any] = {"rows": {"dare_sort": 128}, "warm_up": 20, "scored": ("dare_sort",)}
TWO = ("dare_sudoku", "dare_arithmetic")
THREE = (*TWO, "dare_countdown3")

RECIPES = {
    "tiny-llada": TinyRecipe(
        rows={"dare_sudoku": 48, "dare_arithmetic": 128, "dare_countdown3": 80},
        snapshots={"tiny-llada-base": 700, "tiny-llada": 3600},
        scored=THREE,
    ),
    "tiny-dream": TinyRecipe(
        rows={"dare_sudoku": 48, "dare_arithmetic": 96, "dare_countdown3": 24},
        snapshots={"tiny-dream-base": 700, "tiny-dream": 3000},
        family="dream",
        decoding={"alg": "maskgit_plus"},
        scored=THREE,
    ),
    "tiny-sdar": TinyRecipe(
        rows={"dare_sudoku": 40, "dare_arithmetic": 128},
        snapshots={"tiny-sdar-base": 400, "tiny-sdar": 3000},
        scored=TWO,
        **SDAR,
    ),
    "tiny-llada2": TinyRecipe(
        rows={"dare_sudoku": 40, "dare_arithmetic": 96},
        snapshots={"tiny-llada2-base": 350, "tiny-llada2": 2000},
        scored=TWO,
        **LLADA2,
    ),
    "tiny-llada-sort": TinyRecipe(snapshots={"tiny-llada-sort-base": 180}, **SORT),
    "tiny-sdar-sort": TinyRecipe(snapshots={"tiny-sdar-sort-base": 70}, **SDAR, **SORT),
    "tiny-llada2-sort": TinyRecipe(snapshots={"tiny-llada2-sort-base": 70}, **LLADA2, **SORT),
    "tiny-llada-countdown": TinyRecipe(
        rows={"dare_countdown3": 128},
        snapshots={"tiny-llada-countdown-base": 4000},
        start="tiny-llada",
        noise="even",
        warm_up=50,
        scored=("dare_countdown3", "dare_countdown3_1000"),
    ),
}


def smoke(family: str) -> TinyRecipe:
    """The recipe of a family with a few steps and rows, for tests."""
    few = {"rows": {"dare_sudoku": 4, "dare_arithmetic": 12}, "warm_up": 2, "limit": 4, "scored": ("dare_arithmetic",)}
    snapshots = {f"smoke-{family}-base": 20, f"smoke-{family}": 40}
    return replace(RECIPES[f"tiny-{family}"], snapshots=snapshots, **few)


RECIPES |= {f"smoke-{family}": smoke(family) for family in ("llada", "dream", "sdar", "llada2")}
