"""The cost of scoring in a sandboxed process: GSM8K with both harnesses, scored there and in this process.

    python scripts/bench/scoring.py --data-dir DIR [--limit 500] [--answered 20] [--gen-length 64] [--runs 5]

A bundled checkpoint answers the first questions, which gives the time per answer; these answers are repeated for all
documents, which are scored alternately with and without the sandboxed process. The overhead is the difference of the
medians as a share of the evaluation (answering and scoring). DIR contains GSM8K and a manifest (docs/data.md).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from timing import alternate

import dare_bench
from dare_bench.config import run_spec
from dare_bench.harness import task_source
from dare_bench.harness.lm_eval import source as lm_eval
from dare_bench.harness.opencompass import source as opencompass
from dare_bench.types import Sample

TASKS = {"lm-eval": "gsm8k", "opencompass": "gsm8k_gen"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    for name, default in (("limit", 500), ("answered", 20), ("gen-length", 64), ("runs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    model = dare_bench.load("tiny-llada").loaded
    for harness, task in TASKS.items():
        spec = run_spec(
            model="tiny-llada", harness=harness, tasks=task, limit=args.limit, data_dir=args.data_dir,
            decoding={"gen_length": args.gen_length},
        )  # fmt: skip
        source = task_source(harness)(spec, model)
        requests = source.requests()
        start = time.perf_counter()
        answers = [sample.answer for sample in model.generate(requests[: args.answered])]
        answering = (time.perf_counter() - start) * len(requests) / len(answers)
        samples = [Sample(request, answers[place % len(answers)]) for place, request in enumerate(requests)]

        def score(source: Any = source, samples: list[Sample] = samples) -> None:
            source.run(lambda _: samples)

        timing = alternate(score, lambda score=score: _in_this_process(score), args.runs, time.perf_counter)
        sandboxed, direct = (statistics.median(seconds) for seconds in (timing.slow, timing.fast))
        share = (sandboxed - direct) / (answering + direct)
        print(
            f"{harness} {task}, {len(requests)} documents: answers about {answering:.1f} s, scores here {direct:.2f} s,"
            f" in the sandboxed process {sandboxed:.2f} s (medians of {args.runs}):"
            f" {100 * share:.2f}% of the evaluation"
        )


def _in_this_process(score: Callable[[], None]) -> None:
    """Score without a sandbox."""

    def run(function: Callable[[], Any], *_: Any, **__: Any) -> Any:
        return function()

    with mock.patch.object(lm_eval, "score", run), mock.patch.object(opencompass, "score", run):
        score()


if __name__ == "__main__":
    main()
