"""The runs of docs/trained again, from its outcomes.csv, without a model."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from lineages import trained
from paths import ROOT
from run_factory import make_run

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
