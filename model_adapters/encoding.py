"""Encode prompts as token ids: raw text unchanged, chat messages by the template, ids after a check."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence, Sized
from copy import deepcopy
from pathlib import Path
from typing import Any

from dare_bench import chat
from dare_bench.errors import CheckpointError, PromptError, brief, first_line
from dare_bench.model_adapters.checkpoint import read_object
from dare_bench.model_adapters.quiet import quiet_loggers
from dare_bench.model_adapters.qwen_tokenizer import is_native, name_mask, open_native_tokenizer
from dare_bench.model_adapters.tokenizer_limits import check_tokenizer
from dare_bench.types import ModelSpec, Prompt

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt")


def open_tokenizer(path: Path, vocab: int) -> Any | None:
    """The folder's tokenizer, never with remote code; None where the folder has none.

    A class that transformers does not have is opened from the folder's vocabulary files (``qwen_tokenizer``). The added
    token at config.json's ``mask_token_id`` is the mask token, whatever the tokenizer's files call it.

    Raises:
        CheckpointError: a file is missing or does not open, or ids exceed the ``vocab`` rows of the embedding.
    """
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    config = read_object(path / "tokenizer_config.json")
    mask_id = read_object(path / "config.json").get("mask_token_id")
    mask_id = mask_id if isinstance(mask_id, int) else None
    try:
        check_tokenizer(path)
        if is_native(config):
            tokenizer = open_native_tokenizer(path, config, mask_id)
        else:
            from transformers import AutoTokenizer

            # It also reads config.json, as one of a model that it does not know.
            with quiet_loggers("transformers.configuration_utils"), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        name_mask(tokenizer, mask_id)
    except BaseException as error:
        panicked = type(error).__name__ == "PanicException"  # of Rust; no Exception
        if isinstance(error, CheckpointError) or not (isinstance(error, Exception) or panicked):
            raise
        raise CheckpointError(
            f"{path}: its tokenizer does not open ({first_line(error)}); fetch its files again"
        ) from error
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= vocab:
        raise CheckpointError(
            f"{path}: the tokenizer has ids up to {highest}, the embedding {vocab} rows: wrong vocabulary; "
            "use the tokenizer that belongs to these weights"
        )
    return tokenizer


def words_of(tokenizer: Any | None) -> tuple[Any, ...]:
    """The parts of an open tokenizer that users change: chat template, special and added tokens. A user's own tokenizer
    may lack them."""
    size = len(tokenizer) if isinstance(tokenizer, Sized) else None
    return *(deepcopy(getattr(tokenizer, name, None)) for name in ("chat_template", "special_tokens_map")), size


def encode_prompt(
    prompt: Prompt,
    tokenizer: Any | None,
    spec: ModelSpec,
    chat_template: str | None,
    path: Path,
    *,
    special_tokens: bool = False,
) -> list[int]:
    """Token ids. Raises PromptError in one line.

    Args:
        special_tokens: raw text that does not begin with the BOS token gets the special tokens (BOS, if any) that the
            tokenizer adds by its own settings. Otherwise raw text gets none.
    """
    if isinstance(prompt, str):
        tokenizer = _need(tokenizer, "text", path)
        bos = getattr(tokenizer, "bos_token", None)
        adds = special_tokens and not (bos and prompt.startswith(bos))
        return list(tokenizer(prompt, **({} if adds else {"add_special_tokens": False}))["input_ids"])
    items = _items(prompt)
    if items and isinstance(items[0], dict):
        return _encode_messages(items, _need(tokenizer, "messages", path), chat_template)
    return _ids(items, spec, "prompt", "give text, a list of ids, or chat messages")


def logits_tokens(ids: Any, encode: Callable[[Any], list[int]], spec: ModelSpec) -> list[int]:
    """The token ids whose logits are asked for; raises PromptError for text, none, or more than the context limit."""
    if isinstance(ids, str):
        raise PromptError(f"logits of text {brief(ids)}: give token ids")
    tokens = encode(ids)
    if not tokens:
        raise PromptError("logits of no tokens: give at least one token id")
    if len(tokens) > spec.context_limit:
        raise PromptError(f"{len(tokens)} tokens; the model's context limit is {spec.context_limit}")
    return tokens


def split_texts(prompt: str, target: str, encode: Callable[[str], list[int]]) -> tuple[list[int], list[int]]:
    """Context and target ids by lm-eval's rule: trailing spaces of the context move to the target, the whole is
    tokenized, and the target is what the whole has beyond the context's tokens."""
    stripped = prompt.rstrip()
    context = encode(stripped) if stripped else []
    return context, encode(prompt + target)[len(context) :]


def check_length(prompt: Sequence[int], gen_length: int, spec: ModelSpec) -> None:
    """Raise PromptError for a prompt whose answer would exceed the context limit."""
    total = len(prompt) + gen_length
    if total > spec.context_limit:
        raise PromptError(
            f"prompt of {len(prompt)} tokens + gen_length={gen_length} is {total} tokens; "
            f"the model's context limit is {spec.context_limit}: shorten the prompt or gen_length"
        )


def encode_canvas(canvas: Any, spec: ModelSpec) -> list[int]:
    """Token ids of a given canvas, with the mask id where a position is open; raises PromptError."""
    return _ids(_items(canvas, "canvas", _CANVAS), spec, "canvas", _CANVAS)


_CANVAS = "give a list of response token ids, the mask id where a position is open"


def _ids(items: Sequence[Any], spec: ModelSpec, what: str, instead: str) -> list[int]:
    tokens = []
    for item in items:
        token = item if type(item) is int else as_id(item)
        if token is None:
            raise PromptError(f"{what} item {brief(item)} is not a token id; {instead}")
        if not 0 <= token < spec.vocab_size:
            raise PromptError(f"token id {token} is outside the vocabulary; allowed: 0 to {spec.vocab_size - 1}")
        tokens.append(token)
    return tokens


def _items(prompt: Any, what: str = "prompt", instead: str = "give text, a list of ids, or chat messages") -> list[Any]:
    try:
        return list(prompt)
    except TypeError:
        raise PromptError(f"{what} {brief(prompt)} is not a sequence; {instead}") from None


def as_id(value: Any) -> int | None:
    """A whole number, also NumPy's or a tensor's of no dimensions, as an int; None for anything else, True included."""
    kind = str(getattr(value, "dtype", ""))
    if isinstance(value, bool) or "bool" in kind or getattr(value, "ndim", None):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _need(tokenizer: Any | None, what: str, path: Path) -> Any:
    if tokenizer is None:
        raise PromptError(
            f"{path} has no tokenizer, so it cannot read {what}; give token ids, or put the files of its tokenizer "
            "(tokenizer.json) beside config.json"
        )
    return tokenizer


def _encode_messages(messages: Sequence[Any], tokenizer: Any, chat_template: str | None) -> list[int]:
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise PromptError(f"chat message {message!r}: each needs 'role' and 'content'")
    return list(tokenizer(render_chat(messages, tokenizer, chat_template), add_special_tokens=False)["input_ids"])


def render_chat(messages: Sequence[Any], tokenizer: Any, chat_template: str | None, **options: Any) -> str:
    """Messages as one string, by the checkpoint's own template, else the family's; raises PromptError."""
    template = getattr(tokenizer, "chat_template", None) or chat_template
    if template is None:
        raise PromptError("this checkpoint has no chat template; give raw text")
    options = {"add_generation_prompt": True, **options}
    try:
        return chat.render(messages, tokenizer, chat_template=template, **options)
    except PromptError:
        raise
    except Exception as error:
        raise PromptError(f"the chat template does not take these messages: {first_line(error)}") from error
