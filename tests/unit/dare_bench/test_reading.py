"""The rule of CONTRIBUTING.md: a file that somebody else may have written goes through ``dare_bench/reading.py``."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from dare_bench.reading import MAX_DEPTH, parse_json

FOLDERS = ("dare_bench", "model_adapters", "trainers", "tasks", "leaderboards", "reports")
METHODS = {"read_text", "read_bytes", "open"}
FUNCTIONS = {
    "open", "os.open", "json.load", "json.loads", "yaml.load", "yaml.safe_load", "yaml.compose", "torch.load",
    "pickle.load", "pickle.loads",
}  # fmt: skip
SYSTEM = "It reads what the kernel says of this machine or process."
SANDBOX = "The sandbox's programs import nothing of this package; they read their own source and the kernel's files."
OURS = "The file came with this package."
CODE = "The file is the source of a module that this process has imported."
OWN = "It decodes what this process has encoded."
WRITES = "It opens a file for writing, a folder to flush, or the null device."
METHOD = "It calls a method named open that opens no file itself."
CHECKED = "What it reads has been checked: size, depth, or kind of file."
ALLOWED: dict[str, tuple[dict[str, int], str]] = {
    "dare_bench/chat.py": ({"json.loads": 1}, OWN),
    "dare_bench/chat_worker.py": ({".read_text": 1, "json.loads": 2}, SYSTEM),
    "dare_bench/runs/field_types.py": ({"json.loads": 1}, OWN),
    "dare_bench/cli/guard.py": ({"os.open": 2}, WRITES),
    "dare_bench/engine/environment.py": ({".read_text": 1}, SYSTEM),
    "dare_bench/engine/journal.py": ({"os.open": 1}, WRITES),
    "dare_bench/executors/graph.py": ({"pickle.loads": 1}, OWN),
    "dare_bench/harness/common/requests.py": ({"json.loads": 1}, OWN),
    "dare_bench/harness/common/hashing.py": ({".read_text": 1}, CODE),
    "dare_bench/sandbox/worker_process.py": ({"os.open": 1, "json.loads": 1, ".read_text": 1}, CHECKED),
    "dare_bench/harness/lm_eval/source.py": ({"json.loads": 1}, OWN),
    "dare_bench/harness/opencompass/result_tables.py": ({"json.loads": 1}, OWN),
    "dare_bench/harness/opencompass/shapes.py": ({".open": 2}, WRITES),
    "dare_bench/loading.py": ({".open": 3}, METHOD),
    "dare_bench/program.py": ({".read_bytes": 1}, CODE),
    "dare_bench/analysis/run_finder.py": ({".open": 2}, METHOD),
    "dare_bench/costs/trace.py": ({".open": 1}, METHOD),
    "dare_bench/runs/writer.py": ({"os.open": 1, ".open": 2}, WRITES),
    "dare_bench/sandbox/command.py": ({".read_text": 2}, SANDBOX),
    "dare_bench/sandbox/enter.py": ({"open": 2, "os.open": 1}, SANDBOX),
    "dare_bench/sandbox/forked.py": ({".read_text": 1}, SYSTEM),
    "dare_bench/sandbox/processes.py": ({".read_text": 2}, SYSTEM),
    "dare_bench/sandbox/worker.py": ({"open": 1}, SANDBOX),
    "dare_bench/sweeps/job.py": ({".open": 1}, WRITES),
    "dare_bench/training/files.py": ({"json.loads": 2}, CHECKED),
    "dare_bench/training/folder.py": ({"json.loads": 1}, OWN),
    "dare_bench/training/rollout_engine.py": ({".open": 1}, METHOD),
    "trainers/reference_policy.py": ({".open": 1}, METHOD),
    "tasks/dare_arithmetic/utils.py": ({"json.loads": 1, ".read_text": 1}, OURS),
    "tasks/dare_countdown/utils.py": ({"json.loads": 1, ".read_text": 1}, OURS),
    "tasks/dare_countdown/larger.py": ({"json.loads": 1, ".read_text": 1}, OURS),
    "tasks/dare_sort/utils.py": ({"json.loads": 1, ".read_text": 1}, OURS),
    "tasks/dare_sudoku/utils.py": ({"json.loads": 1, ".read_text": 1}, OURS),
    "leaderboards/builder.py": ({".read_bytes": 2}, f"{CHECKED}; {OURS}"),
    "leaderboards/rendering.py": ({".read_bytes": 1}, OURS),
    "leaderboards/board_ranking.py": ({".open": 1}, METHOD),
    "leaderboards/pair_differences.py": ({".open": 4}, METHOD),
    "leaderboards/unmasking_page.py": ({".open": 3}, METHOD),
    "leaderboards/run_page.py": ({".open": 1}, METHOD),
    "leaderboards/site.py": ({".read_bytes": 1, ".open": 1}, OURS),
    "reports/hub.py": ({"yaml.safe_load": 1}, OWN),
}
"""Calls that are no breach of the rule: how many a file has, and why."""


def calls(path: Path) -> Counter[str]:
    """The calls in a source file that read a file or decode what was read, by their names."""
    result: Counter[str] = Counter()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in FUNCTIONS:
                result[name] += 1
            elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not name.startswith("reading."):
                result[f".{node.func.attr}"] += 1
    return result


def test_files_are_read_by_the_shared_readers() -> None:
    result = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):  # does not follow the links inside dare_bench
            place = path.relative_to(ROOT).as_posix()
            if place != "dare_bench/reading.py" and (built := calls(path)):
                result[place] = dict(built)
    assert result == {place: built for place, (built, _) in ALLOWED.items()}, (
        "a call reads a file without dare_bench/reading.py: use its readers, or list the call here with the reason"
    )


def test_the_rule_sees_a_call_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("with p.open() as file:\n    json.load(file)\ntorch.load(read_text(p))\n")
    assert calls(tmp_path / "x.py") == {".open": 1, "json.load": 1, "torch.load": 1}


# -- ``parse_json``: how deep a value may be nested --------------------------------------------------------------------


def nested(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_limited_and_brackets_are_not(kind: type) -> None:
    allowed = [nested(MAX_DEPTH - 1, kind), *[nested(1, kind)] * MAX_DEPTH]
    assert parse_json(json.dumps(allowed)) == allowed
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_DEPTH} levels"):
        parse_json(json.dumps(nested(MAX_DEPTH + 1, kind)))


@pytest.mark.parametrize("unique", [False, True])
def test_a_small_number_is_itself(unique: bool) -> None:
    assert parse_json("[5e-324, -1e-101, -0.25, 7]", unique=unique) == [5e-324, -1e-101, -0.25, 7]
