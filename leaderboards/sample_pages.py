"""The documents of a run, paged: prompt, answer, extraction, score, and the order of unmasking."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dare_bench.errors import RunError
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import Entry
from dare_bench.leaderboards.pages import gist, slug
from dare_bench.leaderboards.site import Site, state
from dare_bench.runs.index import SampleIndex
from dare_bench.runs.reader import Run
from dare_bench.runs.view import document_view

PAGE_SIZE = 25
"""Documents on a sample page."""


def write(site: Site, context: Context, entry: Entry) -> int:
    """The sample pages of a run; returns how many documents they show. Damaged sample lines are told as a problem: the
    scores stand, the pages of that task are left out."""
    if entry.status == "running" or not entry.tasks:
        return 0
    try:
        run = entry.open()
    except RunError as error:
        context.problem(str(error))
        return 0
    documents = 0
    for task in entry.tasks:
        try:
            facts = _task(site, entry, run, task)
        except RunError as error:
            context.problem(str(error))
            continue
        documents += facts.get("documents", 0)
        if facts.get("edited"):
            entry.edited.append(task)
        if facts.get("documents"):
            context.pages.setdefault(entry.slug, {})[task] = f"{_folder(entry, task)}/1.html"
    return documents


def _folder(entry: Entry, task: str) -> str:
    return f"runs/{entry.slug}/samples/{slug(task)}"


def _task(site: Site, entry: Entry, run: Run, task: str) -> dict[str, Any]:
    samples, traces = run.samples_file(task), run.traces_file(task)
    if samples is None:
        return {}
    made_from = (entry.state, state(samples), state(traces))
    return site.part(f"samples {entry.slug} {task}", made_from, lambda: _write(site, entry, run, task))


def _write(site: Site, entry: Entry, run: Run, task: str) -> dict[str, Any]:
    index = run.index(task)
    if index is None or not len(index):
        return {"documents": 0}
    edited = False
    folder = _folder(entry, task)
    count = (len(index) + PAGE_SIZE - 1) // PAGE_SIZE
    score = run.headline(task)
    for number, batch in enumerate(_batches(index), start=1):
        views = [document_view(document) for document in batch]
        site.page(
            f"{folder}/{number}.html",
            "samples.html.j2",
            run=run,
            task=task,
            score=score,
            edited=edited,
            entries=[(view, gist(view, score)) for view in views],
            number=number,
            count=count,
            first=(number - 1) * PAGE_SIZE + 1,
            total=len(index),
        )
    return {"documents": len(index), "edited": edited}


def _batches(index: SampleIndex) -> Iterator[list[Any]]:
    documents = iter(index)
    while batch := list(islice(documents, PAGE_SIZE)):
        yield batch
