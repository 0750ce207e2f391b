"""Open a folder as a causal language model of transformers, without remote code."""

from __future__ import annotations

import inspect
import math
import warnings
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, GenerationConfig

from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, UsageError, brief
from dare_bench.log import log
from dare_bench.model_adapters.adapters import open_adapter
from dare_bench.model_adapters.causal.fields import NAME
from dare_bench.model_adapters.causal.model import CausalModel
from dare_bench.model_adapters.causal.weights import check_sizes, load_network
from dare_bench.model_adapters.checkpoint import check_files, folder_shapes, read_object
from dare_bench.model_adapters.encoding import open_tokenizer
from dare_bench.model_adapters.load_arguments import adapter_folder, check_ids, given_ids, pick_device, pick_dtype
from dare_bench.model_adapters.quiet import quiet_transformers
from dare_bench.types import ModelSpec, OpeningSettings

LIMITS = ("n_positions", "max_position_embeddings", "n_ctx")
"""Names of the context limit in configs, in lm-eval's order."""
UNKNOWN_LIMIT = 2048
"""lm-eval's context limit if neither config nor tokenizer names one."""
_NO_LIMIT = 1_000_000
"""Tokenizers without a limit name a larger one."""
GREEDY_TOO = ("repetition_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens", "suppress_tokens",
              "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "sequence_bias",
              "guidance_scale", "exponential_decay_length_penalty", "num_beams")  # fmt: skip
"""Fields of generation_config.json with which transformers' ``generate`` also changes greedy answers."""


def open_causal(path: Path, settings: OpeningSettings) -> CausalModel:
    """Open ``path`` with the network that transformers has for its model_type, and optionally an adapter.

    Raises:
        CheckpointError: an incomplete folder, or one that transformers has no causal language model for.
        UsageError: unknown device or dtype, or a setting that these models do not have.
    """
    _check_settings(settings)
    given = given_ids(settings)
    raw = read_config(path)
    check_files(path)
    config, network = network_of(path, raw)
    rows = check_sizes(path, network, config)
    device = pick_device(settings.device)
    dtype = pick_dtype(settings.dtype, device, raw, sum(math.prod(shape) for shape in folder_shapes(path).values()))
    tokenizer = open_tokenizer(path, rows)
    generation = read_object(path / "generation_config.json")
    loaded = load_network(network, path, config, dtype, device)
    loaded.generation_config = GenerationConfig()  # the checkpoint's would be mixed into every call of generate
    _report_defaults(path, generation)
    eos_ids, pad_id, prefix_id = special_ids(config, tokenizer, generation)
    spec = ModelSpec(
        family=NAME,
        mask_id=None,
        eos_ids=given.get("eos", eos_ids),
        eot_id=None,
        pad_id=pad_id,
        vocab_size=rows,
        context_limit=context_limit(config.get_text_config(), tokenizer),
        attention="causal",
        predicts="next",
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        parameters=sum(weight.numel() for weight in loaded.parameters()),
    )
    check_ids(spec, path)
    adapter = adapter_folder(settings)
    opened = (loaded if adapter is None else open_adapter(loaded, adapter)).eval()
    accepts = frozenset(inspect.signature(network.forward).parameters)
    return CausalModel(opened, tokenizer, spec, path, adapter, prefix_id=prefix_id, accepts=accepts)


def _check_settings(settings: OpeningSettings) -> None:
    """Raise UsageError for a setting that these models do not have."""
    reasons = {
        "mask_id": ": an autoregressive model has none",
        "eot_id": ": an autoregressive model has none",
        "attention": ": an autoregressive model has the attention of transformers",
    }
    for name, value in settings.given().items():
        if name not in ("adapter", "family", "device", "dtype", "eos_id"):
            raise UsageError(f"{name}={brief(value)}{reasons.get(name, ' is for diffusion models')}; leave it out")


def network_of(path: Path, raw: dict[str, Any]) -> tuple[Any, type[Any]]:
    """The configuration and transformers' own class of causal language model for a config.json.

    Raises:
        CheckpointError: transformers does not know its model_type, or has no causal language model of it; or the config
            names another class, or quantized weights.
    """
    kind, named = raw.get("model_type"), (raw.get("architectures") or [None])[0]
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path}: model_type={brief(kind)} is not one that transformers has, and the code of a checkpoint is never "
            "run; give a checkpoint of a model_type that transformers has, or --family NAME for one of the diffusion "
            "families (dare-bench ls models)"
        )
    if raw.get("quantization_config") is not None:
        raise CheckpointError(f"{path}: quantized weights (quantization_config) are not opened; give the original ones")
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = CONFIG_MAPPING[kind].from_dict(raw)
            config._attn_implementation = config._experts_implementation = None  # a file must not name code to load
    except Exception as error:  # each config class has checks of its own
        raise CheckpointError(f"{path}: config.json is not a {kind} config ({' '.join(str(error).split())})") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(f"{path}: transformers has no causal language model for model_type={kind!r}")
    network = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if named not in (None, network.__name__):
        raise CheckpointError(
            f"{path}: architecture={brief(named)}; transformers' causal language model for model_type={kind!r} is "
            f"{network.__name__}, and the code of a checkpoint is never run; give --family NAME if it is of one of the "
            "diffusion families (dare-bench ls models)"
        )
    return config, network


def context_limit(config: Any, tokenizer: Any) -> int:
    """Maximum number of tokens that the network reads, as lm-eval finds it."""
    own = (getattr(config, name, None) for name in LIMITS)
    known = next((value for value in own if isinstance(value, int) and value > 0), None)
    named = getattr(tokenizer, "model_max_length", None)
    return known or (int(named) if named is not None and 0 < named < _NO_LIMIT else UNKNOWN_LIMIT)


def special_ids(config: Any, tokenizer: Any, generation: dict[str, Any]) -> tuple[tuple[Any, ...], Any, Any]:
    """EOS ids, padding id, and the context of a text without one, as transformers' ``generate`` and lm-eval's ``hf``
    find them: an answer ends at the EOS ids of generation_config.json, else of the config, and at the tokenizer's."""
    text = config.get_text_config()
    places = generation.get("eos_token_id"), getattr(config, "eos_token_id", None), getattr(text, "eos_token_id", None)
    first = next((place for place in places if place is not None), ())
    ends = list(first) if isinstance(first, list | tuple) else [first]
    own = getattr(tokenizer, "eos_token_id", None)
    ends += [own] if own is not None and own not in ends else []
    pads = getattr(tokenizer, "pad_token_id", None), getattr(text, "pad_token_id", None)
    prefixes = getattr(tokenizer, "bos_token_id", None), own, getattr(text, "bos_token_id", None), *ends, 0
    pad, prefix = (next((token for token in ids if token is not None), None) for ids in (pads, prefixes))
    return tuple(ends), pad, prefix


def _report_defaults(path: Path, generation: dict[str, Any]) -> None:
    """Log what a generation_config.json would change in greedy answers, which is not applied."""
    neutral: dict[str, tuple[Any, ...]] = dict.fromkeys(("repetition_penalty", "guidance_scale", "num_beams"), (1, 1.0))
    given = {name: generation.get(name) for name in GREEDY_TOO}
    ignored = [f"{name}={brief(v)}" for name, v in given.items() if v not in (None, 0, [], *neutral.get(name, ()))]
    if ignored:
        log.warning(
            "%s: generation_config.json sets %s, which is not applied (lm-eval's hf does); of these, "
            "--gen-kwargs repetition_penalty=... can be set",
            path,
            ", ".join(ignored),
        )
