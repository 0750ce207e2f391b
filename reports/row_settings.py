"""The settings of a table's rows, where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import opened_with
from dare_bench.runs.text import listed

_SEEDS = ("python seed", "numpy seed", "seed", "few-shot seed")

Shown = Sequence[tuple[Run, str]]
"""The runs of a row, each with the task or group whose score the row shows."""
_ByTask = Mapping[str, Any]
"""The values of a setting by task; a setting of the whole row has one, under ""."""


def settings_texts(rows: Sequence[Shown]) -> list[str]:
    """For each row the settings that differ from another row's; empty where none do."""
    blocks = [run.block for row in rows for run, _ in row if run.block is not None]
    decoding = list(dict.fromkeys(name for block in blocks for name in block.decoding_requested))
    settings = [_settings(row, decoding) for row in rows]
    texts = (
        [
            _text(name, values)
            for name, values in row.items()
            if any(name in other and _differ(values, other[name]) for other in settings)
        ]
        for row in settings
    )
    return [", ".join(filter(None, of_row)) for of_row in texts]


def _differ(first: _ByTask, second: _ByTask) -> bool:
    """Do the values differ in a common task, or without one at all?"""
    if common := first.keys() & second.keys():
        return any(str(first[task]) != str(second[task]) for task in common)
    return set(map(str, first.values())) != set(map(str, second.values()))


def _text(name: str, values: _ByTask) -> str:
    """``gen_length 256``, or where tasks differ ``gen_length 256 (gsm8k), 512 (humaneval)``."""
    tasks_of: dict[str, list[str]] = {}
    for task, value in values.items():
        if value is not None:
            tasks_of.setdefault(str(value), []).append(task)
    if not tasks_of:
        return ""
    if [*tasks_of.values()] == [[*values]]:
        return f"{name} {next(iter(tasks_of))}"
    return f"{name} " + ", ".join(f"{value} ({listed(tasks, 3)})" for value, tasks in tasks_of.items())


def _settings(row: Shown, decoding: Sequence[str]) -> dict[str, _ByTask]:
    settings: dict[str, dict[str, Any]] = {name: {} for name in decoding}
    for run, shown in row:
        block = run.require_block()
        tasks = block.tasks
        for task in filter(tasks.__contains__, members(run.results, shown)):
            used = block.decoding_requested if run.is_external else tasks[task].decoding
            of_task = {name: used[name] for name in decoding if name in used}
            for name, value in {**of_task, **tasks[task].likelihood}.items():
                settings.setdefault(name, {})[task] = value
    of_run = dict(_of_run(row[0][0]))
    if any(run.require_block().harness.name != of_run["harness"] for run, _ in row):
        of_run["harness"] = UNKNOWN
    settings |= {name: {"": value} for name, value in of_run.items() if value != UNKNOWN}
    return {name: values for name, values in settings.items() if values}


def _of_run(run: Run) -> Iterator[tuple[str, Any]]:
    """The settings that all tasks of a row have in common."""
    block, results = run.require_block(), run.results
    yield from {"dtype": block.model.dtype, **opened_with(results)}.items()
    yield from {"harness": block.harness.name, "answers to each prompt": block.repeats}.items()
    yield from zip(_SEEDS, block.seeds or (UNKNOWN,) * len(_SEEDS), strict=True)
    template = results.get("chat_template_sha")
    yield "chat template", str(template)[:8] if template else "not applied"
    if template:
        yield "examples as turns", results.get("fewshot_as_multiturn")
