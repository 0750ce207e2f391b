"""int8 and int4 weights: torchao's own numbers, what is quantized, what says so, what is refused; and LoRA over such
a frozen base (QLoRA)."""

from __future__ import annotations

import json
import shutil
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
from dare_bench.protocols import AdapterSettings
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


need_package("torchao")
need_package("peft")
need_package("accelerate")
FAMILIES = ("llada", "dream", "sdar")
ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(10, 40) for b in range(10, 20)]


def adapted(family: str, kind: Kind | None) -> Any:
    """A tiny model with an adapter that changes something."""
    loaded = load(f"tiny-{family}-base", device="cpu", quantize=kind).loaded
    loaded.add_adapter(AdapterSettings(4, 8.0, 0.0, ("attention", "mlp"), 0))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in loaded.network.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) / 20)
    return loaded


def gradients(loaded: Any, cast: bool = False) -> dict[str, Tensor]:
    """Of the mean log p of some tokens, by the names of the adapter's weights."""
    ids = torch.arange(20, 44)
    with torch.autocast("cpu", enabled=cast):
        logits_TV = loaded.network(input_ids=ids[None]).logits[0].float()
    logits_TV.log_softmax(-1)[torch.arange(24), ids].mean().backward()
    return {name: w.grad for name, w in loaded.network.named_parameters() if w.requires_grad}


@pytest.mark.parametrize("cast", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_over_the_base_multiplied_out(family: str, kind: Kind, cast: bool) -> None:
    ours, theirs = adapted(family, kind), adapted(family, None)
    modules = dict(theirs.network.named_modules())
    count = 0
    for path, module in ours.network.named_modules():
        if isinstance(module, QuantizedLinear):
            modules[path].weight.data, count = module.weight(), count + 1
    assert count and not any(w.requires_grad for n, w in ours.network.named_parameters() if "lora_" not in n)
    got, wanted = gradients(ours, cast), gradients(theirs, cast)
    assert got.keys() == wanted.keys() and all(float(of.abs().max()) > 0 for of in wanted.values())
    limit = {"rtol": 2e-2, "atol": 2e-4} if cast else {"rtol": 1e-5, "atol": 1e-7}
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, **limit)


def test_no_dense_matrix_is_kept_for_the_backward() -> None:
    """The saved tensors of a forward are smaller than the matrices that it multiplies out."""
    loaded = adapted("llada", "int8")
    shapes = {tuple(m.weight().shape) for m in loaded.network.modules() if isinstance(m, QuantizedLinear)}
    kept = list[tuple[int, ...]]()

    def pack(x: Tensor) -> Tensor:
        kept.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loaded.network(input_ids=torch.arange(20, 27)[None])
    assert kept and shapes.isdisjoint({shape for shape in kept if shape[0] > 7 and 4 not in shape})


def train_adapter(out: Path, **more: Any) -> list[dict[str, Any]]:
    fields = {"method": "sft", "model": "tiny-llada-base", "data": ROWS, "peft": "lora", "quantize": "int4",
              "max_steps": 40, "save_steps": 20, "logging_steps": 1, "report_to": (), "learning_rate": 2e-3,
              "lr_scheduler_type": "constant", "warmup_steps": 0, "output_path": str(out)}  # fmt: skip
    train(**{**fields, **more})
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "loss" in entry]


def test_a_training_learns_resumes_and_its_adapter_opens_over_both_bases(tmp_path: Path) -> None:
    losses = [entry["loss"] for entry in train_adapter(tmp_path / "out")]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny-llada-base" and "custom" not in json.dumps(config)
    trained = (tmp_path / "out/adapter_model.safetensors").read_bytes()

    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "out/checkpoint-20", resumed / "checkpoint-20")
    record = json.loads((tmp_path / "out/train.json").read_text())
    (resumed / "train.json").write_text(json.dumps({**record, "status": "running"}))
    train_adapter(resumed)
    assert (resumed / "adapter_model.safetensors").read_bytes() == trained

    ids = list(range(20, 30))
    base, full, small = (
        load("tiny-llada-base", device="cpu", quantize="int4"),
        load("tiny-llada-base", device="cpu", adapter=tmp_path / "out"),
        load("tiny-llada-base", device="cpu", adapter=tmp_path / "out", quantize="int4"),
    )
    assert small.is_as_opened() and full.is_as_opened()
    logits = [model.logits(ids) for model in (base, small, full)]
    assert float((logits[1] - logits[0]).abs().max()) > 0.1, "the adapter works"
    assert float((logits[2] - logits[1]).abs().mean()) < float((logits[1] - logits[0]).abs().mean())
    with pytest.raises(UsageError, match="merged into full weights"):
        small.loaded.merge_adapter()


def test_reinforcement_learning_evaluates_its_checkpoints_over_the_same_base(tmp_path: Path) -> None:
    """With a KL penalty, whose reference is the quantized base."""
    (first, *_) = train_adapter(
        tmp_path / "out", method="cj_grpo", data=None, task="dare_arithmetic", rows=8, max_steps=2, num_generations=4,
        num_iterations=1, beta=0.1, rollout={"steps": 4}, eval={"tasks": "dare_arithmetic", "limit": 2},
    )  # fmt: skip
    assert first["kl"] == pytest.approx(0, abs=1e-9) and first["sampler_gap_max"] < 1e-4
    (run,) = (tmp_path / "out/runs").glob("*/run.json")
    assert '"quantize": "int4"' in run.read_text()


def test_what_is_not_possible_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FSDP cannot shard it, or leave it out"):
        train_adapter(tmp_path / "out", fsdp=True)
    loaded = load("tiny-llada2-base", device="cpu", quantize="int8").loaded
    with pytest.raises(UsageError, match="leave 'experts' out"):
        loaded.add_adapter(AdapterSettings(4, 8.0, 0.0, ("experts",), 0))
