"""Building a site: run directories in, plain files out. A rebuild makes what has changed, nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError, UsageError
from dare_bench.leaderboards import board_page, compare_page, lineage_page, run_page, sample_pages, speed_page
from dare_bench.leaderboards.board import Board, load_board
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import read_entries
from dare_bench.leaderboards.pages import HERE, Link, slug
from dare_bench.leaderboards.ranking import make_rows, settled
from dare_bench.leaderboards.site import MANIFEST, NOTED, Site
from dare_bench.runs.writer import held

PAGES: tuple[Any, ...] = (speed_page, lineage_page, compare_page)
"""Modules of pages over several runs: ``link(context)`` is their place in the navigation, or None where they would be
empty; ``write(site, context)`` makes them."""


@dataclass(slots=True)
class Report:
    """What a build made. ``documents`` and ``files`` count what the site has, ``made`` the parts written now."""

    index: Path
    runs: int = 0
    documents: int = 0
    files: int = 0
    made: int = 0
    left_out: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("runs", "documents", "files", "made", "left_out")} | {
            "index": str(self.index)
        }


def build(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    board: str | Sequence[str] = "default",
    samples: bool = True,
    on_problem: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Build the site of all runs at or below ``runs`` into the folder ``out``.

    Args:
        board: names in ``boards/`` or YAML files; the first is the site's front page.
        samples: make sample pages; without them only result files are read.
        on_problem: told, in one line each, of folders and files that had to be left out (default: a warning).
        on_progress: told (runs done, runs) as their pages are made.

    Raises:
        UsageError: no such board. RunError: no folder, or no run in it. SaveError: a page could not be written.
    """
    names = [board] if isinstance(board, str) else list(board)
    declared = [(name, load_board(name)) for name in names]
    out = Path(out)
    report = Report(out / "index.html")

    def problem(text: str) -> None:
        report.left_out.append(text)
        (on_problem or (lambda message: warnings.warn(message, stacklevel=4)))(text)

    roots = [runs] if isinstance(runs, (str, Path)) else list(runs)
    entries = read_entries(roots, problem)
    if not entries:
        raise RunError(f"no run below {', '.join(map(str, roots))}; make one with dare-bench eval")
    _check(out)
    context = Context(entries, problem, samples)
    context.views = _views(declared, context)
    with held(out, f"{out} is being written by another build; wait for it, or give another folder"):
        site = Site(out, _navigation(context))
        try:
            _write(site, context, report, on_progress)
        except BaseException:
            site.broken_off()
            raise
        site.finish()
    report.runs, report.files, report.made = len(entries), len(site.files), len(site.made)
    return report


def _check(out: Path) -> None:
    """Raises UsageError where the site would take the place of something else."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; give a folder for the site")
    index = out / "index.html"
    ours = (out / MANIFEST).exists() or (out / NOTED).exists() or not index.is_file()
    if not ours and b'content="dare-bench"' not in index.read_bytes():
        raise UsageError(f"{index} is there and no page of dare-bench; give another folder for the site")


def _write(site: Site, context: Context, report: Report, tell: Callable[[int, int], None] | None) -> None:
    """Everything, in the order in which one needs the other: samples tell which runs' rows get a badge."""
    site.part("static", "static", lambda: _static(site))
    for done, entry in enumerate(context.entries, start=1):
        if context.samples:
            report.documents += sample_pages.write(site, context, entry)
        if tell is not None:
            tell(done, len(context.entries))
    if context.samples:  # only now is known what was edited, and how rows compare document by document
        context.views = [_view(view.name, view.board, context, view.place, site) for view in context.views]
    for entry in context.entries:
        run_page.write(site, context, entry)
    for module in PAGES:
        if module.link(context) is not None:
            module.write(site, context)
    for view in context.views:
        board_page.write(site, context, view)


def _views(declared: Sequence[tuple[str, Board]], context: Context) -> list[BoardView]:
    views = []
    for number, (name, board) in enumerate(declared):
        short = slug(Path(name).stem if name.endswith((".yaml", ".yml")) else name)
        views.append(_view(short, board, context, "index.html" if number == 0 else f"boards/{number}-{short}.html"))
    return views


def _view(name: str, board: Board, context: Context, place: str, site: Site | None = None) -> BoardView:
    columns = board.columns(context.entries)
    board = settled(board, columns, context.entries)
    data = "data/board.json" if place == "index.html" else f"data/{place.removesuffix('.html')}.json"
    return BoardView(name, board, columns, make_rows(board, columns, context.entries, site), place, data)


def _navigation(context: Context) -> tuple[Link, ...]:
    """The boards by their titles, then the pages over several runs."""
    boards = [Link(view.place, view.board.title if len(context.views) > 1 else "Board") for view in context.views]
    found = [link for module in PAGES if (link := module.link(context)) is not None]
    return (*boards, *found)


def _static(site: Site) -> None:
    for source in sorted((HERE / "static").rglob("*")):
        if source.is_file():
            site.copy(f"static/{source.relative_to(HERE / 'static').as_posix()}", source)
