"""Sample pages: the documents of a run with prompt, answer, extraction, score, and the order of unmasking.

Beside each page ``N.html`` is a script ``N.js`` with its answers, from which the page of comparisons shows documents.

A page is full when it has :data:`PAGE_SIZE` documents or :data:`PAGE_BYTES` of text. The number of pages, and the
results on them, are known only after the last document. Until then the documents wait in a temporary file, so that a
task of any size takes the memory of one page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, BinaryIO

from markupsafe import Markup

from dare_bench.analysis.pairing import DocumentValues, scores_of_lines
from dare_bench.errors import RunError
from dare_bench.leaderboards.board_ranking import named_ids, stratum_facts
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.rendering import data_script, script_json, slug
from dare_bench.leaderboards.sample_document import DocumentLine, RenderedDocument, render_document
from dare_bench.leaderboards.site import Site, SitePart
from dare_bench.runs.index import Document
from dare_bench.runs.reader import Run
from dare_bench.runs.text import one_line
from dare_bench.runs.writer import save_error

PAGE_SIZE = 25
"""Maximum number of documents on a sample page."""
PAGE_BYTES = 200_000
"""Size of a page's documents from which no more are added."""
NEAR = 2
"""Number of pages before and after a page that it links to."""
FEW_PAGES = 1_000
"""Maximum number of pages for which each page has the table of all of them; with more, documents are found by the
overview."""
LISTED = 2_000
"""Maximum number of documents of one result in the table of all documents."""
RESULTS = {"wrong": "Wrong", "part": "Neither right nor wrong", "right": "Right"}


@dataclass(slots=True)
class SamplePage:
    """A page of documents that waits to be written: where its text is in the temporary file, and what is on it.

    ``first`` and ``last`` are the ids of its outermost documents.
    """

    number: int
    first: str
    place: int
    last: str = ""
    size: int = 0
    documents: int = 0
    right: int = 0
    wrong: int = 0
    unread: int = 0

    def add(self, doc_id: str, document: RenderedDocument, size: int) -> None:
        self.last = doc_id
        self.size += size
        self.documents += 1
        self.right += document.right is True
        self.wrong += document.right is False
        self.unread += document.unread

    @property
    def summary(self) -> str:
        """What is on it, in words."""
        which = f"document {self.first}" if self.documents == 1 else f"documents {self.first} to {self.last}"
        counts = ((self.right, "right"), (self.wrong, "wrong"), (self.unread, "not read"))
        return ", ".join([which, *(f"{n} {what}" for n, what in counts if n)])


@dataclass(slots=True)
class _Overview:
    """By result, the first documents (page, id, line, whether it was not read) and the number of all documents."""

    lines: dict[str, list[tuple[int, str, DocumentLine, bool]]] = field(
        default_factory=lambda: {kind: [] for kind in RESULTS}
    )
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*RESULTS, "unread"), 0))

    def add(self, page: SamplePage, document: RenderedDocument) -> None:
        own = {True: "right", False: "wrong", None: "part"}[document.right]
        self.counts[own] += 1
        self.counts["unread"] += document.unread
        if len(self.lines[own]) < LISTED:
            self.lines[own].append((page.number, page.last, document.line, document.unread))


@dataclass(slots=True)
class RunSamples:
    """The sample pages of a run.

    ``documents``: how many they show. ``edited``: the tasks whose files were changed after the run. ``pages``: by task,
    the table of all its samples; ``answers``: by task, how its documents are divided into pages. ``problems``: damaged
    sample lines, one line each. ``parts``: the parts of the site.
    """

    documents: int = 0
    edited: list[str] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    parts: dict[str, SitePart] = field(default_factory=dict)


def write(site: Site, entry: BoardEntry) -> RunSamples:
    """Write the sample pages of a run. Damaged sample lines are a problem of that task: its scores stand, its pages are
    left out."""
    written = RunSamples()
    if entry.status == "running":
        return written
    opened = cache(entry.open)  # only where pages are to be written
    for task in entry.tasks:
        name, folder = part_name(entry, task), _folder(entry, task)
        try:
            facts = _task(site, entry, opened, task)
        except RunError as error:
            written.problems.append(str(error))
            facts = {"edited": _edited(opened, task)}
        if name in site.parts:
            written.parts[name] = site.parts[name]
        if facts.get("edited"):
            written.edited.append(task)
        if facts.get("documents"):
            written.documents += facts["documents"]
            written.pages[task] = f"{folder}/index.html"
            written.answers[task] = {"folder": folder, "sizes": facts["sizes"], "ids": facts["ids"]}
    return written


def part_name(entry: BoardEntry, task: str) -> str:
    """The part of the site with the sample pages of a task."""
    return f"samples {entry.slug} {task}"


def _edited(opened: Callable[[], Run], task: str) -> bool:
    """Was a samples file without pages changed, as far as that is known?"""
    try:
        return bool(opened().edited(task))
    except RunError:
        return False


def _folder(entry: BoardEntry, task: str) -> str:
    return f"runs/{entry.slug}/samples/{slug(task)}"


def _task(site: Site, entry: BoardEntry, opened: Callable[[], Run], task: str) -> dict[str, Any]:
    if task not in entry.files:
        return {}
    inputs = (entry.state, entry.slug, entry.name, entry.files[task])
    return site.part(part_name(entry, task), inputs, lambda: _write(site, entry, opened(), task))


def _write(site: Site, entry: BoardEntry, run: Run, task: str) -> dict[str, Any]:
    read = _TaskFacts(run, task)
    try:
        with tempfile.TemporaryFile() as spool:
            pages, overview = _spooled(site, run, read, spool, _folder(entry, task))
            total = len(read.ids)
            notes = _notes(run, task, read)
            if pages:
                _write_pages(
                    site, pages, overview, spool, _folder(entry, task),
                    run=run, task=task, score=read.headline, notes=notes, entry=entry, total=total,
                )  # fmt: skip
    except OSError as error:
        raise save_error(tempfile.gettempdir(), error) from error
    return {
        "documents": total,
        "edited": bool(notes),
        "sizes": [page.documents for page in pages],
        "ids": named_ids(read.ids),
        "values": read.headline_values(),
        "tpf": read.tokens / read.passes if read.passes else None,
    }


def _notes(run: Run, task: str, read: _TaskFacts) -> list[str]:
    """What was changed after the run."""
    return [
        f"The {kind} file of this task was changed after the run. It is shown with its present contents."
        for kind, differs in (("samples", run.edited(task)), ("traces", run.traces_edited(task)))
        if differs
    ] + [f"A score of this task is not that of its documents: {problem}." for problem in read.mismatches()]


class _TaskFacts:
    """What boards need of a task's documents, read in the same pass as the pages: their ids, their values of the
    headline and of other scores, the sums of tokens up to the first EOS and of forward passes."""

    def __init__(self, run: Run, task: str) -> None:
        self.task = task
        self.headline = run.headline(task)
        self.ids: list[str] = []
        self.tokens = self.passes = 0
        self._checked = scores_of_lines(run, task)
        scores = self._checked if self.headline is None else [self.headline, *self._checked]
        self._values = {score: DocumentValues(score.key, score.value) for score in scores}

    def add(self, document: Document) -> None:
        doc_id = str(document.doc_id)
        self.ids.append(doc_id)
        for row in document.rows:
            for score, values in self._values.items():
                values.add_line(score, row, doc_id)
            for answer in row.get("dare_bench") or ():
                self.tokens += answer.get("tokens_to_eos") or 0
                self.passes += answer.get("nfe") or 0

    def mismatches(self) -> list[str]:
        """The scores that are not the mean of the sample lines, one line each."""
        return [text for score in self._checked if (text := self._values[score].problem()) is not None]

    def headline_values(self) -> dict[str, list[Any]]:
        """The values of the headline by its key; empty where it is not their mean."""
        values = self._values.get(self.headline) if self.headline is not None else None
        return {} if values is None or values.problem() else {values.key: stratum_facts(self.task, values)}


def _spooled(
    site: Site, run: Run, read: _TaskFacts, spool: BinaryIO, folder: str
) -> tuple[list[SamplePage], _Overview]:
    """The pages of a task, whose text is written one after another into ``spool``. The scripts with the answers of each
    page are written to ``folder``."""
    pages: list[SamplePage] = []
    overview = _Overview()
    answers: dict[str, list[Any]] = {}
    for at, document in enumerate(run.documents(read.task)):
        rendered = render_document(document, read.headline, run.choice_value, opened=at == 0)
        text = rendered.html.encode("utf-8", "replace")
        doc_id = one_line(str(document.doc_id), 24)
        if not pages or pages[-1].documents >= PAGE_SIZE or pages[-1].size + len(text) > PAGE_BYTES:
            if pages:
                _write_answers(site, folder, pages[-1].number, answers)
            pages.append(SamplePage(len(pages) + 1, doc_id, spool.tell()))
            answers = {}
        pages[-1].add(doc_id, rendered, spool.write(text))
        overview.add(pages[-1], rendered)
        read.add(document)
        answers[read.ids[-1]] = rendered.answers
    if pages:
        _write_answers(site, folder, pages[-1].number, answers)
    return pages, overview


def _write_answers(site: Site, folder: str, number: int, answers: Mapping[str, list[Any]]) -> None:
    place = f"{folder}/{number}.js"
    site.text(place, data_script(place, answers))


def _write_pages(
    site: Site, pages: list[SamplePage], overview: _Overview, spool: BinaryIO, folder: str, **values: Any
) -> None:
    table = ""
    if len(pages) <= FEW_PAGES:
        table = Markup(script_json([page.first for page in pages]))
    counts = [overview.counts[kind] for kind in ("right", "wrong", "unread")]
    for page in pages:
        spool.seek(page.place)
        body = Markup(spool.read(page.size).decode())
        near = list(_near(pages, page.number))
        place = f"{folder}/{page.number}.html"
        site.page(place, "samples.html.j2", page=page, near=near, count=len(pages), body=body, table=table,
                  counts=counts, **values)  # fmt: skip
    lists = [(kind, name, overview.counts[kind], overview.lines[kind]) for kind, name in RESULTS.items()]
    site.page(
        f"{folder}/index.html", "sample_index.html.j2", pages=pages, lists=lists, unread=overview.counts["unread"],
        **values,
    )  # fmt: skip


def _near(pages: list[SamplePage], number: int) -> Iterator[SamplePage | None]:
    """The first page, those around ``number``, and the last; None where some are left out between."""
    wanted = sorted({1, len(pages), *range(max(1, number - NEAR), min(len(pages), number + NEAR) + 1)})
    for before, each in zip([0, *wanted], wanted, strict=False):
        if each > before + 1:
            yield None if each > before + 2 else pages[each - 2]
        yield pages[each - 1]
