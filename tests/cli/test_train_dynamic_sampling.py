"""Dynamic sampling: groups without variance are drawn again, the same in every division and after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks
from require import need_package
from safetensors.torch import load_file

from dare_bench.errors import TrainingError, UsageError

need_package("accelerate")
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (12, 25, 31, 47) for b in (14, 40, 8)]
LIMIT = 4
FIELDS: dict[str, Any] = {
    "method": "cj_grpo",
    "model": "tiny-llada-base",
    "num_generations": 2,
    "num_iterations": 2,
    "beta": 0.0,
    "max_completion_length": 4,
    "rollout": {"steps": 4},
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "adam_epsilon": 1e-3,
    "max_steps": 4,
    "logging_steps": 1,
    "log_completions": 1,
    "report_to": (),
    "seed": 1,
}


def begins_right(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(text[:1] == truth[:1]) for text, truth in zip(completions, answer, strict=True)]


def constant(prompts: Any, texts: Sequence[str], options: Any) -> list[float]:
    return [0.5] * len(texts)


def train(out: Path, **more: Any) -> Path:
    from dare_bench.training.run import train

    fields = {"data": ROWS, "reward": begins_right, "dynamic_sampling": LIMIT, **FIELDS, "output_path": str(out)}
    train(**{**fields, **more})
    return out


def groups(out: Path, step: int) -> list[list[dict[str, Any]]]:
    lines = (out / f"completions/step-{step:06d}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [[row for row in rows if row["group"] == g] for g in range(4)]


def history(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "trainer_state.json").read_text())["log_history"]  # type: ignore[no-any-return]


def varies(group: list[dict[str, Any]]) -> bool:
    return any(row["advantage"] for row in group)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("dynamic") / "out", save_steps=1)


def test_groups_without_variance_are_replaced_and_counted(tmp_path: Path, trained: Path) -> None:
    """The first rollout against that of a training without it: what varies stays, the rest is of other prompts."""
    plain = train(tmp_path / "plain", dynamic_sampling=None, max_steps=2)
    before, after = groups(plain, 1), groups(trained, 1)
    assert [varies(group) for group in before].count(True) in (1, 2, 3)
    for old, new in zip(before, after, strict=True):
        assert (old == new) == varies(old)
    first, usual = history(trained)[0], history(plain)[0]
    assert usual["informative_groups"] == first["informative_groups"] == sum(map(varies, before)) / 4
    assert first["trained_groups"] == sum(map(varies, after)) / 4 > first["informative_groups"]
    assert "redrawn_groups" not in usual and first["redrawn_groups"] >= 1 - first["informative_groups"]
    assert first["reward"] == usual["reward"], "that of the prompts in the order of the data"
    sampled = 4 * 2 * (1 + first["redrawn_groups"])
    assert first["forwards/rollout"] == 4 * sampled, "four forwards of each completion, redrawn ones too"
    lineage = json.loads((trained / "checkpoint-1/lineage.json").read_text())
    assert lineage["forwards"]["rollout"] == 4 * sampled


def test_a_draw_is_of_the_order_of_the_data_and_of_random_numbers_of_its_own(trained: Path) -> None:
    """Every draw of a place in a rollout has another prompt, or at least another completion."""
    (part,) = json.loads((trained / "checkpoint-1/rollout.json").read_text())
    assert len(part["draws"]) == 8 and 0 < max(part["draws"]) <= LIMIT
    assert part["draws"][::2] == part["draws"][1::2], "a group is of one draw"
    assert len({c["key"] for c in part["completions"]}) == 8


def test_a_training_resumed_inside_a_rollout_ends_with_the_same_bits(tmp_path: Path, trained: Path) -> None:
    for step in (1, 2):
        out = tmp_path / str(step)
        shutil.copytree(trained, out)
        for name in [f"checkpoint-{later}" for later in range(step + 1, 4)]:
            shutil.rmtree(out / name)
        (out / "lineage.json").unlink()
        (out / "model.safetensors").unlink()
        (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))
        train(out, save_steps=1)
        assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
        assert json.loads((out / "lineage.json").read_text()) == json.loads((trained / "lineage.json").read_text())


def test_a_rollout_of_an_earlier_version_has_no_draws_and_one_beyond_the_limit_is_damaged(
    tmp_path: Path, trained: Path
) -> None:
    plain = train(tmp_path / "plain", dynamic_sampling=None, save_steps=1, max_steps=2)
    file, weights = plain / "checkpoint-1/rollout.json", (plain / "model.safetensors").read_bytes()
    (part,) = json.loads(file.read_text())
    for draws, fits in ((None, True), ([1] * 8, False)):
        for name in ("lineage.json", "model.safetensors"):
            (plain / name).unlink(missing_ok=True)
        (plain / "train.json").write_text((plain / "train.json").read_text().replace('"complete"', '"running"'))
        changed = {name: value for name, value in part.items() if name != "draws"}
        file.write_text(json.dumps([changed if draws is None else {**changed, "draws": draws}]))
        if fits:
            train(plain, dynamic_sampling=None, save_steps=1, max_steps=2)
            assert (plain / "model.safetensors").read_bytes() == weights
            continue
        with pytest.raises(TrainingError, match=r"rollout\.json is damaged \(it has a group of draw 1, and groups are"):
            train(plain, dynamic_sampling=None, save_steps=1, max_steps=2)


def test_the_limit_ends_the_draws(tmp_path: Path) -> None:
    out = train(tmp_path / "out", reward=constant, dynamic_sampling=3, max_steps=2)
    entry = history(out)[0]
    assert (entry["redrawn_groups"], entry["trained_groups"], entry["informative_groups"]) == (3, 0, 0)
    assert entry["forwards/rollout"] == 4 * 8 * 4


@pytest.mark.parametrize("name", ["mdpo", "dtreerpo"])
def test_methods_without_such_groups_refuse_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"dynamic_sampling={LIMIT}: {name} has no groups to draw again: .*omit it"):
        train(tmp_path, method=name, num_generations=8)


def test_accumulation_draws_the_same(tmp_path: Path, trained: Path) -> None:
    out = train(tmp_path / "out", per_device_train_batch_size=2, gradient_accumulation_steps=4)
    _check_same(out, trained)


def _on_rank(folder: str) -> None:
    from accelerate.state import AcceleratorState, PartialState

    for state in (AcceleratorState, PartialState):
        state._reset_state()
    train(Path(folder), per_device_train_batch_size=4)


@pytest.mark.slow
def test_two_processes_draw_the_same(tmp_path: Path) -> None:
    """A group of each process may be drawn again, or of one alone."""
    alone = train(tmp_path / "one")
    on_ranks(_on_rank, 2, str(tmp_path / "two"), timeout=240)
    _check_same(tmp_path / "two", alone)


def _check_same(ours: Path, theirs: Path) -> None:
    """The same completions; equal weights up to the order of additions."""
    for step in (1, 3):
        pairs = zip(groups(ours, step), groups(theirs, step), strict=True)
        for one, other in ((r, s) for first, second in pairs for r, s in zip(first, second, strict=True)):
            assert all(one[name] == other[name] for name in ("where", "tokens", "reward", "advantage"))
    assert history(ours)[0]["redrawn_groups"] == history(theirs)[0]["redrawn_groups"] > 0
    a, b = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], rtol=1e-4, atol=1e-6)
