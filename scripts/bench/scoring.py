"""What it costs to score in a sandboxed process: GSM8K by both harnesses, scored there and in the process itself.

    python scripts/bench/scoring.py --data-dir DIR [--limit 500] [--answered 20] [--gen-length 64] [--runs 5]

A bundled checkpoint answers the first questions, which gives the time for one answer; their answers stand for those of
all documents, which are scored in turn with and without the sandboxed process. The overhead is the difference of the
medians, as a share of the whole evaluation (answers and scores). DIR has GSM8K's data and a manifest (docs/data.md).
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import Any

import dare_bench
from dare_bench.config import run_spec
from dare_bench.harness.lm_eval import source as lm_eval
from dare_bench.harness.opencompass import source as opencompass
from dare_bench.registry import registry
from dare_bench.types import Sample

TASKS = {"lm-eval": "gsm8k", "opencompass": "gsm8k_gen"}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--answered", type=int, default=20)
    parser.add_argument("--gen-length", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    model = dare_bench.load("tiny-llada").loaded
    for harness, task in TASKS.items():
        spec = run_spec(
            model="tiny-llada", harness=harness, tasks=task, limit=given.limit, data_dir=given.data_dir,
            decoding={"gen_length": given.gen_length},
        )  # fmt: skip
        source = registry().get("harness", harness).load()(spec, model)
        requests = source.requests()
        start = time.perf_counter()
        answers = [sample.answer for sample in model.generate(requests[: given.answered])]
        answering = (time.perf_counter() - start) * len(requests) / len(answers)
        samples = [Sample(request, answers[place % len(answers)]) for place, request in enumerate(requests)]
        seconds: dict[str, list[float]] = {"here": [], "sandboxed": []}
        for _ in range(given.runs):
            for where in seconds:
                seconds[where].append(
                    _timed(where, lambda source=source, samples=samples: source.run(lambda _: samples))
                )
        here, sandboxed = (statistics.median(values) for values in seconds.values())
        share = (sandboxed - here) / (answering + here)
        print(
            f"{harness} {task}, {len(requests)} documents: answers about {answering:.1f} s, scores here {here:.2f} s,"
            f" in the sandboxed process {sandboxed:.2f} s (medians of {given.runs}):"
            f" {100 * share:.2f} % of the evaluation"
        )


def _timed(where: str, run: Callable[[], Any]) -> float:
    modules: list[Any] = [lm_eval, opencompass]
    originals = [module.score for module in modules]
    if where == "here":
        for module in modules:
            module.score = lambda function, *_, **__: function()
    try:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.score = original


if __name__ == "__main__":
    main()
