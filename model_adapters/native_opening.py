"""Open a folder in the published layout as a NativeModel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, UsageError
from dare_bench.model_adapters.adapters import open_adapter
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork
from dare_bench.model_adapters.backbone.attention import Attention, pick_attention
from dare_bench.model_adapters.backbone.host_memory import keep_freed_memory
from dare_bench.model_adapters.backbone.moe import published_shapes
from dare_bench.model_adapters.backbone.network import shapes_of
from dare_bench.model_adapters.backbone.quantized import KINDS
from dare_bench.model_adapters.backbone.quantized import quantize as quantize_matrices
from dare_bench.model_adapters.checkpoint import check_files, compare, folder_shapes, read_object
from dare_bench.model_adapters.configs import describing
from dare_bench.model_adapters.encoding import open_tokenizer, shown
from dare_bench.model_adapters.native import NativeModel
from dare_bench.model_adapters.opening_arguments import check_ids, given_ids, pick_device, pick_dtype
from dare_bench.model_adapters.placement import AUTO, main_device, memory_limits, place, plan
from dare_bench.model_adapters.qwen_tokenizer import name_mask
from dare_bench.model_adapters.weights import from_folder, is_unused
from dare_bench.types import ModelSpec

if TYPE_CHECKING:
    from dare_bench.model_adapters.family import Family, SpecialIds

log = logging.getLogger("dare_bench")


def open_native(
    family: Family,
    path: Path,
    *,
    device: str | None = None,
    dtype: Any = None,
    mask_id: int | None = None,
    eos_id: int | tuple[int, ...] | list[int] | None = None,
    eot_id: int | None = None,
    adapter: Path | None = None,
    attention: Any = None,
    weights: bool = True,
    max_memory: Mapping[int | str, int | str] | None = None,
    quantize: Any = None,
) -> NativeModel:
    """Open ``path`` with a family's network, and optionally an adapter. Without ``weights`` the network has shapes
    only, which is enough to tokenize. ``max_memory``: limits for ``device="auto"``; ``quantize``: ``int8`` or ``int4``.

    Raises:
        CheckpointError: an incomplete folder, or one of another family.
        UsageError: unknown device, dtype, attention backend or quantization, a special id that is not a whole number,
            limits without ``auto``, an adapter with ``auto`` or with quantized weights.
    """
    given = given_ids(mask_id, eos_id, eot_id)
    if mask_id is not None and family.noise == "uniform":
        raise UsageError(f"mask_id={mask_id}: {family.name} has no mask token; leave it out")
    raw = read_config(path)
    network_class = family.network_of(raw)
    shapes = {name: shape for name, shape in folder_shapes(path).items() if not is_unused(network_class, name)}
    check_files(path)
    network = empty_network(family, path, raw, len(shapes))
    config, arch = network.config, network.arch
    compare(path, shapes, published_shapes(network.state_dict()), "the family", "config.json")
    limits = memory_limits(max_memory) if device == AUTO else None
    torch_device = pick_device(device if limits is None else main_device(limits))
    config.dtype = torch_dtype = pick_dtype(dtype, torch_device, raw)
    network.attention = _backend(attention, arch, torch_device, torch_dtype)
    parameters = sum(weight.numel() for weight in network.parameters())
    network.to(torch_dtype)
    _quantize(network, quantize, adapter)
    tokenizer = open_tokenizer(path, arch.vocab)
    if tokenizer is not None and not getattr(tokenizer, "chat_template", None):
        tokenizer.chat_template = family.chat_template  # the harnesses read it from the tokenizer
    network.name_or_path = str(path)
    if torch_device.type == "cpu":
        keep_freed_memory()
    if limits is not None:
        _divide(network, path, limits, adapter)
    elif max_memory is not None:
        raise UsageError(f"max_memory={shown(max_memory)} without device='auto'; give both, or neither")
    elif weights:
        from_folder(network, path, dict.fromkeys(network.state_dict(), torch_device))
    loaded = (network if adapter is None else open_adapter(network, adapter)).eval()
    ids = replace(family.special_ids(config, tokenizer, read_object(path / "generation_config.json")), **given)
    spec = ModelSpec(
        family=family.name,
        mask_id=None if family.noise == "uniform" else _mask_id(ids, path),
        eos_ids=ids.eos,
        eot_id=ids.eot,
        pad_id=ids.pad,
        routing_block=arch.moe.pool_block if arch.moe is not None and arch.moe.pool else None,
        edit_ids=ids.edit,
        vocab_size=arch.vocab,
        context_limit=int(config.max_position_embeddings),
        attention="bidirectional" if arch.block_length is None else "block-causal",
        block_length=arch.block_length,
        predicts=family.predicts,
        noise=family.noise,
        dtype=str(torch_dtype).removeprefix("torch."),
        device=str(torch_device),
        attention_backend=network.attention.name,
        parameters=parameters + sum(p.numel() for name, p in loaded.named_parameters() if "lora_" in name),
        quantize=quantize,
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        sft=family.sft,
    )
    check_ids(spec, path)
    if tokenizer is not None and spec.mask_id is not None:
        name_mask(tokenizer, spec.mask_id)
    return NativeModel(family, loaded, tokenizer, spec, path, adapter)


def _backend(name: str | None, arch: Arch, device: torch.device, dtype: torch.dtype) -> Attention:
    """The attention backend of that name; raises UsageError."""
    if arch.by_layer and name in ("flex", "varlen"):
        raise UsageError(
            f"attention={name!r} computes no network whose layers differ (sliding windows); use padded or sdpa, or "
            "leave it out"
        )
    if arch.by_layer and name in (None, "auto"):
        name = "sdpa" if device.type == "cpu" else "padded"
    return pick_attention("auto" if name is None else name, device, dtype, arch.head_dim)


def planned(
    family: Family,
    path: Path,
    *,
    dtype: Any = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    quantize: Any = None,
) -> Iterator[tuple[str, str]]:
    """What ``device="auto"`` would do with a folder, from its config.json alone: each device, and what it would hold.

    Raises:
        CheckpointError: the config describes no network of the family.
        UsageError: limits that cannot be read, an unknown dtype or quantization, no accelerate.
    """
    raw, limits = read_config(path), memory_limits(max_memory)
    network = empty_network(family, path, raw)
    torch_dtype = pick_dtype(dtype, torch.device(main_device(limits)), raw)
    network.to(torch_dtype)
    count = sum(weight.numel() for weight in network.parameters())
    _quantize(network, quantize)
    held = str(torch_dtype).removeprefix("torch.") + ("" if quantize is None else f", matrices in {quantize}")
    yield "weights", f"{count:,} parameters in {held}"
    yield from plan(network, limits).described()


def empty_network(family: Family, path: Path, raw: dict[str, Any], tensors: int | None = None) -> DiffusionNetwork:
    """The network that a folder's config.json describes, on the meta device.

    Args:
        raw: the config.
        tensors: number of weights in the files, which the config's layers and experts must not exceed.

    Raises:
        CheckpointError: the config describes no network of the family, or a larger one than the files.
    """
    try:
        config, arch = family.arch_of(raw)
        if tensors is not None:
            _check_counts(arch, tensors)
        with describing():
            return shapes_of(family.network_of(raw), config)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _quantize(network: DiffusionNetwork, kind: Any, adapter: Path | None = None) -> None:
    """Replace the matrices of a network without weights, if ``kind`` is not None; raises UsageError."""
    if kind is None:
        return
    if kind not in KINDS:
        raise UsageError(f"quantize={shown(kind)} is not known; allowed are {', '.join(KINDS)}")
    if adapter is not None:
        raise UsageError(f"quantize={kind!r} with adapter={str(adapter)!r}; merge it first: dare-bench export merge")
    quantize_matrices(network, kind)


def _divide(network: DiffusionNetwork, path: Path, limits: Mapping[str, int], adapter: Path | None) -> None:
    """Load a folder's weights with ``device="auto"``, after telling what goes where.

    Raises:
        CheckpointError: damaged files, NaN, too little memory.
        UsageError: with an adapter.
    """
    if adapter is not None:
        raise UsageError(f"device='auto' with adapter={str(adapter)!r}; merge it first: dare-bench export merge")
    placement = plan(network, limits)
    for described in placement.described():
        log.info("%s: %s", *described)
    place(network, placement, path)


def _check_counts(arch: Arch, tensors: int) -> None:
    """Raise CheckpointError if a config has more layers or experts than there are weights: building such a network,
    even without weights, could take forever."""
    experts = sum(arch.moe.layers) * arch.moe.experts if arch.moe is not None and not arch.moe.stacked else 0
    if max(arch.layers, experts) > tensors:
        raise CheckpointError(
            f"config.json describes {arch.layers} layers and {experts} experts in all, but the files hold "
            f"{tensors} weights: wrong sizes in the config, or an incomplete checkpoint"
        )


def _mask_id(ids: SpecialIds, path: Path) -> int:
    """The mask id; raises CheckpointError."""
    if ids.mask is None:
        raise CheckpointError(
            f"{path}: no mask id: neither config.json (mask_token_id) nor the tokenizer names one; give mask_id="
        )
    return ids.mask
