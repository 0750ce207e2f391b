"""Inject faults at random moments of evaluations, trainings, sweeps and site builds, and check the results.

    .venv/bin/python scripts/faults.py [--only REGEX] [--rounds N] [--seed N] [--json FILE] [--markdown FILE]

Each case is a command, a fault and a number of rounds. The command is run once undisturbed. In each round, in a
new folder, the fault is injected at a random moment (of the time of the undisturbed run or, in every other round, of
its samples and checkpoints), and then the same command is run to its end. A round fails if the results differ from the
undisturbed ones (apart from dates and times), if work that was finished at the fault was lost or repeated, if a process
or a file is left over, or if the command did not report the fault in one line.

Full disks need root or user namespaces (``unshare``); without them these cases are skipped and listed as such.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.commands import Hangs, start, warm
from faults.inject import FAULTS, FaultOutcome, Scene, shift_clock
from faults.state import differences, finished, lost, results

ROOT = Path(__file__).resolve().parents[1]
EVAL = "eval --model tiny-llada --tasks dare_sudoku,dare_arithmetic --limit 24 --batch-size 4 -o out"
COMMANDS = {
    "eval": EVAL,
    "eval, OpenCompass": "eval --harness opencompass --model tiny-llada --tasks ARC_c_gen --repeats 4 --seed 0"
    f" --gen-kwargs gen_length=8,temperature=0.5 --batch-size 2 --data-dir {ROOT / 'tests/data/bench'} -o out",
    "eval --devices 2": f"{EVAL} --devices 2",
    "train": "train sft --model tiny-llada-base --task dare_sudoku --rows 64 --max-steps 8 --seed 1"
    " --per-device-train-batch-size 8 --save-steps 2 --eval-every 4 --eval-tasks dare_sudoku --eval-limit 8 -o out",
    "sweep": "sweep sweep.yaml -o out",
    "leaderboard build": "leaderboard build runs -o out",
}
SWEEP = """
name: faults
models: [tiny-llada-base]
train: [{method: sft, task: dare_sudoku, max_steps: 4, rows: 64, per_device_train_batch_size: 8, report_to: [none]}]
eval: {tasks: [dare_sudoku], limit: 8}
board: true
"""
BY_COMMAND = {
    "eval": {
        "SIGKILL": 15, "SIGTERM": 4, "SIGHUP": 3, "stdout closed": 2, "stderr closed": 3, "full disk": 6,
        "two processes": 2, "clock set back": 4,
    },
    "eval, OpenCompass": {"SIGKILL": 15},
    "eval --devices 2": {"SIGKILL": 8, "SIGKILL of a worker": 2, "SIGTERM": 2},
    "train": {
        "SIGKILL": 6, "SIGTERM": 3, "stderr closed": 2, "full disk": 6, "two processes": 2, "clock set back": 2,
    },
    "sweep": {"SIGKILL": 5, "SIGTERM": 3, "full disk": 4, "two processes": 2},
    "leaderboard build": {"SIGKILL": 6, "SIGTERM": 2, "full disk": 5, "two processes": 2},
}  # fmt: skip
ROUNDS = {(command, fault): count for command, faults in BY_COMMAND.items() for fault, count in faults.items()}
IN_NAMESPACE = "FAULTS_IN_NAMESPACE"


@dataclass
class FaultRow:
    """A row of the table. ``moments``: number of rounds by the progress of the command at the fault."""

    command: str
    fault: str
    rounds: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    skipped: str = ""

    def text(self) -> str:
        if self.skipped:
            return f"| `{self.command}` | {self.fault} | 0 | | skipped: {self.skipped} |"
        moments = ", ".join(f"{self.moments[name]} {name}" for name in MOMENTS if self.moments[name])
        return f"| `{self.command}` | {self.fault} | {self.rounds} | {moments} | {len(self.failures)} |"


MOMENTS = ("before the first", "among them", "after the last", "too late")
HEAD = """| command | fault | rounds | the fault came (counted in finished samples and checkpoints) | failures |
|---|---|---|---|---|"""


class FaultBench:
    """The folders of all rounds, and the undisturbed run of each command."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._references: dict[str, tuple[dict, dict[str, str], float, int]] = {}

    def undisturbed(self, command: str) -> tuple[dict, dict[str, str], float, int]:
        """Results, finished units, seconds and bytes of a command without a fault."""
        if command not in self._references:
            folder = self.folder(f"undisturbed {command}")
            self.prepare(command, folder)
            running = start(COMMANDS[command].split(), folder)
            code = running.wait()
            seconds = time.monotonic() - running.started
            if code:
                raise SystemExit(f"error: without any fault {command!r} exits with {code}:\n{running.output()}")
            size = sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*"))
            self._references[command] = results(folder), finished(folder), seconds, size
        return self._references[command]

    def folder(self, name: str) -> Path:
        folder = self.root / "".join(char if char.isalnum() else "-" for char in name)
        folder.mkdir()
        return folder

    def prepare(self, command: str, folder: Path) -> None:
        """Write the input files of the command."""
        if command == "sweep":
            (folder / "sweep.yaml").write_text(SWEEP)
        if command == "leaderboard build":
            self.undisturbed("eval")
            shutil.copytree(self.root / "undisturbed-eval" / "out", folder / "runs", copy_function=shutil.copy2)

    def round(self, row: FaultRow, number: int, rounds: int, seed: int) -> list[str]:
        """Run one round; returns the problems. A moment that is too late is drawn again, earlier, at most twice."""
        rng = random.Random(f"{seed} {row.command} {row.fault} {number}")
        share = (number + rng.random()) / rounds
        for attempt in range(3):
            moment, problems = self._attempt(row, f"{number}-{attempt}", share / 2**attempt, number % 2 == 1, rng)
            if problems or moment != "too late":
                break
        row.moments[moment] += 1
        return problems

    def _attempt(
        self, row: FaultRow, name: str, share: float, counted: bool, rng: random.Random
    ) -> tuple[str, list[str]]:
        """The progress of the command at the fault, and the problems."""
        command, fault = row.command, row.fault
        expected, units, seconds, size = self.undisturbed(command)
        folder, moment = self.folder(f"{command} {fault} {name}"), "too late"
        if fault != "full disk":
            self.prepare(command, folder)
        arguments = COMMANDS[command].split()
        total = _answers(units)
        # Every other moment is counted in samples: in commands so small, startup and scoring take most of the time.
        after = 1 + int(share * (total - 1)) if counted and total else None
        scene = Scene(arguments, folder, share, seconds, size, rng, lambda: self.prepare(command, folder), after)
        try:
            outcome = FAULTS[fault](scene)
            before = finished(folder)
            moment = _moment(outcome, _answers(before), total)
            row.slowest = max(row.slowest, outcome.seconds or 0.0)
            shift = (lambda: shift_clock(0.0, 40 * 86400.0)) if fault == "clock set back" else lambda: None
            resumed = start(arguments, folder, shift)
            code = resumed.wait()
            problems = [*outcome.problems]
            problems += [f"the resumed command exits with {code}: {resumed.output()[-300:]}"] if code else []
            problems += lost(before, finished(folder)) + differences(results(folder), expected)
        except Hangs as hang:
            problems = [str(hang)]
        if problems:
            shutil.copytree(folder, folder.with_name(f"{folder.name}-failed"))
        if fault == "full disk":
            subprocess.run(["umount", folder], check=True)
        shutil.rmtree(folder)
        return moment, problems


def _answers(units: dict[str, str]) -> int:
    """The number of finished samples and checkpoints."""
    return sum(unit.startswith(("sample ", "checkpoint ")) for unit in units)


def _moment(outcome: FaultOutcome, done: int, total: int) -> str:
    if not outcome.in_time:
        return "too late"
    return "before the first" if done == 0 else "among them" if done < total else "after the last"


def enter_namespace() -> str:
    """Restart this script in a mount namespace, where it may mount a disk. If that is refused, return the reason."""
    if IN_NAMESPACE not in os.environ:
        options = "-m" if os.geteuid() == 0 else "-rm"
        probe = ["unshare", options, "mount", "-t", "tmpfs", "none", "/mnt"]
        if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
            return "mounting a small disk needs root or user namespaces"
        os.environ[IN_NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", options, sys.executable, *sys.argv])
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that 'command, fault' must match")
    parser.add_argument("--rounds", type=int, help="number of rounds per case (default: see BY_COMMAND)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--markdown", type=Path, help="update the table in this file")
    args = parser.parse_args()
    cases = [case for case in ROUNDS if re.search(args.only, ", ".join(case), re.IGNORECASE)]
    if not cases:
        raise SystemExit(f"error: no case matches {args.only!r}; the cases are {'; '.join(map(', '.join, ROUNDS))}")
    no_disk = enter_namespace() if any(fault == "full disk" for _, fault in cases) else ""
    warm()
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    rows: list[FaultRow] = []
    for row in run_cases(FaultBench(root), cases, args.rounds, args.seed, no_disk):
        rows.append(row)
        if args.json is not None:
            args.json.write_text(json.dumps([vars(row) for row in rows], indent=2) + "\n")
        if args.markdown is not None:
            _rewrite(args.markdown, rows)
    print("\n".join([HEAD, *(row.text() for row in rows)]))
    if failed := sum(len(row.failures) for row in rows):
        raise SystemExit(f"error: {failed} rounds failed; their folders are in {root}")
    shutil.rmtree(root)


def _rewrite(file: Path, rows: list[FaultRow]) -> None:
    """Replace rows in the table of a Markdown file; the rows of other cases are kept."""
    head, _, rest = file.read_text().partition(HEAD)
    old, _, tail = rest.partition("\n\n")
    lines = {tuple(line.split(" | ")[:2]): line for line in [*old.split("\n"), *(row.text() for row in rows)] if line}
    file.write_text("\n".join([f"{head}{HEAD}", *lines.values()]) + f"\n\n{tail}")


def run_cases(
    bench: FaultBench, cases: list[tuple[str, str]], rounds: int | None, seed: int, no_disk: str
) -> Iterator[FaultRow]:
    """Run all rounds of the cases, with a line for each. ``no_disk``: the reason why full disks are skipped."""
    total = sum(rounds or ROUNDS[case] for case in cases)
    done, started = 0, time.monotonic()
    for command, fault in cases:
        row = FaultRow(command, fault, skipped=no_disk if fault == "full disk" else "")
        count = 0 if row.skipped else rounds or ROUNDS[command, fault]
        for number in range(count):
            problems = bench.round(row, number, count, seed)
            row.rounds += 1
            row.failures += ["; ".join(problems)] if problems else []
            done += 1
            minutes = (time.monotonic() - started) / done * (total - done) / 60
            result = f"FAILED: {'; '.join(problems[:6])}" if problems else "ok"
            print(
                f"[{done}/{total}] {command}, {fault} {number + 1}: {result}; about {minutes:.0f} min left", flush=True
            )
        yield row


if __name__ == "__main__":
    main()
