"""What a folder holds: its results, to be compared with an unbroken run's, and the units of work that are finished."""

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
"""Digests of files that hold times, too."""
_NOT_COMPARED = re.compile(r"(^|/)(journal/|logs/|events\.out\.)")
"""Journals have a file a writer, named after its process; TensorBoard's files are named by time."""


def results(folder: Path) -> dict[str, Any]:
    """All that a command made, without dates and times. Leftovers of killed writers show among the names of files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [DATE.sub("DATE", str(path.relative_to(folder))) for path in files]
    found: dict[str, Any] = {"files": [name for name in names if not _NOT_COMPARED.search(name)]}
    for path in files:
        name = str(path.relative_to(folder))
        if path.name == "run.json":
            found[f"run {path.parent.relative_to(folder)}"] = run_holds(path.parent)
        elif path.suffix == ".safetensors":
            found[name] = _hash(path.read_bytes())
        elif path.name == "lineage.json":
            found[name] = json.loads(path.read_bytes())
        elif path.name == "trainer_state.json":
            state = json.loads(path.read_bytes())  # its figures are means over the steps since the last resume
            found[name] = [state["global_step"], state["max_steps"]]
        elif path.name == "node.json":
            node = json.loads(path.read_bytes())
            told = [(run["id"], run["status"], run["scores"]) for run in node["outputs"].get("runs", ())]
            found[name] = [node["status"], node["mark"] if node["kind"] != "board" else "", told]
        elif path.suffix in (".html", ".js", ".css", ".csv") and not (folder / "sweep.yaml").exists():
            found[name] = _hash(DATE.sub("DATE", path.read_text()).encode())  # of a sweep, pages show measured speeds
    return found


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def run_holds(folder: Path) -> dict[str, Any]:
    """What a run is, without its dates and the times it took."""
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
        "ci": {name: {key: ci.model_dump() for key, ci in found.items()} for name, found in block.ci.items()},
        "cost": [block.cost.nfe, block.cost.tokens, block.cost.tokens_to_eos, block.cost.requests],
        "failures": [failure.model_dump() for failure in block.failures],
    }


def differences(mine: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """In a few words, where a folder's results are not those of the unbroken run."""
    found = []
    for name in sorted(mine.keys() | reference.keys()):
        if same(mine.get(name), reference.get(name)):
            continue
        if name == "files":
            more, less = set(mine[name]) - set(reference[name]), set(reference[name]) - set(mine[name])
            found += [f"left over: {file}" for file in sorted(more)] + [f"missing: {file}" for file in sorted(less)]
        elif name in mine and name in reference:
            found.append(f"{name} differs{_where(mine[name], reference[name])}")
    return found


def same(mine: Any, reference: Any, key: str = "") -> bool:
    """Equal; margins and the confidences of unmasking events up to float order, which hangs on the rows beside them."""
    if isinstance(mine, dict) and isinstance(reference, dict):
        return mine.keys() == reference.keys() and all(same(mine[key], reference[key], key) for key in mine)
    if isinstance(mine, list) and isinstance(reference, list):
        return len(mine) == len(reference) and all(same(*pair, key) for pair in zip(mine, reference, strict=True))
    if key in ("margin", "events") and isinstance(mine, float) and isinstance(reference, float):
        return math.isclose(mine, reference, rel_tol=1e-4)
    return bool(mine == reference)


def _where(mine: Any, reference: Any) -> str:
    """The way to the first difference, and what stands there."""
    if isinstance(mine, dict) and isinstance(reference, dict) and mine.keys() == reference.keys():
        return next(
            f" > {key}{_where(mine[key], reference[key])}" for key in mine if not same(mine[key], reference[key], key)
        )
    if isinstance(mine, list) and isinstance(reference, list) and len(mine) == len(reference):
        pairs = zip(mine, reference, strict=True)
        return next(f" > {i}{_where(one, other)}" for i, (one, other) in enumerate(pairs) if not same(one, other))
    return f": {str(mine)[:80]}, unbroken {str(reference)[:80]}"


def finished(folder: Path) -> dict[str, str]:
    """The units of work that are finished, each with a mark that changes when it is done again: samples in journals,
    whole checkpoints, finished runs, finished nodes of a sweep."""
    units: dict[str, str] = {}
    for run in {path.parent.parent for path in folder.rglob("journal/*.jsonl")}:
        lines = list(_samples(run))
        counts = Counter(key for key, _ in lines)
        units |= {f"sample {run.name} {key}": f"{counts[key]} {digest}" for key, digest in lines}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.name == "lineage.json" and path.parent.name.startswith("checkpoint-"):
            units[f"checkpoint {name}"] = _mark(path)
        elif path.name == "done.json":
            units[f"run {name}"] = _mark(path)
        elif path.name == "node.json":
            node = json.loads(path.read_bytes())
            if node["status"] == "done" and node["kind"] != "board":  # a board is built again for each run more
                units[f"node {name}"] = str(len(node["attempts"]))
    return units


def answers(folder: Path) -> int:
    """How many samples and checkpoints are finished, counted while a command is at work."""
    try:
        lines = [line for file in folder.rglob("journal/*.jsonl") for line in file.read_bytes().splitlines()]
        checkpoints = list(folder.rglob("checkpoint-*/lineage.json"))
    except FileNotFoundError:  # something was moved meanwhile: it is looked at again
        return 0
    return len(checkpoints) + sum(b'"type":"sample"' in line[:60] for line in lines)


def _samples(run: Path) -> Iterator[tuple[str, str]]:
    for file in sorted((run / "journal").glob("*.jsonl")):
        for line in file.read_bytes().splitlines(keepends=True):
            record = unpack(line)
            if record is not None and record["type"] == "sample":
                yield record["key"], _hash(line)


def _mark(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino} {found.st_mtime_ns}"


def lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What was finished at the fault and is not there any more, or was done again."""
    gone = [f"lost: {unit}" for unit in before if unit not in after]
    twice = [f"done twice: {unit}" for unit, mark in before.items() if after.get(unit, mark) != mark]
    again = [f"computed {mark.split()[0]} times: {unit}" for unit, mark in after.items() if unit.startswith("sample ")
             and not mark.startswith("1 ")]  # fmt: skip
    return gone + twice + again
