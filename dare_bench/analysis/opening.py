"""Opening runs of any layout, with confidence intervals of external results computed from their samples."""

from __future__ import annotations

from functools import partial

from dare_bench.analysis.score_intervals import confidence_intervals
from dare_bench.runs import finding

open_run = partial(finding.open_run, intervals=confidence_intervals)
find_runs = partial(finding.find_runs, intervals=confidence_intervals)
iterate_runs = partial(finding.iterate_runs, intervals=confidence_intervals)
