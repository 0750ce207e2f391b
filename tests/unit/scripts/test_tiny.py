"""scripts/tiny: the documented command makes a checkpoint from nothing by ``dare-bench train``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import command
import pytest
from paths import ROOT
from safetensors import safe_open

import dare_bench

FOLDER = ROOT / "scripts" / "tiny"
MODULES = ("balance", "recipe", "train")
SMOKE = ("smoke-llada", "smoke-dream", "smoke-sdar", "smoke-llada2")
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """scripts/tiny/train.py, imported beside the modules of its folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("train")
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(recipe, folder, what the command printed as JSON); the recipe has experts that are balanced."""
    recipe = "smoke-llada2"
    work = tmp_path_factory.mktemp("tiny")
    words = ["--recipe", recipe, "--threads", "1", "--work", str(work / "work"), "--out", str(work / "out")]
    done = command.run(*words, script=FOLDER / "train.py", cwd=work)
    assert done.returncode == 0, done.stderr
    return recipe, work, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_command_trains_and_the_loss_falls(trained):
    _, work, _ = trained
    state = json.loads((work / "work" / "training" / "trainer_state.json").read_text())
    losses = [line["loss"] for line in state["log_history"] if "loss" in line]
    assert state["global_step"] == 40 and len(losses) >= 4
    assert losses[-1] < losses[0] - 0.3


def test_checkpoints_are_complete_load_and_are_scored(trained):
    recipe, work, printed = trained
    assert [(line["checkpoint"], line["step"]) for line in printed] == [(f"{recipe}-base", 20), (recipe, 40)]
    assert all(line["scores"].keys() == {"dare_arithmetic"} and line["parameters"] > 1000 for line in printed)
    weights = []
    for name in (f"{recipe}-base", recipe):
        folder = work / "out" / name
        assert {path.name for path in folder.iterdir()} == FILES
        assert len(dare_bench.load(str(folder)).generate("12+34=", gen_length=4)[0].tokens) <= 4
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] != weights[1]


def test_balancing_moves_the_bias_of_every_expert_by_a_fixed_amount_a_step(trained):
    recipe, work, _ = trained
    with safe_open(work / "out" / recipe / "model.safetensors", "pt") as shard:
        biases = {key: shard.get_tensor(key) for key in shard.keys() if key.endswith("expert_bias")}  # noqa: SIM118
    assert len(biases) == 4
    for bias in biases.values():
        assert bias.abs().max() > 0
        assert bias.abs().max() <= 40 * 0.001 + 1e-3, "forty steps of 0.001, in bfloat16"


@pytest.mark.parametrize("name", SMOKE)
def test_start_and_rows_are_a_function_of_the_recipe(script, tmp_path, name):
    recipe = script.RECIPES[name]
    for folder in (tmp_path / "a", tmp_path / "b"):
        script.initialize(recipe, folder)
        model = dare_bench.load(str(folder)).loaded
        lines = [json.dumps(row) for row in script.rows(recipe, model)]
        (folder / "rows.jsonl").write_text("\n".join(lines))
    for file in ("model.safetensors", "rows.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    start = dare_bench.load(str(tmp_path / "a")).network.state_dict()
    bundled = dare_bench.load(f"tiny-{recipe.family}", dtype="float32").network.state_dict()
    drawn = [weight for weight in start if start[weight].dim() > 1]
    assert start.keys() == bundled.keys() and drawn
    assert not any(start[weight].equal(bundled[weight]) for weight in drawn), "random weights of its shape"
    rows = [json.loads(line) for line in (tmp_path / "a" / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == recipe.steps * sum(recipe.rows.values())
    for row in rows[:50]:
        prompt, answer = (len(model.tokenizer(row[part])["input_ids"]) for part in ("prompt", "answer"))
        canvas = 20 if row["prompt"].startswith("sudoku") else 4
        grid = model.spec.block_length or 1
        assert answer + 1 >= canvas and (prompt + answer + 1) % grid == 0
        assert answer + 1 - canvas < grid or not row["answer"].endswith("<|endoftext|>")


def test_a_recipe_can_train_a_bundled_checkpoint_further(script, tmp_path):
    recipe = script.RECIPES["tiny-llada-countdown"]
    script.initialize(recipe, tmp_path / "start")
    bundled = Path(dare_bench.__file__).parent / "model_adapters" / "tiny" / str(recipe.start)
    assert dare_bench.load(str(tmp_path / "start")).generate("12+34=", gen_length=4)[0].text == "46"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "start" / name).exists() and (bundled / name).exists()
    with (
        safe_open(tmp_path / "start" / "model.safetensors", "pt") as a,
        safe_open(bundled / "model.safetensors", "pt") as b,
    ):
        assert set(a.keys()) == set(b.keys())
        assert all(a.get_tensor(key).float().equal(b.get_tensor(key).float()) for key in a.keys())  # noqa: SIM118


@pytest.mark.parametrize("name", SMOKE)
def test_what_is_published_is_the_published_layout(script, tmp_path, name):
    recipe = script.RECIPES[name]
    script.initialize(recipe, tmp_path / "start")
    (tmp_path / "start" / "lineage.json").write_text("{}")
    model = script.publish(tmp_path / "start", recipe, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | (
        {"generation_config.json"} if recipe.family == "sdar" else set()
    )
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as shard:
        assert {shard.get_slice(key).get_dtype() for key in shard.keys()} == {"BF16"}  # noqa: SIM118
    if recipe.family == "sdar":
        bundled = json.loads(
            (Path(dare_bench.__file__).parent / "model_adapters/tiny/tiny-sdar/generation_config.json").read_text()
        )
        assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == bundled
    assert model.spec.dtype == "float32"
