"""Hold the bundled checkpoints against the baselines in leaderboards/baselines, or renew these.

    python scripts/baselines.py --output-path regress    # writes NAME.xml and NAME.md; leaves with the worst exit code
    python scripts/baselines.py --update                 # after a change that is meant: look at the diff, then commit

A baseline says itself what was evaluated: checkpoint, tasks, limit and seeds; decoding settings are the defaults, so a
changed default shows as exit code 2. About 20 seconds for all on one core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "leaderboards" / "baselines"


def verb(*words: str | Path) -> int:
    """``dare-bench regress`` in this process; its exit code."""
    from dare_bench.cli import main

    try:
        main(["regress", *map(str, words)])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def evaluate(file: Path, folder: Path) -> Path:
    """A new run of what a baseline holds; its directory."""
    from dare_bench import evaluate as work
    from dare_bench.analysis.baseline import read

    known = read(file)
    run = work(
        model=known.checkpoint.name, tasks=tuple(known.tasks), limit=known.limit, seeds=known.seeds,
        repeats=known.repeats, harness=known.harness, device="cpu", dtype=known.checkpoint.dtype,
        output_path=str(folder / "runs"), fresh=True, progress=False,
    )  # fmt: skip
    return run.path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="baselines, such as tiny-llada (default: all)")
    parser.add_argument("--output-path", "-o", help="keep runs and reports here (default: nowhere)")
    parser.add_argument("--update", action="store_true", help="renew the baselines")
    given = parser.parse_args()
    files = [FOLDER / f"{name}.json" for name in given.names] or sorted(FOLDER.glob("*.json"))
    with tempfile.TemporaryDirectory() as passing:
        out = Path(given.output_path or passing)
        out.mkdir(parents=True, exist_ok=True)
        codes = []
        for file in files:
            reports = ("--junit", out / f"{file.stem}.xml", "--markdown", out / f"{file.stem}.md")
            codes.append(verb(evaluate(file, out), "-b", file, *(("--update",) if given.update else reports)))
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
