"""Lineages, trainings and records of rollouts, made for tests of pages and tables."""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from paths import ROOT
from run_factory import make_run


def trained(
    base: str = "base",
    *,
    method: str = "sft",
    seed: int = 0,
    step: int = 100,
    parents: tuple[dict[str, Any], ...] = (),
    base_adapter: str | None = None,
    peft: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The lineage of a checkpoint that was trained from the one whose content is ``base``."""
    return {
        "base": f"tiny-{base}", "base_content": f"sha256:{base}",
        "base_adapter": f"sha256:{base_adapter}" if base_adapter else None,
        "method": method, "peft": peft, "options": {}, "data": "dare_sudoku", "data_hash": f"rows{seed}", "step": step,
        "steps": 100, "seed": seed, "settings": {"learning_rate": 0.001}, "version": "0.1.0", "parents": list(parents),
        **more,
    }  # fmt: skip


def make_checkpoint(root: Path, content: str, share: float, lineage: dict[str, Any] | None = None, **more: Any) -> Path:
    """A run of the checkpoint of that content, which solves ``share`` of 40 documents that all of them are asked."""
    known: dict[str, Any] = {"tasks": {"dare_sudoku": share}, "n_docs": 40, "n_total": 40, "documents": "same", **more}
    name = known.pop("run_id", content)
    return make_run(root, name, model=f"tiny-{content}", content=content, lineage=lineage, **known)


def make_family(root: Path) -> None:
    """A base, an SFT of it in three seeds and several steps, a LoRA beside it, and reinforcement learning after it."""
    make_checkpoint(root, "base", 0.25)
    for seed in range(3):
        for step, share in ((25, 0.4), (50, 0.55), (100, 0.7 + 0.05 * seed)):
            built = trained(seed=seed, step=step)
            day = f"2026-11-2{1 + seed}T00:{step % 60:02d}:00"
            make_checkpoint(root, f"sft{seed}-{step}", share, built, created=day)
    lora = trained(peft="lora")
    make_checkpoint(root, "base", 0.6, lora, adapter="lora0", run_id="lora")
    sft = {name: value for name, value in trained(seed=2).items() if name != "parents"}
    for seed in range(2):
        rl = trained("sft2-100", method="mdpo", seed=seed, step=60, steps=60, parents=(sft,), data="dare_sudoku")
        make_checkpoint(root, f"rl{seed}", 0.9 + 0.05 * seed, rl, created=f"2026-11-25T0{seed}:00:00")


def make_reinforced(root: Path) -> None:
    """A base, and two methods with several steps of two seeds that record their forwards by phase; the first step of
    one seed does not."""
    make_checkpoint(root, "base", 0.25)
    for method, updates in (("cj_grpo", 80), ("espo", 40)):
        for seed in range(2):
            for number, step in enumerate((25, 50, 100)):
                counts = {"rollout": 128 * step, "score": updates * step, "update": updates * step}
                counted = method, seed, step
                cost = {} if counted == ("espo", 1, 25) else {"forwards": counts, "tokens": counts}
                built = trained(method=method, seed=seed, step=step, **cost)
                share = 0.3 + 0.15 * number + 0.05 * seed + updates / 1000
                make_checkpoint(root, f"{method}{seed}-{step}", share, built, created=f"2026-11-22T0{number}:00:00")


PAGE = ROOT / "docs" / "trained"


@cache
def script() -> ModuleType:
    """scripts/trained.py."""
    spec = importlib.util.spec_from_file_location("trained_script", ROOT / "scripts" / "trained.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def make_trained(root: Path, *starts: str) -> list[Path]:
    """Write those whose ids start with one of ``starts`` (all, without any) into ``root``, and return their folders."""
    folders = []
    for outcome in script().read_outcomes(PAGE):
        if starts and not outcome.run.startswith(starts):
            continue
        lineage, content = None, outcome.base_content.removeprefix("sha256:")
        if outcome.method:
            method, _, peft = outcome.method.partition(" + ")
            lineage = trained(method=method, peft=peft or None, seed=int(outcome.seed), data=outcome.data)
            lineage |= {"base": outcome.base, "base_content": outcome.base_content}
            content = f"{outcome.base} {outcome.method} {outcome.data} {outcome.seed}"
        values = {outcome.evaluated: [float(digit) for digit in outcome.solved]}
        named = {"model": outcome.base, "lineage": lineage, "content": content}
        folders.append(make_run(root, outcome.run, values=values, documents="same", n_total=outcome.documents, **named))
    return folders


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
