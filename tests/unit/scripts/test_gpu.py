"""``scripts/gpu.py`` on the CPU and on the pretend device: what it measures, what it stops at, and how it goes on."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pretend_device
import pytest
import torch
from paths import ROOT


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
