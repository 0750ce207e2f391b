"""The tokenizers of the bundled tiny checkpoints: 256 bytes, a few merges, the special tokens of a family.

Every byte is a token, so any text encodes and decodes without loss. Digits never merge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dare_bench.model_adapters import chatml
from dare_bench.model_adapters.llada2 import template as llada2
from dare_bench.model_adapters.sdar import template as sdar

WORDS = ("sudoku", "make", " from", " the", " of", " and", " to", " is", " that", "ing")
"""Single tokens: the words of our prompts, and the most frequent words of English."""
PAIRS = ("he", "in", "er", "an", "re", "on", "at", "en", "nd", "or", "es", "ar", "te", "st", " a", " s", " w", " b")
"""Frequent letter pairs of English."""
CONTEXT = 8192
EOS = "<|endoftext|>"
"""Ends a text and fills the canvas, in every family."""


@dataclass(frozen=True)
class Special:
    """A family's special tokens, in the order of their ids, and its chat template (Jinja)."""

    tokens: tuple[str, ...]
    mask: str
    chat_template: str
    bos: str | None = None


LLADA = Special(
    tokens=("<|startoftext|>", EOS, "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    mask="<|mdm_mask|>",
    bos="<|startoftext|>",
    chat_template=(
        "{% for message in messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.first %}{% set content = bos_token + content %}{% endif %}"
        "{{ content }}"
        "{% endfor %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    ),
)
"""The assistant header is always appended."""

DREAM = Special(
    tokens=("<|beginoftext|>", EOS, "<|mask|>", "<|im_start|>", "<|im_end|>"),
    mask="<|mask|>",
    bos="<|beginoftext|>",
    chat_template=chatml.CHAT_TEMPLATE,
)
SDAR = Special(
    tokens=(EOS, "<|im_start|>", "<|im_end|>", "<|MASK|>"),
    mask="<|MASK|>",
    chat_template=sdar.CHAT_TEMPLATE,
)
LLADA2 = Special(
    tokens=(EOS, "<|mask|>", "<role>", "</role>", "<|role_end|>"),
    mask="<|mask|>",
    chat_template=llada2.CHAT_TEMPLATE,
)


def build(special: Special) -> Tokenizer:
    """The tokenizer: ids 0-255 are the bytes, then merges, then special tokens; the same on every call."""
    letters = bytes_to_unicode()
    vocab = {letters[b]: b for b in range(256)}
    merges: list[tuple[str, str]] = []
    for text in (*WORDS, *PAIRS):
        spelled = [letters[b] for b in text.encode()]
        head = spelled[0]
        for letter in spelled[1:]:
            if head + letter not in vocab:
                vocab[head + letter] = len(vocab)
                merges.append((head, letter))
            head += letter
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special.tokens])
    return tokenizer


def save(special: Special, folder: Path) -> Tokenizer:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    tokenizer = build(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special.bos,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": special.mask,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": special.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    return tokenizer
