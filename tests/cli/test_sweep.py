"""``dare-bench sweep`` for real: trainings of a bundled checkpoint, their evaluations, a board; then nothing again;
and names that nobody knows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import forkserver
from executor_jobs import until
from require import need_package
from safetensors.torch import load_file

import dare_bench
from dare_bench.analysis.run_finder import find_runs
from dare_bench.cli import main
from dare_bench.errors import CheckpointError, TrainingError, UsageError
from dare_bench.executors import devices
from dare_bench.sweeps import costs
from dare_bench.sweeps.run import refuse_unknown
from dare_bench.sweeps.sweep_graph import SweepNode

need_package("accelerate")
need_package("lm_eval")
FILE = """
name: first
models: [tiny-llada-base]
train: [{method: sft, task: dare_sudoku, max_steps: 2, rows: 64, seed: [0, 1], report_to: [none]}]
eval: {tasks: [dare_sudoku], limit: 4}
board: true
"""
NAME = "tiny-llada-base-sft-dare_sudoku-rows=64-max_steps=2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("sweep")
    (built / "first.yaml").write_text(FILE)
    return built


def command(folder: Path, *more: str, file: str = "first.yaml", out: str = "out") -> int:
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(folder / file), "--output-path", str(folder / out), *more])
    return int(left.value.code or 0)


def state(out: Path) -> dict[str, int]:
    """When each file of results was written."""
    kept = [file for name in ("train", "runs", "nodes", "site") for file in (out / name).rglob("*") if file.is_file()]
    return {str(file): file.stat().st_mtime_ns for file in kept if ".lock" not in file.name}


def test_a_dry_run_shows_the_graph_and_its_cost_and_writes_nothing(folder: Path, capsys: Any) -> None:
    assert command(folder, "--dry-run", out="dry") == 0
    shown = capsys.readouterr().out
    assert not (folder / "dry").exists()
    assert "6 nodes" in shown and shown.count("[to do]") == 6
    assert shown.count("at most 80 forwards") == 3  # 4 boards of 20 tokens, a token a forward
    flop = {float(value) for value in re.findall(r"update 8; (\S+) operations", shown)}
    rows, tokens = 2 * 8, 44  # 24 tokens of a puzzle, 20 of the canvas of its solution
    least = 6 * (dare_bench.load("tiny-llada-base", device="cpu").spec.parameters - 2 * 64 * 128)  # and attention
    assert len(flop) == 1 and rows * tokens * least * 0.7 < flop.pop() < rows * tokens * least * 1.5
    assert shown.count("2 steps of 8 items with rows of 44 tokens") == 2
    assert "nodes to do: 5" in shown and "assumed for GPU hours" in shown
    assert command(folder, "--dry-run", "--json", out="dry") == 2


def test_a_real_sweep_and_nothing_is_computed_twice(folder: Path, capsys: Any) -> None:
    assert command(folder) == 0
    output = capsys.readouterr()
    out = folder / "out"
    assert output.out.splitlines()[-1] == str(out / "site" / "index.html")
    assert "[6/6] board: done" in output.err
    runs = find_runs(out / "runs")
    assert len(runs) == 3 and {run.status for run in runs} == {"complete"}
    for seed in (0, 1):
        name = f"{NAME}-seed={seed}"
        assert dare_bench.load(out / "train" / name).spec.family == "llada"
        lineage = json.loads((out / "train" / name / "lineage.json").read_text())
        assert (lineage["method"], lineage["step"], lineage["seed"]) == ("sft", 2, seed)
        node = json.loads((out / "nodes" / "train" / name / "node.json").read_text())
        assert node["status"] == "done" and node["seconds"] > 0
        assert "step 1/2: loss" in (out / "nodes" / "train" / name / "log.txt").read_text()
    board = json.loads((out / "site" / "data" / "board.json").read_text())
    assert sorted(row["seeds"] for row in board["rows"]) == [1, 2], "the base, and one row of both seeds"
    before = state(out)
    assert command(folder, "--json") == 0
    again = capsys.readouterr()
    assert state(out) == before
    assert "0 nodes to do, 6 unchanged" in again.err
    result = json.loads(again.out)
    assert [node["status"] for node in result["nodes"]] == ["done"] * 6
    assert all(node["seconds"] > 0 for node in result["nodes"])
    assert command(folder, "--dry-run") == 0
    assert "all nodes are done" in capsys.readouterr().out
    assert state(out) == before


def test_python_sees_the_same_sweep(folder: Path) -> None:
    result = dare_bench.sweep(folder / "first.yaml", output_path=folder / "out", progress=False)
    assert result.complete and len(result.runs) == 3
    assert {run.headline("dare_sudoku").n for run in result.runs} == {4}


def test_a_sweep_kept_without_weights_is_done_and_says_what_it_cannot_do(folder: Path, capsys: Any) -> None:
    shutil.copytree(folder / "out", folder / "kept")
    for weights in (folder / "kept").rglob("*.safetensors"):
        weights.unlink()
    assert command(folder, "--dry-run", out="kept") == 0
    assert "all nodes are done" in capsys.readouterr().out
    (folder / "more.yaml").write_text(FILE.replace("limit: 4", "limit: 5"))
    assert command(folder, file="more.yaml", out="kept") == 4
    output = capsys.readouterr()
    assert output.out.count("was kept without its weights (*.safetensors), so that it cannot be evaluated again; ") == 2
    kept = folder / "kept" / "train" / f"{NAME}-seed=0"
    spec = json.loads((kept / "train.json").read_text())["spec"]
    with pytest.raises(TrainingError, match="holds this training without its weights"):
        dare_bench.train(**{**spec, **spec.pop("options"), "output_path": str(kept)})
    (kept / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json in it; this training was kept without its weights"):
        dare_bench.load(str(kept))


def test_a_training_on_other_rows_is_refused_and_kept(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    train = {"method": "sft", "data": str(data), "max_steps": 1, "report_to": ["none"]}
    fields = {"name": "rows", "models": "tiny-llada-base", "train": train}

    def run(answer: str) -> str:
        data.write_text(json.dumps({"prompt": "a", "completion": answer}) + "\n")
        (node,) = dare_bench.sweep(fields, output_path=tmp_path / "out", progress=False).nodes
        return node.error

    assert run("b") == ""
    (kept,) = (tmp_path / "out" / "train").glob("*/lineage.json")
    lineage = kept.read_text()
    assert run("b") == "", "the file was written again, with the same rows"
    assert "holds another training" in run("c") and kept.read_text() == lineage


def test_a_failed_node_is_an_exit_code_and_a_line(folder: Path, capsys: Any) -> None:
    (folder / "bad.yaml").write_text(
        "models: [tiny-llada-base]\ntrain: {method: sft, data: rows.jsonl, max_steps: 2}\n"
        "eval: {tasks: dare_sudoku, limit: 2}\nbase: false\nboard: true\n"
    )
    assert command(folder, file="bad.yaml", out="bad") == 4
    output = capsys.readouterr()
    assert "FAILED: train/tiny-llada-base-sft-rows-" in output.out and "rows.jsonl is not there" in output.out
    assert output.out.count("SKIPPED:") == 2 and "Traceback" not in output.err + output.out


def test_wrong_words_are_one_line(folder: Path, capsys: Any) -> None:
    (folder / "off.yaml").write_text("models: tiny-llada-base\ntrain: {method: sft, task: dare_sudoku, max_step: 3}\n")
    assert command(folder, file="off.yaml") == 2
    assert "train[0].max_step" in capsys.readouterr().err
    assert command(folder, file="none.yaml") == 2
    assert "cannot read" in capsys.readouterr().err


SFT = {"method": "sft", "task": "dare_sudoku", "rows": 64, "max_steps": 24, "save_steps": 4, "report_to": ["none"]}
SFT |= {"per_device_train_batch_size": 2}
KILLED = {
    "name": "killed",
    "models": ["tiny-llada-base"],
    "train": [SFT],
    "eval": {"tasks": ["dare_sudoku"], "limit": 2},
    "base": False,
}


def test_a_real_sweep_goes_on_where_its_worker_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "get_context", lambda _: forkserver)  # workers that import nothing again
    out, name = (
        tmp_path / "out",
        "tiny-llada-base-sft-dare_sudoku-rows=64-max_steps=24-per_device_train_batch_size=2-seed=0",
    )
    record = out / "nodes" / "train" / name / "node.json"
    with ThreadPoolExecutor(1) as pool:
        fields = {"executor": "devices", "devices": 2, "device": "cpu", "progress": False}
        running = pool.submit(dare_bench.sweep, KILLED, output_path=out, **fields)
        until(lambda: (out / "train" / name / "checkpoint-4" / "lineage.json").exists() or running.done())
        assert not running.done(), "killed in the middle"
        started = (record.parent / "log.txt").read_text()
        os.kill(int(re.search(r"process (\d+)", started)[1]), signal.SIGKILL)
        result = running.result(timeout=240)
    assert result.complete and len(result.runs) == 1
    assert json.loads(record.read_text())["seconds"] > 0
    assert "continuing after step" in (record.parent / "log.txt").read_text()
    whole = dare_bench.train(**SFT, model="tiny-llada-base", output_path=str(tmp_path / "whole"), device="cpu")
    killed = load_file(out / "train" / name / "model.safetensors")
    assert all(torch.equal(weight, killed[key]) for key, weight in load_file(whole.path / "model.safetensors").items())


GOOD = {
    "models": "tiny-llada-base",
    "train": {"method": "sft", "task": "dare_sudoku", "max_steps": 2, "rows": 8},
    "eval": {"tasks": "dare_sudoku", "limit": 2},
}


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["real", "dry"])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"eval": {"tasks": "dare_sudoko"}}, "dare_sudoko: unknown task 'dare_sudoko'; closest: dare_sudoku"),
        ({"eval": {"tasks": "dare_sudoku", "harness": "lm-evil"}}, "unknown harness 'lm-evil'; closest: lm-eval"),
        ({"train": {**GOOD["train"], "task": "dare_sudoko"}}, "seed=0: unknown training data 'dare_sudoko'; closest"),
        ({"models": "tiny-lada-base"}, "no checkpoint 'tiny-lada-base': no such folder or bundled name"),
        ({"models": {"model": "tiny-llada-base", "adapter": "./none"}}, "no checkpoint './none'"),
        ({"train": {**GOOD["train"], "noise": "unifrom"}}, "train[0]: noise='unifrom': must be 'uniform', 'even'"),
        ({"eval": {"tasks": "dare_sudoku", "gen_kwargs": {"stepz": 4}}}, "a decoding field 'stepz'; closest: steps"),
        ({"board": "maybe"}, "board: unknown board 'maybe'; "),
        ({"board": {"titel": "Mine"}}, "board: 'titel' is not a field of a board"),
        ({"board": {"board": "demo", "title": "Mine"}}, "board: 'board' is not a field of a board"),
    ],
)
def test_a_name_nobody_knows_is_a_usage_error(
    fields: dict[str, Any], says: str, dry: list[str], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "off.yaml").write_text(yaml.safe_dump({**GOOD, **fields}))
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "off.yaml"), "--output-path", str(tmp_path / "out"), *dry])
    output = capsys.readouterr()
    assert left.value.code == 2 and not output.out
    assert says in output.err and len(output.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_hub_ids_are_not_asked_for_and_what_is_done_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dare_bench.loading._from_hub", lambda name: pytest.fail(f"{name} was fetched"))
    nodes = [
        SweepNode("eval/a/b", "eval", {"model": "owner/name", "tasks": "dare_sudoku"}),
        SweepNode("eval/c/b", "eval", {"model": "gone", "tasks": "dare_sudoku"}),
    ]
    refuse_unknown(nodes, {"eval/a/b"})
    with pytest.raises(UsageError, match="eval/c/b: no checkpoint 'gone'"):
        refuse_unknown(nodes, {"eval/c/b"})


def test_a_dry_run_shows_what_would_fail_and_ends_with_a_usage_error(tmp_path: Path, capsys: Any) -> None:
    """Twelve completions are no groups of eight."""
    train = {"method": "cj_grpo", "task": "dare_sort", "num_generations": 8, "per_device_train_batch_size": [12, 16]}
    (tmp_path / "odd.yaml").write_text(
        yaml.safe_dump({"models": "tiny-llada-sort-base", "train": {**train, "max_steps": 2}})
    )
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "odd.yaml"), "--output-path", str(tmp_path / "out"), "--dry-run"])
    output = capsys.readouterr()
    assert left.value.code == 2 and "would fail: 12 completions" in output.err
    assert "per_device_train_batch_size=12" in output.err
    assert output.out.count("would fail") == 1 and "2 steps of 16 completions" in output.out


def test_a_dry_run_cuts_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = "word " * 200 + "end"
    monkeypatch.setattr(costs, "_cost", lambda *_: costs.NodeCost(text))
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "good.yaml"), "--output-path", str(tmp_path / "out"), "--dry-run"])
    output = capsys.readouterr().out
    assert not left.value.code and output.count(text) == 3
