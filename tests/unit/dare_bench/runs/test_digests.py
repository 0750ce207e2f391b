"""Runs know the digests of their samples and traces files, and so whether one was edited after the run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import toy_source
from run_factory import make_run, raise_scores
from toy_model import ToyModel

from dare_bench.analysis.pairing import mismatched_scores
from dare_bench.engine.evaluate import evaluate
from dare_bench.errors import RunError
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE, file_digest

toy_source.register()


def go(tmp_path: Path, limit: int, **fields: object) -> Run:
    given = {"tasks": "toygen,toychoice", "harness": "toy", "output_path": str(tmp_path), **fields}
    return evaluate(model=ToyModel(), progress=False, limit=limit, **given)


def sha256(path: Path | None) -> str:
    assert path is not None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_digests_are_those_of_the_files_also_of_a_run_that_grew(tmp_path: Path) -> None:
    seen = set()
    for limit in (2, 5):
        run = go(tmp_path, limit)
        assert run.block is not None
        for task, block in run.block.tasks.items():
            assert block.samples_sha256 == sha256(run.samples_file(task))
            assert (run.edited(task), run.traces_edited(task)) == (False, False if task == "toygen" else None)
        assert run.block.tasks["toygen"].traces_sha256 == sha256(run.traces_file("toygen"))
        assert run.block.tasks["toychoice"].traces_sha256 is None  # likelihoods leave no trace
        seen.add(run.block.tasks["toygen"].samples_sha256)
    assert len(seen) == 2


def test_a_finished_run_knows_its_results_file(tmp_path: Path) -> None:
    run = go(tmp_path, 2)
    assert run.results_edited is False
    assert run.results_file is not None
    run.results_file.write_bytes(run.results_file.read_bytes() + b"\n")
    assert Run(run.path).results_edited is True
    assert go(tmp_path, 3).results_edited is False  # written anew
    (run.path / DONE_FILE).unlink()
    assert Run(run.path).results_edited is None


@pytest.mark.parametrize("task", ["dare_sudoku", "choice_x"])
def test_a_score_that_its_documents_do_not_make_up(tmp_path: Path, task: str) -> None:
    folder = make_run(tmp_path, tasks={task: 0.4333}, n_docs=30, digests=False)
    assert mismatched_scores(Run(folder), task) == []
    raise_scores(folder)
    (result,) = mismatched_scores(Run(folder), task)
    assert "is 0.99, the mean over its sample lines 0.433" in result


def test_without_samples_there_is_nothing_to_know(tmp_path: Path) -> None:
    run = go(tmp_path, 2, log_samples=False)
    assert run.block is not None and run.block.tasks["toygen"].samples_sha256 is None
    assert run.edited("toygen") is None and run.edited("no such task") is None


def test_one_changed_byte_is_an_edit_of_that_task_alone(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path, tasks={"dare_sudoku": 0.5, "choice_x": 0.5}))
    file = run.samples_file("dare_sudoku")
    assert file is not None and run.edited("dare_sudoku") is False
    kept = file.stat()
    file.write_bytes(file.read_bytes().replace(b'"E1"', b'"E2"', 1))
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # size and time tell nothing
    assert file.stat().st_size == kept.st_size
    assert (run.edited("dare_sudoku"), run.traces_edited("dare_sudoku"), run.edited("choice_x")) == (True, False, False)
    traces = run.traces_file("dare_sudoku")
    assert traces is not None
    traces.write_bytes(traces.read_bytes()[:-1])
    assert run.traces_edited("dare_sudoku") is True
    file.unlink()
    assert run.edited("dare_sudoku") is None


def test_older_runs_do_not_know(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path, digests=False))
    assert run.edited("dare_sudoku") is None and run.traces_edited("dare_sudoku") is None


def test_a_large_file_is_hashed_and_a_missing_one_named(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"0123456789" * 100_000)
    assert file_digest(tmp_path / "big") == sha256(tmp_path / "big")
    with pytest.raises(RunError, match=r"cannot read .*gone'?: No such file"):
        file_digest(tmp_path / "gone")
