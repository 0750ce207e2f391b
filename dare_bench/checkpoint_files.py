"""Reading config.json, special tokens and safetensors headers of a checkpoint without loading it."""

from __future__ import annotations

import math
import re
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.errors import CheckpointError, brief
from dare_bench.reading import json_object, open_regular, read_json

ADAPTER = "adapter_config.json"
"""The file of an adapter folder that describes it, as peft names it."""
FAMILY = "dare_bench_family"
"""The field of config.json with the family of a checkpoint that we saved, where the others do not tell it."""
MAX_HEADER = 100_000_000
"""Maximum length of a safetensors header, as in the format's own reader."""
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of an element, by the format's names of dtypes."""
MAX_COUNT = 1_000_000
"""Maximum number of layers or labels in a config.json."""
_COUNTS = re.compile(r"(\w+_)?(labels|layers?|blocks)|first_k_dense_replace|attention_types")
"""Fields that say how long a list or mapping of a configuration becomes, or contain such numbers."""
_MASK = re.compile(r"\W+(((mdm|diffusion)_)?mask(_token)?|(?-i:M))\W+", re.IGNORECASE)
"""Texts of mask tokens: <mask>, [MASK], <|MASK|>, |<MASK>|, <|mdm_mask|>, <|diffusion_mask|>, <[MASK]>, <M>."""
_BRACKETED = re.compile(r"[<\[|].*[>\]|]")
"""Ordinary words of a vocabulary can be ``(mask)`` or ``.mask(``; a token that stands for something is in brackets."""


class Tensor(NamedTuple):
    """A tensor as described in its file's header."""

    dtype: str
    shape: tuple[int, ...]


def read_config(path: Path) -> dict[str, Any]:
    """The contents of a folder's config.json, whose ``architectures`` and counts are validated.

    Raises:
        CheckpointError: no such folder or file, or the file is damaged.
    """
    file = path / "config.json"
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; give a checkpoint folder, a hub id or a bundled name")
    if not file.is_file():
        kept = "; this training was kept without its weights" if (path / "lineage.json").is_file() else ""
        raise CheckpointError(
            f"{path}: no config.json in it{kept}; a checkpoint folder in the published layout has one"
        )
    config = read_json(file, CheckpointError)
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CheckpointError(f"{file} has architectures={names!r}; it must be a list of names, or null")
    _check_counts(file, config)
    return config


def refuse_gguf(path: Path) -> None:
    """Raise CheckpointError for a GGUF file, or a folder of such files, saying what it is and how to convert it."""
    whole = path.is_dir() and (path / "config.json").exists()
    file = path if path.suffix == ".gguf" else min(path.glob("*.gguf"), default=None)
    if whole or file is None:
        return
    with open_regular(file, CheckpointError) as stream:
        head = stream.read(1 << 12)
    if not head.startswith(b"GGUF"):
        raise CheckpointError(f"{file}: not a GGUF file, or damaged at its start; give the model's Hugging Face folder")
    named = re.search(rb"general\.architecture\x08\0\0\0(.)\0{7}([\w-]+)", head, re.DOTALL)  # length and text
    architecture = named[2][: named[1][0]].decode("ascii", "replace") if named else "unknown"
    places, folder = f"{str(file.parent.absolute())!r}, gguf_file={file.name!r}", file.stem
    code = "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T, GgufConfig as G; "
    code += f"M.from_pretrained({places}, quantization_config=G(dequantize=True)).save_pretrained({folder!r}); "
    code += f"T.from_pretrained({places}).save_pretrained({folder!r})"
    quoted = re.sub(r'([\\"$`])', r"\\\1", code)
    raise CheckpointError(
        f"{file}: a GGUF file for llama.cpp, of the architecture {architecture!r}; give the model's published Hugging "
        "Face folder, as a diffusion model needs. An autoregressive model that transformers can read (with pip install "
        f'gguf) is converted into the folder {folder!r} by: python -P -c "{quoted}"'
    )


def _check_counts(file: Path, value: Any, name: str = "") -> None:
    """Raise CheckpointError for a number by which transformers would make a list or mapping of any size."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            _check_counts(file, item, key)
    elif isinstance(value, int) and value > MAX_COUNT and _COUNTS.fullmatch(name):
        raise CheckpointError(f"{file} has {name}={value}; it must be at most {MAX_COUNT:,}")


@cache
def _of_transformers() -> frozenset[str]:
    """The names that transformers has, without importing torch."""
    import transformers

    return frozenset(dir(transformers))


def unknown_to_transformers(config: dict[str, Any]) -> str | None:
    """What transformers lacks of a config.json, its model_type or its class, found without importing torch."""
    from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

    kind, name = config.get("model_type"), (config.get("architectures") or [None])[0]
    if not isinstance(kind, str) or (kind not in CONFIG_MAPPING_NAMES and kind != "gpt-sw3"):
        return f"transformers has no model_type {brief(kind)}"
    return None if isinstance(name, str) and name in _of_transformers() else f"transformers has no class {brief(name)}"


def diffusion_sign(path: Path, config: dict[str, Any]) -> str | None:
    """What suggests that a checkpoint is not autoregressive, though transformers knows its class: a mask token, or code
    of the checkpoint's own.

    Raises:
        CheckpointError: a file of the tokenizer is damaged.
    """
    if (mask_id := config.get("mask_token_id")) is not None:
        return f"config.json names a mask token (mask_token_id={str(mask_id)[:40]})"
    settings = _read_if_there(path / "tokenizer_config.json")
    for file, values in (("config.json", config), ("tokenizer_config.json", settings)):
        if values.get("auto_map"):
            return f"{file} names the checkpoint's own code (auto_map)"
    named = settings | _read_if_there(path / "special_tokens_map.json")
    added = _added_texts(path, settings, named)
    masks = {text for text in added if _MASK.fullmatch(text)} if "[gMASK]" not in added else set()  # GLM has both
    masks |= {text for text in [_content(named.get("mask_token"))] if text}
    if not masks or masks == {_mask_of_class(settings.get("tokenizer_class"))}:
        return None
    return f"its tokenizer has a mask token ({min(masks)[:40]!r})"


def _added_texts(path: Path, settings: dict[str, Any], named: dict[str, Any]) -> set[str]:
    """The texts of a tokenizer's added and special tokens, and those in brackets of its vocabulary."""
    whole = _read_if_there(path / "tokenizer.json")
    groups = [settings.get("added_tokens_decoder"), whole.get("added_tokens")]
    groups += [named.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    lists = [list(group.values()) if isinstance(group, dict) else group for group in groups]
    entries = [entry for group in lists if isinstance(group, list) for entry in group]
    texts = {text for text in map(_content, entries) if text} | _read_if_there(path / "added_tokens.json").keys()
    return texts | _bracketed(whole.get("model")) | _bracketed({"vocab": _read_if_there(path / "vocab.json")})


def _bracketed(model: Any) -> set[str]:
    """The texts in brackets of a vocabulary, which is a mapping to ids or, for unigrams, a list of (text, score)."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        vocabulary = [entry[0] for entry in vocabulary if isinstance(entry, list) and entry]
    texts = vocabulary if isinstance(vocabulary, dict | list) else ()
    return {text for text in texts if isinstance(text, str) and _BRACKETED.fullmatch(text)}


def _content(token: Any) -> str | None:
    """The text of a token, which files have as a text or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _mask_of_class(name: Any) -> str | None:
    """The mask token that a class of transformers gives every tokenizer (Gemma's, BERT's)."""
    import transformers

    name = str(name).removesuffix("Fast")
    known = getattr(transformers, name, None) if name.endswith("Tokenizer") else None
    parameter = None if known is None else signature(known).parameters.get("mask_token")
    return None if parameter is None else _content(parameter.default)


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file, CheckpointError) if file.is_file() else {}


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; they must fill the file exactly.

    Format: 8 bytes little-endian header length, JSON header with data offsets, data (huggingface/safetensors).

    Raises:
        CheckpointError: missing, truncated, or the header does not fit the data.
    """
    if not file.exists():
        raise CheckpointError(f"{file}: missing; fetch the checkpoint again")
    with open_regular(file, CheckpointError) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        length = int.from_bytes(start, "little") if len(start := stream.read(8)) == 8 else size
        if length > min(size - 8, MAX_HEADER):
            raise CheckpointError(
                f"{file}: not a safetensors file, or damaged at its start ({size} bytes); fetch it again"
            )
        raw = stream.read(length)
    entries = json_object(raw, f"{file}: the header of this safetensors file", CheckpointError, unique=True)
    entries.pop("__metadata__", None)
    spans: list[tuple[int, int, str]] = []
    tensors = {}
    for name, entry in entries.items():
        try:
            tensors[name], (begin, end) = _tensor(entry)
        except ValueError as error:
            raise CheckpointError(
                f"{file}: invalid safetensors file: tensor {name!r}: {error}; fetch it again"
            ) from error
        spans.append((begin, end, name))
    _check_spans(file, sorted(spans), size - 8 - length)
    return tensors


def _tensor(entry: Any) -> tuple[Tensor, tuple[int, int]]:
    """One entry of a header, and the offsets of its bytes; raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {type(entry).__name__}")
    dtype, shape, offsets = entry.get("dtype"), _counts(entry, "shape"), _counts(entry, "data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"dtype={dtype!r}; known: {', '.join(BITS)}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets={offsets}; it must be the begin and end of the tensor")
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise ValueError(f"data_offsets={offsets}, but {dtype} of shape {shape} is {bits // 8} bytes")
    return Tensor(dtype, tuple(shape)), (offsets[0], offsets[1])


def _counts(entry: dict[str, Any], name: str) -> list[int]:
    value = entry.get(name)
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{name}={value!r}; it must be a list of whole numbers of at least 0")
    return value


def _check_spans(file: Path, spans: list[tuple[int, int, str]], size: int) -> None:
    """Raise CheckpointError unless the tensors cover the data without gaps or overlaps."""
    offset = 0
    for begin, end, name in spans:
        if begin != offset:
            problem = "overlaps the previous one" if begin < offset else "follows bytes that belong to no tensor"
            raise CheckpointError(f"{file}: invalid safetensors file: tensor {name!r} {problem}; fetch it again")
        offset = end
    if size != offset:
        problem = "truncated" if size < offset else "longer than its header describes"
        raise CheckpointError(f"{file}: {problem}, {size} bytes of data instead of {offset}; fetch it again")
