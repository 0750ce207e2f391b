"""Tasks that run what a model wrote. They are refused: generated code runs only in a sandbox.

Decided from the text of the task files, before anything is imported or downloaded: lm-eval's code tasks fetch a
metric from the hub while their YAML loads, and one of them runs code without saying ``unsafe_code``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dare_bench.errors import UsageError
from dare_bench.harness.task_index import TaskEntry, TaskIndex
from dare_bench.harness.yaml_scan import beside, value_of

_MARKED = re.compile(r"^[\"']?unsafe_code[\"']?[ \t]*:[ \t]*[\"']?(?:true|yes|on)\b", re.MULTILINE | re.IGNORECASE)
_INCLUDE = re.compile(r"^[\"']?include[\"']?[ \t]*:(?P<value>.*(?:\n[ \t]*-[ \t].*)*)", re.MULTILINE)
_FUNCTION = re.compile(r"!function\s+(?P<module>[\w.]+)\.\w+")
# What running a string takes: evaluate's metric of that name, or Python's own exec.
_RUNS = re.compile(r"code_eval|(?<![\w.])exec\(")


class CodeTaskError(UsageError):
    """A task that would run generated code, which this version does not do."""


def why_code(path: Path, _seen: tuple[str, ...] = ()) -> str | None:
    """Why the task of this YAML file runs generated code (a few words), or None if it does not."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if _MARKED.search(text):
        return "marked unsafe_code"
    if "code_eval" in text:
        return "its metric is code_eval"
    for module in {found["module"] for found in _FUNCTION.finditer(text)}:
        source = path.parent / f"{module.replace('.', '/')}.py"
        if source.is_file() and _RUNS.search(source.read_text(encoding="utf-8", errors="replace")):
            return f"its scorer {source.name} runs code"
    for included in _INCLUDE.finditer(text):
        names = value_of(included["value"])
        for name in [names] if isinstance(names, str) else list(names or ()):
            target = beside(str(path), str(name))
            if target not in _seen and Path(target).is_file():
                reason = why_code(Path(target), (*_seen, str(path)))
                if reason:
                    return reason
    return None


def code_tasks(entries: Iterable[TaskEntry]) -> dict[str, str]:
    """{task: reason} of those that run generated code."""
    reasons = {entry.name: why_code(entry.path) for entry in entries if entry.path is not None}
    return {name: reason for name, reason in reasons.items() if reason}


def refuse_code_tasks(names: Sequence[str], include_path: Sequence[str] = (), index: TaskIndex | None = None) -> None:
    """Check the tasks a user named (globs, groups and tags are opened); nothing is loaded.

    Raises:
        CodeTaskError: one of them runs generated code.
        UnknownNameError: one of them does not exist.
    """
    index = index or TaskIndex(include_path)
    found = code_tasks(index.leaves(index.match(names)))
    if found:
        name, reason = next(iter(found.items()))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise CodeTaskError(
            f"task {name!r}{more} runs code that the model writes ({reason}); generated code runs only in a sandbox,"
            " which this version does not have: leave the task out"
        )
