"""LoRA adapters (arXiv 2106.09685) by peft: add, save, load and merge them.

Adapter weights are float32 even on a bfloat16 network, in training and in evaluation (peft's own rule). LoRA on stacked
experts (``target_parameters``) computes the full update of each layer in every forward pass and supports no dropout.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file, save_file

from dare_bench.checkpoint_files import ADAPTER
from dare_bench.config import one_line
from dare_bench.errors import CheckpointError, UsageError, brief, first_line
from dare_bench.model_adapters.backbone.quantized import QuantizedLinear, is_quantized, weights_of
from dare_bench.model_adapters.checkpoint import compare, file_shapes, read_object
from dare_bench.model_adapters.targets import choose
from dare_bench.model_adapters.weights import check_finite, holds
from dare_bench.protocols import AdapterSettings

WEIGHTS = "adapter_model.safetensors"
NAME = "default"
"""peft's default name of a single adapter."""


def is_adapted(network: Any) -> bool:
    """Is it a PeftModel? Checked without importing peft, which takes seconds."""
    return hasattr(type(network), "disable_adapter")


def wrap(network: Any, settings: AdapterSettings) -> Any:
    """The network as a PeftModel with a new adapter, which changes nothing yet (B = 0); only its weights are trained.

    The initial A depends on ``settings.seed`` alone, and no other random state changes.

    Raises:
        UsageError: targets that match nothing, dropout on experts, a network that has an adapter already, no peft.
    """
    if is_adapted(network):
        raise UsageError("the model has an adapter already: it is what is trained; leave the new one (peft) out")
    targets = choose(network, settings.targets)
    if targets.parameters and is_quantized(network):
        raise UsageError("LoRA on experts needs their full weights, and these are quantized; leave 'experts' out")
    if targets.parameters and settings.dropout:
        raise UsageError(
            f"LoRA on experts takes no dropout, lora_dropout={settings.dropout} is requested; set it to 0 or leave "
            "'experts' out of the targets"
        )
    config = _peft().LoraConfig(
        r=settings.r,
        lora_alpha=int(settings.alpha) if float(settings.alpha).is_integer() else settings.alpha,
        lora_dropout=settings.dropout,
        bias="none",
        target_modules=targets.target_modules,
        target_parameters=targets.target_parameters,
    )
    with _building(settings.seed):
        return _adapted(network, config)


def open_adapter(network: Any, folder: Path) -> Any:
    """The network with the adapter of a folder that peft has written; its weights can be trained further.

    Raises:
        CheckpointError: not a LoRA adapter in safetensors, damaged, or trained for another network.
        UsageError: peft is not installed.
    """
    _check_settings(folder, read_object(folder / ADAPTER))
    weight_file(folder)
    try:
        with _building(0):
            config = _peft().LoraConfig.from_pretrained(str(folder))
            # With a task_type, peft would choose a class that calls the network as a causal language model.
            config.task_type, config.inference_mode = None, False
            adapted = _adapted(network, config)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, re.error) as error:
        raise CheckpointError(
            f"{folder}: does not fit the model {network.name_or_path} ({first_line(error)})"
        ) from error
    read_adapter(adapted, folder)
    return adapted


class _Settings(BaseModel):
    """The fields of adapter_config.json that are read; all others must be as peft leaves them."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    r: int = Field(8, ge=1, le=8192)
    lora_alpha: float = Field(8, gt=0)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    bias: Literal["none", "all", "lora_only"] = "none"
    target_modules: str | list[str] | None = None
    target_parameters: list[str] | None = None
    exclude_modules: list[str] | None = None
    modules_to_save: list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, Annotated[int, Field(ge=1, le=8192)]] = {}
    alpha_pattern: dict[str, float] = {}
    fan_in_fan_out: bool = False
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False


_ABOUT = frozenset({"peft_type", "peft_version", "base_model_name_or_path", "revision", "task_type", "inference_mode",
                    "init_lora_weights"})  # fmt: skip
"""Fields on the origin and the initialization of an adapter."""


def _check_settings(folder: Path, raw: Mapping[str, Any]) -> None:
    """Raise CheckpointError for an adapter that is not a LoRA, or that has invalid settings. Settings of peft that
    import modules or build other networks are refused."""
    if raw.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder}: peft_type={raw.get('peft_type')!r}; only LORA adapters are opened")
    try:
        targets = _Settings.model_validate(raw).target_modules
    except ValidationError as error:
        raise CheckpointError(f"{folder / ADAPTER}: {one_line(error, 'an adapter')}") from error
    plain = _peft().LoraConfig().to_dict()
    for name, value in raw.items():
        if name not in _Settings.model_fields.keys() | _ABOUT and value and value != plain.get(name):
            raise CheckpointError(f"{folder / ADAPTER}: {name}={brief(value)} is not supported; it must be null")
    if isinstance(targets, str) and (re.search(r"\)[*+?{]", targets) or len(re.findall(r"(?<!\\d)[*+{]", targets)) > 4):
        raise CheckpointError(
            f"{folder / ADAPTER}: target_modules={brief(targets)} repeats more than names need, so that matching it "
            "could take forever; give a list of names"
        )


def weight_file(folder: Path) -> Path:
    """The weights of an adapter folder; raises CheckpointError."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    others = sorted(file.name for ending in ("*.bin", "*.pt") for file in folder.glob(ending))
    hint = f"; {others[0]} is a pickle, which is never loaded: convert it to safetensors" if others else ""
    raise CheckpointError(f"{folder}: no {WEIGHTS} in it{hint}")


def read_adapter(network: Any, folder: Path) -> None:
    """Load the weights of a folder into the adapter of the network, exactly.

    Raises:
        CheckpointError: missing or unknown weights, another shape, NaN.
    """
    from peft import set_peft_model_state_dict

    file = weight_file(folder)
    expected = {name: tuple(value.shape) for name, value in _state(network).items()}
    compare(folder, file_shapes(file), expected, "the base model", "the base model")
    weights = load_file(str(file))
    check_finite(weights, folder)
    set_peft_model_state_dict(network, weights, NAME)


def holds_adapter(network: Any, base: Path, folder: Path, dtype: torch.dtype) -> bool:
    """Is the network the unchanged base of one folder with the unchanged adapter of another, which is enabled?"""
    if any(getattr(module, "disable_adapters", None) is True for module in network.modules()):
        return False
    own, known = _state(network), load_file(str(weight_file(folder)))
    if own.keys() != known.keys() or not all(torch.equal(known[n].to(own[n]), own[n]) for n in own):
        return False
    model = network.get_base_model()
    whole = {n.replace(".base_layer", ""): w for n, w in weights_of(model).items() if "lora_" not in n}
    return holds(whole, base, dtype, model)


def write_adapter(network: Any, folder: Path, state_dict: Mapping[str, Any] | None = None) -> None:
    """Write adapter_config.json and adapter_model.safetensors. ``state_dict``: the network's, gathered from all
    processes where each holds a part."""
    weights = {name: value.detach().cpu().contiguous() for name, value in _state(network, state_dict).items()}
    save_file(weights, str(folder / WEIGHTS), metadata={"format": "pt"})
    config = copy(network.peft_config[NAME])
    config.inference_mode, config.base_model_name_or_path = True, network.get_base_model().name_or_path
    config.save_pretrained(str(folder))
    # peft keeps some lists as sets, whose order differs between processes, and the file is part of the model's hash.
    plain = read_object(folder / ADAPTER)
    plain = {key: sorted(value, key=str) if isinstance(value, list) else value for key, value in plain.items()}
    (folder / ADAPTER).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")


def merge(network: Any) -> Any:
    """The base network with the adapter's update added to its weights, in their dtype; all weights can be trained.

    Raises:
        UsageError: there is no adapter.
    """
    if not is_adapted(network):
        raise UsageError("the model has no adapter to merge; open one with load(base, adapter=DIR)")
    if is_quantized(network):
        raise UsageError("an adapter is merged into full weights, and these are quantized; open the base without")
    return network.merge_and_unload().requires_grad_(True)


def _state(network: Any, state_dict: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The adapter's tensors by their names in files. Never embeddings: for these, peft would query the hub."""
    from peft import get_peft_model_state_dict

    whole = None if state_dict is None else dict(state_dict)
    tensors: dict[str, Any] = get_peft_model_state_dict(network, whole, NAME, save_embedding_layers=False)
    return tensors


def _adapted(network: Any, config: Any) -> Any:
    """The network as a PeftModel with a new adapter."""
    from dare_bench.model_adapters.backbone.pretrained import as_pretrained

    config._register_custom_module({QuantizedLinear: _peft().tuners.lora.Linear})  # not part of what is saved
    return _peft().PeftModel(as_pretrained(network), config, NAME)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UsageError("adapters need peft, which is not installed: pip install 'dare-bench[train]'") from None
    return peft


@contextmanager
def _building(seed: int) -> Iterator[None]:
    """Inside, random draws start from ``seed``; the random state outside is unchanged. Warnings of the libraries about
    each other's versions are hidden, since a user cannot act on them."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(seed)
        yield
