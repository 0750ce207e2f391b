"""The whole program on a real checkpoint and real tasks: evaluate, kill, resume, extend, refuse."""

from __future__ import annotations

import copy
import json
import math
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import command
import pytest
from calls import call

from dare_bench.runs.reader import Run

TASKS = "dare_sudoku,dare_arithmetic"


def words(out: Path, *more: str) -> list[str]:
    return ["eval", "--model", "tiny-llada", "--tasks", TASKS, "--output-path", str(out), "--max-rows", "4", *more]


def run(out: Path, *more: str, code: int = 0) -> CompletedProcess[str]:
    done = command.run(*words(out, *more))
    assert done.returncode == code, done.stderr
    return done


APPROXIMATE = ("value", "stderr")
"""Sums of floats: rows that share a forward round them differently, in the sixth digit. All else is equal."""


def answers(out: Path) -> dict[str, Any]:
    """The sample lines of a run by document, without the time each took."""
    result: dict[str, Any] = {}
    opened = Run(next(path for path in out.iterdir() if path.is_dir()))
    for task in opened.tasks:
        for line in opened.samples(task):
            for answer in line["dare_bench"]:
                answer.pop("seconds")
                answer.pop("tokens_per_s", None)
            result[f"{task}/{line['doc_id']}/{line['filter']}"] = line
    return result


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Equal sample lines; the approximate numbers to 1e-4."""
    left, right = copy.deepcopy(left), copy.deepcopy(right)
    numbers: list[dict[str, float]] = []
    for lines in (left, right):
        result = {}
        for key, line in lines.items():
            for i, answer in enumerate(line["dare_bench"]):
                result |= {f"{key}/{i}/{name}": answer.pop(name) for name in APPROXIMATE if name in answer}
        numbers.append({name: value for name, value in result.items() if value is not None})
    assert left == right
    assert numbers[0].keys() == numbers[1].keys()
    apart = [name for name, value in numbers[0].items() if not math.isclose(value, numbers[1][name], abs_tol=1e-4)]
    assert apart == []


def journaled(out: Path) -> list[bytes]:
    files = list(out.glob("*/journal/*.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines() if b'"type":"sample"' in line]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    return out, run(out, "--limit", "10")


def test_results_are_where_the_last_line_says(unbroken):
    _, done = unbroken
    results = json.loads(Path(done.stdout.strip().splitlines()[-1]).read_text())
    assert results["dare_bench"]["status"] == "complete"
    assert results["dare_bench"]["tasks"]["dare_sudoku"]["tier"] == "E1"
    # 10 documents of a model that solves most boards: anything near zero is a broken pipeline, not bad luck.
    assert results["results"]["dare_sudoku"]["exact_match,none"] >= 0.6
    assert results["results"]["dare_arithmetic"]["exact_match,none"] >= 0.3
    table = __import__("lm_eval.utils", fromlist=["make_table"]).make_table(results)
    assert "dare_sudoku" in table


def test_killed_and_resumed_gives_the_same_samples(unbroken, tmp_path):
    child = command.start(words(tmp_path, "--limit", "10"))
    deadline = time.monotonic() + 200
    while len(journaled(tmp_path)) < 3 and child.is_alive() and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    child.join()
    before = journaled(tmp_path)
    assert 3 <= len(before) < 20, "killed in the middle"
    done = run(tmp_path, "--limit", "10")
    after = journaled(tmp_path)
    assert after[: len(before)] == before
    assert len(after) == 20
    assert f"resuming: {len(before)} of 20" in done.stderr
    assert_same(answers(tmp_path), answers(unbroken[0]))


def test_a_larger_limit_extends_and_a_finished_run_is_printed_again(unbroken, tmp_path):
    assert call(words(tmp_path, "--limit", "4", "--max-rows", "3"))[0] == 0
    small = answers(tmp_path)
    assert call(words(tmp_path, "--limit", "10"))[0] == 0
    assert len(list(tmp_path.iterdir())) == 1
    large = answers(tmp_path)
    assert_same(large, answers(unbroken[0]))
    assert_same(small, {key: large[key] for key in small})
    count = len(journaled(tmp_path))
    code, _, err = call(words(tmp_path, "--limit", "10"))
    assert code == 0 and "the run is finished" in err
    assert len(journaled(tmp_path)) == count == 20


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        (["--tasks", "cruxeval_input"], 2, "outside the sandbox"),
        (["--tasks", "gsm8kk"], 2, "closest: gsm8k"),
        (["--model", "tiny-lama", "--tasks", "dare_sudoku"], 2, "no checkpoint 'tiny-lama'"),
        (["--tasks", "dare_sudoku", "--block-length", "7"], 2, "block_length=7"),
    ],
)
def test_refusals_are_one_line(tmp_path, asked, code, says):
    left, _, err = call(["eval", "--model", "tiny-llada", "--output-path", str(tmp_path), *asked, "--limit", "2"])
    assert left == code
    assert says in err
    assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1
    assert "Traceback" not in err
