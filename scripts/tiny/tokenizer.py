"""The tokenizer of the bundled tiny checkpoints: 256 bytes, a few hand-picked merges, LLaDA's special tokens.

Every byte is a token, so any text encodes and decodes without loss. Digits never merge.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WORDS = ("sudoku", "make", " from", " the", " of", " and", " to", " is", " that", "ing")
"""Merged letter by letter into one token: the words of our prompts, and the most frequent ones of English."""
PAIRS = ("he", "in", "er", "an", "re", "on", "at", "en", "nd", "or", "es", "ar", "te", "st", " a", " s", " w", " b")
"""Letter pairs that shorten English text."""
SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
BOS, EOS, MASK, _, _, EOT = SPECIAL
CONTEXT = 8192

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.first %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
"""LLaDA's form: the assistant header is always appended."""


def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in a byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def build() -> Tokenizer:
    """The tokenizer: ids 0-255 are the bytes, then merges, then special tokens; the same on every call."""
    letters = byte_letters()
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
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIAL])
    return tokenizer


def save(folder: Path) -> Tokenizer:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    return tokenizer
