"""Tokenizer files that would take any amount of memory are refused before a library reads them."""

from __future__ import annotations

import base64
import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.encoding import open_tokenizer
from dare_bench.model_adapters.tokenizer_limits import MAX_GROWTH, MAX_TEXT

LETTERS = {letter: i for i, letter in enumerate("abcdefghij▁ĠÂ")}
LONG, MANY = "a" * (MAX_TEXT + 1), "a" * (MAX_GROWTH + 1)


def made(folder, **parts):
    """A folder with a tokenizer of letters, and these fields of its tokenizer.json."""
    raw = Tokenizer(models.BPE(vocab=LETTERS | {"<s>": 20}, merges=[], unk_token="a"))
    raw.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 20)])
    content = json.loads(raw.to_str()) | parts
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def sequence(field, *parts):
    return {"type": "Sequence", field: list(parts)}


def replace(content, **type_of):
    return {**type_of, "pattern": {"Regex": "."}, "content": content}


def template(*pieces, ids=(20,)):
    known = {"<s>": {"id": "<s>", "ids": list(ids), "tokens": ["<s>"] * len(ids)}}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, *pieces]
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}


def table(*texts, units=(0,) * 256):
    blob = b"".join(unit.to_bytes(4, "little") for unit in (4 * len(units), *units))
    blob += b"".join(text.encode() + b"\0" for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}


def trie(value):
    """Units that replace "a" by the text at ``value``."""
    units = {0: 1 << 10, 1 ^ ord("a"): (256 << 10) | (1 << 8) | ord("a"), 256 ^ 1 ^ ord("a"): (1 << 31) | value}
    return [units.get(i, 0) for i in range(512)]


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
ORDINARY = [
    {},
    {"normalizer": None, "pre_tokenizer": None, "decoder": None, "post_processor": None},
    {"normalizer": replace("abc", type="Replace")},
    {"normalizer": table("b", "cd", units=trie(2))},
    {"post_processor": sequence("processors", BYTES, template(TEXT, ids=(20, 1)))},
]
REFUSED = {
    "a long replacement": ({"normalizer": replace(LONG, type="Replace")}, "more than the limit of 4,096"),
    "a replacement for each character": ({"normalizer": replace(MANY, type="Replace")}, "normalizer writes up to 65"),
    "without a type": ({"normalizer": replace(MANY)}, "normalizer writes up to 65"),
    "one after another": (
        {"normalizer": sequence("normalizers", *[sequence("normalizers", *[replace("aaa", type="Replace")] * 2)] * 2)},
        "normalizer writes up to 81",
    ),
    "a prefix": ({"normalizer": {"type": "Prepend", "prepend": MANY}}, "normalizer writes up to 65"),
    "a table": ({"normalizer": table("b", MANY)}, "normalizer writes up to 65"),
    "a table that is no base64": ({"normalizer": {"precompiled_charsmap": "!!!"}}, "does not open (Only base64 data"),
    "a table without a trie": (
        {"normalizer": {"precompiled_charsmap": "AAAA"}},
        "does not open (the trie of its precompiled_charsmap ends at byte 4 of 3); fetch its files again",
    ),
    "a table with half a trie": ({"normalizer": table(units=[0] * 255)}, "ends at byte 1024 of 1024"),
    "a trie that leads out": ({"normalizer": table("b", units=[256 << 10] * 256)}, "leads out of itself"),
    "a root that leads out": ({"normalizer": table("b", units=[3 << 30] + [0] * 255)}, "leads out of itself"),
    "a trie that leads too far": ({"normalizer": table("b", units=trie(3))}, "leads out of its texts"),
    "a part at which the library panics": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": 5}}, "its tokenizer does not open (",
    ),
    "bytes of bytes": ({"pre_tokenizer": sequence("pretokenizers", *[BYTES] * 40)}, "pre_tokenizer writes up to 128"),
    "a decoder": ({"decoder": {**replace(MANY), "type": "Replace"}}, "decoder writes up to 65"),
    "the text many times": ({"post_processor": template(*[TEXT] * 70)}, "post_processor writes up to 71"),
    "a token of many ids": ({"post_processor": template(TEXT, ids=[20] * 40)}, "post_processor writes up to 80"),
    "a token of any length": ({"added_tokens": [{"id": 30, "content": LONG}]}, "more than the limit of 4,096"),
    "an unknown token": (
        {"model": {"type": "BPE", "vocab": {"b": 0, LONG: 1}, "merges": [], "unk_token": LONG}},
        "'aaaaaaaaaaaaaaaaaaaa'... has 4,097 characters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("parts", ORDINARY, ids=str)
def test_ordinary_parts_open(parts, tmp_path):
    assert open_tokenizer(made(tmp_path, **parts), 100) is not None


@pytest.mark.parametrize("what", REFUSED)
def test_what_writes_too_much_is_refused(what, tmp_path):
    parts, says = REFUSED[what]
    with pytest.raises(CheckpointError) as seen:
        open_tokenizer(made(tmp_path, **parts), 100)
    assert says in str(seen.value) and "\n" not in str(seen.value) and len(str(seen.value)) < 400


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
def test_the_other_files_have_no_longer_texts(name, tmp_path):
    content = {LONG: 30} if name == "added_tokens.json" else {"tokenizer_class": "XTokenizer", "unk_token": LONG}
    (made(tmp_path) / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"{name}: 'a+'\.\.\. has 4,097 characters"):
        open_tokenizer(tmp_path, 100)


@pytest.mark.parametrize("value", ["8k", True, [1]])
def test_a_maximum_length_is_a_number(value, tmp_path):
    settings = made(tmp_path) / "tokenizer_config.json"
    settings.write_text(json.dumps({"model_max_length": value}))
    with pytest.raises(CheckpointError, match=r"model_max_length=.*; it must be a number, or null"):
        open_tokenizer(tmp_path, 100)
    settings.write_text(json.dumps({"model_max_length": 1e30}))
    assert open_tokenizer(tmp_path, 100)("ab")["input_ids"]
