"""How long a site takes to build, how much memory that needs, and how heavy its first page is.

    python scripts/bench/board.py [--runs 300] [--tasks 12] [--documents 12000] [--quick]

Four builds, each in its own process, of synthetic runs in the published format: the board of many runs from their
result files alone; a rebuild after one more run; sample pages of one run with many documents (prompts of 1 kB, traces
of 64 to 128 tokens, two filters for half of them), and with a tenth of the documents, to see whether memory grows with
them. The project's limits are printed next to the results.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from run_factory import make_run
from timing import command_line

from dare_bench.runs.run_files import samples_name, traces_name

FAMILIES = ("llada", "dream", "sdar", "llada2")
GPUS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
SENTENCE = "models reveal tokens where they are surest and mask the rest until the end"
WORDS = SENTENCE.split()

BUILD = """
import json, resource, sys
from dare_bench.leaderboards.builder import build

print(json.dumps(build(sys.argv[1], sys.argv[2], samples=sys.argv[3] == "True").record()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


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
    """One run of four tasks with ``documents`` samples and traces in all."""
    tasks = {f"task_{at}": 0.5 for at in range(4)}
    folder = make_run(root, "samples-0123abcd", tasks=tasks, n_docs=20, digests=False)
    date = next(folder.glob("results_*")).stem.removeprefix("results_")
    rng = random.Random(0)
    for at, task in enumerate(tasks):
        rows = [json.loads(line) for line in (folder / samples_name(task, date)).read_text().splitlines()]
        samples_file, traces_file = folder / samples_name(task, date), folder / traces_name(task, date)
        filters = ("none", "flexible") if at % 2 else ("none",)
        with samples_file.open("w") as samples, traces_file.open("w") as traces:
            for doc in range(documents // len(tasks)):
                _document(samples, traces, rng, rows[doc % len(rows)], doc, filters)


def _document(samples: Any, traces: Any, rng: random.Random, row: dict[str, Any], doc: int, filters: Any) -> None:
    """Write a sample for each filter, and a trace."""
    key, length = f"{row['dare_bench'][0]['key']}-{doc}", rng.randint(64, 128)
    pieces = [f" {word}" for word in rng.choices(WORDS, k=length)]
    prompt = " ".join(rng.choices(WORDS, k=180))
    sample = dict(row, doc_id=doc, resps=[["".join(pieces)]])
    sample["arguments"] = {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n\n"], "max_gen_toks": length}}}
    sample["dare_bench"] = [dict(row["dare_bench"][0], key=key, trace_ref=key)]
    for name in filters:
        samples.write(json.dumps(dict(sample, filter=name)) + "\n")
    order = rng.sample(range(length), length)
    events = [[s, "set", at, rng.randrange(126_000), round(rng.random(), 4)] for s, at in enumerate(order)]
    trace = {"key": key, "doc_id": doc, "repeat": 0, "prompt_tokens": 200, "pieces": pieces, "events": events}
    traces.write(json.dumps(trace) + "\n")


def measured(runs: Path, out: Path, samples: bool) -> dict[str, float]:
    """A build in its own process: seconds (with imports), maximum memory in MiB, and its record."""
    start = time.perf_counter()
    command = [sys.executable, "-c", BUILD, str(runs), str(out), str(samples)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    record, peak = process.stdout.splitlines()
    return {"seconds": seconds, "mib": int(peak) / 1024, **json.loads(record)}


def first_load(site: Path) -> int:
    """Bytes of the front page with its style sheets and scripts."""
    html = (site / "index.html").read_text()
    assets = set(re.findall(r'(?:src|href)="([^"]+\.(?:js|css))"', html))
    return len(html.encode()) + sum((site / place).stat().st_size for place in assets)


def line(label: str, value: str, limit: str) -> None:
    print(f"{label:<46} {value:>14}   {limit}", flush=True)


def main() -> None:
    args = command_line(__doc__, runs=300, tasks=12, documents=12_000, quick=False)
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
        line("rebuilt after one more run", f"{again['seconds']:.1f} s", "under 5 s")
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
