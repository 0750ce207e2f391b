"""Open tokenizers whose class is in a Python file of the checkpoint, without importing that file.

Dream and SDAR publish Qwen2's byte-level BPE as ``vocab.json`` and ``merges.txt`` behind a class in a Python file
(``auto_map``). The class adds nothing to the files: splitting pattern, NFC and byte alphabet are Qwen2's
(tokenization_dream.py of Dream-org/Dream-v0-Instruct-7B, tokenization_qwen2.py of transformers).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.checkpoint import read_object
from dare_bench.reading import read_text

CONFIG, WHOLE, VOCAB, MERGES = "tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt"
ADDED = "added_tokens.json"
END = "<|endoftext|>"
"""The default end-of-sequence and padding token, as in Qwen2's class and Dream's."""
QWEN = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Opened here too: transformers gives added tokens the next free ids, which is wrong if the published ids have gaps."""
BARE = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "PythonBackend", "TokenizersBackend")
"""Generic classes: with vocab.json alone, transformers would open them without splitting text."""


def is_native(config: dict[str, Any]) -> bool:
    """Does tokenizer_config.json name a class that transformers does not have, Qwen2's, or a generic one?"""
    import transformers

    name = config.get("tokenizer_class")
    return name in QWEN + BARE or not (isinstance(name, str) and hasattr(transformers, name))


def open_native_tokenizer(path: Path, config: dict[str, Any], mask_id: int | None) -> Any:
    """From tokenizer.json where there is one, else Qwen2's BPE from vocab.json and merges.txt.

    Args:
        path: the checkpoint's folder.
        config: its tokenizer_config.json.
        mask_id: the model's mask id. SDAR's files have two names for its token, so the id decides.

    Returns:
        A fast tokenizer with every added token at its published id, the special tokens of ``config``, and the chat
        template of the folder where it has one.

    Raises:
        CheckpointError: a file is missing or damaged, or an added token cannot have its published id.
    """
    from transformers import PreTrainedTokenizerFast

    published = _decoder(path, config)
    if (path / WHOLE).is_file():
        if not published:  # transformers 5 names added tokens here alone
            published = {token["id"]: token["content"] for token in read_object(path / WHOLE).get("added_tokens", [])}
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
    else:
        published = _added(path) | published
        engine = _qwen(path, config, published)
        named = _named(path, config, published, mask_id)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path), tokenizer_object=engine, **named)
        _register(tokenizer, published)
    for token, text in published.items():
        actual = tokenizer.convert_tokens_to_ids(text)
        if actual != token and token != mask_id:
            raise CheckpointError(
                f"{path}: added token {text!r} has id {token} in the tokenizer's files, but opens with id {actual}; "
                "fetch them again"
            )
    return tokenizer


def _decoder(path: Path, config: dict[str, Any]) -> dict[int, str]:
    """Ids and texts of the added tokens in tokenizer_config.json."""
    try:
        return {int(token): str(entry["content"]) for token, entry in config.get("added_tokens_decoder", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path / CONFIG}: added_tokens_decoder must be an object that maps ids to tokens"
        ) from error


def _added(path: Path) -> dict[int, str]:
    """Ids and texts of the added tokens in added_tokens.json, which tokenizer_config.json overrules."""
    try:
        return {int(token): text for text, token in read_object(path / ADDED).items()}
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path / ADDED}: expected texts with ids; fetch it again") from error


def _qwen(path: Path, config: dict[str, Any], published: dict[int, str]) -> Any:
    """Qwen2's byte-level BPE over the folder's files."""
    from transformers import Qwen2Tokenizer

    vocab, merges = _vocabulary(path, config, published), _merges(path)
    try:
        opened = Qwen2Tokenizer(vocab=vocab, merges=merges, unk_token=None, eos_token=None, pad_token=None)
    except Exception as error:  # the library raises a bare Exception for a merge of unknown tokens
        raise CheckpointError(f"{path}: {MERGES} does not belong to {VOCAB} ({error}); fetch both again") from error
    return opened.backend_tokenizer


def _vocabulary(path: Path, config: dict[str, Any], published: dict[int, str]) -> dict[str, int]:
    """vocab.json and the added tokens in one: a token that is in the vocabulary keeps its id when it is registered."""
    if not (path / VOCAB).is_file():
        raise CheckpointError(
            f"{path}: no {WHOLE} and no {VOCAB} in it for tokenizer class {config.get('tokenizer_class')!r}; a "
            f"checkpoint's own code never runs: fetch {VOCAB} and {MERGES}, or save the tokenizer as {WHOLE}"
        )
    vocab = read_object(path / VOCAB)
    if not vocab or not all(type(token) is int for token in vocab.values()):
        raise CheckpointError(f"{path / VOCAB}: expected texts with ids; fetch it again")
    texts = {token: text for text, token in vocab.items()}
    for token, text in published.items():
        other = texts.get(token, text)
        if other != text or vocab.get(text, token) != token:
            seen = f"id {token} is {other!r}" if other != text else f"{text!r} is id {vocab[text]}"
            raise CheckpointError(
                f"{path}: added token {text!r} has id {token}, but in {VOCAB} {seen}: files of two tokenizers; "
                "fetch them again"
            )
    return vocab | {text: token for token, text in published.items()}


def _merges(path: Path) -> list[tuple[str, str]]:
    file = path / MERGES
    if not file.is_file():
        raise CheckpointError(f"{path}: {VOCAB} is there but {MERGES} is not, and BPE needs both; fetch {MERGES}")
    lines = read_text(file, CheckpointError).split("\n")  # not splitlines: it cuts at more than line feeds
    merges = []
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise CheckpointError(f"{file}: line {number} is {line!r}, expected two tokens; fetch it again")
        merges.append((left, right))
    return merges


def _named(path: Path, config: dict[str, Any], published: dict[int, str], mask_id: int | None) -> dict[str, str]:
    """The special tokens that the files do not name, and the mask token by its id."""
    named_in_files = config | read_object(path / "special_tokens_map.json")
    named = {
        name: END for name in ("eos_token", "pad_token") if END in published.values() and name not in named_in_files
    }
    return named if mask_id is None or mask_id not in published else named | {"mask_token": published[mask_id]}


def _register(tokenizer: Any, published: dict[int, str]) -> None:
    """Add the tokens that only added_tokens.json names: not split in text, and kept in decoded text."""
    from tokenizers import AddedToken

    known = tokenizer.added_tokens_decoder
    late = [AddedToken(text, normalized=False) for token, text in sorted(published.items()) if token not in known]
    if late:
        tokenizer.add_tokens(late)


def name_mask(tokenizer: Any, mask_id: int | None) -> None:
    """Make the added token at ``mask_id`` the mask token, which text without special tokens leaves out."""
    token = tokenizer.added_tokens_decoder.get(mask_id)
    if token is not None and (tokenizer.mask_token_id != mask_id or not token.special):
        token.special = True
        tokenizer.add_special_tokens({"mask_token": token})
