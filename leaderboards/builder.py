"""Building a site: run directories in, plain files out. A rebuild replaces what the last build wrote, nothing else."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError, UsageError
from dare_bench.leaderboards.board import Board, Column, load_board
from dare_bench.leaderboards.pages import HERE, gist, render, settings_table, slug
from dare_bench.leaderboards.rows import Row, make_rows, row_record, score_record, why_unranked
from dare_bench.runs.index import SampleIndex
from dare_bench.runs.reader import Run, find_runs
from dare_bench.runs.scores import Score
from dare_bench.runs.view import document_view
from dare_bench.runs.writer import atomic_write_bytes, atomic_write_json, atomic_write_text

PAGE_SIZE = 25
"""Documents on a sample page."""
_MANIFEST = "data/files.json"


@dataclass(slots=True)
class Report:
    """What a build made."""

    index: Path
    runs: int = 0
    documents: int = 0
    files: int = 0
    left_out: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        return {
            "index": str(self.index),
            "runs": self.runs,
            "documents": self.documents,
            "files": self.files,
            "left_out": self.left_out,
        }


class _Site:
    """The output folder: every write is atomic, stays inside, and is remembered."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: set[str] = set()
        self.documents = 0

    def page(self, place: str, template: str, **values: Any) -> None:
        root = "../" * place.count("/")
        self.text(place, render(template, root, **values))

    def text(self, place: str, text: str) -> None:
        atomic_write_text(self._at(place), text, durable=False)

    def json(self, place: str, value: Any) -> None:
        atomic_write_json(self._at(place), value, durable=False)

    def copy(self, place: str, source: Path) -> None:
        atomic_write_bytes(self._at(place), source.read_bytes(), durable=False)

    def _at(self, place: str) -> Path:
        if ".." in Path(place).parts or place.startswith("/"):
            raise AssertionError(f"{place} would leave the site's folder")  # names go through slug() first
        self.written.add(place)
        return self.out / place


def build(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    board: str = "default",
    on_problem: Callable[[str], None] | None = None,
) -> Report:
    """Build the site of all runs at or below ``runs`` into the folder ``out``.

    ``board`` is a name in ``boards/`` or a YAML file. Folders that cannot be read are left out and told to
    ``on_problem`` (default: a warning).

    Raises:
        UsageError: no such board. RunError: no folder, or no run in it. SaveError: a page could not be written.
    """
    declared = load_board(board)
    out = Path(out)
    report = Report(out / "index.html")

    def problem(text: str) -> None:
        report.left_out.append(text)
        (on_problem or (lambda message: warnings.warn(message, stacklevel=4)))(text)

    roots = [runs] if isinstance(runs, (str, Path)) else list(runs)
    found = _unique([run for root in roots for run in find_runs(root, problem)])
    if not found:
        raise RunError(f"no run below {', '.join(map(str, roots))}; make one with dare-bench eval")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; give a folder for the site")
    slugs = _slugs(found)
    columns = declared.columns(found)
    site = _Site(out)
    rows = make_rows(declared, columns, list(zip(found, slugs, strict=True)))
    for row in rows:
        try:
            _write_run(site, row)
        except RunError as error:  # damaged sample lines: the scores stand, the pages end there
            problem(str(error))
    _write_board(site, declared, columns, rows)
    _forget_old(site)
    report.runs, report.documents, report.files = len(found), site.documents, len(site.written)
    return report


def _unique(runs: list[Run]) -> list[Run]:
    """Each folder once, oldest run first."""
    kept = {run.path.resolve(): run for run in runs}
    return sorted(kept.values(), key=lambda run: (run.created, run.run_id, str(run.path)))


def _slugs(runs: Sequence[Run]) -> list[str]:
    """A folder name for each run: its id; copies of one run in two places get a number."""
    seen: dict[str, int] = {}
    made = []
    for run in runs:
        name = slug(run.run_id)
        # Names that differ in case alone fall together on some file systems.
        count = seen[name.lower()] = seen.get(name.lower(), 0) + 1
        made.append(name if count == 1 else f"{name}--{count}")
    return made


def _write_board(site: _Site, board: Board, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    for source in sorted((HERE / "static").iterdir()):
        site.copy(f"static/{source.name}", source)
    record = {
        "title": board.title,
        "columns": [column.model_dump() for column in columns],
        "rank_by": board.rank_by,
        "rows": [row_record(row, columns) for row in rows],
    }
    site.json("data/board.json", record)
    show_mean = board.rank_by == "mean" and len(columns) > 1
    site.page(
        "index.html",
        "board.html.j2",
        title=board.title,
        about=board.about,
        heads=[_head(column, [row.cells[at] for row in rows]) for at, column in enumerate(columns)],
        rows=rows,
        unranked=why_unranked(rows, board, columns),
        rank_by=board.rank_by,
        show_mean=show_mean,
        models=len({row.run.model for row in rows}),
        newest=max(row.run.created for row in rows),
    )


def _head(column: Column, cells: Sequence[Score | None]) -> dict[str, str]:
    """A column's name and which metric stands in it; the filter is named where there is one."""
    keys = {cell.key.removesuffix(",none").replace(",", ", ") for cell in cells if cell is not None}
    return {"name": column.name, "metric": keys.pop() if len(keys) == 1 else "several metrics" if keys else ""}


def _write_run(site: _Site, row: Row) -> None:
    """A run's page, its sample pages and its JSON. The run page comes last: it links to pages that exist."""
    run, folder = row.run, f"runs/{row.slug}"
    site.json(
        f"data/runs/{row.slug}.json",
        {
            "run_id": run.run_id,
            "model": run.model,
            "status": run.status,
            "scores": [score_record(score) for score in run.scores()],
            "dare_bench": run.block.model_dump(mode="json") if run.block else None,
        },
    )
    pages: dict[str, str] = {}
    failure: RunError | None = None
    for task in run.tasks:
        try:
            index = run.index(task)
            if index is not None and len(index):
                _write_samples(site, row, task, index)
                pages[task] = f"samples/{slug(task)}/1.html"
        except RunError as error:
            failure = error
    tasks = run.block.tasks if run.block else {}
    site.page(
        f"{folder}/index.html",
        "run.html.j2",
        row=row,
        run=run,
        block=run.block,
        scores=run.scores(),
        extracted=any(score.extraction_rate is not None for score in run.scores()),
        pages=pages,
        decoding=settings_table({name: task.decoding for name, task in tasks.items() if task.decoding}),
        likelihood=settings_table({name: task.likelihood for name, task in tasks.items() if task.likelihood}),
    )
    if failure is not None:
        raise failure


def _write_samples(site: _Site, row: Row, task: str, index: SampleIndex) -> None:
    folder = f"runs/{row.slug}/samples/{slug(task)}"
    count = (len(index) + PAGE_SIZE - 1) // PAGE_SIZE
    score = row.run.headline(task)
    documents = iter(index)
    for number, batch in enumerate(_batches(documents), start=1):
        views = [document_view(document) for document in batch]
        site.documents += len(views)
        site.page(
            f"{folder}/{number}.html",
            "samples.html.j2",
            run=row.run,
            task=task,
            score=score,
            entries=[(view, gist(view, score)) for view in views],
            number=number,
            count=count,
            first=(number - 1) * PAGE_SIZE + 1,
            total=len(index),
        )


def _batches(documents: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(islice(documents, PAGE_SIZE)):
        yield batch


def _forget_old(site: _Site) -> None:
    """Remove what an earlier build wrote and this one did not, then note what this one wrote.

    Only names in the earlier build's own list go, and only below the site's folder: other files are not ours.
    """
    manifest = site.out / _MANIFEST
    try:
        before = json.loads(manifest.read_bytes())["files"] if manifest.is_file() else []
    except (ValueError, KeyError, TypeError):
        before = []
    for place in before:
        path = site.out / str(place)
        inside = site.out.resolve() in path.resolve().parents
        if place not in site.written and inside and path.is_file():
            path.unlink()
            for folder in path.parents:
                if folder == site.out or any(folder.iterdir()):
                    break
                folder.rmdir()
    site.json(_MANIFEST, {"files": sorted(site.written | {_MANIFEST})})
