"""Numbers and settings as text for the pages and charts of the site."""

from __future__ import annotations

import json
import math
from typing import Any

from dare_bench.runs.scores import Score, is_share
from dare_bench.runs.text import one_line

_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def figure(value: float | int | None, digits: int = 1) -> str:
    """A number with separated thousands and ``digits`` decimals (none from 1000 on); "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        digits = 0
    return f"{value:,.{digits}f}"


def percent(value: float | None, score: Score | None = None) -> str:
    """A share in percent with one decimal; with a ``score`` that is no share, four significant digits."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}" if score is None or is_share(score) else f"{value:.4g}"


def compact(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits and a unit: 0.25, 12, 2k, 1.5M."""
    size, unit = abs(value), ""
    for limit, name in _UNITS:
        if size >= limit * (1 - 0.5 * 10.0**-digits):
            size, unit = size / limit, name
            break
    text = f"{size:.{digits}g}"
    if "e" in text:
        mantissa, _, power = text.partition("e")
        text = f"{mantissa}e{int(power)}"
    return ("−" if value < 0 and text != "0" else "") + text + unit


def score_text(value: float, share: bool) -> str:
    """A score on a chart: a share in percent with one decimal, any other score with four significant digits."""
    return percent(value) if share else compact(value, 4)


def with_interval(value: float, lo: float | None, hi: float | None, share: bool) -> str:
    """A score on a chart with its interval: "52.4 % (46.2–58.6)"."""
    text = score_text(value, share) + (" %" if share else "")
    return text if lo is None or hi is None else f"{text} ({score_text(lo, share)}–{score_text(hi, share)})"


def plain_value(value: Any) -> str:
    """The value of a setting as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        # Strings are quoted: stop strings may contain commas and spaces.
        parts = (json.dumps(v, ensure_ascii=False) if isinstance(v, str) else plain_value(v) for v in value)
        return ", ".join(parts) or "none"
    return str(value)


def number(value: Any, digits: int | None = None) -> str:
    """A number from a run's files for reading; any other value as it is, on one line."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (int, float)) or abs(value) >= 1e15 or not math.isfinite(value):
        return one_line(str(value)[:240], 60)
    if isinstance(value, int) or (value == int(value) and digits is None):
        return figure(int(value))
    return f"{value:.3g}" if digits is None or abs(value) < 10**-digits else figure(value, digits)


def seconds(value: Any) -> str:
    """A time from a run's files for reading; empty if it is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return ""
    return f"{value:.2g} s" if value < 10 else f"{figure(round(value))} s"
