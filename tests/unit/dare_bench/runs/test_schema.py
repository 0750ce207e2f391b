"""The schema of result files: what is published, what is read, what is refused, and whether a file was edited after
the run."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import toy_source
from paths import ROOT
from run_factory import make_run, raise_scores
from toy_model import ToyModel

from dare_bench.analysis.pairing import mismatched_scores
from dare_bench.engine.evaluate import evaluate
from dare_bench.errors import RunError
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE, file_digest
from dare_bench.runs.schema import SCHEMA_VERSION, json_schema, parse_block

PUBLISHED = ROOT / "docs" / "results.schema.json"

# A block as version 1 wrote it. It stays as it is when the schema grows: old files must stay readable.
VERSION_1: dict[str, Any] = {
    "schema_version": 1, "status": "complete", "run_id": "m-gsm8k-0011", "created": "2026-11-20T10:00:00",
    "model": {"name": "m", "path": None, "family": "llada", "content_hash": "x", "dtype": "float32", "parameters": 10},
    "harness": {"name": "lm-eval", "version": "0.4.13"},
    "tasks": {"gsm8k": {"fingerprint": "f", "n_docs": 2, "n_total": 1319, "limit_applied": True,
                        "decoding": {"steps": 64}, "likelihood": {}, "tier": "E1", "requests": 2}},
    "seeds": [0, 1234, 1234, 1234], "limit": 2, "command": "dare-bench eval", "environment": {"python": "3.11.7"},
    "decoding_requested": {"steps": 64},
    "cost": {"requests": 2, "nfe": 100, "forwards": 64, "tokens": 128, "tokens_to_eos": 80, "decoded_tokens": 96,
             "seconds": 1.5, "tokens_per_s": 53.3, "tpf": 0.8, "occupancy": 0.9, "peak_memory_mb": None},
    "ci": {"gsm8k": {"exact_match,strict-match": {"method": "Wilson", "level": 0.95, "lo": 0.1, "hi": 0.9, "n": 2}}},
    "failures": [{"task": "gsm8k", "doc_id": 1, "error": "too long"}],
    "resumed_from": [{"date": "2026-11-20T09:00:00", "samples": 1}],
    "events": [{"what": "memory ran out: rows halved", "before": 8, "after": 4}], "notes": ["a note"],
}  # fmt: skip


def test_published_schema_is_what_the_code_gives() -> None:
    built = json.dumps(json_schema(), indent=2) + "\n"
    assert PUBLISHED.read_text() == built, "write json_schema() to docs/results.schema.json again"


def test_a_written_run_validates_against_the_published_schema(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    folder = make_run(tmp_path, tasks={"dare_sudoku": 0.9, "choice_x": 0.5}, failures=1)
    schema = json.loads(PUBLISHED.read_text())
    results = json.loads(next(folder.glob("results_*.json")).read_text())
    jsonschema.validate(results, schema)
    for pattern, name in (("samples_*.jsonl", "SampleLine"), ("traces_*.jsonl", "TraceLine")):
        part = {**schema, "$ref": f"#/$defs/{name}"}
        lines = [json.loads(line) for file in folder.glob(pattern) for line in file.read_text().splitlines()]
        assert lines
        for line in lines[:3] + lines[-3:]:
            jsonschema.validate(line, part)
    results["dare_bench"]["status"] = "splendid"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(results, schema)


def test_version_1_is_read() -> None:
    block = parse_block(copy.deepcopy(VERSION_1), "results.json")
    assert block.tasks["gsm8k"].decoding == {"steps": 64}
    assert block.events[0].model_extra == {"before": 8, "after": 4}
    assert block.seeds == (0, 1234, 1234, 1234)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "upgrade"),
        ({"schema_version": 0}, "schema_version=0"),
        ({"schema_version": "1"}, "whole number"),
        ({"schema_version": True}, "whole number"),
        ({"status": "fine"}, "status='fine'"),
        ({"tasks": {"t": {}}}, "tasks.t.fingerprint"),
        ({"surprise": 1}, "'surprise' is not a field"),
    ],
)
def test_what_is_refused_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError) as caught:
        parse_block({**copy.deepcopy(VERSION_1), **change}, "some/results.json")
    assert words in str(caught.value) and "some/results.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_of_another_program_is_named() -> None:
    with pytest.raises(RunError, match="not written by dare-bench"):
        parse_block(None, "results.json")


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
