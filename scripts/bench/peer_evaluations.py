"""``dare-bench eval`` and LLaDA's eval_llada.py from start to end, for ``peers.py``: the same checkpoint, tasks and
settings.

Model: the bundled ``tiny-llada``, in float32 on one thread. Tasks: ``dare_sudoku``, which generates, and a task of four
choices made from the data of ``dare_arithmetic``. Seconds are processor time of whole processes, imports and scoring
included. The comparison fails if the scores of the first task differ; log-likelihoods are drawn with other random
numbers, so the accuracies of the second are only printed.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import peer_process
from timing import Timing

import dare_bench

GEN = 20
CHOICES = """
task: choices
custom_dataset: !function utils.dataset
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""
UTILS = """
import json
from pathlib import Path


def dataset(**_):
    from datasets import Dataset

    lines = Path(__file__).with_name("test.jsonl").read_text().splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}
"""


def write_choices(folder: Path, tasks: Path) -> None:
    """A task of sums: four worked ones, then one with four answers of which one is right."""
    rng = random.Random(5)
    folder.mkdir(parents=True)
    docs = [json.loads(line) for line in (tasks / "dare_arithmetic" / "test.jsonl").read_text().splitlines()]
    texts = [f"{doc['a']}{doc['op']}{doc['b']}=" for doc in docs]
    shots = "".join(f"{text}{doc['answer']}\n" for text, doc in zip(texts[-4:], docs[-4:], strict=True))
    with (folder / "test.jsonl").open("w") as lines:
        for text, doc in zip(texts[:-4], docs[:-4], strict=True):
            choices = [str(doc["answer"] + change) for change in (0, 1, 10, 11)]
            rng.shuffle(choices)
            row = {"question": shots + text, "choices": choices, "label": choices.index(str(doc["answer"]))}
            print(json.dumps(row), file=lines)
    (folder / "choices.yaml").write_text(CHOICES)
    (folder / "utils.py").write_text(UTILS)


def cpu_seconds(words: list[str]) -> float:
    """Processor time of a process and of all that it has started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{log.read()[-4000:]}\nerror: {words[1]} ended with code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def score(folder: Path, task: str) -> float:
    """The main score of a task in the newest lm-eval result file below ``folder``."""
    path = max(folder.rglob("results*.json"), key=lambda path: path.stat().st_mtime)
    values = json.loads(path.read_text())["results"][task]
    return float(values["exact_match,none" if "exact_match,none" in values else "acc,none"])


@dataclass(frozen=True)
class Evaluation:
    """A task of ``include``, and how many documents and draws are asked for."""

    task: str
    include: Path
    model: str
    mask: int
    limit: int
    mc_num: int

    def shared(self, out: Path) -> list[str]:
        return ["--tasks", self.task, "--limit", str(self.limit), "--output_path", str(out)]

    def theirs(self, python: str, checkouts: str, out: Path) -> list[str]:
        fields = {"model_path": self.model, "mask_id": self.mask, "is_check_greedy": False, "mc_num": self.mc_num}
        fields |= {"gen_length": GEN, "block_length": GEN, "steps": GEN}
        words = ["--model", "llada_dist", "--model_args", ",".join(f"{key}={value}" for key, value in fields.items())]
        words += ["--include_path", str(self.include), "--device", "cpu", "--batch_size", str(min(self.mc_num, 32))]
        return [python, peer_process.__file__, "eval", checkouts, self.model, *words, *self.shared(out)]

    def ours(self, out: Path) -> list[str]:
        words = ["--model", self.model, "--dtype", "float32", "--device", "cpu"]
        words += [] if self.task == "dare_sudoku" else ["--include-path", str(self.include)]
        words += ["--gen-length", str(GEN), "--block-length", str(GEN), "--steps", str(GEN)]
        words += ["--likelihood-args", f"mc_num={self.mc_num},batch_size={min(self.mc_num, 32)},estimator=reference"]
        return [str(Path(sys.executable).with_name("dare-bench")), "eval", *words, *self.shared(out)]


def compare(case: Evaluation, python: str, checkouts: str, runs: int) -> str:
    """Alternating runs; their ratio, seconds and scores as text."""
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(runs):
            theirs, ours = Path(scratch, f"theirs-{number}"), Path(scratch, f"ours-{number}")
            times[0].append(cpu_seconds(case.theirs(python, checkouts, theirs)))
            times[1].append(cpu_seconds(case.ours(ours)))
        pair = score(theirs, case.task), score(ours, case.task)
    if case.task == "dare_sudoku" and pair[0] != pair[1]:
        raise SystemExit(f"error: {case.task}: the peer scores {pair[0]}, ours {pair[1]}; the comparison is void")
    seconds = " and ".join(f"{statistics.median(values):.1f} s" for values in times)
    return f"{Timing(*times, *pair).spread()}, {seconds}; scores {pair[0]:.3f} and {pair[1]:.3f}"


def evaluations(checkouts: str, python: str, limit: int, mc_num: int, runs: int) -> Iterator[str]:
    """A line for each task."""
    tasks = Path(dare_bench.__file__).parent / "tasks"
    with tempfile.TemporaryDirectory() as scratch:
        folder, added = Path(scratch, "model"), Path(scratch, "tasks")
        model = dare_bench.load("tiny-llada", dtype="float32", device="cpu")
        model.save(folder)
        write_choices(added / "choices", tasks)
        for task, place in (("dare_sudoku", tasks / "dare_sudoku"), ("choices", added)):
            case = Evaluation(task, place, str(folder), model.spec.mask, limit, mc_num)
            yield f"{task:<12} {compare(case, python, checkouts, runs)}"
