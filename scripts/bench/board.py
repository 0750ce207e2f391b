"""How long a site takes to build, how much memory that needs, and how heavy its first page is.

    python scripts/bench/board.py [--runs 300] [--tasks 12] [--documents 12000] [--quick]

Four figures, each in a process of its own, over made-up runs in the format of real ones: the board of many runs from
their result files alone; sample pages of one run with many documents (prompts of 1 kB, traces of 64 to 128 tokens, two
filters for half of them); the same with a tenth of the documents, to see whether memory grows with them; a rebuild
after one run more. The limits that the project sets itself stand beside them.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from run_factory import make_run

from dare_bench.runs.files import samples_name, traces_name

FAMILIES = ("llada", "dream", "sdar", "llada2")
GPUS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
WORDS = [
    "models",
    "reveal",
    "tokens",
    "where",
    "they",
    "are",
    "surest",
    "and",
    "mask",
    "the",
    "rest",
    "until",
    "the",
    "end",
]


def many_runs(root: Path, first: int, last: int, tasks: int) -> None:
    """Runs ``first`` to ``last - 1`` without their samples; their configs are as long as real ones."""
    for number in range(first, last):
        rng = random.Random(number)
        shares = {f"task_{at:02d}": round(rng.uniform(0.2, 0.95), 2) for at in range(tasks)}
        folder = make_run(
            root,
            f"model-{number:03d}-0123abcd",
            model=f"lab/{FAMILIES[number % 4]}-8b-instruct-{number:03d}",
            tasks=shares,
            gpu=GPUS[number % 2],
            created=f"2026-11-{1 + number % 20:02d}T{number % 24:02d}:{number % 60:02d}:00.000001",
        )
        for path in [*folder.glob("samples_*"), *folder.glob("traces_*")]:
            path.unlink()
        file = next(folder.glob("results_*"))
        results = json.loads(file.read_bytes())
        results["configs"] = {task: {"task": task, "doc_to_text": " ".join(WORDS * 60)} for task in shares}
        results["dare_bench"]["model"]["family"] = FAMILIES[number % 4]
        file.write_text(json.dumps(results, indent=2))


def many_samples(root: Path, documents: int) -> None:
    """One run of four tasks whose sample and trace files are blown up to ``documents`` in all."""
    tasks = {f"task_{at}": 0.5 for at in range(4)}
    folder = make_run(root, "samples-0123abcd", tasks=tasks, n_docs=20, digests=False)
    date = next(folder.glob("results_*")).stem.removeprefix("results_")
    rng = random.Random(0)
    for at, task in enumerate(tasks):
        rows = [json.loads(line) for line in (folder / samples_name(task, date)).read_text().splitlines()]
        with (
            (folder / samples_name(task, date)).open("w") as samples,
            (folder / traces_name(task, date)).open("w") as traces,
        ):
            for doc in range(documents // len(tasks)):
                _document(
                    samples, traces, rng, rows[doc % len(rows)], doc, ("none", "flexible") if at % 2 else ("none",)
                )


def _document(samples: Any, traces: Any, rng: random.Random, row: dict[str, Any], doc: int, filters: Any) -> None:
    key, length = f"{row['dare_bench'][0]['key']}-{doc}", rng.randint(64, 128)
    pieces = [f" {word}" for word in rng.choices(WORDS, k=length)]
    prompt = " ".join(rng.choices(WORDS, k=180))
    made = dict(row, doc_id=doc, resps=[["".join(pieces)]])
    made["arguments"] = {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n\n"], "max_gen_toks": length}}}
    made["dare_bench"] = [dict(row["dare_bench"][0], key=key, trace_ref=key)]
    for name in filters:
        samples.write(json.dumps(dict(made, filter=name)) + "\n")
    order = rng.sample(range(length), length)
    events = [[s, "set", at, rng.randrange(126_000), round(rng.random(), 4)] for s, at in enumerate(order)]
    trace = {"key": key, "doc_id": doc, "repeat": 0, "prompt_tokens": 200, "pieces": pieces, "events": events}
    traces.write(json.dumps(trace) + "\n")


def measured(runs: Path, out: Path, samples: bool) -> dict[str, float]:
    """A build in a process of its own: seconds (imports included), MiB at most, parts written."""
    code = (
        "import json, sys; from dare_bench.leaderboards.builder import build;"
        "made = build(sys.argv[1], sys.argv[2], samples=sys.argv[3] == 'True'); print(json.dumps(made.record()))"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)",
         str(runs), str(out), str(samples)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    record, peak = done.stdout.splitlines()
    return {"seconds": seconds, "mib": int(peak) / 1024, **json.loads(record)}


def first_load(site: Path) -> int:
    """Bytes of the front page with all sheets and scripts that it asks for."""
    html = (site / "index.html").read_text()
    assets = set(re.findall(r'(?:src|href)="([^"]+\.(?:js|css))"', html))
    return len(html.encode()) + sum((site / place).stat().st_size for place in assets)


def line(what: str, value: str, limit: str) -> None:
    print(f"{what:<46} {value:>14}   {limit}", flush=True)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--documents", type=int, default=12_000)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it work at all")
    args = parser.parse_args()
    if args.quick:
        args.runs, args.tasks, args.documents = 6, 3, 80
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        many_runs(root / "runs", 0, args.runs, args.tasks)
        board = measured(root / "runs", root / "site", samples=False)
        line(f"board, {args.runs} runs x {args.tasks} tasks", f"{board['seconds']:.1f} s", "under 60 s")
        line("  memory", f"{board['mib']:.0f} MiB", "under 500 MB")
        line("  first load", f"{first_load(root / 'site') / 1e3:,.0f} kB", "under 1 MB")
        many_runs(root / "runs", args.runs, args.runs + 1, args.tasks)
        again = measured(root / "runs", root / "site", samples=False)
        line("rebuilt after one run more", f"{again['seconds']:.1f} s", "under 5 s")
        line("  parts written", f"{again['made']:.0f}", "")
        for part in (10, 1):
            many_samples(root / f"samples-{part}", args.documents // part)
            pages = measured(root / f"samples-{part}", root / f"site-{part}", samples=True)
            limit = "under 30 s" if part == 1 else ""
            line(f"sample pages, {args.documents // part:,} documents", f"{pages['seconds']:.1f} s", limit)
            line("  memory", f"{pages['mib']:.0f} MiB", "under 500 MB")
            size = sum(path.stat().st_size for path in (root / f"site-{part}").rglob("*") if path.is_file())
            largest = max(path.stat().st_size for path in (root / f"site-{part}").rglob("*.html"))
            line("  on disk; largest page", f"{size / 1e6:,.0f} MB; {largest / 1e3:,.0f} kB", "")


if __name__ == "__main__":
    main()
