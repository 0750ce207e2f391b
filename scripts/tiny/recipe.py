"""What the bundled tiny checkpoints are: sizes, data mixture, schedule, seed. A checkpoint is its recipe and a step."""

from __future__ import annotations

from dataclasses import dataclass, field

CONTEXT = 8192
EPS = 1e-3


@dataclass(frozen=True)
class Recipe:
    """One training run. ``rows`` says how many rows of each task stand in every batch; ``snapshots`` maps the names of
    checkpoints to the step after which they are taken (the last one is the end of the run)."""

    rows: dict[str, int]
    snapshots: dict[str, int]
    seed: int = 1
    width: int = 128
    layers: int = 5
    heads: int = 4
    ff_width: int = 256
    init_std: float = 0.02
    learning_rate: float = 2e-3
    last_rate: float = 0.02
    """The learning rate at the end, as a share of the highest."""
    warm_up: int = 200
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    scored: tuple[str, ...] = field(default=())
    """Tasks that the card reports."""

    @property
    def steps(self) -> int:
        return max(self.snapshots.values())


RECIPES = {
    "tiny-llada": Recipe(
        rows={"dare_sudoku": 48, "dare_arithmetic": 128, "dare_countdown3": 80},
        snapshots={"tiny-llada-base": 700, "tiny-llada": 3600},
        scored=("dare_sudoku", "dare_arithmetic", "dare_countdown3"),
    ),
    "smoke": Recipe(
        rows={"dare_sudoku": 2, "dare_arithmetic": 3},
        snapshots={"smoke-base": 4, "smoke": 6},
        width=16,
        layers=1,
        heads=2,
        ff_width=16,
        warm_up=2,
        scored=("dare_arithmetic",),
    ),
}
