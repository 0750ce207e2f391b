"""The file of a sweep: grids spelled out, names that last, errors that name the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

from dare_bench.errors import UsageError
from dare_bench.sweeps.planning import evaluations, trainings
from dare_bench.sweeps.sweep_graph import LONGEST, graph
from dare_bench.sweeps.sweep_spec import read_spec

SMALLEST = """
name: first
models: [tiny-llada-base]
train: [{method: sft, task: dare_sudoku, max_steps: [50, 100], seed: [0, 1]}]
eval: {tasks: [dare_sudoku], limit: 100}
board: true
"""


def spec(**fields: Any) -> Any:
    return read_spec({"models": "tiny-llada-base", "eval": {"tasks": "dare_sudoku"}, **fields})


def ids(**fields: Any) -> list[str]:
    return [node.id for node in graph(spec(**fields))]


SFT = {"method": "sft", "task": "dare_sudoku"}


def test_the_smallest_file(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"
    file.write_text(SMALLEST)
    nodes = {node.id: node for node in graph(read_spec(file))}
    stems = [f"tiny-llada-base-sft-dare_sudoku-max_steps={n}-seed={s}" for n in (50, 100) for s in (0, 1)]
    pairs = [name for stem in stems for name in (f"train/{stem}", f"eval/{stem}/dare_sudoku")]
    assert list(nodes) == ["eval/tiny-llada-base/dare_sudoku", *pairs, "board"]
    assert nodes[pairs[0]].settings == {
        "method": "sft", "model": "tiny-llada-base", "task": "dare_sudoku", "max_steps": 50,
    }  # fmt: skip
    assert nodes[pairs[1]].after == (pairs[0],) and nodes[pairs[1]].training == pairs[0]
    assert nodes[pairs[1]].settings == {"tasks": "dare_sudoku", "limit": 100}
    assert set(nodes["board"].after) == {name for name in nodes if name.startswith("eval/")}
    assert nodes["board"].settings == {"title": "first", "tasks": "all"}


def test_a_name_is_the_files_where_it_says_none(tmp_path: Path) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(SMALLEST.replace("name: first", ""))
    assert read_spec(file).name == "rates"


def test_every_list_is_an_axis_and_the_first_varies_slowest() -> None:
    built = trainings(
        spec(models=["tiny-llada-base", "tiny-dream-base"], train=[{**SFT, "max_steps": [2, 4], "seed": [0, 1]}])
    )
    points = [(item.spec.max_steps, item.spec.seed, item.spec.model) for item in built]
    assert points == [
        (steps, seed, model) for steps in (2, 4) for seed in (0, 1) for model in ("tiny-llada-base", "tiny-dream-base")
    ]


def test_an_axis_of_lists_is_a_list_of_lists() -> None:
    (item,) = trainings(spec(train=[{**SFT, "peft": "lora", "lora_targets": ["attention", "mlp"]}]))
    assert item.spec.lora_targets == ("attention", "mlp")
    two = trainings(spec(train=[{**SFT, "peft": "lora", "lora_targets": [["attention"], ["attention", "mlp"]]}]))
    assert [built.spec.lora_targets for built in two] == [("attention",), ("attention", "mlp")]
    bands = trainings(spec(train=[{**SFT, "noise": "band", "weight": "plain", "band": [[0.1, 0.9], [0.3, 0.8]]}]))
    assert [built.spec.options["band"] for built in bands] == [[0.1, 0.9], [0.3, 0.8]]


def test_options_of_the_method_are_axes_and_null_is_the_default() -> None:
    built = trainings(spec(train=[{**SFT, "weight": ["elbo", None], "draws": [1, 2]}]))
    assert [item.spec.options for item in built] == [
        {"weight": "elbo", "draws": 1}, {"weight": "elbo", "draws": 2}, {"draws": 1}, {"draws": 2},
    ]  # fmt: skip


def test_an_entry_has_the_defaults_that_it_does_not_give() -> None:
    entries = [{**SFT, "max_steps": 7}, {**SFT, "seed": [0, 1]}]
    by_default = trainings(spec(train_defaults={"max-steps": 3, "learning_rate": 2e-3}, train=entries))
    whole = trainings(spec(train=[{"max_steps": 3, "learning_rate": 2e-3, **entry} for entry in entries]))
    assert [item.spec for item in by_default] == [item.spec for item in whole] and len(whole) == 3
    with pytest.raises(UsageError, match=r"train\[0\]\.max_step: neither a training setting"):
        graph(spec(train_defaults={"max_step": 3}, train=SFT))


def test_a_default_said_aloud_changes_no_name() -> None:
    first = ids(train=[{**SFT, "max_steps": [2, 4]}])
    assert first == ids(train=[{**SFT, "max_steps": [2, 4], "seed": 0, "split": "train"}])
    assert first[1] == "train/tiny-llada-base-sft-dare_sudoku-max_steps=2-seed=0"
    more = ids(train=[{**SFT, "max_steps": [2, 4], "seed": [0, 1], "learning_rate": [None, 1e-3]}])
    assert set(first) < set(more), "a new axis leaves the nodes that were there their keys"


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ({**SFT, "rows": 60, "seed": [0, 1]}, ["sft-dare_sudoku-rows=60-seed=0", "sft-dare_sudoku-rows=60-seed=1"]),
        ({**SFT, "peft": [None, "lora"]}, ["sft-dare_sudoku-seed=0", "sft-dare_sudoku-peft=lora-seed=0"]),
        ({**SFT, "method": "vrpo", "beta": 0.2}, ["vrpo-dare_sudoku-beta=0.2-seed=0"]),
    ],
)
def test_names_of_trainings_show_every_setting_that_is_not_its_default(train: Any, names: list[str]) -> None:
    result = [name for name in ids(train=train) if name.startswith("train/")]
    assert result == [f"train/tiny-llada-base-{name}" for name in names]


def test_a_data_file_is_named_with_a_hash_of_its_path() -> None:
    files = {"method": "sft", "data": ["a/rows.jsonl", "b/rows.jsonl"], "max_steps": 2}
    first, second = (name for name in ids(train=files) if name.startswith("train/"))
    assert first != second
    pattern = r"train/tiny-llada-base-sft-rows-[0-9a-f]{4}-max_steps=2-seed=0"
    assert all(re.fullmatch(pattern, name) for name in (first, second))
    assert {first, second} < set(ids(train={**files, "data": files["data"][::-1]}))


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two nodes have the name 'train/tiny-llada-base-sft-dare_sudoku-seed=0'"):
        ids(train=[SFT, {**SFT, "logging_steps": 5}])


def test_names_of_evaluations_show_their_settings() -> None:
    common = {"seed": 3, "num_fewshot": 2}
    result = ids(eval=[{**common, "tasks": "a", "gen_kwargs": {"steps": [4, 8]}}, {**common, "tasks": ["b", "c"]}])
    few = "seeds=3-num_fewshot=2"
    assert result == [f"eval/tiny-llada-base/{name}" for name in (f"a-{few}-steps=4", f"a-{few}-steps=8", f"b+c-{few}")]


def test_models_can_be_named_apart_and_an_entry_can_be_for_some() -> None:
    models = [{"model": "tiny-llada-base", "name": "half", "dtype": "bfloat16"}, "tiny-llada-base"]
    nodes = graph(
        spec(models=models, train={**SFT, "models": "half"}, eval={"tasks": "dare_sudoku", "models": ["half"]})
    )
    assert [node.id for node in nodes] == [
        "eval/half/dare_sudoku", "train/half-sft-dare_sudoku-seed=0", "eval/half-sft-dare_sudoku-seed=0/dare_sudoku",
    ]  # fmt: skip
    assert [node.settings.get("dtype") for node in nodes] == ["bfloat16"] * 3


def test_names_in_any_script_stay_different_and_make_no_empty_part() -> None:
    models = [{"model": "tiny-llada-base", "name": name} for name in ("模型", "модель")]
    result = ids(models=models, eval=[{"tasks": "dare_sudoku", "name": name} for name in ("短い", "長い")])
    assert len(set(result)) == 4
    assert all(re.fullmatch(r"eval/[A-Za-z0-9.-]+/[A-Za-z0-9.-]+", name) for name in result)


def test_evaluations_are_grids_too() -> None:
    fields = [item.fields for item in evaluations(spec(eval={"tasks": ["a", "b"], "gen_kwargs": {"steps": [16, 32]}}))]
    assert fields == [{"tasks": "a,b", "decoding": {"steps": n}} for n in (16, 32)]
    assert ids(eval={"tasks": "a", "gen_kwargs": {"steps": [16, 32]}, "seed": [0, 1]})[1:3] == [
        "eval/tiny-llada-base/a-steps=16-seeds=1", "eval/tiny-llada-base/a-steps=32-seeds=0",
    ]  # fmt: skip


def test_a_limit_is_no_part_of_a_name_and_a_suite_is_tasks() -> None:
    name = ["eval/tiny-llada-base/dare-smoke"]
    assert ids(eval={"suite": "dare-smoke"}) == ids(eval={"tasks": "dare-smoke", "limit": 3}) == name


def test_without_base_only_what_is_trained_is_evaluated() -> None:
    assert all(node.training for node in graph(spec(train=SFT, base=False)) if node.kind == "eval")
    assert ids(train=[], base=False) == ["eval/tiny-llada-base/dare_sudoku"], "nothing trained: the models themselves"


def test_long_names_are_cut_and_stay_different() -> None:
    long = {
        **SFT,
        "lr_scheduler_type": "constant_with_warmup",
        "num_train_epochs": 7.5,
        "gradient_accumulation_steps": 16,
    }
    result = ids(train={**long, "adam_epsilon": [1e-7, 1e-6], "weight_decay": 0.123}, eval={"tasks": "dare_sudoku"})
    parts = [part for name in result for part in name.split("/")]
    assert max(map(len, parts)) <= LONGEST
    assert len(set(result)) == len(result)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"trains": []}, "'trains' is not a field of a sweep"),
        ({"models": []}, "models=[]: no model is given"),
        ({"models": None}, "no model is given"),
        ({"models": ["tiny-llada", {"model": "x/tiny-llada"}]}, "two models have the name 'tiny-llada'"),
        ({"eval": None}, "neither train nor eval"),
        ({"eval": None, "train": SFT, "board": True}, "board shows evaluations"),
        ({"train": {"task": "dare_sudoku"}}, "train[0]: no method named"),
        ({"train": {**SFT, "method": "sfft"}}, "train[0].method: unknown trainer 'sfft'; closest: sft"),
        ({"train": [SFT, {**SFT, "max_step": 3}]}, "train[1].max_step: neither a training setting nor one of sft"),
        ({"train": {**SFT, "max_steps": [4, 0]}}, "train[0]: max_steps=0"),
        ({"train": {**SFT, "seed": []}}, "train[0].seed: an empty list"),
        ({"train": {**SFT, "seed": [1, 2, 1]}}, "train[0].seed: the value 1 is repeated"),
        (
            {"train": {**SFT, "model": "tiny-dream"}},
            "train[0].model: not allowed here; the sweep sets it (name checkpoints in models)",
        ),
        ({"train": {**SFT, "eval_every": 5}}, "train[0].eval_every: not allowed here; the sweep sets it"),
        ({"train": {**SFT, "models": "tiny-dream"}}, "train[0].models: 'tiny-dream' is not one of this sweep's"),
        ({"train": {"method": "sft"}}, "data and task are the sources of rows"),
        ({"eval": {"limit": 3}}, "eval: nothing to evaluate: give tasks"),
        ({"eval": {"task": "a"}}, "eval: unknown setting 'task'; closest: tasks"),
        ({"eval": [{"tasks": "a"}, {"tasks": "b", "limits": 3}]}, "eval[1]: unknown setting 'limits'; closest: limit"),
        ({"eval": {"tasks": "a", "limit": -1}}, "eval: limit=-1"),
        ({"eval": {"tasks": "a", "output_path": "x"}}, "eval.output_path: not allowed here"),
        ({"eval": {"recipe": "no/such"}}, "eval: unknown recipe"),
        ({"eval": [{"tasks": "a"}, {"tasks": "a", "limit": 3}]}, "two nodes have the name 'eval/tiny-llada-base/a'"),
    ],
)
def test_errors_name_the_place(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        graph(spec(**fields))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_examples_of_the_documentation_are_sweeps() -> None:
    text = (ROOT / "docs" / "sweeps.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    counts = [len(graph(read_spec({"models": "tiny-llada-base", **yaml.safe_load(block)}))) for block in blocks]
    # 4 trainings, 5 evaluations and a board; 8 trainings and 9 checkpoints in 5 evaluations each
    assert counts == [10, 8 + 9 * 5]
