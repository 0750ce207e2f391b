"""int8 and int4 weights: torchao's own numbers, what is quantized, what says so, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from require import need_package
from torch import Tensor, nn

from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.validation import validate
from dare_bench.errors import UsageError
from dare_bench.loading import load, locate
from dare_bench.model import Model
from dare_bench.model_adapters.backbone.moe import Experts, Router
from dare_bench.model_adapters.backbone.quantized import (
    KINDS,
    Kind,
    QuantizedLinear,
    QuantizedMatrix,
    dense,
    numbers_of,
)
from dare_bench.training.run import train

torchao = need_package("torchao.quantization")
IDS = list(range(5, 45))
NAMES = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_that_of_torchaos_weight_only_layers(dtype: torch.dtype) -> None:
    own, theirs = nn.Linear(48, 32, bias=False, dtype=dtype), nn.Linear(48, 32, bias=False, dtype=dtype)
    theirs.load_state_dict(own.state_dict())
    torchao.quantize_(theirs, torchao.Int8WeightOnlyConfig())
    numbers = numbers_of(own.weight.data, "int8")
    assert torch.equal(numbers.values, theirs.weight.qdata)
    assert torch.equal(numbers.scale, theirs.weight.scale.to(dtype))
    if dtype == torch.float32:
        assert torch.equal(dense(numbers), theirs.weight.dequantize())


@pytest.mark.parametrize("columns", [64, 96, 40, 6])
def test_int4_is_that_of_torchaos_weight_only_layers(columns: int) -> None:
    own, theirs = nn.Linear(columns, 12, bias=False), nn.Linear(columns, 12, bias=False)
    theirs.load_state_dict(own.state_dict())
    group = {64: 32, 96: 32, 40: 8, 6: 2}[columns]
    torchao.quantize_(theirs, torchao.IntxWeightOnlyConfig(
        torch.int4, torchao.PerGroup(group), torchao.quant_primitives.MappingType.ASYMMETRIC
    ))  # fmt: skip
    numbers = numbers_of(own.weight.data, "int4")
    assert numbers.values.dtype == torch.uint8 and numbers.values.shape == (12, columns // 2)
    assert torch.equal(dense(numbers), theirs.weight.dequantize())


def quantized(name: str, kind: Kind, **options: Any) -> Model:
    return load(name, device="cpu", quantize=kind, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_read_into_numbers(name: str, kind: Kind) -> None:
    """It answers as the full network does with the same matrices multiplied out."""
    model, full = quantized(name, kind), load(name, device="cpu")
    modules = dict(full.network.named_modules())
    kept = {key for key, _ in model.network.named_parameters()} & {key for key, _ in full.network.named_parameters()}
    assert all(torch.equal(model.network.get_parameter(key), full.network.get_parameter(key)) for key in kept)
    for path, module in model.network.named_modules():
        if isinstance(module, QuantizedLinear):
            modules[path].weight.data = module.weight()
        elif isinstance(module, Experts):
            for leaf in ("gate_up_proj", "down_proj"):
                original = getattr(modules[path], leaf).data
                assert torch.equal(module.get_submodule(leaf)(), dense(numbers_of(original, kind)))
                getattr(modules[path], leaf).data = module.get_submodule(leaf)()
    assert torch.equal(model.logits(IDS), full.logits(IDS))
    assert model.is_as_opened()
    matrix = next(module for module in model.network.modules() if isinstance(module, QuantizedMatrix))
    matrix.scale.data.mul_(2)
    assert not model.is_as_opened()


@pytest.mark.parametrize(("kind", "limit"), [("int8", 0.51), ("int4", 0.32)])
def test_what_is_quantized(kind: Kind, limit: float) -> None:
    """All matrices of the layers but the router, experts too; not embedding, head, norms."""
    for name in ("tiny-llada", "tiny-llada2"):
        model, full = (quantized(name, kind, dtype="bfloat16"), load(name, device="cpu", dtype="bfloat16"))
        arch = model.network.arch
        layers = model.network.at(arch.names.layers)
        matrices = [module for module in layers.modules() if isinstance(module, nn.Linear | Experts)]
        assert all(isinstance(module, Router | Experts) for module in matrices)
        assert not any(isinstance(module, QuantizedMatrix) for module in (model.network.at(arch.names.head),))
        sizes = [sum(w.nbytes for w in m.network.at(arch.names.layers).parameters()) for m in (model, full)]
        assert sizes[0] < limit * sizes[1] + 20_000, sizes
        assert model.spec.parameters == full.spec.parameters and model.spec.precision == f"bfloat16+{kind}"


def test_the_published_experts_are_quantized_row_by_row() -> None:
    model = quantized("tiny-llada2", "int4")
    experts = next(module for module in model.network.modules() if isinstance(module, Experts))
    assert isinstance(experts.gate_up_proj, QuantizedMatrix) and experts.gate_up_proj.values.shape == (8, 80, 64)
    assert isinstance(experts.down_proj, QuantizedMatrix) and experts.down_proj.scale.shape == (
        8,
        128,
        5,
    )  # 40 columns: by 8


@pytest.mark.slow
def test_answers_and_runs_say_that_they_are_approximate(tmp_path: Path) -> None:
    model = quantized("tiny-llada", "int8")
    assert model.generate(["2 + 3 ="], gen_length=8)[0].tier == "A"
    assert model.loglikelihood([("2 + 3 =", " 5")])[0].tier == "A"
    fields: dict[str, Any] = {"tasks": "dare_arithmetic", "limit": 1, "output_path": str(tmp_path), "device": "cpu"}
    fields["decoding"] = {"gen_length": 4, "steps": 1}
    runs = [
        evaluate(model="tiny-llada", quantize="int8", **fields),
        evaluate(model="tiny-llada", model_args={"quantize": "int8"}, **fields),
        evaluate(model=model, **fields),
        evaluate(model="tiny-llada", **fields),
    ]
    assert len({run.path for run in runs[:3]}) == 1 and len({run.path for run in runs}) == 2
    block = json.loads(runs[0].results_file.read_text())["dare_bench"]
    assert block["model"]["dtype"] == "float32+int8" and block["tasks"]["dare_arithmetic"]["tier"] == "A"
    assert [sample["dare_bench"][0]["tier"] for sample in runs[0].samples("dare_arithmetic")] == ["A"]


@pytest.mark.slow
def test_validate_measures_what_int4_changes() -> None:
    checks = {check.name: check for check in validate("tiny-llada", quantize="int4", device="cpu")}
    found = checks["int4 against full weights"]
    assert found.passed and found.values["tokens"] == 192
    assert 0 < found.values["kl_divergence"] < 5 and 0 <= found.values["flip_rate"] <= 1
    full, small = found.values["weight_bytes"]
    assert small < 0.3 * full
    assert checks["keys and round trip"].passed


def test_numbers_are_moved_by_accelerates_hooks() -> None:
    model = quantized("tiny-llada2", "int4")
    before, state = model.logits(IDS), dict(model.network.state_dict())
    dispatch_model(model.network, {"": "disk"}, main_device="cpu", state_dict=state, offload_index={})
    assert all(weight.is_meta for weight in model.network.parameters())
    assert torch.equal(model.logits(IDS), before)


def test_plans_count_the_numbers() -> None:
    with pytest.raises(UsageError, match="do not fit into memory"):
        load("tiny-llada", device="auto", max_memory={"cpu": "500KB"}, quantize="int8")
    fits = load("tiny-llada", device="auto", max_memory={"cpu": "1500KB"}, quantize="int8")
    assert torch.equal(fits.logits(IDS), quantized("tiny-llada", "int8").logits(IDS))
    full = load("tiny-llada", device="auto", max_memory={"cpu": "1500KB"})
    assert [any(w.is_meta for w in model.network.parameters()) for model in (fits, full)] == [False, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_finite_have_such_a_scale(kind: Kind, value: float) -> None:
    weight = torch.randn(4, 32)
    weight[2, 5] = value
    scale: Tensor = numbers_of(weight, kind).scale
    assert not scale[2].isfinite().all() and scale[[0, 1, 3]].isfinite().all()


def test_quantized_weights_are_not_saved_or_trained(tmp_path: Path) -> None:
    model = quantized("tiny-llada", "int8")
    with pytest.raises(UsageError, match="quantized weights; open it without"):
        model.save(tmp_path / "saved")
    with pytest.raises(UsageError, match="quantized weights; open it without"):
        model.loaded.read_weights(locate("tiny-llada-base"))
    for given in ({"model_args": {"quantize": "int8"}}, {"quantize": "int8"}):
        with pytest.raises(UsageError, match="are not trained; give --peft lora, or leave it out"):
            train(method="sft", model="tiny-llada", max_steps=1, data=[{"prompt": "a", "completion": "b"}] * 8,
                  output_path=str(tmp_path / "out"), **given)  # type: ignore[arg-type]  # fmt: skip
    with pytest.raises(UsageError, match="allowed: int8, int4"):
        load("tiny-llada", quantize="int2")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a server of --engine openai"):
        load("x", engine="openai", engine_url="http://localhost:1", quantize="int8")
