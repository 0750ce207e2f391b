"""The training script: the same seed gives the same checkpoint, whether or not the run was broken off."""

from __future__ import annotations

import json
from pathlib import Path

import command
import pytest
from safetensors import safe_open

SCRIPT = Path(__file__).parents[2] / "scripts" / "tiny" / "train.py"


SMOKE = ("smoke", "smoke-dream", "smoke-sdar", "smoke-llada2")
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def train(out: Path, recipe: str, *more: str) -> list[dict]:
    words = ("--recipe", recipe, "--threads", "1", "--out", str(out), *more)
    done = command.run(*words, script=SCRIPT, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=SMOKE)
def unbroken(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "out"
    return request.param, out, train(out, request.param)


def test_checkpoints_are_complete_and_carry_their_card(unbroken):
    recipe, out, said = unbroken
    files = FILES | ({"generation_config.json"} if recipe == "smoke-sdar" else set())
    for name, step in ((f"{recipe}-base", 4), (recipe, 6)):
        assert {path.name for path in (out / name).iterdir()} == files
        card = (out / name / "README.md").read_text()
        assert f"Step {step}, seed 1" in card
        assert "| `dare_arithmetic` |" in card
        assert ("stopped early: step 4 of 6" in card) == (step == 4)
    assert [line["checkpoint"] for line in said if "checkpoint" in line] == [f"{recipe}-base", recipe]


def test_a_run_that_was_broken_off_gives_the_same_weights(unbroken, tmp_path):
    recipe, out, _ = unbroken
    again, work = tmp_path / "out", tmp_path / "state"
    train(again, recipe, "--work", str(work), "--keep-every", "3", "--until", "3")
    assert not (again / recipe).exists()
    assert train(again, recipe, "--work", str(work))[0]["start"] == 3

    def weights(folder: Path, name: str) -> bytes:
        return (folder / name / "model.safetensors").read_bytes()

    for name in (f"{recipe}-base", recipe):
        assert weights(again, name) == weights(out, name)
    assert weights(again, recipe) != weights(out, f"{recipe}-base")


def test_balancing_moves_the_bias_of_every_expert_and_only_that(unbroken):
    recipe, out, _ = unbroken
    with safe_open(out / recipe / "model.safetensors", "pt") as shard:
        biases = {key: shard.get_tensor(key) for key in shard.keys() if key.endswith("expert_bias")}  # noqa: SIM118
    assert len(biases) == (1 if recipe == "smoke-llada2" else 0)
    for bias in biases.values():
        assert bias.abs().max() > 0
        assert bias.abs().max() <= 6 * 0.001 + 1e-4, "six steps of 0.001"
