"""The recipes of the tiny checkpoints: sizes, data mixture, schedule, seed. A checkpoint is one step of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class RecipeExperts:
    """A mixture of experts: the first layer is dense, every other has ``count`` experts of ``width``, ``top_k`` per
    token from the ``top_groups`` best of ``groups``, and one shared expert of the same width."""

    count: int = 8
    top_k: int = 2
    width: int = 40
    groups: int = 4
    top_groups: int = 2
    scale: float = 2.5
    balance_rate: float = 1e-3
    """Change of an expert's bias per step (see ``balance``)."""


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
    width: int = 128
    layers: int = 5
    heads: int = 4
    kv_heads: int = 4
    ff_width: int = 256
    block_length: int | None = None
    """Only for block-causal families."""
    experts: RecipeExperts | None = None
    noise: str | None = None
    """The noise schedule; None: that of the family."""
    learning_rate: float = 2e-3
    warm_up: int = 200
    weight_decay: float = 0.01
    scored: tuple[str, ...] = field(default=())
    """Tasks on which a checkpoint is scored."""
    limit: int | None = None
    """Number of documents of each task that are scored; None: all."""

    @property
    def steps(self) -> int:
        return max(self.snapshots.values())

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


DREAM: dict[str, Any] = {"family": "dream", "kv_heads": 2}
SDAR: dict[str, Any] = {"family": "sdar", "kv_heads": 2, "block_length": 4}
LLADA2: dict[str, Any] = {"family": "llada2", "kv_heads": 2, "block_length": 4, "experts": RecipeExperts()}
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
        scored=THREE,
        **DREAM,
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


def smoke(recipe: TinyRecipe, name: str) -> TinyRecipe:
    """A recipe of a few steps with a few rows, for tests."""
    return replace(
        recipe,
        rows={"dare_sudoku": 4, "dare_arithmetic": 12},
        snapshots={f"{name}-base": 20, name: 40},
        width=32,
        layers=2 if recipe.experts else 1,
        heads=2,
        kv_heads=min(recipe.kv_heads, 2),
        ff_width=16,
        experts=replace(recipe.experts, width=16) if recipe.experts else None,
        warm_up=2,
        scored=("dare_arithmetic",),
        limit=4,
    )


for family in ("llada", "dream", "sdar", "llada2"):
    name = "smoke" if family == "llada" else f"smoke-{family}"
    RECIPES[name] = smoke(RECIPES[f"tiny-{family}"], name)
