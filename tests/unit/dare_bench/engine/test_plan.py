"""From words to runs: suites, recipes, what the user says on top; and which run it is, however its model is handed
over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_source
from safetensors.torch import load_file, save_file
from toy_model import ToyModel

from dare_bench import fingerprint
from dare_bench.config import run_spec
from dare_bench.engine import identity as ident
from dare_bench.engine.evaluate import evaluate_all, resolve_spec
from dare_bench.engine.opener import Opener, split_adapter
from dare_bench.engine.plan import PlannedRun, plan
from dare_bench.errors import UnknownNameError, UsageError
from dare_bench.loading import load, locate
from dare_bench.protocols import AdapterSettings

toy_source.register()


def test_plain_tasks_are_one_run_as_given() -> None:
    fields = {"model": "m", "tasks": "gsm8k,dare_sudoku", "limit": None}
    assert plan(fields) == [PlannedRun("", {"model": "m", "tasks": "gsm8k,dare_sudoku"})]


def test_a_suite_is_a_run_for_each_entry_and_other_tasks_one_more() -> None:
    planned = plan({"model": "m", "tasks": "dare,dare_sudoku", "limit": 3, "decoding": {"gen_length": 16}})
    names = [item.name for item in planned]
    assert names[0] == "mmlu" and names[-1] == "dare_sudoku" and {"gpqa", "ifeval", "aime24"} <= set(names)
    assert {item.fields["harness"] for item in planned[:-1]} == {"lm-eval", "opencompass"}
    assert all(item.fields["limit"] == 3 and item.fields["decoding"]["gen_length"] == 16 for item in planned)
    gpqa = planned[names.index("gpqa")]
    assert "gated" in gpqa.note


def test_the_user_wins_over_a_recipe_field_by_field() -> None:
    (item,) = plan({"recipe": "llada-8b-instruct/gsm8k", "model": "tiny-llada", "decoding": {"max_new_tokens": 64}})
    assert item.fields["model"] == "tiny-llada" and item.fields["recipe"] == "llada-8b-instruct/gsm8k"
    assert item.fields["decoding"]["max_new_tokens"] == 64 and "gen_length" not in item.fields["decoding"]
    assert item.fields["decoding"]["block_length"] == 8  # the recipe's own
    assert item.recipe is not None


def test_an_engine_opens_the_checkpoint_of_a_recipe_itself() -> None:
    name = "sdar-8b-chat/gsm8k.lmdeploy"
    fields = {engine: plan({"recipe": name, "engine": engine})[0].fields for engine in ("native", "lmdeploy", "sglang")}
    assert [{"family", "dtype"} & {*own} for own in fields.values()] == [{"family", "dtype"}, {"dtype"}, set()]
    (given,) = plan({"recipe": name, "engine": "sglang", "dtype": "bfloat16"})
    assert given.fields["dtype"] == "bfloat16", "which loading refuses: the server has its own"


def test_a_checkpoint_stands_for_all_its_recipes_that_can_be_run() -> None:
    planned = plan({"recipe": "llada-8b-instruct"})
    assert len(planned) > 10 and all(item.fields["recipe"] == item.name for item in planned)


@pytest.mark.parametrize("name", ["llada-8b-instruct-dare-rl", "llada-8b-instruct-dare-rl/gsm8k.d1"])
def test_recipes_of_which_none_can_be_run_say_why(name: str) -> None:
    with pytest.raises(UsageError, match=r"gsm8k\.d1 cannot be run: the weights are not published"):
        plan({"recipe": name})


def test_what_excludes_each_other() -> None:
    with pytest.raises(UsageError, match="--recipe sets the tasks"):
        plan({"recipe": "llada-8b-instruct/gsm8k", "tasks": "gsm8k"})
    with pytest.raises(UsageError, match="--harness"):
        plan({"tasks": "dare", "harness": "lm-eval"})
    with pytest.raises(UnknownNameError, match="closest: llada-8b-instruct"):
        plan({"recipe": "llada-8b-instruc"})


def test_runs_share_one_open_model_and_one_refusal_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def load(checkpoint: str, arguments: object) -> ToyModel:
        opened.append(checkpoint)
        model = ToyModel()
        model.loaded = model  # type: ignore[attr-defined]
        return model

    monkeypatch.setattr("dare_bench.engine.opener.open_checkpoint", load)
    monkeypatch.setattr(Opener, "content", lambda self, spec: "toy content")
    base = {"model": "toy", "harness": "toy", "limit": 3, "output_path": str(tmp_path)}
    planned = [PlannedRun(name, {**base, "tasks": name}) for name in ("toygen", "nothing", "toycode", "toychoice")]
    outcomes = list(evaluate_all(planned, progress=False))
    assert opened == ["toy"]
    assert [outcome.run is not None for outcome in outcomes] == [True, False, False, True]
    assert "unknown" in str(outcomes[1].reason) and "run code" in str(outcomes[2].reason)
    again = list(evaluate_all(planned, progress=False))
    assert opened == ["toy"]  # finished runs are read, not made
    assert again[0].run is not None and again[0].run.path == outcomes[0].run.path  # type: ignore[union-attr]


def test_a_name_of_another_harness_or_a_suite_is_told(tmp_path: Path) -> None:
    from dare_bench.engine.evaluate import evaluate

    pytest.importorskip("lm_eval")
    pytest.importorskip("opencompass")

    def refused(**fields: str) -> str:
        with pytest.raises(UnknownNameError) as error:
            evaluate(model="tiny-llada", output_path=str(tmp_path), **fields)
        return str(error.value)

    assert "'gsm8k_gen' is known to --harness opencompass" in refused(tasks="gsm8k_gen")
    other = refused(tasks="gsm8k", harness="opencompass")
    assert "'gsm8k' is known to --harness lm-eval" in other and "closest: gsm8k_gen," in other
    assert "or the suite 'dare-smoke'?" in refused(tasks="dare_smok")


pytest.importorskip("peft")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter for tiny-llada-base."""
    model = load("tiny-llada-base")
    model.loaded.add_adapter(AdapterSettings(r=2, targets=("attention",)))
    model.save(tmp_path / "lora-x")
    return tmp_path / "lora-x"


def identity(opened: Any = None, **fields: Any) -> tuple[str, dict[str, Any], str]:
    spec, opened = resolve_spec(None, opened, {"tasks": "dare_sudoku", **fields})
    opener = Opener(opened)
    content = opener.content(spec)
    name = fingerprint.readable_prefix(spec.model, spec.harness, spec.tasks, spec.adapter)
    return name, ident.identity(spec, opener.loaded(spec), content, {}, {}), ident.request_signature(spec, content)


def test_a_run_is_the_same_however_the_model_is_named(folder: Path) -> None:
    plain = identity(model="tiny-llada-base")
    ways = [
        identity(model="tiny-llada-base", adapter=str(folder)),
        identity(model=str(folder)),
        identity(model="tiny-llada-base", model_args={"adapter": str(folder)}),
        identity(load(folder)),
        identity(load("tiny-llada-base", adapter=folder)),
    ]
    assert ways == [ways[0]] * len(ways)
    name, facts, requested = ways[0]
    assert name == "tiny-llada-base+lora-x-dare_sudoku"
    assert facts["adapter"] == fingerprint.content_hash(folder)
    assert {**facts, "adapter": None} == plain[1] and requested != plain[2]
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({key: value * 2 for key, value in weights.items()}, folder / "adapter_model.safetensors")
    assert identity(model=str(folder))[1]["adapter"] != facts["adapter"]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2"])
def test_an_open_model_is_the_run_of_the_command_that_opens_it_alike(name: str) -> None:
    command = identity(model=name)
    for opened in (load(name), load(locate(name)), load(str(locate(name)), family=command[1]["family"])):
        assert identity(opened)[:2] == command[:2]
    assert identity(load(name)) == command
    settings = {"dtype": "bfloat16", "eot_id": 7}
    assert identity(load(name, **settings)) == identity(model=name, dtype="bfloat16", model_args={"eot_id": 7})
    padded = identity(load(name, attention="padded"))
    assert padded[:2] == command[:2] and padded[2] == identity(model=name, attention="padded")[2] != command[2]
    assert identity(model=name, model_args={"attention": "padded"})[:2] == command[:2]
    compiled = identity(load(name, compile=True))
    assert compiled == identity(model=name, compile=True) and compiled[:2] == command[:2]
    assert identity(load(name, dtype=torch.bfloat16))[2] == identity(model=name, dtype="bfloat16")[2] != command[2]


def _scale(model: Any) -> None:
    with torch.no_grad():
        next(iter(model.network.parameters())).data[0] += 1  # .data: no version counter moves


def _cast(model: Any) -> None:
    model.network.to(torch.bfloat16)


def _template(model: Any) -> None:
    model.tokenizer.chat_template = "{{ messages[0].content }}"


def _adapt(model: Any) -> None:
    model.loaded.add_adapter(AdapterSettings(r=2))


@pytest.mark.parametrize("change", [_scale, _cast, _template, _adapt])
def test_a_model_changed_in_memory_is_another_checkpoint(change: Any) -> None:
    model = load("tiny-llada-base")
    known = identity(model)[1]["model"]
    change(model)
    assert known.startswith("sha256:") and identity(model)[1]["model"].startswith("tensors:")


def test_an_adapter_switched_off_or_trained_on_is_another_checkpoint(folder: Path) -> None:
    model = load(folder)
    model.network.disable_adapter_layers()
    assert not model.is_as_opened()
    model.network.enable_adapter_layers()
    assert model.is_as_opened()
    with torch.no_grad():
        next(weight for name, weight in model.network.named_parameters() if "lora_B" in name).add_(1)
    assert not model.is_as_opened()


def test_an_open_model_whose_files_changed_since_is_no_longer_theirs(tmp_path: Path) -> None:
    copy = shutil.copytree(locate("tiny-llada"), tmp_path / "copy")
    model = load(copy)
    assert identity(model)[1]["model"] == identity(model="tiny-llada")[1]["model"]
    config = copy / "generation_config.json"
    config.write_text((config.read_text() if config.exists() else "{}") + "\n")
    assert identity(model)[1]["model"].startswith("tensors:")


@pytest.mark.parametrize(
    "asked",
    [
        {"dtype": "bfloat16"},
        {"attention": "padded"},
        {"compile": True},
        {"family": "dream"},
        {"model_args": {"mask_id": 7}},
    ],
)
def test_settings_that_an_open_model_does_not_have_are_refused(asked: dict[str, Any]) -> None:
    model = load("tiny-llada")
    with pytest.raises(UsageError, match="but the model is open already"):
        identity(model, **asked)
    assert identity(model, dtype="float32") == identity(model="tiny-llada", dtype="float32")
    assert identity(model, attention="sdpa") == identity(model="tiny-llada", attention="sdpa")


def test_two_adapters_for_one_run_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="two adapters are given"):
        identity(model="tiny-llada-base", adapter=str(folder), model_args={"adapter": "other"})
    with pytest.raises(UsageError, match="the model is open already"):
        split_adapter(run_spec(model="m", adapter=str(folder), tasks="t"), load("tiny-llada-base"))
    assert split_adapter(run_spec(model="m", tasks="t"), load(folder)).adapter == str(folder)


def test_adapters_of_a_training_are_told_apart() -> None:
    assert fingerprint.shown_name("GSAI-ML/LLaDA-8B-Base", "out/lora-x/checkpoint-50").endswith("+checkpoint-50")
    assert fingerprint.shown_name("tiny-llada-base", "owner/name") == "tiny-llada-base+name"
