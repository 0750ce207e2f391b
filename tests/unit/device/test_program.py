"""The rest of the program on a pretend accelerator, with the CPU's values: likelihoods, trainings, saving and loading,
layers in two places, quantized weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden
import pretend_device
import pytest
import torch
from causal_models import make_gpt2, make_llama
from require import need_package
from safetensors.torch import load_file

from dare_bench.loading import load, locate
from dare_bench.model import Model
from dare_bench.model_adapters import open_native, placement
from dare_bench.training.run import train

FAMILIES = (*golden.FAMILIES, "llada22", "diffusion_gemma")
CONTEXT, TARGET = [13, 14, 46, 74, 92, 7], [90, 88, 5, 85, 31, 8, 77]
PAIRS = [(CONTEXT, TARGET), ([], TARGET[:2]), (CONTEXT[:3], TARGET[:1])]
ESTIMATORS: dict[str, tuple[dict[str, Any], ...]] = {
    "llada": ({"estimator": "exact"}, {"estimator": "reference", "mc_num": 4, "batch_size": 2}),
    "dream": ({"mc_num": 4, "batch_size": 2},),
}
QUESTION = "2 + 3 ="


@pytest.fixture(autouse=True)
def by_name():
    with pretend_device.available():
        yield


def opened(family: str, **options: Any) -> Model:
    ids: dict[str, Any] = dict(golden.special_ids(family))
    if family == "llada22":
        ids["family"] = "llada2.2"
    return load(golden.model(family).loaded.path, device="pretend", dtype="float32", **ids, **options)


@pytest.mark.parametrize(
    ("family", "attention"), [*((family, "padded") for family in FAMILIES), ("llada", "sdpa"), ("sdar", "sdpa")]
)
def test_likelihoods_and_logits(family: str, attention: str) -> None:
    cpu, device = golden.model(family), opened(family, attention=attention)
    pairs = PAIRS[:1] if family == "diffusion_gemma" else PAIRS  # which needs a context
    for fields in ESTIMATORS.get(family, ({},)):
        first, second = (model.loglikelihood(pairs, **fields) for model in (cpu, device))
        assert [a.value for a in second] == pytest.approx([a.value for a in first], abs=1e-4)
        assert [a.is_greedy for a in second] == [a.is_greedy for a in first]
    assert torch.allclose(device.logits(CONTEXT), cpu.logits(CONTEXT), atol=1e-4)


@pytest.mark.parametrize("make", [make_llama, make_gpt2])
def test_an_autoregressive_model(make: Any, tmp_path: Path) -> None:
    cpu, device = (load(make(tmp_path / place), device=place, dtype="float32") for place in ("cpu", "pretend"))
    for fields in ({}, {"temperature": 0.8}):
        first, second = (model.generate([QUESTION, "twice"], gen_length=8, seed=2, **fields) for model in (cpu, device))
        assert [a.tokens for a in second] == [a.tokens for a in first]
    first, second = (model.loglikelihood([(QUESTION, " 5"), ("a", "bc")]) for model in (cpu, device))
    assert [a.value for a in second] == pytest.approx([a.value for a in first], abs=1e-4)


@pytest.mark.parametrize("family", ["llada", "sdar_moe", "llada2", "diffusion_gemma"])
def test_a_saved_model_is_the_same(family: str, tmp_path: Path) -> None:
    model = opened(family)
    model.save(tmp_path / "saved")
    before, after = (load_file(f / "model.safetensors") for f in (golden.model(family).loaded.path, tmp_path / "saved"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.is_as_opened()
    model.loaded.read_weights(tmp_path / "saved")
    assert model.is_as_opened()


TRAININGS = [
    ("sft", "llada", {"task": "dare_arithmetic", "rows": 8}),
    ("sft", "sdar", {"task": "dare_arithmetic", "rows": 8, "peft": "lora"}),
    ("dpo", "llada", {"data": [{"prompt": "1 + 2 =", "chosen": " 3", "rejected": " 4"}] * 8}),
    ("coupled_grpo", "llada", {"task": "dare_arithmetic", "rows": 8, "options": {"num_generations": 4, "beta": 0.04}}),
    ("cj_grpo", "llada2", {"task": "dare_arithmetic", "rows": 8, "options": {"num_generations": 4}}),
]


def trained(method: str, family: str, fields: dict[str, Any], out: Path, device: str) -> tuple[float, Path]:
    """The loss of a training's only step, and its folder."""
    train(
        method=method, model=f"tiny-{family}-base", output_path=str(out), device=device, max_steps=1, report_to=(),
        per_device_train_batch_size=4, learning_rate=0.1, lr_scheduler_type="constant", warmup_steps=0,
        adam_epsilon=1.0, dtype="float32", **fields,
    )  # fmt: skip
    log = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return next(entry["loss"] for entry in log if "loss" in entry), out


@pytest.mark.parametrize(("method", "family", "fields"), TRAININGS)
def test_one_step_of_a_training(
    method: str, family: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_package("accelerate")
    expected, theirs = trained(method, family, dict(fields), tmp_path / "cpu", "cpu")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "pretend:0")  # without it transformers takes a CPU
    with pretend_device.counted() as counts:
        loss, ours = trained(method, family, dict(fields), tmp_path / "device", "pretend")
    assert counts["launches"] > 500
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
    name = "adapter_model.safetensors" if "peft" in fields else "model.safetensors"
    got, want = load_file(ours / name), load_file(theirs / name)
    assert got.keys() == want.keys()
    assert all(torch.allclose(got[key], want[key], atol=1e-4) for key in want)


@pytest.mark.parametrize(("name", "kind"), [("tiny-llada", "int8"), ("tiny-sdar", "int4"), ("tiny-llada2", "int4")])
def test_quantized_weights(name: str, kind: str) -> None:
    need_package("torchao.quantization")
    cpu, device = (load(name, device=d, dtype="float32", quantize=kind) for d in ("cpu", "pretend"))
    first, second = (model.generate([QUESTION], gen_length=8)[0].tokens for model in (cpu, device))
    assert first == second
    assert device.loglikelihood([(QUESTION, " 5")])[0].value == pytest.approx(
        cpu.loglikelihood([(QUESTION, " 5")])[0].value, abs=1e-4
    )


@pytest.mark.parametrize(("name", "away"), [("tiny-llada", "cpu"), ("tiny-sdar", "disk"), ("tiny-llada2", "disk")])
def test_layers_in_two_places(name: str, away: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--device auto`` with half of the weights on the device, and the others in memory or on the disk."""
    folder, limits = locate(name), {"pretend:0": 1, "cpu": 1}

    def two(network: Any, _: Any) -> placement.Placement:
        arch = network.arch
        layers = {f"{arch.names.layers}.{i}": "pretend:0" if i < arch.layers // 2 else away for i in range(arch.layers)}
        modules = {arch.names.embed: "pretend:0", **layers, arch.names.final_norm: "pretend:0"}
        if any(key.startswith(arch.names.head) for key in network.state_dict()):
            modules[arch.names.head] = "pretend:0"
        return placement.Placement(modules, limits, {"pretend:0": 1, away: 1})

    monkeypatch.setattr(placement, "main_device", lambda _: "pretend:0")
    monkeypatch.setattr(open_native, "main_device", lambda _: "pretend:0")
    monkeypatch.setattr(open_native, "plan", two)
    cpu, divided = load(name, device="cpu"), load(folder, device="auto", dtype="float32", max_memory={"cpu": "1GB"})
    assert any(weight.is_meta for weight in divided.network.parameters()), "weights come for each forward"
    with pretend_device.counted() as counts:
        tokens = divided.generate([QUESTION, "a"], gen_length=8)
    assert counts["copies copy_"] > 10 * counts["waits _local_scalar_dense"]
    assert [a.tokens for a in tokens] == [a.tokens for a in cpu.generate([QUESTION, "a"], gen_length=8)]
    values = [model.loglikelihood([(QUESTION, " 5")])[0].value for model in (divided, cpu)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)
