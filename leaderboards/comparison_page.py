"""The page that ``dare-bench compare --html`` writes: names, table, plot, and the documents that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dare_bench.analysis.comparison import ChangedDocument, RunComparison, ScoreComparison
from dare_bench.analysis.document_view import DocumentView, document_view
from dare_bench.analysis.names import CheckpointName, checkpoint_of, full_names, letter, lineage_of
from dare_bench.analysis.settings import requested
from dare_bench.errors import RunError
from dare_bench.formatting import plain_value
from dare_bench.leaderboards.charts.labels import varying
from dare_bench.leaderboards.charts.rows import Effect, forest
from dare_bench.leaderboards.rendering import tone, write_page
from dare_bench.runs.reader import Run
from dare_bench.runs.text import one_line, visible

SHOWN = 100
"""Maximum number of changed documents with their texts on a page, over all tasks; all others are listed by id."""
_TEXT = 1200
"""Maximum characters of a prompt or an answer; the runs' pages and files have all of it."""


@dataclass(frozen=True, slots=True)
class ShownSide:
    """The answers of one run to a document, and what was extracted from them."""

    answers: list[str]
    read: list[str]
    value: float


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document whose value changed. ``way``: did the second run get better or worse?"""

    task: str
    doc_id: str
    way: str
    prompts: list[str]
    target: str
    sides: tuple[ShownSide, ShownSide]


@dataclass(frozen=True, slots=True)
class ShownDocuments:
    """The changed documents of one comparison: the first with their texts, of the others (``worse`` and ``better``) the
    ids. ``unread`` counts those that could not be read, since their files have changed since."""

    item: ScoreComparison
    title: str
    shown: list[ShownDocument]
    worse: Sequence[ChangedDocument]
    better: Sequence[ChangedDocument]
    unread: int = 0


def write_standalone(comparison: RunComparison, path: str | Path) -> Path:
    """Write a comparison as a page that needs only the folder ``<name>_files`` beside it.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    return write_page(path, "comparison.html.j2", ("charts.css", "compare.css"), **page_values(comparison))


def page_values(comparison: RunComparison) -> dict[str, Any]:
    """The values of the template."""
    named = _names_of(comparison.runs)
    heads: list[dict[str, Any]] = [
        {
            "letter": letter(at),
            "name": named[at],
            "requested": one_line(", ".join(f"{k} {plain_value(v)}" for k, v in requested(run).items()), 120),
            "id": comparison.names[at],
            "created": run.created,
        }
        for at, run in enumerate(comparison.runs)
    ]
    return {
        "heading": _heading(named, [head["requested"] for head in heads]),
        "heads": heads,
        "comparison": comparison,
        "items": [(comparison.title(item), item) for item in comparison.items],
        "refused": [(comparison.title(item), item.breaks) for item in comparison.items if item.breaks],
        "warnings": [*comparison.warning_lines(), *comparison.settings_lines()],
        "plot": _plot(comparison),
        "documents": _documents(comparison),
        "unchanged": [comparison.title(item) for item in comparison.items if not (item.better or item.worse)],
        "adjusted": len(comparison.items) > 1,
        "level": f"{100 * comparison.level:g}%",
        "right_or_wrong": _right_or_wrong,
    }


def _names_of(runs: Sequence[Run]) -> list[CheckpointName]:
    named = full_names((checkpoint_of(run), lineage_of(run)) for run in runs)
    return [named[checkpoint_of(run)] for run in runs]


def _heading(named: Sequence[CheckpointName], settings: Sequence[str]) -> str:
    """The two names; of one checkpoint twice, the settings that differ."""
    if len(named) > 2:
        return f"{len(named)} runs compared"
    first, second = (one_line(name.title, 80) for name in named)
    if first != second:
        return f"{second} against {first}"
    before, after = (text or "defaults" for text in varying(settings))
    return f"{first}: two runs" if before == after else f"{first}: {after} against {before}"


def _right_or_wrong(value: float, item: ScoreComparison) -> str:
    """A document's value: right or wrong where values are only 0 and 1."""
    if value in (0.0, 1.0) and item.difference.test == "exact McNemar":
        return "✓ right" if (value == 1.0) == (item.higher_is_better is not False) else "✗ wrong"
    return f"{value:.4g}"


def _plot(comparison: RunComparison) -> Markup | None:
    """The forest plot of all differences between shares; other scores have different scales."""
    items = [item for item in comparison.items if item.is_share]
    if not items:
        return None
    effects = []
    for item in items:
        shown = "none" if item.breaks else tone(item.verdict)
        effects.append(Effect(comparison.title(item), item.gain.value, item.gain.lo, item.gain.hi, shown))
    return forest(effects, ident="forest", title=f"Differences, {100 * comparison.level:g}% intervals")


def _documents(comparison: RunComparison) -> list[ShownDocuments]:
    """The changed documents of each item, limited to keep the page short; those that got worse come first."""
    items = [item for item in comparison.items if item.better or item.worse]
    shares = _shares([len(item.better) + len(item.worse) for item in items])
    result = []
    for item, most in zip(items, shares, strict=True):
        # Half of them worse and half better, unless there are fewer of one kind.
        worse, better = max(most - len(item.better), most // 2), max(most - len(item.worse), most - most // 2)
        shown = list(_shown_documents(comparison, item, worse, better))
        readable = [document for document in shown if document is not None]
        more = item.worse[worse:], item.better[better:]
        result.append(ShownDocuments(item, comparison.title(item), readable, *more, shown.count(None)))
    return result


def _shares(counts: Sequence[int]) -> list[int]:
    """How many documents of each item are shown: all of the smallest items, and the others get equal parts of what they
    leave; at least four each."""
    left, shares = SHOWN, [0] * len(counts)
    order = sorted(range(len(counts)), key=lambda at: counts[at])
    for done, at in enumerate(order):
        shares[at] = min(counts[at], max(left // (len(counts) - done), 4))
        left -= shares[at]
    return shares


def _shown_documents(
    comparison: RunComparison, item: ScoreComparison, worse: int, better: int
) -> Iterator[ShownDocument | None]:
    """The first documents that got worse and better; None for unreadable ones."""
    for way, documents in (("worse", item.worse[:worse]), ("better", item.better[:better])):
        for changed in documents:
            try:
                first, second = comparison.documents(item, changed)
            except (RunError, KeyError):
                yield None
            else:
                yield _changed(changed, way, item, document_view(first), document_view(second))


def _changed(
    changed: ChangedDocument, way: str, item: ScoreComparison, first: DocumentView, second: DocumentView
) -> ShownDocument:
    filter_name = item.key.rpartition(",")[2]
    # The prompt of the second run is shown only where it differs.
    prompts = [_cut(text) for text in dict.fromkeys([*first.prompts, *second.prompts])][:4]
    sides = (_side(first, filter_name, changed.first), _side(second, filter_name, changed.second))
    return ShownDocument(changed.task, changed.doc_id, way, prompts, _cut(first.target), sides)


def _side(view: DocumentView, filter_name: str, value: float) -> ShownSide:
    if view.kind == "score":
        best = [answer.text for answer in view.answers if answer.best] or ["–"]
        return ShownSide([_cut(best[0])], [], value)
    answers = [_cut(answer.text) for answer in view.answers[:4]]
    filtered = [result.filtered for result in view.filter_results if result.filter == filter_name]
    return ShownSide(answers, [_cut(text) for text in filtered if text not in {a.text for a in view.answers}], value)


def _cut(text: str) -> str:
    return visible(text, _TEXT)
