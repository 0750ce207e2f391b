"""Which run an evaluation is, however its model is handed over, and what it is called."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dare_bench import fingerprint
from dare_bench.config import run_spec
from dare_bench.engine import identity as ident
from dare_bench.engine.evaluate import resolve_spec
from dare_bench.engine.opener import Opener, split_adapter
from dare_bench.errors import UsageError
from dare_bench.loading import load, locate
from dare_bench.protocols import AdapterSettings

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
