"""The training script: the same seed gives the same checkpoint, whether or not the run was broken off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "tiny" / "train.py"


def train(out: Path, *more: str) -> list[dict]:
    command = [sys.executable, str(SCRIPT), "--recipe", "smoke", "--threads", "1", "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "out"
    return out, train(out)


def test_checkpoints_are_complete_and_carry_their_card(unbroken):
    out, said = unbroken
    files = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    for name, step in (("smoke-base", 4), ("smoke", 6)):
        assert {path.name for path in (out / name).iterdir()} == files
        card = (out / name / "README.md").read_text()
        assert f"Step {step}, seed 1" in card
        assert "| `dare_arithmetic` |" in card
        assert ("stopped early: step 4 of 6" in card) == (step == 4)
    assert [line["checkpoint"] for line in said if "checkpoint" in line] == ["smoke-base", "smoke"]


def test_a_run_that_was_broken_off_gives_the_same_weights(unbroken, tmp_path):
    out, _ = unbroken
    again, work = tmp_path / "out", tmp_path / "state"
    train(again, "--work", str(work), "--keep-every", "3", "--until", "3")
    assert not (again / "smoke").exists()
    assert train(again, "--work", str(work))[0]["start"] == 3
    for name in ("smoke-base", "smoke"):
        assert (again / name / "model.safetensors").read_bytes() == (out / name / "model.safetensors").read_bytes()
    assert (again / "smoke" / "model.safetensors").read_bytes() != (
        out / "smoke-base" / "model.safetensors"
    ).read_bytes()
