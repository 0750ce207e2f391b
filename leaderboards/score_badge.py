"""The badge of a run: its score with the interval as a small drawing, ``badge/RUN.svg``, for a README."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dare_bench.formatting import short_range, short_score
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.charts.axes import px
from dare_bench.leaderboards.charts.labels import shorten, width
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.site import Site

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
    view = context.views[0]
    placed = {id(entry): (row, each) for row in view.rows for each in row.each for entry in each.entries}
    for entry in context.entries:
        row, each = placed.get(id(entry), (None, None))
        badge = badge_of(entry, view, row, each)
        if badge is not None:
            site.part(f"badge {entry.slug}", badge, partial(_write, site, entry, badge))


def _write(site: Site, entry: BoardEntry, badge: ScoreBadge) -> None:
    left, right = badge.widths
    texts = [(px(left / 2), badge.label), (px(left + right / 2), badge.value)]
    sizes = {"left": px(left), "right": px(right), "width": px(left + right)}
    site.page(place_of(entry), "badge.svg.j2", badge=badge, texts=texts, **sizes)


def place_of(entry: BoardEntry) -> str:
    return f"badge/{entry.slug}.svg"


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
