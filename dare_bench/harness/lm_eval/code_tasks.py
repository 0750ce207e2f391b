"""Which tasks run code that a model wrote, and which of these may: those that leave the running to evaluate's
``code_eval`` metric, which ours replaces. Decided from the text of the task files and of the modules they name, before
anything is imported or downloaded: lm-eval's code tasks fetch the metric from the hub while their YAML loads, and some
run code without ``unsafe_code``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.scoring_process import check_sentence_model
from dare_bench.harness.lm_eval.task_files import Function, TaskFiles
from dare_bench.harness.lm_eval.task_index import TaskEntry
from dare_bench.reading import read_source

_METRIC = "code_eval"
_EXEC = re.compile(r"(?<![\w.])(?:exec|eval)\(|\bparse_expr\b")  # sympy's parse_expr evaluates its text as Python
_IMPORT = re.compile(r"^\s*(?:from\s+(?P<source>[\w.]+)\s+import|import\s+(?P<module>[\w.]+))", re.MULTILINE)
_STARTS = re.compile(r"(?<!\w)(?:subprocess|os\.system|os\.popen|os\.exec\w+|os\.spawn\w+)(?!\w)")
EVALUATES = re.compile(
    r"\b(?:sympy|sympify|lambdify|parse_expr|parse_latex|math_verify|latex2sympy\w*|numexpr)\b"
    r"|\b(?:pickle|cloudpickle|dill|joblib|marshal|shelve|subprocess|unsafe_load|os\.system|os\.popen)\b"
    r"|\bos\.(?:exec|spawn|posix_spawn)\w*|\bimport\s+(?:eval|exec|compile|system|popen)\b"
    r"|(?<!\w)(?:eval|exec|__import__)(?=\s*\()|(?<![\w.])compile(?=\s*\()"
)
"""What can evaluate a text as a program: sympy's sympify is Python's eval, and pickle runs what it reads."""


class CodeTaskError(UsageError):
    """A task whose scorer would run generated code outside the sandbox."""


def _runs_code(path: Path) -> tuple[bool, str] | None:
    """How the task of this YAML file runs generated code: in our sandbox? and the reason to think so. None if it runs
    none."""
    config = TaskFiles().read(str(path))
    scorers = dict(_scorers(config))

    def first(pattern: str | re.Pattern[str]) -> str | None:
        return next((name for name, source in scorers.items() if re.search(pattern, source)), None)

    if running := first(_EXEC):
        return False, f"its scorer {running} runs code by itself"
    uses_metric = first(_METRIC)
    names_metric = any(_METRIC in text for text in _texts(config) if not isinstance(text, Function))
    if not (uses_metric or names_metric or config.get("unsafe_code")):
        return None
    if starting := first(_STARTS):
        return False, f"its scorer {starting} starts programs by itself"
    if uses_metric:
        return True, f"its scorer {uses_metric} uses {_METRIC}"
    if names_metric:
        return True, f"its metric is {_METRIC}"
    return False, f"marked unsafe_code, and its scorer does not use {_METRIC}"


def _scorers(config: Any) -> Iterator[tuple[str, str]]:
    """(name, source) of the modules whose functions a task names, and of the modules beside them that these import."""
    seen: set[Path] = set()
    pending = [Path(text) for text in dict.fromkeys(_texts(config)) if isinstance(text, Function)]
    while pending:
        file = pending.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        source = read_source(file, DataError)
        yield file.name, source
        stems = {(match["source"] or match["module"]).rsplit(".")[-1] for match in _IMPORT.finditer(source)}
        pending += [file.parent / f"{stem}.py" for stem in sorted(stems)]


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def evaluating_tasks(entries: Iterable[TaskEntry]) -> dict[str, str]:
    """By name, the tasks whose scorers name something that can evaluate the text of an answer: its name and file."""
    reasons: dict[str, str] = {}
    for entry in entries:
        sources = _scorers(TaskFiles().read(entry.file)) if entry.file is not None else ()
        for name, source in sources:
            if match := EVALUATES.search(source):
                reasons[entry.name] = f"{match[0]} in {name}"
    return reasons


def sandboxed_tasks(entries: Iterable[TaskEntry]) -> list[str]:
    """The names of the tasks whose generated code our sandbox runs. Nothing is loaded; raises CodeTaskError."""
    found = {entry.name: _runs_code(entry.path) for entry in entries if entry.path is not None}
    tasks = {name: how for name, how in found.items() if how is not None}
    _refuse({name: reason for name, (sandboxed, reason) in tasks.items() if not sandboxed})
    return list(tasks)


def refuse_unknown_code(marked: Iterable[str], known: Collection[str]) -> None:
    """Check, once tasks are loaded, that those marked ``unsafe_code`` are all among the known ones; raises
    CodeTaskError."""
    unknown = [name for name in marked if name not in known]
    _refuse(dict.fromkeys(unknown, "marked unsafe_code inside a group's file: give it a separate file"))


def _refuse(reasons: dict[str, str]) -> None:
    for name, reason in reasons.items():
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise CodeTaskError(
            f"task {name!r}{more} would run code that the model writes outside the sandbox ({reason});"
            f" only tasks that use evaluate's {_METRIC} metric run here: leave the task out"
        )


def check_punkt(entries: Iterable[TaskEntry]) -> None:
    """Refuse tasks whose code names nltk's ``punkt_tab`` if nltk does not have it; raises UsageError."""
    for entry in entries:
        files = entry.path.parent.glob("*.py") if entry.path is not None else ()
        if any("punkt_tab" in read_source(file, UsageError) for file in files):
            check_sentence_model(f"task {entry.name!r}")
