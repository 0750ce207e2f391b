"""LoRA over a frozen base in int8 or int4 (QLoRA): gradients, a training, and the adapter over both bases."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from require import need_package
from torch import Tensor

from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.backbone.quantized import KINDS, Kind, QuantizedLinear
from dare_bench.protocols import AdapterSettings

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


def train(out: Path, **more: Any) -> list[dict[str, Any]]:
    from dare_bench.training.run import train

    fields = {"method": "sft", "model": "tiny-llada-base", "data": ROWS, "peft": "lora", "quantize": "int4",
              "max_steps": 40, "save_steps": 20, "logging_steps": 1, "report_to": (), "learning_rate": 2e-3,
              "lr_scheduler_type": "constant", "warmup_steps": 0, "output_path": str(out)}  # fmt: skip
    train(**{**fields, **more})
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "loss" in entry]


def test_a_training_learns_resumes_and_its_adapter_opens_over_both_bases(tmp_path: Path) -> None:
    losses = [entry["loss"] for entry in train(tmp_path / "out")]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny-llada-base" and "custom" not in json.dumps(config)
    trained = (tmp_path / "out/adapter_model.safetensors").read_bytes()

    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "out/checkpoint-20", resumed / "checkpoint-20")
    record = json.loads((tmp_path / "out/train.json").read_text())
    (resumed / "train.json").write_text(json.dumps({**record, "status": "running"}))
    train(resumed)
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
    (first, *_) = train(
        tmp_path / "out", method="cj_grpo", data=None, task="dare_arithmetic", rows=8, max_steps=2, num_generations=4,
        num_iterations=1, beta=0.1, rollout={"steps": 4}, eval={"tasks": "dare_arithmetic", "limit": 2},
    )  # fmt: skip
    assert first["kl"] == pytest.approx(0, abs=1e-9) and first["sampler_gap_max"] < 1e-4
    (run,) = (tmp_path / "out/runs").glob("*/run.json")
    assert '"quantize": "int4"' in run.read_text()


def test_what_is_not_possible_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FSDP cannot shard it, or leave it out"):
        train(tmp_path / "out", fsdp=True)
    loaded = load("tiny-llada2-base", device="cpu", quantize="int8").loaded
    with pytest.raises(UsageError, match="leave 'experts' out"):
        loaded.add_adapter(AdapterSettings(4, 8.0, 0.0, ("experts",), 0))
