"""Weights read from files: host memory while they are, values that are refused, and weights that replace others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import causal_models
import pytest
import torch
from command import forkserver
from load_memory import measure
from safetensors.torch import save_file

from dare_bench.errors import CheckpointError, UsageError
from dare_bench.loading import family_of, load, locate
from dare_bench.model_adapters.backbone.moe import published_shapes
from dare_bench.model_adapters.load_arguments import TINY, pick_dtype
from dare_bench.model_adapters.weights import check_finite

MB = 1 << 20
SIZES = {
    "tiny-llada": {"d_model": 1024, "mlp_hidden_size": 4096, "n_heads": 8, "n_kv_heads": 8},
    "tiny-llada2": {"hidden_size": 1024, "intermediate_size": 4096, "moe_intermediate_size": 512},
}


def write_shards(name: str, folder: Path) -> int:
    """A checkpoint like a bundled one, with wider layers, in bfloat16: a shard for each layer and one for the rest.
    Returns the bytes of the largest shard."""
    source = locate(name)
    config = json.loads((source / "config.json").read_text()) | SIZES[name]
    (folder / "config.json").write_text(json.dumps(config))
    network = family_of(source).load().network
    with torch.device("meta"):
        shapes = published_shapes(network(network.config_class(**config)).state_dict())
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for key, shape in shapes.items():
        layer = next((part for part in key.split(".") if part.isdigit()), "rest")
        shards.setdefault(f"{layer}.safetensors", {})[key] = torch.full(shape, 0.01, dtype=torch.bfloat16)
    for file, weights in shards.items():
        save_file(weights, folder / file)
    index = {key: file for file, weights in shards.items() for key in weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return max((folder / file).stat().st_size for file in shards)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [("tiny-llada", "bfloat16"), ("tiny-llada", "float32"), ("tiny-llada2", "bfloat16")]
)
def test_host_memory_never_holds_the_weights_twice(tmp_path: Path, name: str, dtype: str) -> None:
    shard = write_shards(name, tmp_path)
    files = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    process = forkserver.Process(target=measure, args=(tmp_path, dtype, tmp_path / "measured.json"))
    process.start()
    process.join()
    found = json.loads((tmp_path / "measured.json").read_text())
    assert found["network"] >= 100 * MB and files - shard >= 64 * MB  # a second copy would show
    assert found["network"] - 4 * MB <= found["growth"] <= found["network"] + shard + 4 * MB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 517, -1])
def test_one_value_that_is_not_finite_is_found(dtype: torch.dtype, value: float, at: int) -> None:
    fine, bad = torch.randn(3, 401, dtype=dtype), torch.randn(3, 401, dtype=dtype)
    bad.view(-1)[at] = value
    check_finite({"fine": fine, "none": fine[:0]}, Path("folder"))
    with pytest.raises(CheckpointError, match="bad holds 1 NaN or infinite values"):
        check_finite({"fine": fine, "bad": bad}, Path("folder"))


@pytest.mark.parametrize(
    ("package", "options", "extra"),
    [("torchao", {"quantize": "int8"}, "quantize"), ("accelerate", {"device": "auto"}, "train")],
)
def test_a_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, package: str, options: dict[str, Any], extra: str
) -> None:
    for name in (package, f"{package}.quantization", f"{package}.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"needs {package}, which is not installed: .*\[{extra}\]"):
        load("tiny-llada", **options)


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"device": "auto"}, {"max_memory": {"cpu": "1GB"}}])
def test_autoregressive_models_are_opened_whole(tmp_path: Path, options: dict[str, Any]) -> None:
    source = causal_models.make_llama(tmp_path)
    with pytest.raises(UsageError, match="diffusion model"):
        load(source, **options)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-llada2"])
def test_weights_are_replaced_in_place(tmp_path: Path, name: str) -> None:
    model, other = load(name), load(f"{name}-base")
    other.save(tmp_path)
    places = {key: weight.data_ptr() for key, weight in model.network.state_dict().items()}
    model.loaded.read_weights(tmp_path)
    for key, weight in model.network.state_dict().items():
        assert weight.data_ptr() == places[key] and torch.equal(weight, other.network.state_dict()[key])


# -- The dtype of a network that is opened without naming one ----------------------------------------------------------


CPU, PUBLISHED = torch.device("cpu"), {"torch_dtype": "bfloat16"}


@pytest.fixture(params=[True, False], ids=["bfloat16 instructions", "none"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    able = {"avx512_bf16": request.param, "avx2": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    return bool(request.param)


def test_auto_is_the_published_dtype_where_the_cpu_is_fast_in_it(fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dare_bench")
    assert pick_dtype("auto", CPU, PUBLISHED, TINY) == (torch.bfloat16 if fast else torch.float32)
    assert ("computes in bfloat16, as published" in caplog.text) is fast
    assert pick_dtype("auto", CPU, {"dtype": "bfloat16"}, TINY - 1) == torch.float32, "a tiny network"
    assert pick_dtype("auto", CPU, {"dtype": "float16"}, TINY) == torch.float32
    assert pick_dtype("auto", torch.device("cuda"), {"dtype": "float16"}, 1) == torch.float16


def test_evaluations_stay_in_float32_and_say_what_is_faster(fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dare_bench")
    assert pick_dtype(None, CPU, PUBLISHED, TINY) == torch.float32
    assert ("--dtype auto" in caplog.text) is fast
    assert pick_dtype("bfloat16", CPU, {}, 1) == torch.bfloat16
    with pytest.raises(UsageError, match="dtype 'half' is not known; allowed: float32, "):
        pick_dtype("half", CPU, PUBLISHED, TINY)
