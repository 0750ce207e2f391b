"""Doing a sweep's graph: every node resumes, failures stay alone, what is done is done once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from command import forkserver
from filelock import FileLock
from sweep_jobs import act, play, told

from dare_bench.errors import RunError
from dare_bench.executors import devices
from dare_bench.sweeps.run import SweepResult, sweep

NAMES = {seed: f"tiny-llada-base-sft-dare_sudoku-max_steps=2-seed={seed}" for seed in (0, 1, 2)}
BASE = "eval/tiny-llada-base/dare_sudoku"


def trained(seed: int) -> str:
    return f"train/{NAMES[seed]}"


def evaluated(seed: int, name: str = "dare_sudoku") -> str:
    return f"eval/{NAMES[seed]}/{name}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(out: Path, seeds: Iterable[int] = (0, 1), board: Any = True, **more: Any) -> SweepResult:
    spec = {
        "name": "toy",
        "models": ["tiny-llada-base"],
        "train": [{"method": "sft", "task": "dare_sudoku", "max_steps": 2, "seed": list(seeds)}],
        "eval": more.pop("eval", {"tasks": "dare_sudoku", "limit": 4}),
        "board": board,
    }
    return sweep(spec, output_path=out, job=play, progress=more.pop("progress", False), **more)


def status(found: SweepResult) -> dict[str, str]:
    return {node.id: node.status for node in found.nodes}


def node(out: Path, name: str) -> dict[str, Any]:
    return json.loads((out / "nodes" / name / "node.json").read_text())


ALL = [BASE, trained(0), evaluated(0), trained(1), evaluated(1)]


def test_all_nodes_once_and_never_again(out: Path) -> None:
    result = run(out)
    assert told(out) == ALL
    assert result.complete and set(status(result).values()) == {"done"} and not result.failed
    assert len(result.runs) == 3 and all(r.status == "complete" for r in result.runs)
    assert result.site is not None and "tiny-llada-base-sft" in result.site.read_text()
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.is_file() and file.name != "sweep.json"}
    assert run(out).complete
    assert told(out) == ALL
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_log_and_cost_of_a_node_are_its_own(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(out, progress=True)
    for name in ALL:
        log = (out / "nodes" / name / "log.txt").read_text()
        assert f"logged by {name}" in log and f"printed by {name}" in log
        assert not any(f"by {other}\n" in log for other in ALL if other != name)
        record = node(out, name)
        assert record["seconds"] >= 0
        assert "process" in record["where"]
    output = capsys.readouterr().err
    assert "printed by" not in output and f"{trained(0)}: started in process " in output
    assert f"[5/6] {evaluated(1)}: done in" in output and "[6/6] board: done" in output


def test_a_failure_keeps_only_what_depends_on_it(out: Path) -> None:
    act(out, **{trained(0): "fail"})
    result = run(out)
    assert status(result) == {
        BASE: "done", trained(0): "failed", evaluated(0): "skipped", trained(1): "done", evaluated(1): "done",
        "board": "done",
    }  # fmt: skip
    assert not result.complete and [item.id for item in result.failed] == [trained(0), evaluated(0)]
    assert node(out, trained(0))["error"] == f"{trained(0)} was told to fail"
    assert "DataError" in (out / "nodes" / trained(0) / "log.txt").read_text()
    assert result.site is not None and f"seed={0}" not in result.site.read_text()


def test_what_failed_is_tried_again_and_the_board_then_shows_it(out: Path) -> None:
    act(out, **{trained(0): "fail"})
    run(out)
    act(out)
    result = run(out)
    assert result.complete
    assert told(out)[4:] == [trained(0), evaluated(0)]
    assert not node(out, trained(0))["error"]
    assert result.site is not None and "seed=0" in result.site.read_text()


def test_only_failed_leaves_new_nodes_alone(out: Path) -> None:
    act(out, **{evaluated(0): "fail"})
    run(out)
    act(out)
    result = run(out, seeds=(0, 1, 2), only_failed=True)
    assert told(out)[5:] == [evaluated(0)]
    assert status(result)[trained(2)] == status(result)[evaluated(2)] == "pending"
    assert status(result)[evaluated(0)] == status(result)["board"] == "done"
    assert not result.complete


def test_only_failed_trains_again_what_is_gone(out: Path) -> None:
    act(out, **{evaluated(0): "fail"})
    run(out)
    act(out)
    shutil.rmtree(out / trained(0))
    shutil.rmtree(out / trained(1))
    run(out, only_failed=True)
    assert told(out)[5:] == [trained(0), evaluated(0)]


def test_a_larger_file_does_only_what_is_new_and_a_smaller_one_keeps_the_rest(out: Path) -> None:
    run(out)
    result = run(out, seeds=(0, 1, 2))
    assert told(out)[5:] == [trained(2), evaluated(2)]
    result = run(out, seeds=(1,))
    assert len(told(out)) == 7 and result.complete
    assert (out / trained(0) / "model.safetensors").exists()


def test_another_limit_is_the_same_node_done_again(out: Path) -> None:
    run(out)
    run(out, eval={"tasks": "dare_sudoku", "limit": 8})
    assert told(out)[5:] == [BASE, evaluated(0), evaluated(1)]


def test_results_that_are_gone_are_made_again(out: Path) -> None:
    result = run(out)
    lost = next(item for item in result.nodes if item.id == evaluated(0)).runs[0].id
    shutil.rmtree(out / "runs" / lost)
    run(out)
    assert told(out)[5:] == [evaluated(0)]


def test_other_weights_of_a_training_are_evaluated_anew(out: Path) -> None:
    run(out)
    shutil.rmtree(out / trained(0))
    run(out)
    assert told(out)[5:] == [trained(0), evaluated(0)], "which returns its finished run if the same weights came out"
    runs = len(list((out / "runs").iterdir()))
    (out / trained(0) / "model.safetensors").write_text("other")
    run(out)
    assert told(out)[7:] == [evaluated(0)] and len(list((out / "runs").iterdir())) == runs + 1


def test_another_data_file_is_given_to_the_training(out: Path) -> None:
    data = out.parent / "rows.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    time.sleep(0.02)
    spec = {
        "models": "tiny-llada-base",
        "train": {"method": "sft", "data": str(data)},
        "eval": {"tasks": "dare_sudoku"},
    }
    (name,) = [item.id for item in sweep(spec, output_path=out, job=play, progress=False).nodes if item.kind == "train"]
    count = len(told(out))
    sweep(spec, output_path=out, job=play, progress=False)
    assert len(told(out)) == count
    time.sleep(0.02)  # of which file systems tell the order
    data.write_text('{"prompt": "a", "completion": "c"}\n')
    sweep(spec, output_path=out, job=play, progress=False)
    assert told(out)[count] == name, "the training says whether the rows are others"
    count = len(told(out))
    data.unlink()
    sweep(spec, output_path=out, job=play, progress=False)
    assert len(told(out)) == count, "data that was moved away does not undo what was trained on it"


def test_a_node_whose_worker_dies_fails_alone_in_worker_processes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers that import nothing again; the tests of the executors start them as users do.
    monkeypatch.setattr(devices, "get_context", lambda _: forkserver)
    act(out, **{trained(0): "die"})
    result = run(out, executor="devices", devices=2, device="cpu")
    assert status(result)[trained(0)] == "failed" and status(result)[evaluated(0)] == "skipped"
    assert status(result)[evaluated(1)] == status(result)["board"] == "done"
    assert "died" in node(out, trained(0))["error"]
    act(out)
    assert run(out, executor="devices", devices=2, device="cpu").complete
    assert told(out)[-2:] == [trained(0), evaluated(0)]


def test_what_is_tried_again_adds_its_seconds(out: Path) -> None:
    """Here after a kill, as earlier versions recorded it."""
    run(out)
    file = out / "nodes" / trained(1) / "node.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"status": "running", "where": "gone", "seconds": 1000.0}))
    assert run(out).complete
    assert told(out)[5:] == [trained(1), evaluated(1)]
    record = node(out, trained(1))
    assert 1000 < record["seconds"] < 1100 and record["where"] != "gone"


def test_a_killed_sweep_goes_on_with_the_node_that_it_was_at(out: Path) -> None:
    act(out, **{trained(1): "interrupt"})
    with pytest.raises(KeyboardInterrupt):
        run(out)
    act(out)
    result = run(out)
    assert result.complete and told(out)[4:] == [trained(1), evaluated(1)]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("seconds", "text", r"seconds='text'"),
        ("seconds", float("nan"), r"seconds=nan"),
        ("seconds", -1, r"seconds=-1"),
        ("status", "ended", r"status='ended'"),
        ("runs", "text", r"runs='text'"),
        ("runs 0", 5, r"runs\.0=5"),
        ("runs 0 id", "../other", r"runs\.0\.id='\.\./other'"),
        ("runs 0 id", "..", r"runs\.0\.id='\.\.'"),
    ],
)
def test_a_node_file_of_others_is_refused_in_a_line_and_nothing_is_written_elsewhere(
    out: Path, place: str, value: Any, said: str
) -> None:
    run(out, seeds=(0,), board=False)
    file = out / "nodes" / BASE / "node.json"
    record = json.loads(file.read_text())
    inner = record
    *path, last = [int(part) if part.isdigit() else part for part in place.split()]
    for part in path:
        inner = inner[part]
    inner[last] = value
    file.write_text(json.dumps(record))
    before = sorted(out.parent.rglob("node.json"))
    with pytest.raises(RunError, match=said):
        run(out, seeds=(0,), board=False)
    assert sorted(out.parent.rglob("node.json")) == before


def test_a_board_is_declared_in_the_file_or_named(out: Path) -> None:
    result = run(out, board={"title": "Two seeds", "tasks": ["dare_sudoku"], "rank_by": "dare_sudoku"})
    assert result.site is not None and "Two seeds" in result.site.read_text()
    result = run(out, board="demo")
    assert result.site is not None and "dare-bench demo" in result.site.read_text()
    assert len(told(out)) == 5


def test_what_killed_writers_left_goes(out: Path) -> None:
    run(out)
    left = [folder / ".dare-0123456789abcdef.tmp" for folder in (out, out / "nodes" / BASE)]
    for file in left:
        file.write_text("half a file")
    run(out)
    assert not any(file.exists() for file in left)


def test_a_folder_is_one_sweeps_at_a_time(out: Path) -> None:
    run(out)
    with FileLock(out / ".lock"), pytest.raises(RunError, match="in use by another sweep"):
        run(out)
