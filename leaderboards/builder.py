"""Build a site of plain files from run directories. A rebuild writes only what has changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dare_bench.errors import UnknownRunError, UsageError
from dare_bench.leaderboards import (
    board_page,
    change_log,
    checkpoint_page,
    comparison_index,
    lineage_page,
    overview_page,
    paper_exports,
    preview_image,
    releases,
    run_page,
    sample_pages,
    score_badge,
    speed_page,
    unmasking_page,
    verdicts,
)
from dare_bench.leaderboards.board import Board, column_names, load_board
from dare_bench.leaderboards.board_ranking import make_rows, most_filled, settled
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import read_entries
from dare_bench.leaderboards.forked import mapped, processors
from dare_bench.leaderboards.rendering import HERE, Link, slug
from dare_bench.leaderboards.site import MANIFEST, NOTED, Site
from dare_bench.runs.writer import held, refuse_other_files

PAGES: tuple[Any, ...] = (speed_page, unmasking_page, comparison_index, lineage_page)
"""Modules of pages over several runs. ``link(context)`` is their link in the navigation, None if they would be empty;
``write(site, context)`` writes them."""

FORK_FROM = 2 << 20
"""Size in bytes of all samples and traces from which several processes write the pages; less takes a second."""
MOST_TASKS = 100
"""Pages of single tasks of a sparse board; each links to all others."""


@dataclass(slots=True)
class SiteReport:
    """Result of a build. ``documents`` and ``files`` count those of the site, ``parts_written`` the parts that were
    written now."""

    index: Path
    runs: int = 0
    documents: int = 0
    files: int = 0
    parts_written: int = 0
    left_out: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The report as JSON values."""
        values = asdict(self)
        return values | {"index": str(self.index), "made": values.pop("parts_written")}


def build(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    board: str | Sequence[str] = "default",
    samples: bool = True,
    url: str = "",
    docs: str = "",
    release: str = "",
    on_problem: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> SiteReport:
    """Build the site of all runs at or below ``runs`` into the folder ``out``.

    Args:
        board: names in ``boards/`` or YAML files; the overview, the first page of the site, is that of the first one.
        samples: write sample pages; without them only result files are read.
        url: the address at which the site will be, for what needs a full one: ``og:url``, ``og:image`` and the feed.
        docs: the page to which the link "Docs" of the navigation leads, an address or a path from ``out``; empty: none.
        release: keep the table of the first board under this name, to be selected in later builds.
        on_problem: called with one line for each folder and file that had to be left out (default: a warning).
        on_progress: called with (runs done, all runs) as their pages are written.

    Raises:
        UsageError: no such board, an ``url`` or ``docs`` that is not an address, a ``release`` that exists with another
            table, or ``out`` holds something else.
        UnknownRunError: no folder, or no run in it.
        SaveError: a page could not be written.
    """
    names = [board] if isinstance(board, str) else list(board)
    declared = [(name, load_board(name)) for name in names]
    out = Path(out)
    address = _address(url)
    _check_docs(docs)
    report = SiteReport(out / overview_page.PLACE)

    def problem(text: str) -> None:
        report.left_out.append(text)
        (on_problem or (lambda message: warnings.warn(message, stacklevel=4)))(text)

    roots = [runs] if isinstance(runs, (str, Path)) else list(runs)
    entries = read_entries(roots, problem)
    if not entries:
        places = ", ".join(str(Path(root).absolute()) for root in roots)
        raise UnknownRunError(f"no runs in {places}; create one with dare-bench eval")
    if not samples:
        for entry in entries:
            entry.files = {}
    _check(out)
    states = [state for entry in entries for files in entry.files.values() for state in files if state is not None]
    processes = processors() if sum(size for _, size, *_ in states) >= FORK_FROM else 1
    context = Context(entries, problem, samples, processes)
    context.views = [_declared_view(number, name, board, context) for number, (name, board) in enumerate(declared)]
    with held(out, f"{out} is being written by another build; wait for it, or give another folder"):
        site = Site(out, _navigation(context, docs), address)
        try:
            _write(site, context, report, release, on_progress)
        except BaseException:
            site.abandon()
            raise
        site.finish()
    report.runs, report.files, report.parts_written = len(entries), len(site.files), len(site.written)
    return report


def _address(url: str) -> str:
    """The address of a site with a slash at its end; raises UsageError."""
    if not url:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"--url is {url!r}; give the address of the site's folder, as https://example.org/board/")
    return f"{url.rstrip('/')}/"


def _check_docs(docs: str) -> None:
    if not docs.startswith(("http://", "https://")) and (":" in docs or docs.startswith("/")):
        example = "https://example.org/docs/ or ../index.html"
        raise UsageError(f"--docs is {docs!r}; give an address, or a path from the site's folder: {example}")


def _check(out: Path) -> None:
    """Raises UsageError where the site would replace something else."""
    index = out / overview_page.PLACE
    if not (index.is_file() and b'content="dare-bench"' in index.read_bytes()):
        refuse_other_files(out, (MANIFEST, NOTED))


def _write(
    site: Site, context: Context, report: SiteReport, release: str, progress: Callable[[int, int], None] | None
) -> None:
    """Write everything. Samples come first: they show which rows get a badge, and how rows compare by document."""
    site.part("static", "static", lambda: _static(site))
    if context.samples:
        report.documents = _write_samples(site, context, progress)
        context.views = [_view(view.name, view.board, context, view.place, site) for view in context.views]
    run_page.write(site, context)
    score_badge.write(site, context)
    checkpoint_page.write(site, context)
    for module in PAGES:
        if module.link(context) is not None:
            module.write(site, context)
    verdicts.write(site, context)
    kept = releases.keep(site, context, release)
    change_log.write(site, context)
    for number, view in enumerate(context.views):
        for each in (view, *_task_views(view, context, site)):
            board_page.write(site, each, view, kept if number == 0 else [])
            paper_exports.write(site, each)
    overview_page.write(site, context)
    if site.url:
        preview_image.write(site, context.views[0])


def _write_samples(site: Site, context: Context, progress: Callable[[int, int], None] | None) -> int:
    """Write the sample pages of all runs; returns the number of documents that they show."""
    entries, documents = context.entries, 0
    with mapped(partial(sample_pages.write, site), entries, context.processes) as results:
        for done, (entry, written) in enumerate(zip(entries, results, strict=True), start=1):
            documents += written.documents
            entry.edited += written.edited
            context.pages[entry.slug], context.answers[entry.slug] = written.pages, written.answers
            site.adopt(written.parts)
            for text in written.problems:
                context.problem(text)
            if progress is not None:
                progress(done, len(entries))
    return documents


def _declared_view(number: int, name: str, board: Board, context: Context) -> BoardView:
    short = slug(Path(name).stem if name.endswith((".yaml", ".yml")) else name)
    return _view(short, board, context, board_page.FIRST if number == 0 else f"boards/{number}-{short}.html")


def _view(name: str, board: Board, context: Context, place: str, site: Site | None = None) -> BoardView:
    columns = board.columns(context.entries)
    board = settled(board, columns, context.entries)
    rows = make_rows(board, columns, context.entries, site)
    shown = most_filled(rows, columns)[:MOST_TASKS]
    names = column_names(columns)
    split = [(columns[at], names[at], f"boards/{Path(place).stem}-{slug(names[at])}.html") for at in shown]
    return BoardView(name, board, columns, rows, place, split)


def _task_views(view: BoardView, context: Context, site: Site) -> Iterator[BoardView]:
    """A board of each task of a sparse board, ranked by that task."""
    for column, column_name, place in view.split:
        title = f"{view.board.title}: {column_name}"
        board = Board(title=title, tasks=(column,), rank_by=column.task, rows=view.board.rows)
        rows = make_rows(board, [column], context.entries, site if context.samples else None)
        yield BoardView(Path(place).stem, board, [column], rows, place)


def _navigation(context: Context, docs: str) -> tuple[Link, ...]:
    """The overview, the tables of the boards by their titles, then the pages over several runs, the documentation."""
    tables = [
        Link(board_page.entrance(view), view.board.title if len(context.views) > 1 else "Table")
        for view in context.views
    ]
    return (
        Link(overview_page.PLACE, "Overview"),
        *tables,
        *(link for module in PAGES if (link := module.link(context)) is not None),
        *([Link(docs, "Docs")] if docs else []),
    )


def _static(site: Site) -> None:
    for source in sorted((HERE / "static").rglob("*")):
        if source.is_file():
            site.bytes(f"static/{source.relative_to(HERE / 'static').as_posix()}", source.read_bytes())
