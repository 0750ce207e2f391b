"""From the base to the results: a row for each training recipe, its seeds as dots, its mean, and the line from the
score of the checkpoint that it started from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup, escape

from dare_bench.formatting import chart_score
from dare_bench.leaderboards.charts.axes import AxisScale, linear, px, tick_labels
from dare_bench.leaderboards.charts.labels import distinct
from dare_bench.runs.text import one_line

_WIDTH, _LEFT, _RIGHT = 600, 12, 588
_TOP, _ROW, _BELOW = 12, 40, 36
"""Height above the rows, of a row (its name and its line), and below them for the scale."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A recipe with the final scores of its seeds; ``detail`` has what distinguishes it from others of its name, in
    parts separated by ", "."""

    name: str
    scores: Sequence[float]
    detail: str = ""


def slopes(rows: Sequence[Slope], base: float | None, *, ident: str, title: str, percent: bool = True) -> Markup:
    """The figure of all ``rows``, highest mean first; ``base`` is the score before training (None: not evaluated), and
    ``ident`` an id that is unique on the page. ``percent``: scores are shares from 0 to 1, shown in percent."""
    ranked = sorted(rows, key=lambda row: -fmean(row.scores))
    known = [] if base is None else [base]
    x = linear([*known, *(score for row in ranked for score in row.scores)], _LEFT + 8, _RIGHT - 8, percent)
    bottom = _TOP + _ROW * len(ranked)
    grid = "".join(f"M{px(x(tick))} {_TOP}V{bottom}" for tick in x.ticks)
    parts = [f'<g class="axes" aria-hidden="true"><path class="grid" d="{grid}"/>']
    if base is not None:
        parts.append(f'<path class="dash" d="M{px(x(base))} {_TOP}V{bottom}"/>')
    parts.append(f'<path class="base" d="M{_LEFT} {bottom}H{_RIGHT}"/><g class="mid">')
    for tick, label in zip(x.ticks, tick_labels(x.ticks, percent=percent), strict=True):
        parts.append(f'<text x="{px(x(tick))}" y="{bottom + 9}" dy=".8em">{label}</text>')
    parts.append("</g></g>")
    labels = distinct([row.name for row in ranked], [row.detail for row in ranked], 60)
    for at, (row, label) in enumerate(zip(ranked, labels, strict=True)):
        parts.append(_row(row, label, base, _TOP + _ROW * at, x, percent))
    note = (
        "Dots are seeds, the large one is their mean" + ("" if base is None else "; the dashed line is the base") + "."
    )
    return Markup(
        '<figure class="chart slopes"><figcaption id="{}">{}</figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}">{}</svg><p class="chart-note">{}</p></figure>'
    ).format(ident, one_line(title, 160), _WIDTH, bottom + _BELOW, ident, Markup("".join(parts)), note)


def _row(row: Slope, label: str, base: float | None, top: float, x: AxisScale, percent: bool) -> str:
    mean, down = fmean(row.scores), px(top + 28)
    line = "" if base is None else f'<path class="line" d="M{px(x(base))} {down}H{px(x(mean))}"/>'
    seeds = "".join(f'<circle class="seed" cx="{px(x(score))}" cy="{down}" r="3"/>' for score in row.scores)
    tone = "" if base is None else " up" if mean > base else " down" if mean < base else ""
    text = f"{label}: {chart_score(mean, percent)}{'%' if percent else ''}"
    name = f'<text x="{_LEFT + 7}" y="{px(top + 15)}">{escape(text)}</text>'
    return f'<g class="slope{tone}">{line}<circle class="dot" cx="{px(x(mean))}" cy="{down}" r="5"/>{seeds}{name}</g>'
