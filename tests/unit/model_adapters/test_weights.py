"""Weights read from files: host memory while they are, values that are refused; and ``device='auto'``: the same
answers wherever layers are, plans for networks that are not here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import causal_models
import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import remove_hook_from_module
from command import forkserver
from load_memory import measure
from safetensors.torch import save_file
from torch.fx.experimental import _config as fx_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dare_bench.config import run_spec
from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.engine.sharding import check_workers
from dare_bench.errors import CheckpointError, UsageError
from dare_bench.loading import family_of, load, locate
from dare_bench.model import Model
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.moe import published_shapes
from dare_bench.model_adapters.load_arguments import TINY, pick_dtype
from dare_bench.model_adapters.placement import memory_limits, plan
from dare_bench.model_adapters.weights import check_finite
from dare_bench.training.run import train

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


IDS = list(range(5, 45))
BUNDLED = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2")
FLASH = {
    "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "dtype": "bfloat16", "num_hidden_layers": 32,
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 157184,
    "intermediate_size": 9216, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
}  # fmt: skip
"""Of inclusionAI/LLaDA2.0-flash."""
FLASH_GB = 205.779


def partly(name: str, **options: Any) -> Model:
    """A bundled checkpoint of which a part is in memory and the rest on the disk."""
    return load(name, device="auto", max_memory={"cpu": "1800KB"}, **options)


@pytest.mark.parametrize("name", BUNDLED)
def test_weights_on_the_disk_answer_alike(name: str) -> None:
    whole, divided = load(name, device="cpu"), partly(name)
    away = {key for key, weight in divided.network.named_parameters() if weight.is_meta}
    assert away and len(away) < len(list(divided.network.parameters()))
    assert torch.equal(divided.logits(IDS), whole.logits(IDS))
    answers = (model.generate(["2 + 3 =", "a"], gen_length=8) for model in (divided, whole))
    first, second = ([sample.tokens for sample in samples] for samples in answers)
    assert first == second
    values = [model.loglikelihood([("2 + 3 =", " 5")])[0].value for model in (divided, whole)]
    assert values[0] == values[1]
    assert divided.is_as_opened() and divided.spec == whole.spec


def test_what_fits_into_memory_is_not_divided() -> None:
    model = load("tiny-llada", device="auto", max_memory={"cpu": "1GB"}, dtype="bfloat16")
    assert not any(weight.is_meta for weight in model.network.parameters())
    assert model.spec.device == "cpu" and model.spec.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("memory", "away"),
    [
        ({"0": "127GB", "1": "127GB"}, set()),
        ({0: "72GB", 1: "72GB", 2: "72GB", 3: "72GB"}, set()),
        ({"cuda:0": "127GB", "cpu": "100GB"}, {"cpu"}),
        ({"cpu": "40GB", 0: "72GB"}, {"cpu", "disk"}),
        ({"cpu": "20GB"}, {"disk"}),
    ],
)
def test_the_plan_of_a_large_network(tmp_path: Path, memory: dict[int | str, int | str], away: set[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FLASH))
    network = family_of(tmp_path).load().network
    with torch.device("meta"):
        empty = network(network.config_class(**FLASH)).to(torch.bfloat16)
    limits = memory_limits(memory)
    placement = plan(empty, limits)
    assert abs(sum(placement.held.values()) / 1e9 - FLASH_GB) < 0.001
    assert all(size <= limits[device] for device, size in placement.held.items() if device != "disk")
    gpus = {device for device in limits if device != "cpu"}
    assert placement.held.keys() == gpus | away or (not gpus and placement.held.keys() == {"cpu", "disk"})
    assert str(placement.main) == ("cuda:0" if gpus else "cpu")
    if not away:  # like shares: none has more than a layer more than another
        layer = 3 * 256 * 1024 * 4096 * 2
        assert max(placement.held.values()) - min(placement.held.values()) < 1.5 * layer


class OneDevice(TorchDispatchMode):
    """Every operation but a copy has its operands on one device, as between GPUs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        copies = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        assert func in copies or len({tensor.device for tensor in tensors}) < 2, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-sdar"])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "padded"])
def test_layers_on_a_second_device_meet_no_tensor_of_the_first(name: str, few: bool, attention: str) -> None:
    """The second device is PyTorch's meta device, whose tensors have no values."""
    network = load(name, device="cpu", attention=attention).network
    names, block = network.arch.names, network.arch.block_length
    parts = dict.fromkeys([names.embed, *(f"{names.layers}.{i}" for i in range(3))], "cpu")
    parts |= dict.fromkeys([f"{names.layers}.3", f"{names.layers}.4", names.final_norm, names.head], "meta")
    dispatch_model(network, parts, main_device="cpu")
    remove_hook_from_module(network)  # it would bring the logits back
    store, slots = KVStore(network.arch, 8, torch.device("cpu"), torch.float32), torch.arange(1, 5)
    at = torch.tensor([70, 79]) if few else torch.arange(20, 80)  # of few positions, the last layer computes no others
    with OneDevice(), fx_config.patch(meta_nonzero_assume_all_nonzero=True):  # no query is padded here
        writes = Plan((4,), block, cached=Cached(store, (slots[:0],), torch.arange(4), slots))
        assert network(torch.arange(5, 9), plan=writes).logits.device.type == "meta"
        store.grow(32)
        assert [keys.device.type for keys in store.keys] == ["cpu"] * 3 + ["meta"] * 2
        reads = Plan((80,), block, starts=(4,), cached=Cached(store, (slots,), slots[:0], slots[:0]))
        logits = network(torch.arange(5, 85), plan=reads, logits_at=at).logits
    assert logits.device.type == "meta" and logits.shape == (len(at), network.arch.vocab)


def test_slots_follow_their_layer_to_another_device() -> None:
    network = load("tiny-sdar", device="cpu").network
    store = KVStore(network.arch, 8, torch.device("cpu"), torch.float32)
    own = torch.zeros(4, *store.shapes[1], device="meta")
    keys, values = store.with_own(1, own, own)  # as flex and varlen read
    assert keys.shape == values.shape == (12, *store.shapes[1])
    store.grow(32)
    assert [stored[1].device.type for stored in (store.keys, store.values)] == ["meta"] * 2
    assert len(store.keys[1]) == len(store.keys[0]) == 32 and store.keys[0].device.type == "cpu"


def test_a_network_that_reads_its_embeddings_outside_of_its_layers_is_not_divided() -> None:
    folder = Path(__file__).parents[2] / "parity" / "diffusion_gemma"
    assert load(folder, device="auto", max_memory={"cpu": "1GB"}).is_as_opened()
    with pytest.raises(UsageError, match="give one device that holds it"):
        load(folder, device="auto", max_memory={"cpu": "40KB"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_memory": {"cpu": "1GB"}}, "without device='auto'"),
        ({"device": "auto", "max_memory": {}}, "must name devices"),
        ({"device": "auto", "max_memory": {"cpu": "much"}}, "must name devices"),
        ({"device": "auto", "max_memory": {"tpu": "1GB"}}, "must name devices"),
        ({"device": "auto", "max_memory": {"cpu": -5}}, "must name devices"),
        ({"device": "auto", "max_memory": "1GB"}, "must name devices"),
        ({"device": "auto", "max_memory": {0: "1GB"}}, "finds no GPU"),
        ({"device": "auto", "adapter": "ADAPTER"}, "merge it first"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_settings_that_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    if "adapter" in options:
        (tmp_path / "adapter_config.json").write_text("{}")
        options["adapter"] = tmp_path
    with pytest.raises(UsageError, match=message) as seen:
        load("tiny-llada", **options)
    assert "\n" not in str(seen.value)


def test_a_divided_model_is_not_changed_saved_or_divided_again(tmp_path: Path) -> None:
    model = partly("tiny-llada")
    with pytest.raises(UsageError, match="are not on the device that computes"):
        model.save(tmp_path / "saved")
    with pytest.raises(UsageError, match="are not on the device that computes"):
        model.loaded.read_weights(locate("tiny-llada-base"))
    with pytest.raises(UsageError, match="for evaluations only"):
        train(method="sft", model="tiny-llada", data=[{"prompt": "a", "completion": "b"}] * 8, device="auto",
              max_steps=1, output_path=str(tmp_path / "out"))  # fmt: skip
    with pytest.raises(UsageError, match="divides one model among all GPUs"):
        check_workers(run_spec(model="tiny-llada", tasks="dare_sudoku", device="auto", devices=2))
