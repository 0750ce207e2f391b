"""How many tokens bfloat16 changes on the bundled checkpoints, against float32 and with different batch sizes.

    python scripts/bench/flips.py [--limit 100] [--quick]

Each checkpoint answers the same documents of our own tasks, --limit of each, in float32, in bfloat16 with the largest
batch, and in bfloat16 one row at a time. The output has the shares of tokens and of documents that differ, and the
scores.
"""

from __future__ import annotations

import tempfile
from typing import Any

from timing import command_line

import dare_bench
from dare_bench import Run

NAMES = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2")
TASKS = ("dare_sudoku", "dare_arithmetic")


def tokens(run: Run, task: str) -> dict[str, list[str]]:
    """The tokens of each answer, by the key of the request."""
    return {trace["key"]: trace["pieces"] for trace in run.traces(task)}


def flipped(first: dict[str, list[str]], second: dict[str, list[str]]) -> str:
    """Shares of tokens (with missing ones) and of documents that differ."""
    if first.keys() != second.keys():
        raise SystemExit("the runs have different documents; give each its own output folder")
    pairs = [(answer, second[key]) for key, answer in first.items()]
    total = sum(max(map(len, pair)) for pair in pairs)
    same = sum(a == b for pair in pairs for a, b in zip(*pair, strict=False))
    return f"{(total - same) / total:.2%} of {total}, {sum(a != b for a, b in pairs)} of {len(pairs)}"


def main() -> None:
    args = command_line(__doc__, limit=100, quick=False)
    limit, names = (2, NAMES[:1]) if args.quick else (args.limit, NAMES)
    print("| checkpoint, task | tokens, documents against float32 | one row at a time | score: float32, bfloat16 |")
    print("|---|---|---|---|")
    fields: dict[str, Any] = {"tasks": TASKS, "limit": limit, "device": "cpu", "progress": False}
    for name in (f"{name}{end}" for name in names for end in ("", "-base")):
        with tempfile.TemporaryDirectory() as out:
            exact = dare_bench.evaluate(model=name, dtype="float32", output_path=f"{out}/32", **fields)
            half = dare_bench.evaluate(model=name, dtype="bfloat16", output_path=f"{out}/16", **fields)
            alone = dare_bench.evaluate(model=name, dtype="bfloat16", max_rows=1, output_path=f"{out}/1", **fields)
            for task in TASKS:
                float32, batched, single = (tokens(run, task) for run in (exact, half, alone))
                headlines = [run.headline(task) for run in (exact, half)]
                scores = ", ".join(f"{100 * score.value:.1f}%" for score in headlines if score is not None)
                changes = f"{flipped(batched, float32)} | {flipped(batched, single)}"
                print(f"| {name}, {task} | {changes} | {scores} |", flush=True)


if __name__ == "__main__":
    main()
