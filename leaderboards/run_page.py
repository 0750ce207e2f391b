"""A run's page and its JSON: what was asked, what came out, what it cost, and how to do it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.names import method_of, trainings
from dare_bench.errors import RunError
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import Entry
from dare_bench.leaderboards.pages import settings_table
from dare_bench.leaderboards.rows import Row, score_record
from dare_bench.leaderboards.site import Site
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Block, RecipeBlock
from dare_bench.runs.scores import Score, extraction_rate
from dare_bench.runs.text import without_paths

STATUSES = ("matched", "ambiguous", "no_match", "truncated")
"""What can become of reading an answer, in the order of the table; other names follow."""


def write(site: Site, context: Context, entry: Entry) -> None:
    row = next((row for row in context.views[0].rows if entry in row.entries), None)
    pages = context.pages.get(entry.slug, {})
    badges = list(row.badges) if row else []
    beside = [(other.page, other.run_id, tuple(other.tasks)) for other in _others(entry, row)]
    same = [
        (other.page, other.run_id, other.settings, other.created)
        for other in context.entries
        if other.checkpoint == entry.checkpoint and other not in (row.entries if row else [entry])
    ]
    made_from = (entry.state, entry.path.name, entry.name, badges, beside, same, pages)
    values = {"entry": entry, "badges": badges, "beside": beside, "same": same, "pages": pages}
    try:
        site.part(f"run {entry.slug}", made_from, lambda: _write(site, entry, values))
    except RunError as error:
        context.problem(str(error))


def _others(entry: Entry, row: Row | None) -> list[Entry]:
    return [other for other in row.entries if other is not entry] if row else []


def _write(site: Site, entry: Entry, values: Mapping[str, Any]) -> None:
    run = entry.open()
    block = _public(run.block) if run.block else None
    scores = run.scores()
    data = f"data/runs/{entry.slug}.json"
    site.json(
        data,
        {
            "run_id": run.run_id,
            "model": run.model,
            "name": entry.name.text,
            "status": run.status,
            "scores": [score_record(score) for score in scores],
            "dare_bench": block.model_dump(mode="json") if block else None,
        },
    )
    tasks = block.tasks if block else {}
    site.page(
        entry.page,
        "run.html.j2",
        **values,
        run=run,
        block=block,
        data=data,
        scores=list(score_tree(run)),
        extracted=any(score.extraction_rate is not None for score in scores),
        tasks=[_task(run, name) for name in tasks],
        answers=_answers(block) if block else ([], []),
        recipes=[_recipe(run, recipe) for recipe in block.recipes] if block else [],
        trainings=_trainings(entry),
        decoding=settings_table({name: task.decoding for name, task in tasks.items() if task.decoding}),
        likelihood=settings_table({name: task.likelihood for name, task in tasks.items() if task.likelihood}),
    )


def _public(block: Block) -> Block:
    """What is published of a run: all but the names of the machine's folders."""
    told = {"model", "command", "environment", "failures", "events", "notes", "execution"}
    found = block.model_dump(mode="json")
    return Block.model_validate(found | without_paths({name: found[name] for name in told}))


def score_tree(run: Run) -> Iterator[tuple[int, Score]]:
    """All scores, each group before its members, with how deep they stand below a group."""
    scores: dict[str, list[Score]] = {}
    for score in run.scores():
        scores.setdefault(score.task, []).append(score)
    children: Mapping[str, list[str]] = run.results.get("group_subtasks") or {}
    done: set[str] = set()

    def branch(name: str, depth: int) -> Iterator[tuple[int, Score]]:
        if name in done:  # a task of two groups stands below the first
            return
        done.add(name)
        own = scores.get(name, [])
        yield from ((depth, score) for score in own)
        for child in children.get(name) or ():
            yield from branch(child, depth + 1 if own else depth)

    for name in (*run.top_level(), *scores):
        yield from branch(name, 0)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """What a task was: its version, examples and data as the harness had them ("" or None: it does not say)."""

    name: str
    version: Any
    shots: Any
    data: str
    revision: str
    n_docs: int
    n_total: int | None
    fingerprint: str


def _task(run: Run, name: str) -> TaskLine:
    assert run.block is not None
    task = run.block.tasks[name]
    config = (run.results.get("configs") or {}).get(name) or {}
    keywords = config.get("dataset_kwargs")
    keywords = keywords if isinstance(keywords, dict) else {}
    data = " ".join(str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key))
    return TaskLine(
        name=name,
        version=(run.results.get("versions") or {}).get(name),
        shots=(run.results.get("n-shot") or {}).get(name),
        data=data or ("made by the task itself" if config.get("custom_dataset") else ""),
        revision=str(keywords.get("revision") or config.get("dataset_revision") or ""),
        n_docs=task.n_docs,
        n_total=task.n_total,
        fingerprint=task.fingerprint,
    )


def _answers(block: Block) -> tuple[list[str], list[tuple[str, str, list[int], float | None]]]:
    """(statuses, rows of (task, filter, count of each status, share that was read))."""
    counted = [(task, name, counts) for task, filters in block.extraction.items() for name, counts in filters.items()]
    seen = dict.fromkeys(status for _, _, counts in counted for status in counts)
    names = [*(name for name in STATUSES if name in seen), *(name for name in seen if name not in STATUSES)]
    rows = [
        (task, name, [counts.get(status, 0) for status in names], extraction_rate(counts))
        for task, name, counts in counted
    ]
    return names, rows


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """A published score and the run's own beside it (None: the run has no such score). ``measures``, ``source`` and
    ``n`` are as the recipe tells them, empty where it does not."""

    recipe: RecipeBlock
    published: float | None
    measures: str
    source: str
    n: str
    ours: Score | None


def _recipe(run: Run, recipe: RecipeBlock) -> RecipeLine:
    value = recipe.published.get("value")
    wanted = (recipe.score.get("task"), recipe.score.get("metric"), recipe.score.get("filter", "none"))
    ours = next((score for score in run.scores() if (score.task, score.metric, score.filter) == wanted), None)
    told = {name: str(recipe.published.get(name) or "") for name in ("measures", "metric", "source", "n")}
    return RecipeLine(
        recipe=recipe,
        published=float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None,
        measures=told["measures"] or told["metric"],
        source=told["source"],
        n=told["n"],
        ours=ours,
    )


def _trainings(entry: Entry) -> list[dict[str, Any]]:
    """The trainings behind the checkpoint, the first one first: what it began from, how, and every setting."""
    made = []
    for training in trainings(entry.lineage):
        parts = (training.get("settings"), training.get("options"))
        settings = {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}
        facts = {name: training.get(name) for name in ("base", "data", "seed", "step", "steps", "data_hash", "version")}
        made.append({"method": method_of(training), **facts, "settings": settings})
    return made
