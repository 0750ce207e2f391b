"""One name for one thing: a reader who meets a class finds it by its name."""

from __future__ import annotations

import ast
from collections import defaultdict

from paths import ROOT

FOLDERS = ("dare_bench", "leaderboards", "model_adapters", "reports", "scripts", "tasks", "trainers")


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(set)
    for folder in FOLDERS:
        for path in (ROOT / folder).resolve().rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(str(path.resolve().relative_to(ROOT.resolve())))
    assert places
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
