"""Whose folder an output folder is, how many steps a training has, and how processes and heads are divided by
sequence parallelism."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from table_policy import SPEC

from dare_bench.errors import TrainingError, UsageError
from dare_bench.training.folder import claim, finish, is_trained, read, status
from dare_bench.training.processes import check_heads, data_parallel_size
from dare_bench.training.spec import train_spec

SETTINGS = {"base": "a", "base_content": "sha256:1", "data": "rows.jsonl", "data_hash": "2", "seed": 0}


def test_a_folder_is_new_then_running_then_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert status(out, SETTINGS) == "new"
    assert claim(out, SETTINGS) == "new"
    assert status(out, SETTINGS) == "running"
    (out / "checkpoint-1").mkdir()
    assert claim(out, SETTINGS) == status(out, SETTINGS) == "running"
    finish(out, SETTINGS, {"seconds": 1.0})
    assert claim(out, SETTINGS) == status(out, SETTINGS) == "complete"


def test_a_training_that_saved_nothing_keeps_no_folder(tmp_path: Path) -> None:
    claim(tmp_path, SETTINGS)
    assert claim(tmp_path, {**SETTINGS, "seed": 1}) == "new"
    (tmp_path / "lineage.json").write_text("{}")
    with pytest.raises(UsageError, match="seed was 1, now 0"):
        claim(tmp_path, SETTINGS)


def test_a_setting_is_named_before_what_follows_from_it(tmp_path: Path) -> None:
    claim(tmp_path, SETTINGS)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(UsageError, match="seed was 0, now 1"):
        claim(tmp_path, {**SETTINGS, "data_hash": "9", "seed": 1})


def test_what_is_compared_is_content_not_where_it_lies(tmp_path: Path) -> None:
    claim(tmp_path, SETTINGS)
    (tmp_path / "checkpoint-1").mkdir()
    assert claim(tmp_path, {**SETTINGS, "base": "b", "data": "moved/rows.jsonl"}) == "running"
    for name, value in (("base_content", "sha256:9"), ("data_hash", "9"), ("seed", 1)):
        with pytest.raises(UsageError, match=f"another training: {name} was .*, now .*9|seed was 0, now 1"):
            claim(tmp_path, {**SETTINGS, name: value})


def test_a_setting_that_is_new_and_none_is_no_other_training(tmp_path: Path) -> None:
    finish(tmp_path, SETTINGS, {})
    assert claim(tmp_path, {**SETTINGS, "reference_content": None}) == "complete"
    with pytest.raises(UsageError, match="reference_content was null"):
        claim(tmp_path, {**SETTINGS, "reference_content": "sha256:3"})


def test_a_setting_of_the_method_is_named_by_itself(tmp_path: Path) -> None:
    finish(tmp_path, {**SETTINGS, "options": {"padding": None, "draws": 1}}, {})
    with pytest.raises(UsageError, match='another training: padding was null, now "eos_supervised"'):
        claim(tmp_path, {**SETTINGS, "options": {"padding": "eos_supervised", "draws": 1}})


def test_a_setting_that_was_renamed_is_the_same(tmp_path: Path) -> None:
    finish(tmp_path, {**SETTINGS, "options": {"normalise": "row"}}, {})
    assert claim(tmp_path, {**SETTINGS, "options": {"normalize": "row"}}) == "complete"
    with pytest.raises(UsageError, match='normalize was "row", now "token"'):
        claim(tmp_path, {**SETTINGS, "options": {"normalize": "token"}})


LENGTH = {
    **SETTINGS, "max_steps": 100, "num_train_epochs": 3.0, "items": 80, "batch": 8, "warmup_steps": 0.1,
    "lr_scheduler_type": "constant",
}  # fmt: skip


def test_a_constant_training_is_extended_and_every_process_knows(tmp_path: Path) -> None:
    finish(tmp_path, LENGTH, {})
    longer = {**LENGTH, "max_steps": 150}
    (tmp_path / "lineage.json").write_text(json.dumps({"step": 100, "settings": LENGTH}))
    assert status(tmp_path, longer) == "running", "before the first process has claimed the folder"
    assert is_trained(tmp_path, LENGTH) and not is_trained(tmp_path, longer)
    assert claim(tmp_path, longer) == status(tmp_path, longer) == "running"
    assert not is_trained(tmp_path, longer)
    finish(tmp_path, longer, {})
    assert claim(tmp_path, longer) == status(tmp_path, longer) == "complete"


def test_the_same_number_of_steps_by_other_settings_is_the_same_training(tmp_path: Path) -> None:
    for schedule in ("constant", "cosine"):
        finish(tmp_path, {**LENGTH, "max_steps": None, "lr_scheduler_type": schedule}, {})
        for same in ({"max_steps": 30}, {"max_steps": 30, "num_train_epochs": 9.0}):
            assert claim(tmp_path, {**LENGTH, "lr_scheduler_type": schedule, **same}) == "complete"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"lr_scheduler_type": "cosine"}, "with lr_scheduler_type=cosine every learning rate depends on the number"),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "min_lr_rate": 0.1},
            "with lr_scheduler_type=cosine_with_min_lr every learning rate depends on the number",
        ),
        ({"lr_scheduler_type": "constant_with_warmup"}, "warmup_steps=0.1 is a fraction of all steps"),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 1.0}, ""),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.0}, ""),
        ({}, ""),
    ],
)
def test_only_a_rate_that_does_not_depend_on_the_end_can_be_extended(
    tmp_path: Path, settings: dict[str, object], problem: str
) -> None:
    before, now = {**LENGTH, **settings}, {**LENGTH, **settings, "max_steps": 101}
    finish(tmp_path, before, {})
    (tmp_path / "checkpoint-50").mkdir()
    if problem:
        with pytest.raises(
            UsageError, match=f"of 100 steps, now 101: {problem}.*; choose another --output-path, or give"
        ):
            claim(tmp_path, now)
        assert claim(tmp_path, before) == "complete"
    else:
        assert claim(tmp_path, now) == "running"
    with pytest.raises(UsageError, match=r"steps, now 99: a training can be extended, but not shortened"):
        claim(tmp_path, {**before, "max_steps": 99})


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(TrainingError, match=r"train.json is damaged: not JSON"):
        claim(tmp_path, SETTINGS)


def test_a_record_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """It calls the settings ``asked``."""
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"status": "complete", "asked": LENGTH}))
    assert claim(tmp_path, LENGTH) == "complete"
    with pytest.raises(UsageError, match="seed was 0, now 1"):
        claim(tmp_path, {**LENGTH, "seed": 1})


def test_settings_in_a_record_of_an_earlier_version_have_their_present_names(tmp_path: Path) -> None:
    finish(tmp_path, SETTINGS, {"spec": {"method": "d1", "looks_per_forward": 4}})
    assert read(tmp_path).spec == {"method": "d1", "micro_batch_size": 4}


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 0), ("batch", 1 << 40), ("items", "many"), ("max_steps", float("nan")), ("num_train_epochs", 1e300)],
)
def test_a_recorded_number_of_steps_that_cannot_be_is_told(tmp_path: Path, name: str, value: object) -> None:
    """In train.json and in the lineage of the final checkpoint."""
    finish(tmp_path, LENGTH, {})
    (tmp_path / "lineage.json").write_text(json.dumps({"settings": {**LENGTH, name: value}}))
    with pytest.raises(TrainingError, match=f"lineage.json is damaged: {name}="):
        is_trained(tmp_path, LENGTH)
    (tmp_path / "train.json").write_text(json.dumps({"status": "complete", "settings": {**LENGTH, name: value}}))
    with pytest.raises(TrainingError, match=f"train.json is damaged: settings.{name}="):
        claim(tmp_path, LENGTH)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [({}, 38), ({"max_steps": 7}, 7), ({"num_train_epochs": 0.01}, 1), ({"num_train_epochs": 1}, 13)],
)
def test_steps_of_a_training(fields: dict[str, float], steps: int) -> None:
    spec = train_spec(method="sft", model="m", data="d", output_path="o", **fields)
    assert spec.steps(100, 8) == steps  # three passes over 100 rows, the last step goes on into a fourth


def test_the_groups_are_those_of_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert [data_parallel_size(size) for size in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert data_parallel_size(3, 6) == 2
    with pytest.raises(UsageError, match="give 1, 2, 4, 8, or start a multiple of 3 processes"):
        data_parallel_size(3)


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 32), (32, 8), (28, 4), (12, 4), (16, 1)])
def test_a_group_is_allowed_if_the_queries_of_each_rank_are_those_of_its_keys(heads: int, kv_heads: int) -> None:
    """Query head h reads key head h * kv_heads / heads. A rank has a row of query heads, and of the repeated keys."""
    for size in range(1, heads + 1):
        repeated = [key for key in range(kv_heads) for _ in range(math.lcm(kv_heads, size) // kv_heads)]
        fits = heads % size == 0 and heads % len(repeated) == 0
        if fits:
            mine = [repeated[r * len(repeated) // size : (r + 1) * len(repeated) // size] for r in range(size)]
            own = [list(range(r * heads // size, (r + 1) * heads // size)) for r in range(size)]
            for queries, keys in zip(own, mine, strict=True):
                reads = [keys[i * len(keys) // len(queries)] for i in range(len(queries))]
                assert reads == [head * kv_heads // heads for head in queries]
            check_heads(replace(SPEC, heads=heads, kv_heads=kv_heads), size)
        else:
            with pytest.raises(UsageError, match=f"size={size} does not divide the {heads} attention heads"):
                check_heads(replace(SPEC, heads=heads, kv_heads=kv_heads), size)


def test_a_network_that_does_not_say_its_heads_computes_alone() -> None:
    check_heads(SPEC, 1)
    with pytest.raises(UsageError, match="the network of toy does not state their number"):
        check_heads(SPEC, 2)
