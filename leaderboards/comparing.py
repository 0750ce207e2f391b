"""A comparison of runs, arranged for a page: names, the table, the plot, and the documents that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from dare_bench.analysis.comparison import ChangedDocument, RunComparison, ScoreComparison
from dare_bench.analysis.document_view import DocumentView, document_view
from dare_bench.analysis.names import letter
from dare_bench.analysis.settings import requested
from dare_bench.errors import RunError
from dare_bench.formatting import p_value, short_bounds, short_difference, short_score
from dare_bench.leaderboards.forest import Effect, forest
from dare_bench.leaderboards.formatting import plain_value
from dare_bench.leaderboards.names import Name, names
from dare_bench.runs.reader import Run
from dare_bench.runs.text import one_line, visible

FORMATS = {"p_value": p_value, "signed": short_difference, "span": short_bounds, "score": short_score}
"""How templates write numbers."""
SHOWN = 50
"""Changed documents that a page shows, all tasks together."""
_TEXT = 1200
"""Characters of a prompt or an answer; the whole is on the runs' own pages and in their files."""


@dataclass(frozen=True, slots=True)
class ShownSide:
    """What one run made of a document."""

    answers: list[str]
    read: list[str]
    value: float


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document whose value changed. ``way`` is better or worse, of the second run."""

    task: str
    doc_id: str
    way: str
    prompts: list[str]
    target: str
    sides: tuple[ShownSide, ShownSide]


@dataclass(frozen=True, slots=True)
class ShownDocuments:
    """The changed documents of one comparison: how many, and the first of them; ``unread`` of these could not be read,
    since their files changed or broke meanwhile (the numbers stand without their text)."""

    item: ScoreComparison
    title: str
    shown: list[ShownDocument]
    unread: int = 0


def right(value: float, item: ScoreComparison) -> str:
    """A document's value: right or wrong where it can only be that."""
    if value in (0.0, 1.0) and item.difference.test == "exact McNemar":
        return "✓ right" if (value == 1.0) == (item.higher_is_better is not False) else "✗ wrong"
    return f"{value:.4g}"


def called(runs: Sequence[Run]) -> list[Name]:
    """What to call the runs' checkpoints among each other."""
    keys = [_checkpoint(run) for run in runs]
    lineages = [run.block.model.lineage if run.block else None for run in runs]
    named = names(zip(keys, lineages, strict=True))
    return [named[key] for key in keys]


def _checkpoint(run: Run) -> tuple[str, ...]:
    model = run.block.model if run.block else None
    return (model.name, model.content_hash, model.adapter_hash or "", model.dtype) if model else (run.model,)


def asked(run: Run) -> str:
    """What was asked for beyond the family's defaults, in short."""
    return one_line(", ".join(f"{name} {plain_value(value)}" for name, value in requested(run).items()), 120)


def heading(named: Sequence[Name]) -> str:
    """What a page of these runs is called."""
    if len(named) > 2:
        return f"{len(named)} runs compared"
    first, second = (one_line(name.title, 80) for name in named)
    return f"{second} against {first}" if first != second else f"{first}: two runs"


def plot(comparison: RunComparison) -> Markup | None:
    """The forest plot of all differences between shares; other scores have each its own scale and are in the table."""
    items = [item for item in comparison.items if item.is_share]
    if not items:
        return None
    effects = [_effect(comparison.title(item), item) for item in items]
    return forest(
        effects, ident="forest", title=f"Differences, {100 * comparison.level:g} % intervals", x_title="points"
    )


def _effect(name: str, item: ScoreComparison) -> Effect:
    lo, hi = item.difference.lo, item.difference.hi
    if item.higher_is_better is False:
        lo, hi = (None if hi is None else -hi), (None if lo is None else -lo)
    kind = item.verdict if item.verdict in ("better", "worse") and not item.breaks else "none"
    return Effect(name, item.gain, lo, hi, kind)


def documents(comparison: RunComparison) -> list[ShownDocuments]:
    """The changed documents of each item, as many of each as keeps the page short; those that got worse come first."""
    items = [item for item in comparison.items if item.better or item.worse]
    each = max(SHOWN // max(len(items), 1), 4)
    return [_documents(comparison, item, each) for item in items]


def _documents(comparison: RunComparison, item: ScoreComparison, most: int) -> ShownDocuments:
    documents = list(_shown(comparison, item, most))
    return ShownDocuments(
        item,
        comparison.title(item),
        [document for document in documents if document is not None],
        documents.count(None),
    )


def _shown(comparison: RunComparison, item: ScoreComparison, most: int) -> Iterator[ShownDocument | None]:
    """Half of them worse and half better, unless one side has fewer; None for one that cannot be read."""
    worse = max(most - len(item.better), most // 2)
    better = max(most - len(item.worse), most - most // 2)
    for way, flips in (("worse", item.worse[:worse]), ("better", item.better[:better])):
        for flip in flips:
            try:
                first, second = comparison.documents(item, flip)
            except (RunError, KeyError):
                yield None
            else:
                yield _changed(flip, way, item, document_view(first), document_view(second))


def _changed(
    flip: ChangedDocument, way: str, item: ScoreComparison, first: DocumentView, second: DocumentView
) -> ShownDocument:
    _, _, filter_name = item.key.rpartition(",")
    # The prompt of the second run is shown only where it is another one.
    prompts = [_cut(text) for text in dict.fromkeys([*first.prompts, *second.prompts])][:4]
    sides = (_side(first, filter_name, flip.first), _side(second, filter_name, flip.second))
    return ShownDocument(flip.task, flip.doc_id, way, prompts, _cut(first.target), sides)


def _side(view: DocumentView, filter_name: str, value: float) -> ShownSide:
    if view.kind == "score":
        best = [answer.text for answer in view.answers if answer.best] or ["–"]
        return ShownSide([_cut(best[0])], [], value)
    answers = [_cut(answer.text) for answer in view.answers[:4]]
    read = [verdict.filtered for verdict in view.verdicts if verdict.filter == filter_name]
    return ShownSide(answers, [_cut(text) for text in read if text not in {a.text for a in view.answers}], value)


def _cut(text: str) -> str:
    return visible(text, _TEXT)


def values(comparison: RunComparison, places: Sequence[str] | None = None) -> dict[str, Any]:
    """What ``compare.html.j2`` shows; ``places`` are the runs' pages, where there are any."""
    named = called(comparison.runs)
    heads = [
        {
            "letter": letter(at),
            "name": named[at],
            "asked": asked(run),
            "id": comparison.names[at],
            "page": places[at] if places else None,
            "created": run.created,
        }
        for at, run in enumerate(comparison.runs)
    ]
    return {
        "heading": heading(named),
        "heads": heads,
        "made": comparison,
        "items": [(comparison.title(item), item) for item in comparison.items],
        "refused": [(comparison.title(item), item.breaks) for item in comparison.items if item.breaks],
        "warnings": comparison.warning_lines(),
        "plot": plot(comparison),
        "documents": documents(comparison),
        "adjusted": len(comparison.items) > 1,
        "level": f"{100 * comparison.level:g} %",
        "letter": letter,
        **FORMATS,
        "right": right,
    }
