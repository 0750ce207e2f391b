"""Alternating timed runs of two ways of doing one thing: medians, quartiles and their ratio."""

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
    """Seconds of each run, slow and fast taken in turn, and what the last runs returned."""

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
        """Median ratio and its quartiles, as they are printed."""
        low, _, high = quartiles(self.ratios)
        return f"{self.ratio:.2f}x (quartiles {low:.2f} to {high:.2f})"


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile; of one value, that value three times."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = job()
    return time.perf_counter() - start, value


def alternate(slow: Callable[[], Any], fast: Callable[[], Any], runs: int) -> Timing:
    """Run both in turn, ``runs`` times each, so that a busy minute of the machine falls on both. Warm up before."""
    slow_seconds, fast_seconds = [], []
    slow_value = fast_value = None
    for _ in range(runs):
        seconds, slow_value = timed(slow)
        slow_seconds.append(seconds)
        seconds, fast_value = timed(fast)
        fast_seconds.append(seconds)
    return Timing(slow_seconds, fast_seconds, slow_value, fast_value)


def options(doc: str | None) -> Namespace:
    """The command line of every script here; sets the threads. ``--quick`` means one run of the smallest sizes."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one run: does it work at all")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.runs = 1 if args.quick else args.runs
    return args
