"""The badge of a run: its score with the interval as a small drawing, ``badge/RUN.svg``, for a README."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from dare_bench.formatting import short_range, short_score
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.charts.axes import px
from dare_bench.leaderboards.charts.labels import width
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.rendering import render
from dare_bench.leaderboards.site import Site
from dare_bench.runs.text import shorten

_SCALE, _MARGIN = 11 / 12, 6.0
"""Size of the badge's text, as a share of that of labels on charts; and the space beside it."""


@dataclass(frozen=True, slots=True)
class ScoreBadge:
    """``label`` names what was measured, ``value`` is the score; ``title`` says all of it in words. ``partial``: some
    badge of the board says why the score is not ranked."""

    label: str
    value: str
    title: str
    partial: bool

    @property
    def widths(self) -> tuple[float, float]:
        """Of the label's and the value's half."""
        label, value = (round(_SCALE * width(text) + 2 * _MARGIN) for text in (self.label, self.value))
        return label, value


def write(site: Site, context: Context) -> None:
    """Write the badge of every run that has a score."""
    for slug, badge in badges(context).items():
        site.part(f"badge {slug}", badge, partial(_write, site, slug, badge))


def badges(context: Context) -> dict[str, ScoreBadge]:
    """The badge of every run that has a score, by its slug."""
    view = context.views[0]
    placed = {id(entry): (row, each) for row in view.rows for each in row.each for entry in each.entries}
    every = {entry.slug: badge_of(entry, view, *placed.get(id(entry), (None, None))) for entry in context.entries}
    return {slug: badge for slug, badge in every.items() if badge is not None}


def _write(site: Site, slug: str, badge: ScoreBadge) -> None:
    site.text(f"badge/{slug}.svg", drawing(badge, alone=True))


def drawing(badge: ScoreBadge, *, alone: bool = False) -> Markup:
    """The badge as SVG: in a page, or ``alone`` in a file."""
    left, right = badge.widths
    texts = [(px(left / 2), badge.label), (px(left + right / 2), badge.value)]
    sizes = {"left": px(left), "right": px(right), "width": px(left + right)}
    return Markup(render("badge.svg.j2", "", badge=badge, texts=texts, alone=alone, **sizes))


def line(site: Site, entry: BoardEntry) -> str:
    """The line of Markdown that shows a run's badge in a README, as a link to its checkpoint; ``SITE/`` stands for the
    address of the site where that is not known."""
    root = site.url or "SITE/"
    return f"[![dare-bench]({root}badge/{entry.slug}.svg)]({root}{entry.checkpoint_page})"


def badge_of(entry: BoardEntry, view: BoardView, row: BoardRow | None, each: BoardRow | None) -> ScoreBadge | None:
    """The mean that ranks, if the run alone has it; else the score of its first task; None without a score.

    Args:
        row: the run's row on the board, None if it is on none.
        each: that of its seed, if the row is one of several seeds; else the same.
    """
    reasons = row.unranked_by if row is not None else []
    if each is not None and each.entries == [entry] and each.mean is not None and view.of_mean:
        label, count, value, share = f"mean of {len(view.of_mean)} tasks", "", each.mean, True
        interval = each.mean_interval
        lo, hi = (interval.lo, interval.hi) if interval is not None else (None, None)
    else:
        score = entry.first_score
        if score is None:
            return None
        label, count, value, share = score.task, f", n {score.n_text}", score.value, score.is_share
        lo, hi = score.lo, score.hi
        reasons = [reason for reason in reasons if reason.kind != "missing"]
    bounds = "" if lo is None or hi is None else f" ({short_range(lo, hi, share)})"
    text = ", ".join([f"{short_score(value, share)}{bounds}{count}", *(reason.text for reason in reasons[:1])])
    return ScoreBadge(shorten(label, 40), shorten(text, 70), f"{entry.name.text}, {label}: {text}", bool(reasons))
