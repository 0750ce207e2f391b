"""The exact cache on the bundled tiny-sdar, with few-shot prompts as an evaluation has them.

    python scripts/bench/bundled.py [--runs 5] [--threads 2] [--quick]

The same call with ``cache="none"``, which computes the whole prefix again in every step, and with ``cache="exact"``;
the tokens must be identical. Rows either share their examples or differ from the first token on.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from timing import options

import dare_bench

EXAMPLE = "sudoku\n.3.4\n4..3\n.431\n.14.\n=1324\n4213\n2431\n3142\n\n"


def prompts(rows: int, shared: bool, examples: int) -> list[str]:
    """Sudokus behind examples; where these are not shared, every row begins with figures of its own."""
    heads = ["" if shared else f"{k}{k + 1}" for k in range(rows)]
    return [f"{h}{EXAMPLE * examples}sudoku\n.{k % 4 + 1}..\n....\n..2.\n....\n=" for k, h in enumerate(heads)]


def timed(model: Any, texts: list[str], cache: str, gen: int) -> tuple[float, list[list[int]]]:
    start = time.perf_counter()
    answers = model.generate(
        texts,
        gen_length=gen,
        cache=cache,
        max_rows=len(texts),
        remasking_strategy="low_confidence_static",
        early_stop=False,
    )
    return time.perf_counter() - start, [answer.tokens for answer in answers]


def main() -> None:
    args = options(__doc__)
    model = dare_bench.load("tiny-sdar", device="cpu")
    examples, gen = (1, 4) if args.quick else (12, 32)
    print(f"tiny-sdar, float32, {args.threads} threads, answers of {gen} tokens in blocks of 4, {args.runs} runs")
    for rows, shared in ((1, True), (8, True), (8, False)):
        texts = prompts(rows, shared, examples)
        ratios = []
        for run in range(args.runs + 1):
            slow, wanted = timed(model, texts, "none", gen)
            fast, found = timed(model, texts, "exact", gen)
            if wanted != found:
                raise SystemExit("error: the exact cache gave other tokens")
            if run:  # the first one warms up
                ratios.append(slow / fast)
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        print(
            f"batch {rows}, prompts of {len(model.loaded.encode(texts[0]))} tokens, "
            f"{'examples shared' if shared else 'nothing shared'}: {statistics.median(ratios):.1f}x "
            f"(quartiles {low:.1f} to {high:.1f}), same tokens",
            flush=True,
        )


if __name__ == "__main__":
    main()
