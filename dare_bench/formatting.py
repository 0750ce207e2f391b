"""Numbers, intervals and p-values as text, the same on a terminal, in Markdown, in LaTeX and on pages.

``share`` says that a value lies between 0 and 1 and is shown in percent; differences of shares are shown in percentage
points. Other values are shown in the metric's own unit. A value that does not exist is shown as a dash.
"""

from __future__ import annotations

import math

NONE = "—"


def percent(value: float | None, sign: str = "") -> str:
    """A share in percent, without the unit: 0.7968 is "79.68"."""
    return NONE if value is None else f"{100 * value:{sign}.2f}"


def number(value: float, share: bool, sign: str = "") -> str:
    """A value in a table whose heading names the unit: percent for a share, else four significant digits."""
    return percent(value, sign) if share else f"{value:{sign}.4g}"


def bounds(lo: float | None, hi: float | None, share: bool = True, sign: str = "") -> str:
    """An interval, its ends as :func:`number` shows them. ``sign``: "+" writes both signs."""
    return NONE if lo is None or hi is None else f"{number(lo, share, sign)} to {number(hi, share, sign)}"


def points(difference: float, share: bool = True) -> str:
    """The size of a difference: "1 point" or "2.35 points" of shares, else a number."""
    if not share:
        return f"{difference:.4g}"
    text = f"{100 * difference:.4g}"
    return f"{text} point" if text == "1" else f"{text} points"


def score_text(value: float, share: bool) -> str:
    """A score with its unit: "79.68 %", or as it is recorded; "none" for NaN."""
    if math.isnan(value):
        return "none"
    return f"{100 * value:.2f} %" if share else f"{value:.4f}" if abs(value) <= 1 else f"{value:.6g}"


def interval_text(lo: float | None, hi: float | None, share: bool) -> str:
    """The interval of a score, its ends as :func:`score_text` shows them."""
    return NONE if lo is None or hi is None else f"{score_text(lo, share)} to {score_text(hi, share)}"


def p_value(p: float | None) -> str:
    """A p-value with three decimals, four below 0.01; "< 0.0001" below that."""
    if p is None:
        return NONE
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.995 else "1"


def short_score(value: float, share: bool) -> str:
    """A score on a page: one decimal of a percentage."""
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"


def short_difference(value: float | None, share: bool) -> str:
    """A difference on a page: percentage points with one decimal, else three significant digits; zero has no sign."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{100 * value:+.1f}" if share else f"{value:+.3g}"
    return text.lstrip("+-") if not float(text) else text.replace("-", "−")


def short_bounds(lo: float | None, hi: float | None, share: bool) -> str:
    """The interval of a difference on a page."""
    return (
        "no interval" if lo is None or hi is None else f"{short_difference(lo, share)} to {short_difference(hi, share)}"
    )


def decimals_of(lo: float | None, hi: float | None) -> int | None:
    """Decimals that show two digits of an interval's half-width; None where the interval is missing or has no width."""
    half = 0.0 if lo is None or hi is None else (hi - lo) / 2
    return max(0, 1 - math.floor(math.log10(half))) if half > 0 and math.isfinite(half) else None
