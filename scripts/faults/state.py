"""The state of a folder: its results, to compare with those of the undisturbed run, and its finished units of work."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dare_bench.engine.journal import unpack
from dare_bench.runs.reader import Run

DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d[-:]\d\d[-:]\d\d(\.\d+)?([+-]\d\d:\d\d|Z)?")
_OF_TIMES = {"samples_sha256", "traces_sha256"}
"""Digests of files that contain times."""
_NOT_COMPARED = re.compile(r"(^|/)(journal/|logs/|events\.out\.)")
"""Journals have a file per writer, named after its process; the names of TensorBoard's files contain times."""


def results(folder: Path) -> dict[str, Any]:
    """The files of a command without dates and times. Leftovers of killed writers appear in the list of names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [DATE.sub("DATE", str(path.relative_to(folder))) for path in files]
    contents: dict[str, Any] = {"files": [name for name in names if not _NOT_COMPARED.search(name)]}
    for path in files:
        name = str(path.relative_to(folder))
        if path.name == "run.json":
            contents[f"run {path.parent.relative_to(folder)}"] = run_results(path.parent)
        elif path.suffix == ".safetensors":
            contents[name] = _hash(path.read_bytes())
        elif path.name == "lineage.json":
            contents[name] = json.loads(path.read_bytes())
        elif path.name == "trainer_state.json":
            state = json.loads(path.read_bytes())  # its losses are means over the steps since the last resume
            contents[name] = [state["global_step"], state["max_steps"]]
        elif path.name == "node.json":
            node = json.loads(path.read_bytes())
            runs = [run["id"] for run in node["runs"]]
            contents[name] = [node["status"], node["settings"] if node["kind"] != "board" else "", runs]
        elif path.suffix in (".html", ".js", ".css", ".csv") and not (folder / "sweep.yaml").exists():
            contents[name] = _hash(
                DATE.sub("DATE", path.read_text()).encode()
            )  # in a sweep, pages show measured speeds
    return contents


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def run_results(folder: Path) -> dict[str, Any]:
    """The content of a run without dates and times."""
    run = Run(folder)
    if run.block is None:
        return {"status": run.status}
    lines = {task: [*run.samples(task), *run.traces(task)] for task in run.tasks}
    for row in (row for rows in lines.values() for row in rows):
        for answer in row.get("dare_bench", ()):
            answer.pop("seconds")
            answer.pop("tokens_per_s", None)
    block = run.block
    return {
        "status": run.status,
        "lines": lines,
        "results": run.results["results"],
        "tasks": {name: task.model_dump(exclude=_OF_TIMES) for name, task in block.tasks.items()},
        "ci": {name: {key: ci.model_dump() for key, ci in by_key.items()} for name, by_key in block.ci.items()},
        "cost": [block.cost.nfe, block.cost.tokens, block.cost.tokens_to_eos, block.cost.requests],
        "failures": [failure.model_dump() for failure in block.failures],
    }


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The differences between the results of a folder and those of the undisturbed run, one line each."""
    lines = []
    for name in sorted(actual.keys() | expected.keys()):
        if same(actual.get(name), expected.get(name)):
            continue
        if name == "files":
            files, expected_files = set(actual[name]), set(expected[name])
            lines += [f"left over: {file}" for file in sorted(files - expected_files)]
            lines += [f"missing: {file}" for file in sorted(expected_files - files)]
        elif name in actual and name in expected:
            lines.append(f"{name} differs{_path_of_difference(actual[name], expected[name])}")
    return lines


def same(actual: Any, expected: Any, key: str = "") -> bool:
    """Are two values equal? Confidences may differ by rounding, which depends on the rest of the batch."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(same(actual[key], expected[key], key) for key in actual)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(same(*pair, key) for pair in zip(actual, expected, strict=True))
    if key == "events" and isinstance(actual, float) and isinstance(expected, float):
        return math.isclose(actual, expected, rel_tol=1e-4)
    return bool(actual == expected)


def _path_of_difference(actual: Any, expected: Any) -> str:
    """The path of the first difference, and both values."""
    if isinstance(actual, dict) and isinstance(expected, dict) and actual.keys() == expected.keys():
        key = next(key for key in actual if not same(actual[key], expected[key], key))
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        key = next(i for i, pair in enumerate(zip(actual, expected, strict=True)) if not same(*pair))
    else:
        return f": {str(actual)[:80]}, expected {str(expected)[:80]}"
    return f" > {key}{_path_of_difference(actual[key], expected[key])}"


def finished(folder: Path) -> dict[str, str]:
    """The finished units of work (samples in journals, checkpoints, runs, nodes of a sweep), each with a version that
    changes when it is repeated."""
    units: dict[str, str] = {}
    for run in {path.parent.parent for path in folder.rglob("journal/*.jsonl")}:
        lines = list(_samples(run))
        counts = Counter(key for key, _ in lines)
        units |= {f"sample {run.name} {key}": f"{counts[key]} {digest}" for key, digest in lines}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.name == "lineage.json" and path.parent.name.startswith("checkpoint-"):
            units[f"checkpoint {name}"] = _version(path)
        elif path.name == "done.json":
            units[f"run {name}"] = _version(path)
        elif path.name == "node.json":
            node = json.loads(path.read_bytes())
            if node["status"] == "done" and node["kind"] != "board":  # a board is rebuilt for each new run
                units[f"node {name}"] = str(node["started"])
    return units


def answers(folder: Path) -> int:
    """The number of finished samples and checkpoints, while a command is running."""
    try:
        lines = [line for file in folder.rglob("journal/*.jsonl") for line in file.read_bytes().splitlines()]
        checkpoints = list(folder.rglob("checkpoint-*/lineage.json"))
    except FileNotFoundError:  # a file was moved in the meantime: the caller tries again
        return 0
    return len(checkpoints) + sum(b'"type":"sample"' in line[:60] for line in lines)


def _samples(run: Path) -> Iterator[tuple[str, str]]:
    for file in sorted((run / "journal").glob("*.jsonl")):
        for line in file.read_bytes().splitlines(keepends=True):
            record = unpack(line)
            if record is not None and record["type"] == "sample":
                yield record["key"], _hash(line)


def _version(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_ino} {stat.st_mtime_ns}"


def lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The units that were finished at the fault and are missing or repeated, and samples computed several times."""
    missing = [f"lost: {unit}" for unit in before if unit not in after]
    repeated = [f"done twice: {unit}" for unit, version in before.items() if after.get(unit, version) != version]
    samples = {unit: version.split()[0] for unit, version in after.items() if unit.startswith("sample ")}
    return missing + repeated + [f"computed {n} times: {unit}" for unit, n in samples.items() if n != "1"]
