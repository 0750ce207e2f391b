"""Numbers, intervals and p-values as text, the same on a terminal, in Markdown, in LaTeX and on pages.

``share`` says that a value lies between 0 and 1 and is shown in percent; differences of shares are shown in percentage
points. Other values are shown in the metric's own unit. A value that does not exist is shown as a dash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def about_points(difference: float, share: bool = True) -> str:
    """The size of an estimated difference, two digits of it: "6.5 points", "13 points" of shares, else a number."""
    size = 100 * difference if share else difference
    digits = max(2, len(f"{abs(size):.0f}")) if math.isfinite(size) else 2
    text = f"{size:.{digits}g}"
    return f"{text} point{'' if text == '1' else 's'}" if share else text


def score_text(value: float, share: bool) -> str:
    """A score with its unit: "79.68%", or as it is recorded; "none" for NaN."""
    if math.isnan(value):
        return "none"
    return f"{100 * value:.2f}%" if share else f"{value:.4f}" if abs(value) <= 1 else f"{value:.6g}"


def interval_text(lo: float | None, hi: float | None, share: bool) -> str:
    """The interval of a score, its ends as :func:`score_text` shows them."""
    return NONE if lo is None or hi is None else f"{score_text(lo, share)} to {score_text(hi, share)}"


def p_value(p: float | None) -> str:
    """A p-value with three decimals, four below 0.01; "< 0.0001" below that."""
    if p is None:
        return NONE
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.995 else "1"


def p_text(p: float | None) -> str:
    """A p-value in running text: "p = 0.003", "p < 0.0001", "p > 0.99"."""
    if p is not None and p >= 0.995:
        return "p > 0.99"
    text = p_value(p)
    return f"p {text}" if text.startswith(("<", NONE)) else f"p = {text}"


def short_number(value: float | None, share: bool = True) -> str:
    """A score on a page, without unit: one decimal of a percentage, else four significant digits."""
    return "–" if value is None else f"{100 * value:.1f}" if share else f"{value:.4g}"


def short_score(value: float, share: bool) -> str:
    """A score on a page with its unit."""
    return short_number(value, share) + ("%" if share else "")


def short_range(lo: float | None, hi: float | None, share: bool) -> str:
    """The interval of a score on a page."""
    return "no interval" if lo is None or hi is None else f"{short_number(lo, share)}–{short_number(hi, share)}"


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


def figure(value: float | int | None, digits: int = 1) -> str:
    """A number on a page with separated thousands and ``digits`` decimals (none from 1000 on); "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        digits = 0
    return f"{value:,.{digits}f}"


def compact(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits and a unit: 0.25, 12, 2k, 1.5M."""
    size, unit = abs(value), ""
    for limit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= limit * (1 - 0.5 * 10.0**-digits):
            size, unit = size / limit, name
            break
    mantissa, exponent, power = f"{size:.{digits}g}".partition("e")
    text = f"{mantissa}e{int(power)}" if exponent else mantissa
    return ("−" if value < 0 and text != "0" else "") + text + unit


def chart_score(value: float, share: bool) -> str:
    """A score on a chart, without unit: one decimal of a percentage, else four significant digits."""
    return short_number(value, share) if share else compact(value, 4)


def with_interval(value: float, lo: float | None, hi: float | None, share: bool) -> str:
    """A score on a chart with its interval: "52.4% (46.2–58.6)"."""
    text = chart_score(value, share) + ("%" if share else "")
    return text if lo is None or hi is None else f"{text} ({chart_score(lo, share)}–{chart_score(hi, share)})"


def plain_value(value: Any) -> str:
    """The value of a setting in its usual notation."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        # Strings are quoted: stop strings may contain commas and spaces.
        parts = (json.dumps(v, ensure_ascii=False) if isinstance(v, str) else plain_value(v) for v in value)
        return ", ".join(parts) or "none"
    if isinstance(value, Mapping):  # a strategy with its settings
        rest = ", ".join(setting_text(k, v) for k, v in value.items() if k != "name" and v is not None)
        name = str(value.get("name", ""))
        return (f"{name} ({rest})" if name and rest else name or rest) or "none"
    return str(value)


def setting_text(name: str, value: Any) -> str:
    """A setting with its value: "steps 8"; "random" for one that is on, "no random" for one that is off."""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {plain_value(value)}"


def spread(values: Sequence[Any]) -> str:
    """Several tasks' values of one setting: the common value, lowest to highest of several numbers, or all values."""
    distinct = list({str(value): value for value in values}.values())
    if len(distinct) > 1 and all(isinstance(value, (int, float)) for value in distinct):
        return f"{min(distinct)}–{max(distinct)}"
    return " or ".join(plain_value(value) for value in distinct)


def by_task(values: Sequence[Any]) -> str:
    """The values of one setting in a run's tasks: "20", or "4–20 by task"."""
    return spread(values) + (" by task" if len({*map(str, values)}) > 1 else "")


def duration(seconds: float) -> str:
    """Seconds in words: ``8s``, ``3m 20s``, ``2h 05m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
