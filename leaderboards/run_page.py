"""A run's page and its JSON file: settings, scores, cost, and the command that repeats the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from dare_bench.errors import RunError
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.forked import mapped
from dare_bench.leaderboards.rendering import settings_table
from dare_bench.leaderboards.site import Site, SitePart
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Block
from dare_bench.runs.scores import Score, extraction_rate
from dare_bench.runs.text import without_paths

STATUSES = ("matched", "ambiguous", "no_match", "truncated")
"""Outcomes of answer extraction, in the order of the table; others follow."""


def write(site: Site, context: Context) -> None:
    """Write the page of each run; results that cannot be read are reported as a problem."""
    rows = {
        entry.slug: (row, each.entries) for row in context.views[0].rows for each in row.each for entry in each.entries
    }
    pages = []
    for entry in context.entries:
        row, in_row = rows.get(entry.slug, (None, [entry]))
        values = {
            "pages": context.pages.get(entry.slug, {}),
            "badges": list(row.badges) if row else [],
            "beside": [(other.page, other.run_id, tuple(other.tasks)) for other in in_row if other is not entry],
        }
        pages.append((entry, values))
    with mapped(partial(_part, site), pages, context.processes) as results:
        for parts, problem in results:
            site.adopt(parts)
            if problem:
                context.problem(problem)


def _part(site: Site, page: tuple[BoardEntry, Mapping[str, Any]]) -> tuple[dict[str, SitePart], str]:
    """The part of a page that was written, and what is wrong with the results of another (else empty)."""
    entry, values = page
    name = f"run {entry.slug}"
    inputs = (entry.state, entry.path.name, entry.name, entry.checkpoint_page, values)
    try:
        site.part(name, inputs, partial(_write, site, entry, values))
    except RunError as error:
        return {}, str(error)
    return {name: site.parts[name]}, ""


def _write(site: Site, entry: BoardEntry, values: Mapping[str, Any]) -> None:
    run = entry.open()
    block = _public(run.block) if run.block else None
    data = f"data/runs/{entry.slug}.json"
    site.json(
        data,
        {
            "run_id": run.run_id,
            "model": run.model,
            "name": entry.name.text,
            "status": run.status,
            "scores": [asdict(score) for score in run.scores()],
            **_facts(run, block),
        },
    )
    tasks = block.tasks if block else {}
    site.page(
        entry.page,
        "run.html.j2",
        **values,
        entry=entry,
        run=run,
        block=block,
        data=data,
        scores=list(score_tree(run)),
        extracted=any(score.extraction_rate is not None for score in run.scores()),
        tasks=[_task(run, name) for name in tasks],
        answers=_answers(block) if block else ([], []),
        settings_table=settings_table,
        decoding=settings_table({name: task.decoding for name, task in tasks.items() if task.decoding}),
        likelihood=settings_table({name: task.likelihood for name, task in tasks.items() if task.likelihood}),
    )


def _facts(run: Run, block: Block | None) -> dict[str, Any]:
    """What a run recorded: its block, or of an external result, which has none, what is known and what is not."""
    if block is None or not run.is_external:
        return {"dare_bench": block.model_dump(mode="json") if block else None}
    known = block.model_dump(mode="json", include={"model", "harness", "seeds", "limit", "decoding_requested", "notes"})
    return {"dare_bench": None, "external": known | {"not_recorded": list(run.unknown)}}


def _public(block: Block) -> Block:
    record = block.model_dump(mode="json")
    parts = ("model", "command", "environment", "failures", "events", "notes", "execution")
    return Block.model_validate(record | without_paths({name: record[name] for name in parts}))


def score_tree(run: Run) -> Iterator[tuple[int, Score]]:
    """All scores, each group before its members, with their depth below a group."""
    scores: dict[str, list[Score]] = {}
    for score in run.scores():
        scores.setdefault(score.task, []).append(score)
    children: Mapping[str, list[str]] = run.results.get("group_subtasks") or {}
    done: set[str] = set()

    def branch(name: str, depth: int) -> Iterator[tuple[int, Score]]:
        if name in done:  # a task of two groups is listed below the first
            return
        done.add(name)
        of_name = scores.get(name, [])
        yield from ((depth, score) for score in of_name)
        for child in children.get(name) or ():
            yield from branch(child, depth + 1 if of_name else depth)

    for name in (*run.top_level(), *scores):
        yield from branch(name, 0)


def _task(run: Run, name: str) -> dict[str, Any]:
    """A task's version, examples and data in the harness (empty or None if it does not record them)."""
    assert run.block is not None
    config = (run.results.get("configs") or {}).get(name) or {}
    keywords = config.get("dataset_kwargs")
    keywords = keywords if isinstance(keywords, dict) else {}
    data = " ".join(str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key))
    return {
        "name": name,
        "version": (run.results.get("versions") or {}).get(name),
        "shots": (run.results.get("n-shot") or {}).get(name),
        "data": data or ("generated by the task itself" if config.get("custom_dataset") else ""),
        "revision": str(keywords.get("revision") or config.get("dataset_revision") or ""),
        "block": run.block.tasks[name],
    }


def _answers(block: Block) -> tuple[list[str], list[tuple[str, str, list[int], float | None]]]:
    """(statuses, rows of (task, filter, count of each status, extraction rate))."""
    counted = [(task, name, counts) for task, filters in block.extraction.items() for name, counts in filters.items()]
    recorded = dict.fromkeys(status for _, _, counts in counted for status in counts)
    names = [*(name for name in STATUSES if name in recorded), *(name for name in recorded if name not in STATUSES)]
    rows = [
        (task, name, [counts.get(status, 0) for status in names], extraction_rate(counts))
        for task, name, counts in counted
    ]
    return names, rows
