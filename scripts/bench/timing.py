"""Alternating timed runs of two implementations: medians, quartiles and their ratio."""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of each run, slow and fast alternating, and the return values of the last runs."""

    slow: list[float]
    fast: list[float]
    slow_value: Any
    fast_value: Any

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.slow, self.fast, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def spread(self) -> str:
        """The median ratio and its quartiles as text."""
        low, _, high = quartiles(self.ratios)
        return f"{self.ratio:.2f}x (quartiles {low:.2f} to {high:.2f})"


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile; for a single value, three times that value."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def alternate(
    slow: Callable[[], Any], fast: Callable[[], Any], runs: int, clock: Callable[[], float] | None = None
) -> Timing:
    """Run both alternately, ``runs`` times each, so that other load affects both. The caller warms up.

    ``clock``: None is processor time with one thread, which other programs disturb less, and otherwise the time of day.
    """
    clock = clock or (time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
    seconds: tuple[list[float], list[float]] = ([], [])
    values = [None, None]
    for _ in range(runs):
        for side, function in enumerate((slow, fast)):
            start = clock()
            values[side] = function()
            seconds[side].append(clock() - start)
    return Timing(*seconds, *values)


def options(doc: str | None) -> Namespace:
    """The command line of the scripts that compare speeds; sets the number of threads. ``--quick`` is one run."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that the script works")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.runs = 1 if args.quick else args.runs
    return args
