"""Names of the files of a run directory, and writing them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.reading import open_regular
from dare_bench.runs.writer import atomic_write_json, atomic_write_jsonl

RUN_FILE = "run.json"
DONE_FILE = "done.json"
JOURNAL = "journal"
MAX_TASK = 180
"""Maximum number of bytes of a task's name in a file name."""
# Characters of task names that would leave the folder or cannot be part of a file name.
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f]")


def file_date(moment: datetime) -> str:
    """A date as lm-eval writes it into file names: ISO format with ``-`` for ``:``."""
    return moment.isoformat().replace(":", "-")


def results_name(date: str) -> str:
    return f"results_{date}.json"


def samples_name(task: str, date: str) -> str:
    return f"samples_{_part(task)}_{date}.jsonl"


def traces_name(task: str, date: str) -> str:
    return f"traces_{_part(task)}_{date}.jsonl"


def _part(task: str) -> str:
    """A task's name as part of a file name (at most 255 bytes on most systems); a hash replaces what is cut."""
    clean = _NOT_IN_NAMES.sub("_", task)
    raw = clean.encode("utf-8", "replace")
    if len(raw) <= MAX_TASK:
        return clean
    return f"{raw[: MAX_TASK - 9].decode('utf-8', 'ignore')}-{hashlib.sha256(task.encode()).hexdigest()[:8]}"


def sample_line(sample: Mapping[str, Any]) -> dict[str, Any]:
    """One of lm-eval's logged samples as in lm-eval's files: ``arguments`` are named ``gen_args_0.arg_0`` and so on;
    the target, and responses at every depth, are text."""
    arguments = sample.get("arguments", {})
    if not isinstance(arguments, Mapping):
        arguments = {f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(a)} for i, a in enumerate(arguments)}
    return {
        **sample,
        "arguments": arguments,
        "resps": _texts(sample.get("resps", [])),
        "filtered_resps": _texts(sample.get("filtered_resps", [])),
        "target": str(sample.get("target", "")),
    }


def _texts(value: Any) -> Any:
    return [_texts(item) for item in value] if isinstance(value, (list, tuple)) else str(value)


def write_results(folder: Path, date: str, results: Mapping[str, Any], block: Any) -> Path:
    """Write ``results_<date>.json``: lm-eval's dict without its samples, plus the ``dare_bench`` block."""
    path = folder / results_name(date)
    atomic_write_json(path, {**{k: v for k, v in results.items() if k != "samples"}, "dare_bench": block})
    return path


def write_samples(folder: Path, date: str, task: str, samples: Iterable[Mapping[str, Any]]) -> str:
    """Write ``samples_<task>_<date>.jsonl``; returns its SHA-256 (see :func:`file_digest`)."""
    return atomic_write_jsonl(folder / samples_name(task, date), map(sample_line, samples))


def write_traces(folder: Path, date: str, task: str, traces: Iterable[Mapping[str, Any]]) -> str:
    """Write ``traces_<task>_<date>.jsonl``; returns its SHA-256."""
    return atomic_write_jsonl(folder / traces_name(task, date), traces)


def own_file(folder: Path, name: str) -> Path | None:
    """The file of that name in a run's folder; None if there is none; raises RunError."""
    path = folder / name
    try:
        is_regular = stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return None
    is_inside = os.path.dirname(name) == ""  # noqa: PTH120 - a path takes ten times as long
    if is_regular and is_inside:  # to find the real place of every file takes longer than the rest of opening a run
        return path
    if path.is_symlink() or not is_inside:
        inside, place = os.path.realpath(folder), os.path.realpath(path)
        if Path(inside) not in Path(place).parents:
            raise RunError(
                f"{path} is a link out of the run, to {place}; only the run's own files are read: copy it there"
            )
    with open_regular(path, RunError):
        return path


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file of any size, 64 hex digits; raises RunError."""
    with open_regular(path, RunError) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
