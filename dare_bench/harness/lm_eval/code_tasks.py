"""Which tasks run what a model wrote, and which of these may: those that leave the running to evaluate's ``code_eval``
metric, for which ours stands in (:mod:`~dare_bench.harness.common.code_eval`). A scorer that runs code by itself is
refused.

Decided from the text of the task files, before anything is imported or downloaded: lm-eval's code tasks fetch the
metric from the hub while their YAML loads, and some run code without saying ``unsafe_code``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.evaluating_code import EVALUATES
from dare_bench.harness.lm_eval.task_index import TaskEntry
from dare_bench.harness.lm_eval.yaml_scan import beside, names_of
from dare_bench.reading import read_source

_MARKED = re.compile(r"^[\"']?unsafe_code[\"']?[ \t]*:[ \t]*[\"']?(?:true|yes|on)\b", re.MULTILINE | re.IGNORECASE)
_INCLUDE = re.compile(r"^[\"']?include[\"']?[ \t]*:(?P<value>.*(?:\n[ \t]*-[ \t].*)*)", re.MULTILINE)
_FUNCTION = re.compile(r"!function\s+(?P<module>[\w.]+)\.\w+")
_METRIC = "code_eval"
_EXEC = re.compile(r"(?<![\w.])(?:exec|eval)\(|\bparse_expr\b")  # sympy's parse_expr evaluates its text as Python
_IMPORT = re.compile(r"^\s*(?:from\s+(?P<source>[\w.]+)\s+import|import\s+(?P<module>[\w.]+))", re.MULTILINE)
_STARTS = re.compile(r"(?<!\w)(?:subprocess|os\.system|os\.popen|os\.exec\w+|os\.spawn\w+)(?!\w)")


class CodeTaskError(UsageError):
    """A task whose scorer would run generated code outside the sandbox."""


@dataclass(frozen=True, slots=True)
class CodeTask:
    """A task that runs generated code: ``reason`` says how that was seen, ``sandboxed`` whether ours runs it."""

    reason: str
    sandboxed: bool


def code_task(path: Path) -> CodeTask | None:
    """What the task of this YAML file does with generated code; None if it runs none."""
    texts = dict(_with_includes(path))
    marked = any(_MARKED.search(text) for text in texts.values())
    scorers = dict(_scorers(texts))
    running = [name for name, source in scorers.items() if _EXEC.search(source)]
    if running:
        return CodeTask(f"its scorer {running[0]} runs code by itself", sandboxed=False)
    using = [name for name, source in scorers.items() if _METRIC in source]
    by_name = any(_METRIC in text for text in texts.values())
    if not (marked or using or by_name):
        return None
    starting = [name for name, source in scorers.items() if _STARTS.search(source)]
    if starting:
        return CodeTask(f"its scorer {starting[0]} starts programs by itself", sandboxed=False)
    if not (using or by_name):
        return CodeTask(f"marked unsafe_code, and its scorer does not use {_METRIC}", sandboxed=False)
    return CodeTask(f"its scorer {using[0]} uses {_METRIC}" if using else f"its metric is {_METRIC}", sandboxed=True)


def _with_includes(path: Path, above: tuple[Path, ...] = ()) -> Iterator[tuple[Path, str]]:
    """(path, text) of a task file and of all that it includes."""
    text = read_source(path, DataError)
    yield path, text
    for included in _INCLUDE.finditer(text):
        for name in names_of(included["value"]):
            target = Path(beside(str(path), name))
            if target not in (*above, path) and target.is_file():
                yield from _with_includes(target, (*above, path))


def _scorers(texts: dict[Path, str]) -> Iterator[tuple[str, str]]:
    """(name, source) of the modules beside the task files whose functions they name, and of those beside that these
    import."""
    seen: dict[Path, None] = {}
    for path, text in texts.items():
        named = dict.fromkeys(found["module"] for found in _FUNCTION.finditer(text))
        waiting = [path.parent / f"{module.replace('.', '/')}.py" for module in named]
        while waiting:
            file = waiting.pop()
            if file in seen or not file.is_file():
                continue
            seen[file] = None
            source = read_source(file, DataError)
            yield file.name, source
            stems = {(found["source"] or found["module"]).rsplit(".")[-1] for found in _IMPORT.finditer(source)}
            waiting += [file.parent / f"{stem}.py" for stem in sorted(stems)]


def code_tasks(entries: Iterable[TaskEntry]) -> dict[str, CodeTask]:
    """Those of the tasks that run generated code, by name."""
    found = {entry.name: code_task(entry.path) for entry in entries if entry.path is not None}
    return {name: task for name, task in found.items() if task is not None}


def evaluating_tasks(entries: Iterable[TaskEntry]) -> dict[str, str]:
    """The tasks whose scorers name something that can evaluate the text of an answer: by name, what and where."""
    found: dict[str, str] = {}
    for entry in entries:
        sources = _scorers(dict(_with_includes(entry.path))) if entry.path is not None else ()
        for name, source in sources:
            if match := EVALUATES.search(source):
                found[entry.name] = f"{match[0]} in {name}"
    return found


def sandboxed_tasks(entries: Iterable[TaskEntry]) -> list[str]:
    """The names of those whose generated code our sandbox runs; nothing is loaded.

    Raises:
        CodeTaskError: one of them would run generated code by itself.
    """
    found = code_tasks(entries)
    refused = {name: task.reason for name, task in found.items() if not task.sandboxed}
    if refused:
        raise _refusal(refused)
    return list(found)


def refuse_unknown_code(marked: Iterable[str], known: Iterable[str]) -> None:
    """Check, once tasks are loaded, that those marked ``unsafe_code`` are all among the known ones.

    Raises:
        CodeTaskError: one is not (a task written inside a group's file, or changed between check and load).
    """
    known = set(known)
    unknown = [name for name in marked if name not in known]
    if unknown:
        raise _refusal(dict.fromkeys(unknown, "marked unsafe_code inside a group's file: give it a file of its own"))


def _refusal(reasons: dict[str, str]) -> CodeTaskError:
    name, reason = next(iter(reasons.items()))
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return CodeTaskError(
        f"task {name!r}{more} would run code that the model writes outside the sandbox ({reason});"
        f" only tasks that use evaluate's {_METRIC} metric run here: leave the task out"
    )
