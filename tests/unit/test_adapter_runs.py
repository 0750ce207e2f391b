"""Which run an evaluation with an adapter is, and what it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from dare_bench import fingerprint
from dare_bench.config import run_spec
from dare_bench.engine import identity as ident
from dare_bench.engine.opening import Opener, apart
from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.protocols import AdapterSettings

pytest.importorskip("peft")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter for tiny-llada-base."""
    model = load("tiny-llada-base")
    model.loaded.add_adapter(AdapterSettings(r=2, targets=("attention",)))
    model.save(tmp_path / "lora-x")
    return tmp_path / "lora-x"


def identity(**fields: Any) -> tuple[str, dict[str, Any], str]:
    spec = apart(run_spec(tasks="dare_sudoku", **fields))
    opener = Opener()
    content = opener.content(spec)
    name = fingerprint.readable_prefix(spec.model, spec.harness, spec.tasks, spec.adapter)
    return name, ident.identity(spec, opener.loaded(spec), content, {}, {}), ident.asked(spec, content)


def test_a_run_is_the_same_however_the_model_is_named(folder: Path) -> None:
    plain = identity(model="tiny-llada-base")
    ways = [
        identity(model="tiny-llada-base", adapter=str(folder)),
        identity(model=str(folder)),
        identity(model="tiny-llada-base", model_args={"adapter": str(folder)}),
    ]
    assert ways[0] == ways[1] == ways[2]
    name, facts, asked = ways[0]
    assert name == "tiny-llada-base+lora-x-dare_sudoku"
    assert facts["adapter"] == fingerprint.content_hash(folder)
    assert {**facts, "adapter": None} == plain[1] and asked != plain[2]
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({key: value * 2 for key, value in weights.items()}, folder / "adapter_model.safetensors")
    assert identity(model=str(folder))[1]["adapter"] != facts["adapter"]


def test_two_adapters_for_one_run_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="two adapters are named"):
        identity(model="tiny-llada-base", adapter=str(folder), model_args={"adapter": "other"})
    with pytest.raises(UsageError, match="the model is open already"):
        apart(run_spec(model="m", adapter=str(folder), tasks="t"), load("tiny-llada-base"))
    assert apart(run_spec(model="m", tasks="t"), load(folder)).adapter == str(folder)


def test_adapters_of_a_training_are_told_apart() -> None:
    assert fingerprint.shown_name("GSAI-ML/LLaDA-8B-Base", "out/lora-x/checkpoint-50").endswith("+checkpoint-50")
    assert fingerprint.shown_name("tiny-llada-base", "owner/name") == "tiny-llada-base+name"
