"""Charts with a row for each of their entries, on one scale: forest plots of differences and of scores with their
intervals, and the results of training recipes beside the score of their base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup, escape

from dare_bench.formatting import chart_score, with_interval
from dare_bench.leaderboards.charts import frame
from dare_bench.leaderboards.charts.axes import AxisScale, linear, px, tick_labels
from dare_bench.leaderboards.charts.labels import distinct, fitting
from dare_bench.leaderboards.rendering import Tone
from dare_bench.runs.text import one_line

_WIDTH, _LEFT, _RIGHT, _TOP = 600, 12, 588, 12
_EFFECT_ROW, _ROW = 46, 44
"""Height of a row: its name and its line."""
_EFFECT_NAME = 38
"""Maximum characters of a name that fit on a phone."""
_SCORE = 92
"""Width that a score takes on a phone, where its interval is hidden."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One difference; positive is better. ``tone`` is that of its verdict."""

    name: str
    value: float
    lo: float | None
    hi: float | None
    tone: Tone = "none"


def forest(effects: Sequence[Effect], *, ident: str, title: str) -> Markup:
    """The figure of differences of shares, in points; ``ident`` is an id that is unique on the page."""
    ends = [end for effect in effects for end in (effect.value, effect.lo, effect.hi) if end is not None]
    x = linear([0.0, *ends], _LEFT, _RIGHT)
    bottom = _TOP + _EFFECT_ROW * len(effects)
    zero = f'<path class="zero" d="M{px(x(0.0))} {_TOP}V{bottom + 5}"/>'
    labels = tick_labels(x.ticks, percent=True)
    signed = [f"{'+' if tick > 0 else ''}{label}" for tick, label in zip(x.ticks, labels, strict=True)]
    words = ((_LEFT, "", "← worse"), (_WIDTH // 2, " mid", "points"), (_RIGHT, " end", "better →"))
    named = (f'<text class="name{kind}" x="{at}" y="{bottom + 52}">{escape(text)}</text>' for at, kind, text in words)
    axes = _axes(x, bottom, signed, after=zero, names="".join(named))
    names = distinct([effect.name for effect in effects], [""] * len(effects), _EFFECT_NAME)
    rows = [
        _effect(effect, name, _TOP + _EFFECT_ROW * at, x)
        for at, (effect, name) in enumerate(zip(effects, names, strict=True))
    ]
    # For screen readers the figure is one image: the table beside it has the numbers.
    return _figure("forest", ident, title, bottom + 58, axes, rows)


def _effect(effect: Effect, label: str, top: float, x: AxisScale) -> str:
    down, whisker = px(top + 31), ""
    if effect.lo is not None and effect.hi is not None:
        lo, hi = px(x(effect.lo)), px(x(effect.hi))
        whisker = f'<path class="whisker" d="M{lo} {down}H{hi}M{lo} {px(top + 27)}v8M{hi} {px(top + 27)}v8"/>'
    name = f'<text x="{_LEFT + 7}" y="{px(top + 16)}">{escape(label)}</text>'
    dot = f'<circle class="dot" cx="{px(x(effect.value))}" cy="{down}" r="5"/>'
    return f'<g class="effect {effect.tone}">{name}{whisker}{dot}</g>'


@dataclass(frozen=True, slots=True)
class Standing:
    """The score of a checkpoint with its interval. ``band`` has the ranks that it may have, empty for none; ``detail``
    what distinguishes it from others of its name, in parts separated by ", "; ``href`` leads to its run."""

    name: str
    value: float
    lo: float | None
    hi: float | None
    href: str
    band: str = ""
    detail: str = ""
    family: str = ""
    settings: str = ""


def standings(
    rows: Sequence[Standing], families: Mapping[str, int], *, ident: str, title: str, note: str, percent: bool = True
) -> Markup:
    """The figure of all ``rows`` in their order. ``families``: the class of each family; ``ident``: an id that is
    unique on the page; ``percent``: scores are shares from 0 to 1, shown in percent."""
    ends = [end for row in rows for end in (row.value, row.lo, row.hi) if end is not None]
    x = linear(ends, _LEFT + 8, _RIGHT - 8, percent)
    bottom = _TOP + _ROW * len(rows)
    axes = _axes(x, bottom, tick_labels(x.ticks, percent=percent))
    left = _LEFT + 12 + 14 * max(len(row.band) for row in rows)
    room = _RIGHT - _SCORE - left
    labels = fitting([row.name for row in rows], [row.detail for row in rows], room, 30)
    drawn = [
        _standing(row, label, families[row.family], left, _TOP + _ROW * at, x, percent)
        for at, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]
    return _figure("standings", ident, title, bottom + 36, axes, drawn, note, role="group")


def _standing(row: Standing, label: str, number: int, left: float, top: float, x: AxisScale, percent: bool) -> str:
    score, _, interval = with_interval(row.value, row.lo, row.hi, percent).partition(" ")
    facts = (row.name, f"{score} {interval}", row.band and f"rank {row.band}", row.detail, row.settings)
    height, down = px(top + 18), px(top + 33)
    whisker = "" if row.lo is None or row.hi is None else f'<path d="M{px(x(row.lo))} {down}H{px(x(row.hi))}"/>'
    return (
        f'<a class="f{number}" href="{escape(row.href)}">{frame.name_of(facts)}'
        f'<text x="{_LEFT}" y="{height}">{row.band or "–"} <tspan x="{px(left)}">{escape(label)}</tspan></text>'
        f'<text class="end" x="{_RIGHT}" y="{height}"><tspan>{score}</tspan> '
        f'<tspan class="way interval">{interval}</tspan></text>'
        f'{whisker}<path d="M{px(x(row.value))} {down}{frame.shape(number)}"/></a>'
    )


@dataclass(frozen=True, slots=True)
class Slope:
    """A recipe with the final scores of its seeds; ``detail`` has what distinguishes it from others of its name, in
    parts separated by ", ". A ``control`` is gray."""

    name: str
    scores: Sequence[float]
    detail: str = ""
    control: bool = False


def slopes(rows: Sequence[Slope], base: float | None, *, ident: str, title: str, percent: bool = True) -> Markup:
    """The figure of all ``rows``, highest mean first; ``base`` is the score before training (None: not evaluated), and
    ``ident`` an id that is unique on the page. ``percent``: scores are shares from 0 to 1, shown in percent."""
    ranked = sorted(rows, key=lambda row: -fmean(row.scores))
    known = [] if base is None else [base]
    x = linear([*known, *(score for row in ranked for score in row.scores)], _LEFT + 8, _RIGHT - 8, percent)
    bottom = _TOP + _ROW * len(ranked)
    dash = "" if base is None else f'<path class="dash" d="M{px(x(base))} {_TOP}V{bottom}"/>'
    axes = _axes(x, bottom, tick_labels(x.ticks, percent=percent), before=dash)
    room = _RIGHT - _LEFT - 7 - _SCORE
    labels = fitting([row.name for row in ranked], [row.detail for row in ranked], room, 60)
    drawn = [
        _slope(row, label, base, _TOP + _ROW * at, x, percent)
        for at, (row, label) in enumerate(zip(ranked, labels, strict=True))
    ]
    note = f"Dots are seeds, the large one is their mean{'' if base is None else '; the dashed line is the base'}."
    return _figure("slopes", ident, title, bottom + 36, axes, drawn, note)


def _slope(row: Slope, label: str, base: float | None, top: float, x: AxisScale, percent: bool) -> str:
    mean, down = fmean(row.scores), px(top + 33)
    line = "" if base is None else f'<path class="line" d="M{px(x(base))} {down}H{px(x(mean))}"/>'
    seeds = "".join(f'<circle class="seed" cx="{px(x(score))}" cy="{down}" r="3"/>' for score in row.scores)
    tone = "" if base is None or row.control else " up" if mean > base else " down" if mean < base else ""
    text = f"{label}: {chart_score(mean, percent)}{'%' if percent else ''}"
    name = f'<text x="{_LEFT + 7}" y="{px(top + 18)}">{escape(text)}</text>'
    return f'<g class="slope{tone}">{line}<circle class="dot" cx="{px(x(mean))}" cy="{down}" r="5"/>{seeds}{name}</g>'


def _axes(
    x: AxisScale, bottom: float, labels: Sequence[str], before: str = "", after: str = "", names: str = ""
) -> str:
    """The grid and its labels, with paths before and after the base line, and the names of the axis."""
    grid = "".join(f"M{px(x(tick))} {_TOP}V{bottom}" for tick in x.ticks)
    texts = (
        f'<text x="{px(x(tick))}" y="{bottom + 9}" dy=".8em">{label}</text>'
        for tick, label in zip(x.ticks, labels, strict=True)
    )
    return (
        f'<g class="axes" aria-hidden="true"><path class="grid" d="{grid}"/>{before}'
        f'<path class="base" d="M{_LEFT} {bottom}H{_RIGHT}"/>{after}<g class="mid">{"".join(texts)}</g>{names}</g>'
    )


def _figure(
    kind: str,
    ident: str,
    title: str,
    height: float,
    axes: str,
    rows: Sequence[str],
    note: str = "",
    role: str = "img",
) -> Markup:
    below = Markup('<p class="chart-note">{}</p>').format(note) if note else ""
    return Markup(
        '<figure class="chart {}"><figcaption id="{}">{}</figcaption>'
        '<svg viewBox="0 0 {} {}" role="{}" aria-labelledby="{}">{}</svg>{}</figure>'
    ).format(kind, ident, one_line(title, 160), _WIDTH, height, role, ident, Markup(axes + "".join(rows)), below)
