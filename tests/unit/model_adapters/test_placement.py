"""``device="auto"``: the same answers wherever layers are; plans for networks that are not here; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import remove_hook_from_module
from torch.fx.experimental import _config as fx_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dare_bench.config import run_spec
from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.engine.sharding import check_workers
from dare_bench.errors import UsageError
from dare_bench.loading import family_of, load, locate
from dare_bench.model import Model
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.placement import memory_limits, plan
from dare_bench.training.run import train

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
