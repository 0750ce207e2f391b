"""A run's page and its JSON: what was asked, what came out, what it cost, and how to do it again."""

from __future__ import annotations

from dare_bench.errors import RunError
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import Entry
from dare_bench.leaderboards.pages import settings_table
from dare_bench.leaderboards.rows import Row, score_record
from dare_bench.leaderboards.site import Site


def write(site: Site, context: Context, entry: Entry) -> None:
    row = next((row for row in context.views[0].rows if entry in row.entries), None)
    pages = context.pages.get(entry.slug, {})
    badges = list(row.badges) if row else []
    others = [(other.slug, other.tasks) for other in row.entries if other is not entry] if row else []
    made_from = (entry.state, entry.path.name, badges, others, pages)
    try:
        site.part(f"run {entry.slug}", made_from, lambda: _write(site, entry, row, pages))
    except RunError as error:
        context.problem(str(error))


def _write(site: Site, entry: Entry, row: Row | None, pages: dict[str, str]) -> None:
    run = entry.open()
    block = run.block
    scores = run.scores()
    data = f"data/runs/{entry.slug}.json"
    site.json(
        data,
        {
            "run_id": run.run_id,
            "model": run.model,
            "status": run.status,
            "scores": [score_record(score) for score in scores],
            "dare_bench": block.model_dump(mode="json") if block else None,
        },
    )
    tasks = block.tasks if block else {}
    site.page(
        entry.page,
        "run.html.j2",
        entry=entry,
        badges=row.badges if row else [],
        beside=[other for other in row.entries if other is not entry] if row else [],
        run=run,
        block=block,
        data=data,
        scores=scores,
        extracted=any(score.extraction_rate is not None for score in scores),
        pages=pages,
        decoding=settings_table({name: task.decoding for name, task in tasks.items() if task.decoding}),
        likelihood=settings_table({name: task.likelihood for name, task in tasks.items() if task.likelihood}),
    )
