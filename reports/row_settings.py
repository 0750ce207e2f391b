"""The settings of a table's rows, where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import opened_with

_SEEDS = ("python seed", "numpy seed", "seed", "few-shot seed")


def settings_texts(rows: Sequence[Sequence[Run]]) -> list[str]:
    """For each row (its runs) the settings that differ from another row's; empty where none do."""
    blocks = [run.block for row in rows for run in row if run.block is not None]
    decoding = dict.fromkeys(name for block in blocks for name in block.decoding_requested)
    likelihood = dict.fromkeys(name for block in blocks for task in block.tasks.values() for name in task.likelihood)
    by_row = [_settings(row, decoding, likelihood) for row in rows]
    texts = []
    for row in by_row:
        differing = [
            f"{name} {value}"
            for name, value in row.items()
            if value not in (None, UNKNOWN)
            and any(other.get(name, UNKNOWN) not in (value, UNKNOWN) for other in by_row)
        ]
        texts.append(", ".join(differing))
    return texts


def _settings(runs: Sequence[Run], decoding: Iterable[str], likelihood: Iterable[str]) -> dict[str, Any]:
    blocks = [run.block for run in runs if run.block is not None]
    results, first = runs[0].results, blocks[0]
    tasks = [task for block in blocks for task in block.tasks.values()]
    settings: dict[str, Any] = {}
    for names, of_tasks in ((decoding, [t.decoding for t in tasks]), (likelihood, [t.likelihood for t in tasks])):
        for name in names:
            values = [task[name] for task in of_tasks if name in task]
            if values:
                settings[name] = values[0] if all(value == values[0] for value in values) else "by task"
    settings |= {"dtype": first.model.dtype, **opened_with(results)}
    harnesses = {block.harness.name for block in blocks}
    settings |= {
        "harness": harnesses.pop() if len(harnesses) == 1 else UNKNOWN,
        "answers to each prompt": first.repeats,
    }
    settings |= dict(zip(_SEEDS, first.seeds or (UNKNOWN,) * len(_SEEDS), strict=True))
    template = results.get("chat_template_sha")
    settings["chat template"] = str(template)[:8] if template else "not applied"
    if template:
        settings["examples as turns"] = results.get("fewshot_as_multiturn")
    return settings
