"""One document on a sample page: what ``sample_document.html.j2`` needs to know of it, and how much of it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from markupsafe import Markup

from dare_bench.analysis.document_view import DocumentView, FilterResult, document_view
from dare_bench.leaderboards.rendering import TEXT_LIMIT, environment, number, seconds, slug
from dare_bench.leaderboards.sample_canvas import escaped
from dare_bench.runs.index import Document
from dare_bench.runs.scores import Score
from dare_bench.runs.text import one_line, visible

ANSWERS = 32
MOST = SimpleNamespace(answers=ANSWERS, choices=100, prompts=4, filters=20, metrics=30)
"""Shown of one document at most; the rest is in the run's files, and the page says so."""
_FIELDS = 20
_COMPARED, _COMPARED_TEXT = 4, 3000
"""Maximum number of answers to a document in comparisons, and of characters of each."""
_WIDE = 600
"""Number of characters from which a prompt has a separate line."""
_QUESTIONS = ("question", "problem", "query", "sentence", "text")
"""Fields in which data sets have what is asked."""
_READ = ("matched", "ambiguous")


class PageBudget:
    """What a document may still add to its page: ``left`` characters of text, ``positions`` of canvases."""

    def __init__(self, left: int = 60_000, positions: int = 3_072) -> None:
        self.left, self.positions = left, positions

    def text(self, value: str, limit: int = TEXT_LIMIT) -> Markup:
        """A text of a model or data set, cut to what is left."""
        text = escaped(value, max(min(limit, self.left), 200))
        self.left -= len(text)
        return Markup(text)

    def block(self, value: str, limit: int = TEXT_LIMIT) -> Markup:
        """A text in a box. HTML ignores the line break after the tag; without it, the text's first would be lost."""
        if not value:
            return Markup('<p class="text empty">empty</p>')
        long = ' long" tabindex="0' if len(value) > 1200 or value.count("\n") > 14 else ""
        return Markup(f'<pre class="text{long}" dir="auto">\n{self.text(value, limit)}</pre>')

    def take_positions(self, wanted: int) -> int:
        """The number of positions of a canvas that may be shown."""
        taken = max(min(self.positions, wanted), 0)
        self.positions -= taken
        return taken


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """A document in the table of a task: the beginnings of its texts, its headline score and its forward passes."""

    anchor: str
    question: str
    answer: str
    target: str
    score: Markup
    passes: str


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """A document's HTML, its line in the table, and the result by the headline metric: right, wrong, or neither (None).
    ``unread``: the harness could not read every answer. ``answers``: question, target, the answers, and what was read
    from them where that is another text (else None), and the anchor, for comparisons."""

    html: str
    line: DocumentLine
    answers: list[Any]
    right: bool | None
    unread: bool


def anchor(doc_id: int | str) -> str:
    """The part of a sample page's address that leads to a document: ``doc-17``."""
    return f"doc-{slug(str(doc_id))}"


def render_document(
    document: Document, score: Score | None, choice_value: str, opened: bool = False
) -> RenderedDocument:
    """A document as it stands on its page; ``score`` has the metric and filter of the task's headline, ``choice_value``
    says what is logged of a scored continuation."""
    view = document_view(document)
    results = view.filter_results
    result = next((result for result in results if score and result.filter == score.filter), results[0])
    name = score.metric if score and score.metric in result.metrics else next(iter(result.metrics), None)
    value = None if name is None else result.metrics[name]
    right = _right(value, score)
    statuses = [answer.record["extraction"] for answer in view.answers if answer.record.get("extraction")]
    unread = sum(status not in _READ for status in statuses)
    place = anchor(view.doc_id)
    gist = result.filtered if view.kind == "generate" else next((a.text for a in view.answers if a.best), "")
    headline = None if name is None else (name, value, right)
    html = (
        environment()
        .get_template("sample_document.html.j2")
        .render(
            view=view,
            choice_value=choice_value,
            anchor=place,
            opened=opened,
            kind={True: "right", False: "wrong", None: "part"}[right] + (" unread" if unread else ""),
            headline=headline,
            gist=gist,
            unread=unread,
            statuses=len(statuses),
            wide=sum(map(len, view.prompts[: MOST.prompts])) > _WIDE,
            fields=_other_fields(document, view),
            budget=PageBudget(),
            unmasking=_unmasking(),
            **_TEMPLATE_VALUES,
        )
    )
    passes = [answer.record["nfe"] for answer in view.answers if isinstance(answer.record.get("nfe"), (int, float))]
    line = DocumentLine(
        place,
        question_of(document, view),
        one_line(gist[:240], 70),
        one_line(view.target[:240], 50),
        Markup("") if headline is None else _metric("", *headline[1:]),
        number(sum(passes)) if any(passes) else "",
    )
    texts = [answer.text for answer in view.answers[:_COMPARED]] if view.kind == "generate" else [gist]
    read = result.filtered if view.kind == "generate" and not _unchanged(result, view) else None
    answers = [
        visible(_asked(document, view), 400),
        visible(view.target, 400),
        [visible(text, _COMPARED_TEXT) for text in texts],
        None if read is None else visible(read, 400),
        place,
    ]
    return RenderedDocument(html.strip() + "\n", line, answers, right, bool(unread))


def question_of(document: Document, view: DocumentView) -> str:
    """What a document asks, in one line."""
    text = _asked(document, view)
    if not text.startswith("…"):
        return one_line(text[:400], 90)
    text = one_line(text, 400)
    return text if len(text) <= 90 else f"…{text[-89:]}"


def _asked(document: Document, view: DocumentView) -> str:
    """The data set's question, else the end of the prompt, which begins with instructions and examples."""
    doc = document.rows[0].get("doc")
    fields = doc if isinstance(doc, dict) else {}
    asked = next((text for name in _QUESTIONS if isinstance(text := fields.get(name), str) and text.strip()), None)
    if asked is not None:
        return asked
    prompt = view.prompts[0] if view.prompts else ""
    return prompt if len(prompt) <= 400 else f"…{prompt[-399:]}"


@cache
def _unmasking() -> Any:
    """The macro; a template that imports it would look for it in each document."""
    return environment().get_template("unmasking.html.j2").module.unmasking  # type: ignore[attr-defined]


def _right(value: Any, score: Score | None = None) -> bool | None:
    """Right, wrong, or neither: only the two ends of a share are right or wrong."""
    if not isinstance(value, (bool, int, float)) or value not in (0, 1) or (score and not score.is_share):
        return None
    best = 0 if score and score.higher_is_better is False else 1
    return bool(value == best)


def _metric(name: str, value: Any, right: bool | None) -> Markup:
    """A value of a metric. Written in Python, because macros take several times as long for each document."""
    kind = "part" if right is None else "right" if right else "wrong"
    mark = "" if right is None else f'<span aria-hidden="true">{"✓" if right else "✗"}</span> '
    text = " ".join(filter(None, [escaped(one_line(name[:240], 60), 240), escaped(str(number(value)), 240)]))
    return Markup(f'<span class="metric {kind}">{mark}{text}</span>')


def _metrics(result: FilterResult) -> Markup:
    items = list(result.metrics.items())
    left_out = f" and {len(items) - MOST.metrics} more" if len(items) > MOST.metrics else ""
    return Markup(" ".join(_metric(name, value, _right(value)) for name, value in items[: MOST.metrics]) + left_out)


def _unchanged(result: FilterResult, view: DocumentView) -> bool:
    """Did a filter pass on the answers as they are?"""
    return result.filtered == ", ".join(answer.text for answer in view.answers)


def _sandbox_facts(verdict: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, [one_line(str(verdict.get("level", "")), 30), seconds(verdict.get("seconds"))]))


def _costs(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what an answer cost."""
    margin, masks = record.get("margin"), record.get("residual_masks")  # older runs have margins
    near = record.get("near_tie")
    costs = {
        "forward passes": number(record.get("nfe") or None),
        "tokens to EOS": f"{number(record.get('tokens_to_eos'))} of {number(record.get('tokens'))}",
        "tokens per forward": number(record.get("tpf"), 2),
        "time": seconds(record.get("seconds")),
        "ended by": one_line(str(record.get("finish_reason", "–")), 20),
        "near tie": "" if near is None else "yes" if near else "no",
        "smallest margin": "" if margin is None else number(margin, 2),
        "masks left": number(masks) if masks else "",
    }
    return [(name, value) for name, value in costs.items() if value]


def _other_fields(document: Document, view: DocumentView) -> list[tuple[str, str]]:
    """The fields of the data set that prompt and target do not show."""
    doc = document.rows[0].get("doc")
    shown = [view.target, *view.prompts[: MOST.prompts]]
    fields = [(name, str(value)) for name, value in list(doc.items())[:_FIELDS]] if isinstance(doc, dict) else []
    return [(name, text) for name, text in fields if text and not any(text in other for other in shown)]


_TEMPLATE_VALUES = {
    "most": MOST,
    "read_statuses": _READ,
    "metric": _metric,
    "metrics": _metrics,
    "unchanged": _unchanged,
    "sandbox_facts": _sandbox_facts,
    "costs": _costs,
}
