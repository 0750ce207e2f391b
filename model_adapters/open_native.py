"""Open a folder in the published layout as a NativeModel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import torch

from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, UsageError, brief
from dare_bench.log import log
from dare_bench.model_adapters.adapters import open_adapter
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork
from dare_bench.model_adapters.backbone.attention import Attention, pick_attention
from dare_bench.model_adapters.backbone.host_memory import keep_freed_memory
from dare_bench.model_adapters.backbone.moe import grouped_kernel, published_shapes
from dare_bench.model_adapters.backbone.network import shapes_of
from dare_bench.model_adapters.backbone.quantized import KINDS
from dare_bench.model_adapters.backbone.quantized import quantize as quantize_matrices
from dare_bench.model_adapters.checkpoint import check_files, compare, folder_shapes, read_object
from dare_bench.model_adapters.configs import describing
from dare_bench.model_adapters.encoding import open_tokenizer
from dare_bench.model_adapters.family_rules import PUBLISHED, FamilyRules, SpecialIds
from dare_bench.model_adapters.frames import LAUNCH_BOUND, CudaGraphs, Frames, compiled
from dare_bench.model_adapters.load_arguments import adapter_folder, check_ids, given_ids, pick_device, pick_dtype
from dare_bench.model_adapters.native import NativeModel
from dare_bench.model_adapters.placement import AUTO, main_device, memory_limits, place, plan
from dare_bench.model_adapters.qwen_tokenizer import name_mask
from dare_bench.model_adapters.weights import from_folder, is_unused
from dare_bench.types import Decoding, ModelSpec, OpeningSettings


def open_native(family: FamilyRules, path: Path, settings: OpeningSettings, *, weights: bool = True) -> NativeModel:
    """Open ``path`` with a family's network, and optionally an adapter. Without ``weights`` the network has shapes
    only, which is enough to tokenize.

    Raises:
        CheckpointError: an incomplete folder, or one of another family.
        UsageError: unknown device, dtype, attention backend or quantization, a special id that is not a whole number,
            limits without ``auto``, an adapter with ``auto``, steps that cannot be compiled.
    """
    given = given_ids(settings)
    if settings.mask_id is not None and family.noise == "uniform":
        raise UsageError(f"mask_id={settings.mask_id}: {family.name} has no mask token; leave it out")
    raw = read_config(path)
    network = _network_of_files(family, path, raw)
    limits = memory_limits(settings.max_memory) if settings.device == AUTO else None
    device = pick_device(settings.device if limits is None else main_device(limits))
    parameters = sum(weight.numel() for weight in network.parameters())
    framed = _prepare(family, network, settings, device, pick_dtype(settings.dtype, device, raw, parameters))
    network.name_or_path = str(path)
    tokenizer = open_tokenizer(path, network.arch.vocab)
    if device.type == "cpu":
        keep_freed_memory()
    adapter = adapter_folder(settings)
    if limits is not None:
        _divide(network, path, limits, adapter)
    elif settings.max_memory is not None:
        raise UsageError(f"max_memory={brief(settings.max_memory)} without device='auto'; give both, or neither")
    elif weights:
        from_folder(network, path, dict.fromkeys(network.state_dict(), device))
    loaded = (network if adapter is None else open_adapter(network, adapter)).eval()
    parameters += sum(weight.numel() for name, weight in loaded.named_parameters() if "lora_" in name)
    ids = _special_ids(family, network, tokenizer, path)
    if ids.mask_from == PUBLISHED and "mask" not in given and tokenizer is not None:
        log.warning(
            "%s: its tokenizer has no mask token %s; mask id %d, as published, which is %r in it: check that its files "
            "belong to this model, or give --model-args mask_id=N",
            path,
            family.mask_texts[0],
            ids.mask,
            tokenizer.convert_ids_to_tokens(ids.mask),
        )
    spec = replace(
        _spec(family, network, replace(ids, **given), path),
        device=str(device),
        compiled=bool(settings.compile),
        captured=framed and not settings.compile,
        parameters=parameters,
        quantize=settings.quantize,
    )
    check_ids(spec, path)
    if tokenizer is not None:
        _complete(tokenizer, family, spec)
    frames = None
    if framed:
        asked = settings.compile or settings.attention == "padded"
        capture = CudaGraphs(device) if device.type == "cuda" else None
        most_tokens = float("inf") if asked else LAUNCH_BOUND / parameters
        frames = Frames(network, compiled if settings.compile else None, capture, most_tokens)
    return NativeModel(family, loaded, tokenizer, spec, path, adapter, frames)


def _special_ids(family: FamilyRules, network: DiffusionNetwork, tokenizer: Any | None, path: Path) -> SpecialIds:
    """The special ids of a folder; raises CheckpointError, with its name."""
    try:
        return family.special_ids(network.config, tokenizer, read_object(path / "generation_config.json"))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def facts(family: FamilyRules, path: Path) -> Iterator[tuple[str, str]]:
    """The mask id of a folder and what names it, and how it decodes by default, without its weights.

    Raises:
        CheckpointError: a config or tokenizer that does not open, or no mask id.
    """
    network = empty_network(family, path, read_config(path))
    _prepare(family, network, OpeningSettings(device="cpu"), torch.device("cpu"), torch.bfloat16)
    ids = _special_ids(family, network, open_tokenizer(path, network.arch.vocab), path)
    spec = _spec(family, network, ids, path)
    check_ids(spec, path)
    random = "none: unknown tokens are random ones"
    yield "mask", random if spec.mask_id is None else f"id {spec.mask_id}, by {ids.mask_from}"
    decoding = family.resolve({}, spec)
    sampler = family.sampler(decoding, spec)
    given = decoding.model_dump(exclude_none=True, exclude={*Decoding.model_fields} - {"gen_length"})
    fields = ", ".join(f"{name}={value}" for name, value in given.items() if isinstance(value, int | float | str))
    yield "sampler", f"{sampler.strategy.name}, {spec.attention} attention, tier {family.tier(sampler)}; {fields}"


def described(family: FamilyRules, raw: dict[str, Any]) -> NativeModel:
    """A network that only a config.json describes, in bfloat16, without weights, files and tokenizer. Its special ids
    and its context limit are made up. Raises CheckpointError."""
    where, device = Path("config.json"), torch.device("cpu")
    network = empty_network(family, where, raw)
    _prepare(family, network, OpeningSettings(device="cpu"), device, torch.bfloat16)
    ids = replace(family.special_ids(network.config, None, {}), mask=2, eos=(1,), end_think=(3,), edit=(4, 5))
    spec = _spec(family, network, ids, where)
    return NativeModel(family, network.eval(), None, replace(spec, context_limit=2**31), where)


def _network_of_files(family: FamilyRules, path: Path, raw: dict[str, Any]) -> DiffusionNetwork:
    """The network of a folder, on the meta device; raises CheckpointError if its files do not have its weights."""
    network_class = family.network_of(raw)
    shapes = {name: shape for name, shape in folder_shapes(path).items() if not is_unused(network_class, name)}
    check_files(path)
    network = empty_network(family, path, raw, len(shapes))
    compare(path, shapes, published_shapes(network.state_dict()), "the family", "config.json")
    return network


def _prepare(
    family: FamilyRules, network: DiffusionNetwork, settings: OpeningSettings, device: torch.device, dtype: torch.dtype
) -> bool:
    """Give a network without weights its dtype, attention and matrices; returns whether its steady steps have frames:
    if they are compiled, and on CUDA wherever they can be captured. Raises UsageError."""
    network.config.dtype = dtype
    reason = _why_not_framed(family, network.arch, device, dtype, settings)
    if settings.compile and reason:
        raise UsageError(f"compile=True {reason}")
    framed = not reason and (device.type == "cuda" if settings.compile is None else settings.compile)
    network.attention = _backend("padded" if settings.compile else settings.attention, network.arch, device, dtype)
    network.to(dtype)
    _quantize(network, settings.quantize)
    return framed


def _spec(family: FamilyRules, network: DiffusionNetwork, ids: SpecialIds, path: Path) -> ModelSpec:
    """The facts of a network; raises CheckpointError if nothing names the mask id."""
    config, arch = network.config, network.arch
    return ModelSpec(
        family=family.name,
        mask_id=None if family.noise == "uniform" else _mask_id(ids, path),
        eos_ids=ids.eos,
        eot_id=ids.eot,
        pad_id=ids.pad,
        bos_id=ids.bos,
        routing_block=arch.moe.pool_block if arch.moe is not None and arch.moe.pool else None,
        edit_ids=ids.edit,
        end_think_ids=ids.end_think,
        vocab_size=arch.vocab,
        context_limit=int(config.max_position_embeddings),
        attention="bidirectional" if arch.block_length is None else "block-causal",
        block_length=arch.block_length,
        blocks_from=family.blocks_from,
        whole_blocks=family.whole_blocks,
        causal_prefix=arch.causal_prefix,
        predicts=family.predicts_of(config),
        noise=family.noise,
        dtype=str(config.dtype).removeprefix("torch."),
        attention_backend=network.attention.name,
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        sft=family.sft,
    )


def _complete(tokenizer: Any, family: FamilyRules, spec: ModelSpec) -> None:
    """Give a tokenizer the family's chat template, which harnesses read from it, and the mask token."""
    if not getattr(tokenizer, "chat_template", None):
        tokenizer.chat_template = family.chat_template
    if isinstance(template := tokenizer.chat_template, str):
        tokenizer.chat_template = family.prompting(template)
    if spec.mask_id is not None:
        name_mask(tokenizer, spec.mask_id)


def _why_not_framed(
    family: FamilyRules, arch: Arch, device: torch.device, dtype: torch.dtype, settings: OpeningSettings
) -> str:
    """Why the steps of a network can be neither captured nor compiled; empty: they can."""
    if settings.attention not in (None, "auto", "padded"):
        return f"takes attention='padded', not {settings.attention!r}; leave attention out"
    if settings.device == AUTO:
        return "takes one device, not device='auto'; name a device, or leave compile out"
    if settings.adapter is not None:
        return f"takes no adapter ({settings.adapter}); merge it first: dare-bench export merge"
    if family.noise == "uniform" or arch.causal_prefix or (arch.moe is not None and arch.moe.pool):
        return f"does not work with {family.name}, whose steps have no static shapes; leave it out"
    widths = () if arch.moe is None else (arch.width, arch.moe.width)
    if widths and device.type == "cuda" and not grouped_kernel(widths, device, dtype):
        return "takes experts in bfloat16 only, on a GPU of compute capability 9 or 10; leave it out"
    compilers = "g++", "clang++", os.environ.get("CXX", "g++")
    if settings.compile and device.type == "cpu" and not any(map(which, compilers)):
        return "needs a C++ compiler, and there is no g++ or clang++; install one, or leave it out"
    return ""


def _backend(name: str | None, arch: Arch, device: torch.device, dtype: torch.dtype) -> Attention:
    """The attention backend of that name; raises UsageError."""
    if arch.by_layer and name in ("flex", "varlen"):
        raise UsageError(
            f"attention={name!r} computes no network whose layers differ (sliding windows); use padded or sdpa, or "
            "leave it out"
        )
    if arch.causal_prefix and name == "flex":
        raise UsageError(
            "attention='flex' computes no network whose clean tokens attend causally; use padded, sdpa or varlen, or "
            "leave it out"
        )
    if arch.by_layer and name in (None, "auto"):
        name = "sdpa" if device.type == "cpu" else "padded"
    return pick_attention("auto" if name is None else name, device, dtype, arch.head_dim)


def planned(family: FamilyRules, path: Path, settings: OpeningSettings) -> Iterator[tuple[str, str]]:
    """What ``device="auto"`` would do with a folder, from its config.json alone: each device, and what it would hold.

    Raises:
        CheckpointError: the config describes no network of the family.
        UsageError: limits that cannot be read, an unknown dtype or quantization, no accelerate.
    """
    raw, limits = read_config(path), memory_limits(settings.max_memory)
    network = empty_network(family, path, raw)
    count, quantize = sum(weight.numel() for weight in network.parameters()), settings.quantize
    dtype = pick_dtype(settings.dtype, torch.device(main_device(limits)), raw, count)
    network.to(dtype)
    _quantize(network, quantize)
    held = str(dtype).removeprefix("torch.") + ("" if quantize is None else f", matrices in {quantize}")
    yield "weights", f"{count:,} parameters in {held}"
    yield from plan(network, limits).described()


def empty_network(family: FamilyRules, path: Path, raw: dict[str, Any], tensors: int | None = None) -> DiffusionNetwork:
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


def _quantize(network: DiffusionNetwork, kind: Any) -> None:
    """Replace the matrices of a network without weights, if ``kind`` is not None; raises UsageError."""
    if kind is None:
        return
    if kind not in KINDS:
        raise UsageError(f"quantize={brief(kind)} is not known; allowed: {', '.join(KINDS)}")
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
            f"{path}: no mask id: neither config.json (mask_token_id) nor the tokenizer names one; give "
            "--model-args mask_id=N, in Python mask_id="
        )
    return ids.mask
