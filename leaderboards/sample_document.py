"""One document on a sample page: a line to scan, and behind it what was asked, answered, read out, and scored.

Plain string building (see :mod:`dare_bench.leaderboards.sample_canvas`): text of models and data sets goes through
:class:`PageBudget`, which escapes it and sees to it that no document makes its page big.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from dare_bench.analysis.document_view import AnswerView, DocumentView, FilterResult, document_view
from dare_bench.analysis.unmasking import Unmasking
from dare_bench.leaderboards.formatting import figure
from dare_bench.leaderboards.pages import TEXT_LIMIT, slug
from dare_bench.leaderboards.sample_canvas import canvas, order_chart, shown
from dare_bench.runs.index import Document
from dare_bench.runs.scores import Score, is_share
from dare_bench.runs.text import one_line
from dare_bench.types import TIER_MEANING

ANSWERS, CHOICES, PROMPTS, FILTERS, METRICS, FIELDS = 32, 100, 4, 20, 30, 20
"""RenderedDocument of one document at most; the rest is in the run's own files, and the page says so."""
WIDE = 600
"""Characters of a prompt from which it has a line of its own."""
_READ = ("matched", "ambiguous")


class PageBudget:
    """What a document may still put on its page: ``left`` characters of text, ``positions`` of canvases."""

    def __init__(self, left: int = 60_000, positions: int = 3_072) -> None:
        self.left, self.positions = left, positions

    def text(self, value: str, limit: int = TEXT_LIMIT) -> str:
        limit = max(min(limit, self.left), 200)
        text = shown(value, limit)
        self.left -= len(text)
        return text

    def block(self, value: str, limit: int = TEXT_LIMIT) -> str:
        """A text in a box. The line break after the tag is not part of it; without it, the text's own would be lost."""
        if not value:
            return '<p class="text empty">empty</p>'
        long = ' long" tabindex="0' if len(value) > 1200 or value.count("\n") > 14 else ""
        return f'<pre class="text{long}" dir="auto">\n{self.text(value, limit)}</pre>'


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """A document's HTML, where a link finds it, and what the headline metric says: right, wrong, or neither (None).
    ``unread``: the harness could not read every answer."""

    html: str
    anchor: str
    right: bool | None
    unread: bool


def anchor(doc_id: int | str) -> str:
    """The part of a sample page's address that leads to a document: ``doc-17``."""
    return f"doc-{slug(str(doc_id))}"


def document(found: Document, score: Score | None, opened: bool = False) -> RenderedDocument:
    """A document as it stands on its page; ``score`` tells the metric and filter that stand for the task."""
    view = document_view(found)
    room = PageBudget()
    verdict = next((v for v in view.verdicts if score and v.filter == score.filter), view.verdicts[0])
    name = score.metric if score and score.metric in verdict.metrics else next(iter(verdict.metrics), None)
    value = None if name is None else verdict.metrics[name]
    right = _right(value, score)
    statuses = [answer.record.get("extraction") for answer in view.answers if answer.record.get("extraction")]
    missed = sum(status not in _READ for status in statuses)
    told = "" if name is None else _metric(name, value, right)
    if missed:
        told += f'<span class="unread">not read{f" {missed} of {len(statuses)}" if len(statuses) > 1 else ""}</span>'
    said = verdict.filtered if view.kind == "generate" else next((a.text for a in view.answers if a.best), "")
    kind = {True: "right", False: "wrong", None: "part"}[right] + (" unread" if missed else "")
    place = anchor(view.doc_id)
    body = _generated(view, place, room) if view.kind == "generate" else _choices(view, room)
    html = (
        f'<details class="sample" data-is="{kind}"{" open" * opened}><summary>'
        f'<span class="doc">{_line(view.doc_id, 40)}</span>{told}<span class="gist" dir="auto">{_line(said, 90)}</span>'
        f'</summary><div class="body" id="{place}">{body}{_fields(found, view, room)}</div></details>\n'
    )
    return RenderedDocument(html, place, right, bool(missed))


def _right(value: Any, score: Score | None) -> bool | None:
    """Right, wrong, or neither: only the two ends of a share are one or the other."""
    if not isinstance(value, (bool, int, float)) or value not in (0, 1) or (score and not is_share(score)):
        return None
    best = 0 if score and score.higher_is_better is False else 1
    return bool(value == best)


def _prompts(view: DocumentView, room: PageBudget) -> str:
    """What was asked. A long prompt has the width of the page, a short one stands beside its answer."""
    prompts = view.prompts
    wide = ' class="wide"' if sum(map(len, prompts[:PROMPTS])) > WIDE else ""
    more = f'<p class="facts">{len(prompts) - PROMPTS:,} more prompts.</p>' if len(prompts) > PROMPTS else ""
    return (
        f"<section{wide}><h3>Prompt</h3>{''.join(room.block(prompt) for prompt in prompts[:PROMPTS])}{more}</section>"
    )


def _generated(view: DocumentView, place: str, room: PageBudget) -> str:
    asked = _prompts(view, room)
    target = f"<section><h3>Target</h3>{room.block(view.target, 8_000)}</section>"
    if len(view.answers) == 1:
        (answer,) = view.answers
        said = f"<section><h3>Answer</h3>{room.block(answer.text)}</section>"
        return (
            f'<div class="sides">{asked}{said}{target}</div>{_verdicts(view, room)}'
            f"{_facts(answer, room)}{_unmasking(answer.order, place, room)}"
        )
    parts = [f'<div class="sides">{asked}{target}</div>', _verdicts(view, room)]
    if view.answers:
        parts.append(f"<h3>{len(view.answers):,} answers</h3>")
    for number, answer in enumerate(view.answers[:ANSWERS], start=1):
        parts.append(
            f'<details class="answer"{" open" * (number == 1)}><summary><span class="doc">{number}</span>'
            f'{_status(answer)}<span class="gist" dir="auto">{_line(answer.text, 90)}</span></summary>'
            f'<div class="body">{room.block(answer.text)}{_facts(answer, room)}'
            f"{_unmasking(answer.order, f'{place}-{number}', room)}</div></details>"
        )
    if len(view.answers) > ANSWERS:
        parts.append(f'<p class="facts">{len(view.answers) - ANSWERS:,} more answers are in the samples file.</p>')
    return "".join(parts)


def _verdicts(view: DocumentView, room: PageBudget) -> str:
    """A row for each filter: what it made of the answers, and the scores of that."""
    whole = [answer.text for answer in view.answers]
    rows = "".join(_verdict(verdict, whole, room) for verdict in view.verdicts[:FILTERS])
    return (
        '<table class="verdicts"><thead><tr><th scope="col">Filter</th><th scope="col">What it passed on</th>'
        f'<th scope="col">Score</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _verdict(verdict: FilterResult, whole: list[str], room: PageBudget) -> str:
    same = verdict.filtered == ", ".join(whole)
    which = "the answer as it is" if len(whole) == 1 else "the answers as they are"
    passed = f'<span class="same">{which}</span>' if same else room.block(verdict.filtered, 4_000)
    name = "none" if verdict.filter in ("", "none") else verdict.filter
    return f'<tr><th scope="row">{_line(name, 60)}</th><td>{passed}</td><td>{_metrics(verdict)}</td></tr>'


def _metrics(verdict: FilterResult) -> str:
    several = list(verdict.metrics.items())
    more = f" and {len(several) - METRICS} more" if len(several) > METRICS else ""
    return " ".join(_metric(name, value, _right(value, None)) for name, value in several[:METRICS]) + more


def _metric(name: str, value: Any, right: bool | None) -> str:
    mark = {True: ("right", "✓"), False: ("wrong", "✗"), None: ("part", "")}[right]
    sign = f'<span aria-hidden="true">{mark[1]}</span> ' if mark[1] else ""
    return f'<span class="metric {mark[0]}">{sign}{_line(name, 60)} {_number(value)}</span>'


def _status(answer: AnswerView) -> str:
    status = answer.record.get("extraction")
    return _pill(status in _READ, str(status).replace("_", " ")) if status else ""


def _pill(good: bool, text: Any) -> str:
    return f'<span class="pill {"good" if good else "bad"}">{_line(text, 30)}</span>'


def _facts(answer: AnswerView, room: PageBudget) -> str:
    """What was read out, what the sandbox said, what it cost."""
    record = answer.record
    if not record:
        return ""
    parts = []
    if record.get("extraction"):
        read = (
            f" <code>{room.text(str(record['extracted']), 400)}</code>" if record.get("extracted") is not None else ""
        )
        parts.append(f"<div><dt>extraction</dt><dd>{_status(answer)}{read}</dd></div>")
    verdict = record.get("verdict")
    if isinstance(verdict, Mapping):
        where = ", ".join(filter(None, [_line(verdict.get("level", ""), 30), _seconds(verdict.get("seconds"))]))
        pill = _pill(verdict.get("status") == "passed", verdict.get("status", "?"))
        parts.append(f"<div><dt>sandbox</dt><dd>{pill} {where}</dd></div>")
    tier = record.get("tier")
    costs = {
        "forward passes": _number(record.get("nfe")),
        "tokens to EOS": f"{_number(record.get('tokens_to_eos'))} of {_number(record.get('tokens'))}",
        "tokens per forward": _number(record.get("tpf"), 2),
        "time": _seconds(record.get("seconds")),
        "ended by": _line(record.get("finish_reason", "–"), 20),
        "smallest margin": _number(record.get("margin"), 2) if record.get("margin") is not None else "",
        "masks left": _number(record.get("residual_masks")) if record.get("residual_masks") else "",
        "exactness": "".join(
            f'<abbr title="{meaning}">{name}</abbr>' for name, meaning in TIER_MEANING.items() if name == tier
        ),
    }  # fmt: skip
    parts += [f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in costs.items() if value]
    return f'<dl class="answer-facts">{"".join(parts)}</dl>'


def _unmasking(order: Unmasking | None, place: str, room: PageBudget) -> str:
    if order is None or not order.pieces:
        return ""
    if room.positions <= 0:
        return '<p class="facts">No room for the order of unmasking on this page: dare-bench show has it.</p>'
    most = min(room.positions, len(order.pieces))
    room.positions -= most
    words = [f"{figure(order.steps)} {'step' if order.steps == 1 else 'steps'}"]
    words += [f"{figure(n)} {what}" for n, what in (
        (order.edited, "written over"), (order.remasked, "masked again"), (order.prompt_changes, "in the prompt")
    ) if n]  # fmt: skip
    lo, hi = ("0", "1") if order.scale == (0.0, 1.0) else (f"{order.scale[0]:.3g}", f"{order.scale[1]:.3g}")
    name = escape(f"by-{place}")
    return (
        f'<section class="unmasking" data-steps="{order.steps}" data-scale="{order.scale[0]} {order.scale[1]}">'
        f'<div class="how"><h3>Unmasking <small>{", ".join(words)}</small></h3><fieldset>'
        "<legend>Colour and figure:</legend>"
        f'<label><input type="radio" name="{name}" value="step" checked> step</label>'
        f'<label><input type="radio" name="{name}" value="sure"> confidence</label></fieldset></div>'
        f'<div class="field"><div><div class="canvas" dir="auto">{canvas(order, most)}</div>'
        f'<p class="legend of-step">step 1 <i class="ramp"></i> {figure(order.steps)}</p>'
        f'<p class="legend of-sure">confidence {lo} <i class="ramp"></i> {hi}</p></div>'
        f'<div class="chart">{order_chart(order, most)}<p class="facts">Across: position. Down: the step that wrote '
        "it.</p></div></div></section>"
    )


def _choices(view: DocumentView, room: PageBudget) -> str:
    rows = "".join(_choice(answer, room) for answer in view.answers[:CHOICES])
    left = len(view.answers) - CHOICES
    more = f'<p class="facts">{left:,} more are in the samples file.</p>' if left > 0 else ""
    target = "" if any(answer.gold for answer in view.answers) else f"<h3>Target</h3>{room.block(view.target, 8_000)}"
    return (
        f"{_prompts(view, room)}"
        '<section><h3>What was scored</h3><div class="scroll" role="group" tabindex="0" '
        'aria-label="Continuations and their log-likelihoods"><table class="choices"><thead><tr>'
        '<th scope="col">Continuation</th><th scope="col" class="num">log-likelihood</th><th scope="col">estimator</th>'
        f'<th scope="col">standing</th></tr></thead><tbody>{rows}</tbody></table></div>{more}{target}</section>'
        f"<section><h3>Score</h3><p>{' '.join(_metrics(verdict) for verdict in view.verdicts[:FILTERS])}</p></section>"
    )


def _choice(answer: AnswerView, room: PageBudget) -> str:
    record = answer.record
    error = f" <small>± {_number(record['stderr'], 3)}</small>" if record.get("stderr") else ""
    draws = f", {_number(record['draws'])} draws" if record.get("draws") else ""
    best = '<span class="mark">likeliest</span> ' if answer.best else ""
    gold = '<span class="mark gold">right</span>' if answer.gold else ""
    text = room.text(answer.text, 2_000)
    return (
        f'<tr{best and " class=best"}><td class="continuation" dir="auto">{text}</td>'
        f'<td class="num">{_number(answer.value, 3)}{error}</td>'
        f"<td>{_line(record.get('estimator', ''), 40)}{draws}</td><td>{best}{gold}</td></tr>"
    )


def _fields(found: Document, view: DocumentView, room: PageBudget) -> str:
    """The data set's own fields, as far as prompt and target do not show them: tests of a program, worked solutions."""
    doc = found.rows[0].get("doc")
    if not isinstance(doc, dict):
        return ""
    seen = [view.target, *view.prompts[:PROMPTS]]
    rows = []
    for name, value in list(doc.items())[:FIELDS]:
        text = value if isinstance(value, str) else str(value)
        if text and not any(text in other for other in seen):
            rows.append(f"<dt>{_line(name, 60)}</dt><dd>{room.block(text, 2_000)}</dd>")
    if not rows:
        return ""
    return f'<details class="fields"><summary>More of the data set’s fields</summary><dl>{"".join(rows)}</dl></details>'


def _line(value: Any, limit: int) -> str:
    return escape(one_line(str(value)[: 4 * limit], limit))


def _number(value: Any, digits: int | None = None) -> str:
    """A number for reading; what is none is shown as it is."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (int, float)) or abs(value) >= 1e15 or not math.isfinite(value):
        return _line(value, 60)
    if isinstance(value, int) or (value == int(value) and digits is None):
        return figure(int(value))
    return f"{value:.3g}" if digits is None or abs(value) < 10**-digits else figure(value, digits)


def _seconds(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return ""
    return f"{value:.2g} s" if value < 10 else f"{figure(round(value))} s"
