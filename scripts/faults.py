"""Faults at random moments of evaluations, trainings, sweeps and site builds, and what became of them.

    .venv/bin/python scripts/faults.py [--only REGEX] [--rounds N] [--seed N] [--json FILE] [--markdown FILE]

Each case is a command, a fault and a number of rounds. The command is run once without a fault; then, in each round, in
a folder of its own, the fault comes at a random moment of it (of the time that the unbroken run took or, in every other
round, of the samples and checkpoints that it made), and the same command is run again until it ends. The round fails if
what it then has differs from the unbroken run's result (apart from dates and times), if something that was finished at
the fault was lost or done again, if a process or a file is left over, or if the command did not say in one line what
happened.

Full disks need root or user namespaces (``unshare``); without them these cases are skipped, and the table says so.
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
from signal import SIGHUP, SIGTERM

from faults.commands import Hangs, start, warm
from faults.holds import differences, finished, lost, results
from faults.inject import (
    Fault,
    Met,
    Scene,
    clock_back,
    close_reader,
    full_disk,
    kill,
    kill_worker,
    shift_clock,
    stop_by,
    two_processes,
)  # fmt: skip

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
FAULTS: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGKILL of a worker": kill_worker,
    "SIGTERM": stop_by(SIGTERM),
    "SIGHUP": stop_by(SIGHUP),
    "stdout closed": close_reader("stdout"),
    "stderr closed": close_reader("stderr"),
    "full disk": full_disk,
    "two processes": two_processes,
    "clock set back": clock_back,
}
ROUNDS: dict[tuple[str, str], int] = {
    ("eval", "SIGKILL"): 15,
    ("eval", "SIGTERM"): 4,
    ("eval", "SIGHUP"): 3,
    ("eval", "stdout closed"): 2,
    ("eval", "stderr closed"): 3,
    ("eval", "full disk"): 6,
    ("eval", "two processes"): 2,
    ("eval", "clock set back"): 4,
    ("eval, OpenCompass", "SIGKILL"): 15,
    ("eval --devices 2", "SIGKILL"): 8,
    ("eval --devices 2", "SIGKILL of a worker"): 2,
    ("eval --devices 2", "SIGTERM"): 2,
    ("train", "SIGKILL"): 6,
    ("train", "SIGTERM"): 3,
    ("train", "stderr closed"): 2,
    ("train", "full disk"): 6,
    ("train", "two processes"): 2,
    ("train", "clock set back"): 2,
    ("sweep", "SIGKILL"): 5,
    ("sweep", "SIGTERM"): 3,
    ("sweep", "full disk"): 4,
    ("sweep", "two processes"): 2,
    ("leaderboard build", "SIGKILL"): 6,
    ("leaderboard build", "SIGTERM"): 2,
    ("leaderboard build", "full disk"): 5,
    ("leaderboard build", "two processes"): 2,
}
IN_NAMESPACE = "FAULTS_IN_NAMESPACE"


@dataclass
class FaultRow:
    """A case's line of the table. ``moments``: rounds by how far the command was when the fault came."""

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
    """The folders of all rounds, and the unbroken run of each command."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unbroken: dict[str, tuple[dict, dict[str, str], float, int]] = {}

    def unbroken(self, command: str) -> tuple[dict, dict[str, str], float, int]:
        """(results, finished units, seconds, bytes) of a command that nothing happened to."""
        if command not in self._unbroken:
            folder = self.folder(f"unbroken {command}")
            self.prepare(command, folder)
            running = start(COMMANDS[command].split(), folder)
            code = running.wait()
            seconds = time.monotonic() - running.began
            if code:
                raise SystemExit(f"error: without any fault {command!r} leaves with {code}:\n{running.said()}")
            taken = sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*"))
            self._unbroken[command] = results(folder), finished(folder), seconds, taken
        return self._unbroken[command]

    def folder(self, name: str) -> Path:
        made = self.root / "".join(char if char.isalnum() else "-" for char in name)
        made.mkdir()
        return made

    def prepare(self, command: str, folder: Path) -> None:
        """Put into a folder what the command reads."""
        if command == "sweep":
            (folder / "sweep.yaml").write_text(SWEEP)
        if command == "leaderboard build":
            self.unbroken("eval")
            shutil.copytree(self.root / "unbroken-eval" / "out", folder / "runs", copy_function=shutil.copy2)

    def round(self, command: str, fault: str, number: int, rounds: int, seed: int, row: FaultRow) -> list[str]:
        """One round; returns what was wrong. A moment that came too late is drawn again, earlier, twice at most."""
        rng = random.Random(f"{seed} {command} {fault} {number}")
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
        """How far the command was when the fault came, and what was wrong."""
        command, fault = row.command, row.fault
        wanted, units, seconds, taken = self.unbroken(command)
        folder, moment = self.folder(f"{command} {fault} {name}"), "too late"
        if fault != "full disk":
            self.prepare(command, folder)
        words = COMMANDS[command].split()
        answered = _answers(units)
        # Every other moment is one of the work, as starting up and scoring take most of the time of commands so small.
        after = 1 + int(share * (answered - 1)) if counted and answered else None
        scene = Scene(words, folder, share, seconds, taken, rng, after)
        scene.prepare = lambda place: self.prepare(command, place)  # type: ignore[attr-defined]
        try:
            met = FAULTS[fault](scene)
            before = finished(folder)
            moment = _moment(met, _answers(before), answered)
            row.slowest = max(row.slowest, met.seconds or 0.0)
            back = 2 * 86400.0 if fault == "clock set back" else 0.0
            again = start(words, folder, (lambda: shift_clock(0.0, 40 * 86400.0)) if back else lambda: None)
            code = again.wait()
            problems = [*met.problems]
            problems += [f"the same command again leaves with {code}: {again.said()[-300:]}"] if code else []
            problems += lost(before, finished(folder)) + differences(results(folder), wanted)
        except Hangs as hang:
            problems = [str(hang)]
        if problems:
            shutil.copytree(folder, folder.with_name(f"{folder.name}-failed"))
        if fault == "full disk":
            subprocess.run(["umount", folder], check=True)
        shutil.rmtree(folder)
        return moment, problems


def _answers(units: dict[str, str]) -> int:
    """Finished samples and checkpoints."""
    return sum(unit.startswith(("sample ", "checkpoint ")) for unit in units)


def _moment(met: Met, done: int, whole: int) -> str:
    if not met.in_time:
        return "too late"
    return "before the first" if done == 0 else "among them" if done < whole else "after the last"


def cases(only: str) -> Iterator[tuple[str, str]]:
    return (case for case in ROUNDS if re.search(only, ", ".join(case), re.IGNORECASE))


def namespace() -> str:
    """Go on in a mount namespace of our own, where a disk may be mounted; why not, where that is refused."""
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
    parser.add_argument(
        "--only", default="", help="cases whose 'command, fault' has a match of this regular expression"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each case (default: as in ROUNDS)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--markdown", type=Path, help="rewrite the table between the marks of this file")
    asked = parser.parse_args()
    chosen = list(cases(asked.only))
    if not chosen:
        raise SystemExit(f"error: no case holds {asked.only!r}; there are {'; '.join(map(', '.join, ROUNDS))}")
    why_not = namespace() if any(fault == "full disk" for _, fault in chosen) else ""
    warm()
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    rows: list[FaultRow] = []
    for row in make(FaultBench(root), chosen, asked.rounds, asked.seed, why_not):
        rows.append(row)
        if asked.json is not None:
            asked.json.write_text(json.dumps([vars(row) for row in rows], indent=2) + "\n")
        if asked.markdown is not None:
            _rewrite(asked.markdown, rows)
    print("\n".join([HEAD, *(row.text() for row in rows)]))
    if failed := sum(len(row.failures) for row in rows):
        raise SystemExit(f"error: {failed} rounds failed; their folders are in {root}")
    shutil.rmtree(root)


def _rewrite(file: Path, rows: list[FaultRow]) -> None:
    """Put rows into the table of a Markdown file; those of cases that were not run stay."""
    head, _, rest = file.read_text().partition(HEAD)
    old, _, tail = rest.partition("\n\n")
    lines = {tuple(line.split(" | ")[:2]): line for line in old.splitlines() if line}
    lines |= {tuple(row.text().split(" | ")[:2]): row.text() for row in rows}
    file.write_text("\n".join([f"{head}{HEAD}", *lines.values()]) + f"\n\n{tail}")


def make(
    bench: FaultBench, chosen: list[tuple[str, str]], rounds: int | None, seed: int, why_not: str
) -> Iterator[FaultRow]:
    """All rounds of the chosen cases, a line each."""
    todo = sum(rounds or ROUNDS[case] for case in chosen)
    done, began = 0, time.monotonic()
    for command, fault in chosen:
        row = FaultRow(command, fault, skipped=why_not if fault == "full disk" else "")
        for number in range(0 if row.skipped else rounds or ROUNDS[command, fault]):
            problems = bench.round(command, fault, number, rounds or ROUNDS[command, fault], seed, row)
            row.rounds += 1
            row.failures += ["; ".join(problems)] if problems else []
            done += 1
            left = (time.monotonic() - began) / done * (todo - done)
            told = f"FAILED: {'; '.join(problems[:6])}" if problems else "ok"
            print(
                f"[{done}/{todo}] {command}, {fault} {number + 1}: {told}; about {left / 60:.0f} min left", flush=True
            )
        yield row


if __name__ == "__main__":
    main()
