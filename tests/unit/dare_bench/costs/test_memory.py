"""The memory of a training against tensors that PyTorch really holds, and identities between settings."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import dare_bench
from dare_bench.costs import memory as memory_costs
from dare_bench.costs.memory import DeviceMemory, DeviceTraining, layer_activations, memory_of
from dare_bench.costs.sizes import rows_of, size_of
from dare_bench.diffusion import chunked
from dare_bench.diffusion.plan import Plan
from dare_bench.diffusion.sequence_parallel import SequenceGroup
from dare_bench.errors import UnknownNameError
from dare_bench.model_adapters.backbone.network import shapes_of
from dare_bench.protocols import AdapterSettings
from dare_bench.registry import registry
from dare_bench.training.spec import train_spec

LLADA = "GSAI-ML/LLaDA-8B-Instruct"
TINY = ["tiny-llada-base", "tiny-dream-base", "tiny-sdar-base", "tiny-llada2-base"]


def training(model: str = LLADA, processes: int = 1, method: str = "coupled_grpo", **more: Any) -> DeviceTraining:
    """A training on ``processes`` devices; ``more``: settings, those of the method among ``options``."""
    fields = {"task": "gsm8k", "max_steps": 10, **more}
    spec = train_spec(method=method, model=model, output_path="-", **fields)
    spec, size = spec.with_defaults(registry().get("trainer", method).load()), size_of(model)
    loaded = size.model or dare_bench.load(model, device="cpu").loaded
    return DeviceTraining(spec, rows_of(spec, loaded, processes), size, processes)


def memory(*given: Any, **more: Any) -> DeviceMemory:
    found = memory_of(training(*given, **more))
    assert found is not None
    return found


# -- against tensors ---------------------------------------------------------------------------------------------------


def tensor_bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("given", [{}, {"peft": "lora"}, {"peft": "lora", "dtype": "bfloat16"}, {"dtype": "bfloat16"}])
def test_a_loaded_checkpoint_holds_the_bytes_of_the_estimate_after_a_step(given: dict[str, Any]) -> None:
    dtype = given.get("dtype", "float32")
    loaded = dare_bench.load("tiny-llada", device="cpu", dtype=dtype).loaded
    if "peft" in given:
        loaded.add_adapter(AdapterSettings())
    trained = [weight for weight in loaded.network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    ids = torch.arange(8)
    loaded.network(ids, targets=ids).nll.sum().backward()
    optimizer.step()
    adapter = [weight for name, weight in loaded.network.named_parameters() if "lora_" in name]
    base = [weight for name, weight in loaded.network.named_parameters() if "lora_" not in name]
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]

    held = memory("tiny-llada", method="sft", task="dare_sudoku", **{"dtype": dtype, **given}).held
    assert held["weights"] == tensor_bytes(base)
    assert held.get("adapter", 0) == tensor_bytes(adapter)
    assert held["gradients"] == tensor_bytes(weight.grad for weight in trained)
    assert held["optimizer"] == tensor_bytes(moments)


class NoOthers(SequenceGroup):
    """A group without its other ranks: tensors of the sizes that they would exchange."""

    size, rank = 4, 0  # type: ignore[assignment]

    def _exchange(self, x_W: torch.Tensor) -> torch.Tensor:
        return x_W.clone(memory_format=torch.contiguous_format)

    def gathered(self, x_M: torch.Tensor, counts_W: list[int]) -> torch.Tensor:
        return x_M


def saved_bytes(network: Any, tokens: int, autocast: bool, group: SequenceGroup | None = None) -> int:
    """Bytes of the tensors that a forward keeps for its backward, besides the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.arange(tokens) % 30
    casting = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), casting:
        network.train()(ids, plan=Plan((tokens // 2,) * 2, sequence=group), targets=ids)
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize(
    ("dtype", "lora", "bf16"),
    [
        ("float32", False, False),
        ("float32", False, True),
        ("bfloat16", False, False),
        ("float32", True, False),
        ("bfloat16", True, False),
        ("bfloat16", True, True),
    ],
)
def test_activations_are_the_tensors_that_the_layers_keep(model: str, dtype: str, lora: bool, bf16: bool) -> None:
    loaded = dare_bench.load(model, device="cpu", dtype=dtype).loaded
    if lora:
        loaded.add_adapter(AdapterSettings(r=8))
    given = {"peft": "lora", "lora_r": 8} if lora else {}
    one = training(model, method="sft", task="dare_sudoku", dtype=dtype, bf16=bf16, **given)
    if lora:
        assert one.trained == sum(weight.numel() for weight in loaded.network.parameters() if weight.requires_grad)
    net = one.size.dimensions
    assert net is not None
    # The difference has no part that does not grow with the tokens, such as copies of weights.
    kept = (saved_bytes(loaded.network, 256, bf16) - saved_bytes(loaded.network, 128, bf16)) / 128
    outside = kept - layer_activations(one, net)
    # Of five layers. The final norm, the loss and positions are outside of them; a few numbers of each norm are not
    # counted.
    assert 0 < outside < kept / 10


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize(("lora", "bf16"), [(False, False), (False, True), (True, False)])
def test_activations_of_one_of_four_that_compute_the_same_rows(model: str, lora: bool, bf16: bool) -> None:
    """Of their tokens; most of these checkpoints have two heads of keys for four devices."""
    loaded = dare_bench.load(model, device="cpu", dtype="float32").loaded
    if lora:
        loaded.add_adapter(AdapterSettings(r=8))
    given = {"dtype": "float32", "bf16": bf16, **({"peft": "lora", "lora_r": 8} if lora else {})}
    spread = training(model, 4, "sft", task="dare_sudoku", sequence_parallel_size=4, **given)
    net, group = spread.size.dimensions, NoOthers(None)  # type: ignore[arg-type]
    assert net is not None
    many, few = (saved_bytes(loaded.network, tokens, bf16, group) for tokens in (512, 256))
    kept = (many - few) / (256 / 4)
    assert 0 < kept - layer_activations(spread, net) < kept / 10


def test_activations_of_fsdp_with_bf16_are_those_of_a_bfloat16_network() -> None:
    """FSDP gathers weights in bfloat16; autocast converts them, and every input."""
    gathered, native = training(bf16=True, fsdp=True, processes=2), training(dtype="bfloat16")
    net = native.size.dimensions
    assert net is not None
    assert layer_activations(gathered, net) == layer_activations(native, net)
    assert layer_activations(training(bf16=True), net) > layer_activations(native, net)


def test_the_loss_computes_as_many_logits_at_a_time_as_are_counted() -> None:
    assert memory_costs.CHUNK_ELEMENTS == chunked.CHUNK_ELEMENTS


def test_a_published_checkpoint_has_the_parameters_of_its_network() -> None:
    family = registry().get("family", "llada").load()
    network = shapes_of(family.network, family.network.config_class(mlp_hidden_size=12288))
    assert size_of(LLADA).parameters == sum(weight.numel() for weight in network.parameters()) == 8_015_581_184


# -- identities --------------------------------------------------------------------------------------------------------


def test_fsdp_divides_what_is_sharded_by_the_processes() -> None:
    one, eight = memory(bf16=True), memory(processes=8, fsdp=True, bf16=True)
    for part in ("weights", "gradients", "optimizer"):
        assert eight.held[part] == one.held[part] / 8  # type: ignore[operator]
    assert eight.held["reference"] == one.held["reference"], "a reference is opened whole on every device"
    assert "bfloat16 copies" in one.held and "bfloat16 copies" not in eight.held
    assert eight.phases["loading"]["weights"] == one.held["weights"]
    assert "gathered weights" in eight.phases["rollout"] and "gathered weights" not in one.phases["rollout"]


def test_ddp_divides_nothing_and_reduces_a_copy_of_the_gradients() -> None:
    one, two = memory().held, memory(processes=2).held
    assert two == {**one, "gradients": 2 * one["gradients"]}  # type: ignore[operator]


def test_lora_has_gradients_and_moments_of_the_adapter_alone() -> None:
    full, lora = memory().held, memory(peft="lora").held
    rank_times_sides = 32 * (4 * (4096 + 4096) + 3 * (4096 + 12288))
    assert lora["adapter"] == lora["gradients"] == 32 * rank_times_sides * 4
    assert lora["optimizer"] == 2 * lora["adapter"]  # type: ignore[operator]
    assert full["gradients"] == full["weights"] == 2 * lora["weights"], "float32, and the base in bfloat16"  # type: ignore[operator]
    assert "reference" in full and "reference" not in lora, "the base is the reference"


def test_recomputed_activations_and_fewer_looks_take_less() -> None:
    def activations(**given: Any) -> float:
        return memory(peft="lora", **given).phases["update"]["activations"]

    plain = activations()
    assert activations(gradient_checkpointing=True) < plain / 10
    assert activations(looks_per_forward=15) == pytest.approx(plain / 2)
    assert activations(per_device_train_batch_size=20) == pytest.approx(plain * 2)


def test_several_forwards_keep_whole_gradients_under_fsdp() -> None:
    once, twice = (memory(processes=2, fsdp=True, gradient_accumulation_steps=n).phases["update"] for n in (1, 2))
    assert twice["whole gradients"] == 32 * once["whole gradients"] == 8_015_581_184 * 4


def test_the_rollout_holds_the_logits_of_its_batch_and_a_cache_if_there_is_one() -> None:
    rollout = memory(peft="lora").phases["rollout"]
    assert rollout["logits"] == 10 * 256 * 126_464 * 2 and "cache" not in rollout
    block = memory(peft="lora", options={"rollout": {"block_length": 32}}).phases["rollout"]
    assert block["logits"] == rollout["logits"] / 8
    causal = training("JetLM/SDAR-8B-Chat", method="cj_grpo", peft="lora")
    cached = memory_of(causal).phases["rollout"]["cache"]  # type: ignore[union-attr]
    assert cached == causal.spec.rows_per_forward * causal.rows.tokens * 2 * 36 * 8 * 128 * 2


def test_what_is_not_known_is_none() -> None:
    named = memory(peft="lora", lora_targets=("q_proj",)).held
    assert named["adapter"] is named["gradients"] is named["optimizer"] is None and named["weights"]
    stranger = training("tiny-llada-base", method="sft", task="dare_sudoku")
    assert memory_of(replace(stranger, size=replace(stranger.size, dimensions=None))) is None
    with pytest.raises(UnknownNameError, match="unknown dtype 'float8'"):
        memory(dtype="float8")
