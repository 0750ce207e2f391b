"""The gallery of unmasking: one prompt, answered by two models or by one model under two settings, with one player for
both; and the canvas of each family for the first page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from dare_bench.analysis.decoders import without_budget
from dare_bench.analysis.document_view import document_view
from dare_bench.analysis.unmasking import Unmasking
from dare_bench.errors import DareError
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry, RunScore
from dare_bench.leaderboards.rendering import Link, slug
from dare_bench.leaderboards.sample_canvas import canvas
from dare_bench.leaderboards.sample_document import PageBudget, anchor, question_of
from dare_bench.leaderboards.site import Site
from dare_bench.runs.index import Document
from dare_bench.types import Decoding

PLACE = "unmasking.html"
SCENES, TRIED, FAMILIES = 4, 10, 6
"""Maximum numbers: of scenes, of a task's documents that are looked through for traces, and of families on the first
page."""
STRIP_POSITIONS = 36
"""Number of positions of a canvas on the first page."""


@dataclass(frozen=True, slots=True)
class UnmaskingScene:
    """Two runs of one task, of which a document is shown. ``title`` says what differs between them."""

    title: str
    task: str
    sides: tuple[BoardEntry, BoardEntry]


@dataclass(frozen=True, slots=True)
class SceneSide:
    """One answer of a scene: the run, its order of unmasking, and the address of the document."""

    entry: BoardEntry
    order: Unmasking
    page: str
    budget: PageBudget


def link(context: Context) -> Link | None:
    """In the navigation if there are two answers with traces to show."""
    return Link(PLACE, "Unmasking") if scenes(context) else None


def write(site: Site, context: Context) -> None:
    """Write the gallery."""
    chosen = scenes(context)
    inputs = [(scene.title, scene.task, [_state(entry, scene.task) for entry in scene.sides]) for scene in chosen]
    site.part("unmasking", inputs, partial(_write, site, chosen))


def _state(entry: BoardEntry, task: str) -> tuple[Any, ...]:
    return entry.state, entry.files[task], entry.name, entry.slug


def scenes(context: Context) -> list[UnmaskingScene]:
    """For each task the best runs of two families (else of two checkpoints), and two runs of one checkpoint: with other
    decoding, else with another number of steps; models first."""
    if not context.samples:
        return []
    found: list[list[UnmaskingScene]] = [[], []]
    for task in dict.fromkeys(task for entry in reversed(context.entries) for task in entry.tasks):
        traced = _traced(context.entries, task)
        for kind, pair in enumerate((_two_models(traced), _two_settings(traced))):
            if pair is not None:
                title = f"{task}: two {'settings' if kind else 'models'}"
                found[kind].append(UnmaskingScene(title, task, (pair[0].entry, pair[1].entry)))
    models, settings = found
    return [*models[: SCENES - min(len(settings), SCENES // 2)], *settings][:SCENES]


def _traced(entries: Sequence[BoardEntry], task: str) -> list[RunScore]:
    """The scores of runs with traces, best first."""
    known = [RunScore(score, entry) for entry in entries if (score := entry.score(task)) is not None]
    traced = [own for own in known if own.entry.status != "running" and own.entry.files.get(task, (None, None))[1]]
    return sorted(traced, key=lambda own: own.score.goodness, reverse=True)


def _two_models(traced: Sequence[RunScore]) -> tuple[RunScore, RunScore] | None:
    """The best of two families, else of two checkpoints."""
    for own in traced[:1]:
        families = (other for other in traced if other.entry.family != own.entry.family)
        checkpoints = (other for other in traced if other.entry.checkpoint_page != own.entry.checkpoint_page)
        if (other := next(families, next(checkpoints, None))) is not None:
            return own, other
    return None


def _two_settings(traced: Sequence[RunScore]) -> tuple[RunScore, RunScore] | None:
    """Of the best checkpoint that has two."""
    for own in traced:
        same = [other for other in traced if other.entry.checkpoint_page == own.entry.checkpoint_page]
        budgets = [other for other in same if _decoding(other) != _decoding(own)]
        methods = (other for other in budgets if without_budget(_decoding(other)) != without_budget(_decoding(own)))
        if (other := next(methods, next(iter(budgets), None))) is not None:
            return own, other
    return None


def _decoding(own: RunScore) -> dict[str, Any]:
    """The settings that an answer depends on, so neither the seed nor the number of documents."""
    decoding = own.entry.decodings.get(own.score.task, {})
    return {name: value for name, value in decoding.items() if name not in Decoding.hidden}


def _write(site: Site, chosen: Sequence[UnmaskingScene]) -> None:
    shown = [(scene, document) for scene in chosen if (document := _document(site, scene)) is not None]
    site.page(PLACE, "gallery.html.j2", scenes=shown)


def _document(site: Site, scene: UnmaskingScene) -> dict[str, Any] | None:
    """The first document of which both runs have a trace: question, target and both answers."""
    first, second = scene.sides
    with suppress(DareError, KeyError):
        others = second.open().require_index(scene.task)
        for document in islice(first.open().require_index(scene.task), TRIED):
            sides = [_side(site, first, document)]
            with suppress(DareError, KeyError):
                sides.append(_side(site, second, others.document(document.doc_id)))
            if len(sides) == 2 and all(sides):
                view = document_view(document)
                return {"question": question_of(document, view), "target": view.target, "sides": sides}
    return None


def _side(site: Site, entry: BoardEntry, document: Document) -> SceneSide | None:
    order = next((answer.order for answer in document_view(document).answers if answer.order), None)
    if order is None or not order.pieces or not order.steps:
        return None
    page = f"runs/{entry.slug}/samples/{slug(document.task)}/1.html#{anchor(document.doc_id)}"
    if f"samples {entry.slug} {document.task}" not in site.parts:  # its pages could not be written
        page = entry.page
    return SceneSide(entry, order, page, PageBudget())


def strip(site: Site, context: Context) -> list[dict[str, Any]]:
    """A canvas of the best run of each family in the task that the first board ranks by, for the first page."""
    view = context.views[0]
    rows = sorted((row for row in view.rows if row.mean is not None), key=lambda row: -row.sign * (row.mean or 0.0))
    shown: dict[str, dict[str, Any]] = {}
    for entry in [*(row.main for row in rows), *reversed(context.entries)]:
        task = next((task for task, (_, traces) in entry.files.items() if traces is not None), None)
        if task is None or entry.status == "running" or entry.family in shown or len(shown) == FAMILIES:
            continue
        inputs = _state(entry, task)
        facts = site.part(f"canvas {entry.slug} {task}", inputs, partial(_canvas, site, entry, task))
        if facts:
            shown[entry.family] = {**facts, "family": entry.family, "page": entry.checkpoint_page, "task": task}
    return list(shown.values())


def _canvas(site: Site, entry: BoardEntry, task: str) -> dict[str, Any]:
    with suppress(DareError, KeyError):
        for document in islice(entry.open().require_index(task), TRIED):
            if (side := _side(site, entry, document)) is not None:
                pieces = side.order.pieces[:STRIP_POSITIONS]
                steps = max((piece.step or 0 for piece in pieces), default=0)
                if steps:
                    order = side.order._replace(pieces=pieces, steps=steps)
                    return {"canvas": str(canvas(order, STRIP_POSITIONS)), "steps": steps, "scale": list(order.scale)}
    return {}
