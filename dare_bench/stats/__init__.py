"""Statistics of scores, all by scipy and statsmodels (imported inside the functions: they take a second).

``intervals``: one score and its interval. ``paired``: two scores of the same documents.
"""

from __future__ import annotations

from dare_bench.stats.intervals import (
    BOOTSTRAP_FROM,
    BOOTSTRAP_TO,
    Interval,
    from_stderr,
    group_interval,
    interval,
    mean_of,
    ratio_interval,
    wilson,
)

__all__ = [
    "BOOTSTRAP_FROM",
    "BOOTSTRAP_TO",
    "Interval",
    "from_stderr",
    "group_interval",
    "interval",
    "mean_of",
    "ratio_interval",
    "wilson",
]
