"""The card of a tiny checkpoint: how it was made and what it scores, from the run itself."""

from __future__ import annotations

from pathlib import Path


def write_card(folder, name, recipe_name, recipe, parameters, step, minutes, threads, scores) -> None:
    (folder / "README.md").write_text(f"{name} {scores}\n")
