"""``scripts/gpu.py`` on the CPU and on the pretend device, and that ``scripts/faults.py`` notices what it is there
to notice."""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pretend_device
import pytest
import torch
from paths import ROOT
from run_factory import make_run

from dare_bench.engine.journal import Journal


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "scripts" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)
    spec.loader.exec_module(module)
    before = set(sys.modules)
    with pretend_device.available():
        yield module
    for name in set(sys.modules) - before:
        if "scripts" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_part_runs_on_a_device(gpu):
    lines = {name: list(part.run("pretend", True)) for name, part in gpu.PARTS.items()}
    assert [line.split(":")[1].split(",")[0] for line in lines["values"]] == [" 4 of 4 answers equal"] * 2
    assert all("auto is padded" in line for line in lines["attention"])
    assert lines["tests"] == ["skipped: they need CUDA, which pretend is not"]
    assert lines["frames"][0].startswith("skipped: CUDA") and len(lines["roofline"]) == 5
    assert all("at least" in line and " by " in line for line in lines["roofline"][1::2])
    assert [line.rpartition(", ")[2] for line in lines["sampler"][::2]] == ["100% of the tokens equal"] * 2
    counts = re.match(r"tiny-llada: 4 of 4 answers equal, (\d+) forwards without and (\d+) with", lines["drafts"][0])
    assert int(counts[1]) > int(counts[2]) > 0


def test_the_tests_that_need_cuda_are_found(gpu):
    """Here, where there is no GPU, they are skipped, and none of them fails."""
    words = "import sys; sys.path.insert(0, 'scripts'); import gpu; print(list(gpu.tests('cuda', True)))"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("['passed']\n") and re.search(r"\d+ skipped, \d+ deselected", done.stdout), done.stderr


def test_a_skipped_part_runs_again(gpu, monkeypatch):
    skipped = subprocess.CompletedProcess([], 0, "skipped: no pytest\n", "")
    monkeypatch.setattr(subprocess, "run", lambda *words, **how: skipped)
    assert gpu.ran("tests", "cuda", True, 2)["status"] == "skipped"


def test_another_model_on_the_device_is_an_error(gpu, monkeypatch):
    wrapped, calls = torch.nn.functional.linear, []

    def linear(x, weight, *args):
        calls.append(x.device.type)
        return wrapped(x, weight, *args) * (1.5 if x.device.type == "pretend" else 1.0)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    with pytest.raises(SystemExit, match="tiny-llada on pretend is another model"):
        list(gpu.values("pretend", True))
    assert "pretend" in calls


def test_parts_that_are_done_are_not_run_again(gpu, monkeypatch, tmp_path, capsys):
    """A part that was stopped is; its lines and the table are kept."""
    asked = []

    def ran(name, device, quick, seconds):
        asked.append((name, round(seconds)))
        stopped = name == "sampler" and len(asked) <= len(gpu.PARTS)
        return {"status": "stopped" if stopped else "done", "seconds": 1, "lines": [f"| {name} | 2.00x |"]}

    monkeypatch.setattr(gpu, "ran", ran)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path), "--device", "cpu", "--minutes", "4"])
    assert [gpu.main(), gpu.main(), gpu.main()] == [1, 0, 0]
    assert [name for name, _ in asked] == [*gpu.PARTS, "sampler"]
    assert all(seconds <= 240 for _, seconds in asked)
    assert "| sampler | 2.00x |" in (tmp_path / "speed.md").read_text()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--again", "--minutes", "0"])
    assert gpu.main() == 0 and len(asked) == len(gpu.PARTS) + 1
    assert "no time left" in capsys.readouterr().out


def test_a_part_has_a_process_and_a_limit_of_its_own(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "slow.py"))
    (tmp_path / "slow.py").write_text(
        "import sys, time\nprint('first', flush=True)\n"
        "sys.exit('error: wrong') if 'attention' in sys.argv else time.sleep(60)\n"
    )
    record = gpu.ran("values", "cpu", True, 2)
    assert record["status"] == "stopped" and record["lines"] == ["first", "stopped after 2 s"]
    record = gpu.ran("attention", "cpu", True, 20)
    assert record["status"] == "failed" and record["lines"] == ["first", "error: wrong"]
    assert json.dumps(record)


def test_a_missing_package_is_named(gpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name in ("pydantic", "yaml") else name)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    said = "pip install pydantic pyyaml, or name their folder in PYTHONPATH"
    assert capsys.readouterr().err == f"error: not installed: pydantic, pyyaml; {said}\n"


SCRIPTS = ROOT / "scripts"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from faults import state

    return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with a journal of two samples, and a checkpoint."""
    root = tmp_path / "one"
    run = make_run(root / "out")
    (run / "run.json").write_text("{}")
    journal(run, "k0", "k1")
    weights = root / "train" / "checkpoint-2"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(b"weights")
    (weights / "lineage.json").write_text("{}")
    return root


def journal(run: Path, *keys: str, writer: str = "main") -> None:
    with Journal(run / "journal", writer) as file:
        for key in keys:
            file.append({"type": "sample", "key": key, "answer": {}})


def run_of(folder: Path) -> Path:
    return next(folder.glob("out/*/results_*.json")).parent


def spoil_score(folder: Path) -> None:
    file = next(run_of(folder).glob("results_*.json"))
    result = json.loads(file.read_text())
    task, scores = next(iter(result["results"].items()))
    key = next(key for key, value in scores.items() if isinstance(value, float))
    result["results"][task][key] += 0.25
    file.write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (spoil_score, "differs > results"),
        (lambda folder: (folder / "train/checkpoint-2/model.safetensors").write_bytes(b"other"), "safetensors differs"),
        (lambda folder: (folder / "train/.checkpoint-4.saving").touch(), "left over: train/.checkpoint-4.saving"),
        (lambda folder: (folder / "train/checkpoint-2/lineage.json").unlink(), "missing: train/checkpoint-2/lineage"),
    ],
)
def test_a_result_that_differs_is_named(state: Any, folder: Path, harm: Callable[[Path], Any], said: str) -> None:
    before = state.results(folder)
    assert not state.differences(state.results(folder), before)
    harm(folder)
    assert any(said in line for line in state.differences(state.results(folder), before))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (run_of(folder) / "journal/main.jsonl").write_bytes(b""), "lost: sample"),
        (lambda folder: journal(run_of(folder), "k1", writer="shard"), "computed 2 times: sample"),
        (lambda folder: (folder / "train/checkpoint-2/lineage.json").write_text("{} "), "done twice: checkpoint"),
    ],
)
def test_work_that_is_lost_or_done_twice_is_named(
    state: Any, folder: Path, harm: Callable[[Path], Any], said: str
) -> None:
    before = state.finished(folder)
    assert len(before) >= 3 and not state.lost(before, state.finished(folder))
    harm(folder)
    assert any(said in line for line in state.lost(before, state.finished(folder)))


def test_confidences_alone_may_differ_in_their_last_digits(state: Any) -> None:
    assert state.same({"events": [5.0885338], "value": 1.5}, {"events": [5.0885348], "value": 1.5})
    assert not state.same({"events": [5.0885338], "value": 1.5}, {"events": [5.0885338], "value": 1.500001})
    assert not state.same({"events": [5.08]}, {"events": [5.09]})


def test_the_clock_of_a_process_is_set_back(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from faults.inject import shift_clock

    module = ModuleType("dare_bench.of_this_test")
    module.datetime = datetime.datetime  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith("dare_bench")]:
        if vars(sys.modules[name]).get("datetime") is datetime.datetime:
            monkeypatch.setattr(sys.modules[name], "datetime", datetime.datetime)  # put back afterwards
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    before, day = time.time(), 86400.0
    shift_clock(0.0, 30 * day)
    assert time.time() < before - 29 * day and time.time_ns() < (before - 29 * day) * 1e9
    assert module.datetime.now().timestamp() < before - 29 * day
    assert datetime.datetime.now().timestamp() >= before  # of other modules


def test_rows_take_the_place_of_their_cases_in_the_table(state: Any, tmp_path: Path) -> None:
    import importlib.util

    result = importlib.util.spec_from_file_location("faults_script", SCRIPTS / "faults.py")
    assert result is not None and result.loader is not None
    script = importlib.util.module_from_spec(result)
    sys.modules["faults_script"] = script  # dataclasses look their module up
    try:
        result.loader.exec_module(script)
    finally:
        del sys.modules["faults_script"]
    file = tmp_path / "reliability.md"
    file.write_text(f"# Title\n\n{script.HEAD}\n\nBelow.\n")
    script._rewrite(file, [script.FaultRow("eval", "SIGKILL", 5), script.FaultRow("train", "SIGKILL", 2)])
    script._rewrite(file, [script.FaultRow("eval", "SIGKILL", 9, failures=["one"])])
    rows = [line for line in file.read_text().splitlines() if line.startswith("| `")]
    assert rows == ["| `eval` | SIGKILL | 9 |  | 1 |", "| `train` | SIGKILL | 2 |  | 0 |"]
    assert file.read_text().startswith("# Title\n\n") and file.read_text().endswith("\n\nBelow.\n")
