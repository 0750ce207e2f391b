"""d-TreeRPO through ``dare_bench.train`` on the bundled bases: two steps, replay."""

from __future__ import annotations

import json

import pytest
import torch
from require import need_package
from safetensors.torch import load_file

from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.training.run import train
from dare_bench.training.setup import replay

need_package("accelerate")
WEIGHTS = "model.safetensors"


def trained(out, family="llada", options=None, **fields):
    """Trees of eight leaves of which two are in a step."""
    given = {"num_generations": 8, "tree_branch_factor": 2, "num_iterations": 2, "beta": 0.04, "distillation": 0.1}
    train(
        method="dtreerpo", model=f"tiny-{family}-base", task="dare_arithmetic", rows=64, output_path=str(out),
        options={**given, "reward": {"format_weight": 0.5}, "rollout": {"steps": 4}, **(options or {})},
        **{"per_device_train_batch_size": 16, "max_steps": 2, "logging_steps": 1, "report_to": (),
           "learning_rate": 1e-4, "lr_scheduler_type": "constant", "warmup_steps": 0, **fields},
    )  # fmt: skip
    return [entry for entry in json.loads((out / "trainer_state.json").read_text())["log_history"] if "loss" in entry]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_two_steps_on_a_task(family, tmp_path):
    first, second = trained(tmp_path, family)
    assert 0 < first["informative_groups"] <= 1 and first["accuracy"] <= first["reward"] < 1
    assert first["grad_norm"] > 1e-3 and second["grad_norm"] > 1e-3
    assert first["clip_fraction"] == 0.0 and first["kl"] < 1e-8 and second["kl"] > 1e-6
    assert first["distillation"] > 0 and "reward" not in second
    # Two trees with 4 x 2 + 8 x 2 forwards, as tokens are written one in each; 5 parents are looked at in the update,
    # twice more in the first step for the reference and for the old values of the second.
    assert first["forwards/rollout"] <= 2 * 24 and (family == "dream" or first["forwards/rollout"] == 48)
    assert first["forwards/update"] == second["forwards/update"] <= 10
    assert first["forwards/score"] == 2 * first["forwards/update"] == 2 * second["forwards/score"]
    before = load_file(load(f"tiny-{family}-base", device="cpu").loaded.path / WEIGHTS)
    after = load_file(tmp_path / WEIGHTS)
    assert any(not torch.equal(before[key].float(), after[key].float()) for key in before)
    lineage = json.loads((tmp_path / "lineage.json").read_text())
    assert lineage["method"] == "dtreerpo" and lineage["options"]["tree_branch_factor"] == 2


def test_a_replay_shows_the_nodes_of_each_tree(tmp_path):
    trained(tmp_path, max_steps=2, save_steps=1)
    result = replay(tmp_path, 2, None)[0]
    assert [len(group) for group in result.groups] == [12, 12] and result.steps == 2
    mask_id = load("tiny-llada-base", device="cpu").loaded.spec.mask_id
    for group in result.groups:
        assert all((mask_id in node.tokens) == (i < 4) for i, node in enumerate(group))
        assert all(w == 0 for node in group for w, at in zip(node.weights, node.set_at, strict=True) if at < 0)
    assert any(w > 0 for group in result.groups for node in group for w in node.weights)


def test_a_family_that_decodes_block_by_block_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"decodes block by block\); use cj_grpo"):
        trained(tmp_path, "sdar")
