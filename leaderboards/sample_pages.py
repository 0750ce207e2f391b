"""The documents of a run, paged: prompt, answer, extraction, score, and the order of unmasking.

A page is full when it has :data:`PAGE_SIZE` documents or :data:`PAGE_BYTES` of text. How many pages there are, and what
is right on them, is known only after the last document; until then the documents wait in a temporary file, so that a
task of any size takes the memory of a page.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, BinaryIO

from markupsafe import Markup

from dare_bench.analysis.pairing import mismatched_scores
from dare_bench.errors import RunError
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.pages import slug
from dare_bench.leaderboards.sample_document import RenderedDocument, document
from dare_bench.leaderboards.site import Site
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.text import one_line
from dare_bench.runs.writer import save_error

PAGE_SIZE = 25
"""Documents on a sample page at most."""
PAGE_BYTES = 200_000
"""Size of a page's documents beyond which none is added."""
NEAR = 2
"""Pages before and after its own that a page links to."""
FEW_PAGES = 1_000
"""Tasks with more pages leave out the table of all of them on each one: finding a document goes by the overview."""
LISTED = 2_000
"""Documents of one kind that the overview links to."""
KINDS = {"wrong": "Wrong", "unread": "Not read", "part": "Neither right nor wrong", "right": "Right"}


@dataclass(slots=True)
class Page:
    """A page of documents that waits to be written: where its text lies in the temporary file, and what is on it.

    ``first`` and ``last`` are the ids of its outermost documents, ``at`` is how many documents stand before it.
    """

    number: int
    at: int
    first: str
    last: str
    place: int
    size: int
    documents: int = 0
    right: int = 0
    wrong: int = 0
    unread: int = 0

    @property
    def told(self) -> str:
        """What is on it, in words."""
        which = f"document {self.first}" if self.documents == 1 else f"documents {self.first} to {self.last}"
        counts = ((self.right, "right"), (self.wrong, "wrong"), (self.unread, "not read"))
        return ", ".join([which, *(f"{n} {what}" for n, what in counts if n)])


@dataclass(slots=True)
class Overview:
    """Links to the documents of each kind, (page, anchor, id); ``counts`` those of all of them."""

    links: dict[str, list[tuple[int, str, str]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def note(self, page: int, made: RenderedDocument, doc_id: str) -> None:
        own = {True: "right", False: "wrong", None: "part"}[made.right]
        for kind in (own, "unread") if made.unread else (own,):
            self.counts[kind] += 1
            if len(self.links[kind]) < LISTED:
                self.links[kind].append((page, made.anchor, doc_id))


def write(site: Site, context: Context, entry: BoardEntry) -> int:
    """The sample pages of a run; returns how many documents they show. Damaged sample lines are told as a problem: the
    scores stand, the pages of that task are left out."""
    if entry.status == "running" or not entry.tasks:
        return 0
    opened = cache(entry.open)  # only where pages are to be made
    documents = 0
    for task in entry.tasks:
        try:
            facts = _task(site, entry, opened, task)
        except RunError as error:
            context.problem(str(error))
            if _edited(opened, task):
                entry.edited.append(task)
            continue
        documents += facts.get("documents", 0)
        if facts.get("edited"):
            entry.edited.append(task)
        if facts.get("documents"):
            context.pages.setdefault(entry.slug, {})[task] = f"{_folder(entry, task)}/1.html"
    return documents


def _edited(opened: Callable[[], Run], task: str) -> bool:
    """Was a samples file of which there are no pages changed, as far as that can be told?"""
    try:
        return bool(opened().edited(task))
    except RunError:
        return False


def _folder(entry: BoardEntry, task: str) -> str:
    return f"runs/{entry.slug}/samples/{slug(task)}"


def _task(site: Site, entry: BoardEntry, opened: Callable[[], Run], task: str) -> dict[str, Any]:
    if task not in entry.files:
        return {}
    made_from = (entry.state, entry.slug, entry.name, entry.files[task])
    return site.part(f"samples {entry.slug} {task}", made_from, lambda: _write(site, entry, opened(), task))


def _write(site: Site, entry: BoardEntry, run: Run, task: str) -> dict[str, Any]:
    edited = [
        f"The {kind} file of this task is not as the run wrote it: it was changed later, and is shown as it is now."
        for kind, differs in (("samples", run.edited(task)), ("traces", run.traces_edited(task)))
        if differs
    ] + [f"A score of this task is not that of its documents: {problem}." for problem in mismatched_scores(run, task)]
    score = run.headline(task)
    try:
        with tempfile.TemporaryFile() as spool:
            pages, overview = _spooled(run, task, score, spool)
            if pages:
                _written(site, pages, overview, spool, _folder(entry, task), {
                    "run": run, "task": task, "score": score, "edited": edited, "settings": entry.settings,
                    "called": entry.name, "total": pages[-1].at + pages[-1].documents,
                })  # fmt: skip
    except OSError as error:
        raise save_error(tempfile.gettempdir(), error) from error
    return {"documents": sum(page.documents for page in pages), "edited": bool(edited)}


def _spooled(run: Run, task: str, score: Score | None, spool: BinaryIO) -> tuple[list[Page], Overview]:
    """The pages of a task, their text written one after another into ``spool``."""
    pages: list[Page] = []
    overview = Overview()
    for at, found in enumerate(run.documents(task)):
        made = document(found, score, opened=at == 0)
        text = made.html.encode("utf-8", "replace")
        page = pages[-1] if pages else None
        if page is None or page.documents >= PAGE_SIZE or page.size + len(text) > PAGE_BYTES:
            page = Page(len(pages) + 1, at, "", "", spool.tell(), 0)
            pages.append(page)
        page.last = one_line(str(found.doc_id), 24)
        page.first = page.first or page.last
        page.documents += 1
        page.size += spool.write(text)
        page.right += made.right is True
        page.wrong += made.right is False
        page.unread += made.unread
        overview.note(page.number, made, page.last)
    return pages, overview


def _written(
    site: Site, pages: list[Page], overview: Overview, spool: BinaryIO, folder: str, about: dict[str, Any]
) -> None:
    table = Markup(_table(pages)) if len(pages) <= FEW_PAGES else ""
    counts = [overview.counts[kind] for kind in ("right", "wrong", "unread")]
    for page in pages:
        spool.seek(page.place)
        body = Markup(spool.read(page.size).decode())
        near = list(_near(pages, page.number))
        place = f"{folder}/{page.number}.html"
        site.page(place, "samples.html.j2", page=page, near=near, count=len(pages), body=body, table=table,
                  counts=counts, **about)  # fmt: skip
    lists = [(kind, name, overview.counts[kind], overview.links[kind]) for kind, name in KINDS.items()]
    site.page(f"{folder}/index.html", "sample_index.html.j2", pages=pages, lists=lists, **about)


def _near(pages: list[Page], number: int) -> Iterator[Page | None]:
    """The first page, those around ``number``, and the last; None where some are left out between."""
    wanted = sorted({1, len(pages), *range(max(1, number - NEAR), min(len(pages), number + NEAR) + 1)})
    for before, each in zip([0, *wanted], wanted, strict=False):
        if each > before + 1:
            yield None if each > before + 2 else pages[each - 2]
        yield pages[each - 1]


def _table(pages: list[Page]) -> str:
    """What scripts need to know of all pages: the first document of each, and what is right, wrong and not read there.

    It stands in a script element as data, so no ``<`` may stand in it, nor a line break that ends a script's line.
    """
    value = [[page.first, page.right, page.wrong, page.unread, page.documents] for page in pages]
    return as_data(value)


def as_data(value: Any) -> str:
    """JSON that may stand in a script element: what could end the element or open another is written as an escape."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
