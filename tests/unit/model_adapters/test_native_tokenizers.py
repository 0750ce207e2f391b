"""Folders whose tokenizer class is a Python file of theirs: opened from their vocabulary, the file never imported."""

from __future__ import annotations

import json
import os
import sys

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dare_bench.errors import CheckpointError, PromptError
from dare_bench.model_adapters.answer_text import response_text
from dare_bench.model_adapters.chatml import CHAT_TEMPLATE as DREAM
from dare_bench.model_adapters.encoding import open_tokenizer, render_chat
from dare_bench.model_adapters.llada2.template import CHAT_TEMPLATE as LLADA2
from dare_bench.model_adapters.sdar.template import CHAT_TEMPLATE as SDAR
from dare_bench.reading import MAX_BYTES

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.?:-ĠĊ", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "Ã", "©"]
MERGES = [("h", "i"), ("Ġ", "hi"), ("1", "2"), ("a", "b"), ("Ã", "©")]
ROWS = 500
END, START, STOP, MASK = 400, 401, 402, 411
"""Published ids with a gap, as in a folder that names only the tokens that matter."""


def token(text, special=True):
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **plain, "special": special}


@pytest.fixture
def folder(tmp_path):
    """SDAR's layout: vocab.json, merges.txt, and a class in a Python file that leaves a mark when it is imported."""
    pieces = [*LETTERS, *(left + right for left, right in MERGES)]
    write(tmp_path, "vocab.json", {text: i for i, text in enumerate(pieces)})
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in MERGES) + "\n")
    texts = {END: "<|endoftext|>", START: "<|im_start|>", STOP: "<|im_end|>", 403: "<think>", MASK: "<|MASK|>"}
    decoder = {str(i): token(text, special=text != "<think>") for i, text in texts.items()}
    config = {
        "tokenizer_class": "XTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", None]},
        "added_tokens_decoder": decoder,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "chat_template": "{{ messages[0]['content'] + '!' }}",
    }
    write(tmp_path, "tokenizer_config.json", config)
    write(tmp_path, "config.json", {"model_type": "x", "auto_map": {"AutoConfig": "configuration_x.XConfig"}})
    mark = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nraise SystemExit\n"
    for name in ("tokenization_x.py", "configuration_x.py"):
        (tmp_path / name).write_text(mark)
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def edit(folder, name="tokenizer_config.json", **fields):
    content = json.loads((folder / name).read_text(encoding="utf-8")) | fields
    write(folder, name, {key: value for key, value in content.items() if value != "delete"})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.write_bytes(b"a b\n\xff"), r"merges\.txt: it is not UTF-8 text \(byte 4\)"),
        (
            lambda file: os.truncate(file, MAX_BYTES + 1),
            r"merges\.txt: it is larger than the limit of 67,108,864 bytes",
        ),
    ],
)
def test_merges_that_cannot_be_read_are_refused(folder, damage, says):
    damage(folder / "merges.txt")
    with pytest.raises(CheckpointError, match=says):
        open_tokenizer(folder, ROWS)


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(ids(tokenizer, text))


def test_an_unknown_class_opens_and_its_file_never_runs(folder):
    tok = open_tokenizer(folder, ROWS)
    # Digits are cut one by one, so that the merge of 1 and 2 is never reached.
    assert pieces(tok, "ab hi 123\n\nhi") == ["ab", "Ġhi", "Ġ", "1", "2", "3", "Ċ", "Ċ", "hi"]
    assert tok.decode(ids(tok, "ab hi 123\n\nhi")) == "ab hi 123\n\nhi"
    assert not (folder / "ran").exists()
    assert not [name for name in sys.modules if "tokenization_x" in name or "configuration_x" in name]


def test_text_is_composed_before_it_is_cut(folder):
    tok = open_tokenizer(folder, ROWS)
    assert pieces(tok, "e\u0301") == ["Ã©"]


def test_added_tokens_keep_their_published_ids_across_a_gap(folder):
    tok = open_tokenizer(folder, ROWS)
    assert ids(tok, "<|im_start|>hi<|im_end|><|MASK|><|endoftext|><think>") == [
        START, *ids(tok, "hi"), STOP, MASK, END, 403,
    ]  # fmt: skip
    assert (tok.bos_token_id, tok.eos_token_id, tok.pad_token_id) == (None, STOP, END)
    assert tok.decode([START, *ids(tok, "hi"), 403, MASK, 450], skip_special_tokens=True) == "hi<think>"


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", None])
def test_what_the_class_is_called_changes_nothing(folder, name):
    wanted = ids(open_tokenizer(folder, ROWS), "hi 12 ab<|MASK|>")
    edit(folder, tokenizer_class="delete" if name is None else name)
    assert ids(open_tokenizer(folder, ROWS), "hi 12 ab<|MASK|>") == wanted
    assert not (folder / "ran").exists()


def test_a_class_of_transformers_runs_no_code_of_the_folder_either(folder):
    edit(folder, tokenizer_class="GPT2Tokenizer")
    tok = open_tokenizer(folder, 10_000)
    assert (type(tok).__name__, tok.decode(ids(tok, "hi"))) == ("GPT2Tokenizer", "hi")
    assert not (folder / "ran").exists()


def test_the_mask_is_the_token_at_the_models_mask_id(folder):
    assert open_tokenizer(folder, ROWS).mask_token is None
    decoder = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    decoder[str(MASK)] = token("<MASK>", special=False)  # another name, and not marked as special
    edit(folder, added_tokens_decoder=decoder, mask_token="<|MASK|>")
    edit(folder, "config.json", mask_token_id=MASK)
    tok = open_tokenizer(folder, ROWS)
    assert (tok.mask_token, tok.mask_token_id) == ("<MASK>", MASK)
    assert "<|MASK|>" not in tok.get_vocab()
    assert tok.decode([*ids(tok, "hi"), MASK], skip_special_tokens=True) == "hi"
    assert response_text(tok, [*ids(tok, "hi"), MASK, *ids(tok, " ab: no")], (STOP,), (":",), False) == ("hi ab", True)


def test_older_folders_name_added_tokens_in_their_own_file(folder):
    write(folder, "added_tokens.json", {"<|endoftext|>": END, "<|im_end|>": STOP, "<think>": 403, "<MASK>": MASK})
    write(folder, "special_tokens_map.json", {"eos_token": "<|im_end|>", "pad_token": token("<|endoftext|>")})
    edit(folder, added_tokens_decoder="delete", eos_token="delete", pad_token="delete")
    edit(folder, "config.json", mask_token_id=MASK)
    tok = open_tokenizer(folder, ROWS)
    assert ids(tok, "<|im_end|><think><MASK><|endoftext|>") == [STOP, 403, MASK, END]
    assert (tok.eos_token_id, tok.pad_token_id, tok.mask_token_id) == (STOP, END, MASK)
    assert tok.decode([STOP, 403, MASK, END], skip_special_tokens=True) == "<think>"


def test_both_files_together_leave_no_token_out(folder):
    write(folder, "added_tokens.json", {"<|MASK|>": MASK, "<tool_call>": 420})
    tok = open_tokenizer(folder, ROWS)
    assert ids(tok, "<tool_call>hi<|MASK|>") == [420, *ids(tok, "hi"), MASK]
    assert tok.decode([420, MASK], skip_special_tokens=True) == "<tool_call>"


def test_end_and_padding_where_no_file_names_them(folder):
    edit(folder, eos_token="delete", pad_token="delete")
    tok = open_tokenizer(folder, ROWS)
    assert (tok.eos_token_id, tok.pad_token_id) == (END, END)


def test_the_template_is_the_folders_own(folder):
    requested = [{"role": "user", "content": "hi"}]
    assert render_chat(requested, open_tokenizer(folder, ROWS), "the family's") == "hi!"
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] + '?' }}")
    assert render_chat(requested, open_tokenizer(folder, ROWS), "the family's") == "hi?"
    (folder / "chat_template.jinja").unlink()
    edit(folder, chat_template="delete")
    assert render_chat(requested, open_tokenizer(folder, ROWS), "{{ 'the family' }}") == "the family"


def test_every_eos_of_the_list_ends_the_text(folder):
    tok = open_tokenizer(folder, ROWS)
    for stop in (STOP, END):
        tokens = [*ids(tok, "hi"), stop, *ids(tok, " ab")]
        assert response_text(tok, tokens, (STOP, END), (), keep_after_eos=False) == ("hi", False)


@pytest.fixture
def whole(folder):
    """The same folder with a tokenizer.json, which cuts digits together."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    fast = Tokenizer(models.BPE(vocab=vocab | {"<|im_end|>": STOP, "<|MASK|>": MASK}, merges=MERGES))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<|im_end|>", "<|MASK|>")])
    fast.save(str(folder / "tokenizer.json"))
    edit(
        folder, added_tokens_decoder={str(STOP): token("<|im_end|>"), str(MASK): token("<|MASK|>")}, pad_token="delete"
    )
    return folder


@pytest.mark.parametrize("name", ["XTokenizer", "Qwen2Tokenizer"])
def test_tokenizer_json_comes_first(whole, name):
    edit(whole, tokenizer_class=name)
    (whole / "merges.txt").unlink()
    tok = open_tokenizer(whole, ROWS)
    assert pieces(tok, "hi 123") == ["hi", "Ġ", "12", "3"]
    assert ids(tok, "<|MASK|><|im_end|>") == [MASK, STOP]
    assert tok.eos_token_id == STOP
    assert not (whole / "ran").exists()


def test_what_transformers_5_saves_opens_the_same(folder, tmp_path):
    edit(folder, "config.json", mask_token_id=MASK)
    old, place = open_tokenizer(folder, ROWS), tmp_path / "saved"
    old.save_pretrained(place)
    write(place, "config.json", {"mask_token_id": MASK})
    settings = json.loads((place / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "TokenizersBackend" and "added_tokens_decoder" not in settings
    assert not (place / "special_tokens_map.json").exists() and (place / "chat_template.jinja").exists()
    new, text = open_tokenizer(place, ROWS), "hi<|im_end|><think><|MASK|>"
    assert ids(new, text) == ids(old, text)
    assert new.decode(ids(new, text), skip_special_tokens=True) == "hi<think>"
    assert new.special_tokens_map == old.special_tokens_map and new.chat_template == old.chat_template
    # The library gives a token outside the vocabulary the id after the vocabulary's size, whatever the file says.
    old.add_special_tokens({"extra_special_tokens": ["<|more|>"]})
    old.save_pretrained(place)
    assert "added token '<|more|>' has id 412 in the tokenizer's files, but opens with id" in error(place)


def test_tokenizer_json_may_call_the_mask_otherwise(whole):
    write(whole, "added_tokens.json", {"<MASK>": MASK})
    edit(whole, added_tokens_decoder={str(STOP): token("<|im_end|>"), str(MASK): token("<MASK>")})
    edit(whole, "config.json", mask_token_id=MASK)
    tok = open_tokenizer(whole, ROWS)
    assert (tok.mask_token, tok.mask_token_id) == ("<|MASK|>", MASK)


def test_a_folder_without_vocabulary_has_no_tokenizer(tmp_path):
    write(tmp_path, "config.json", {})
    assert open_tokenizer(tmp_path, ROWS) is None


def error(folder, rows=ROWS):
    with pytest.raises(CheckpointError) as caught:
        open_tokenizer(folder, rows)
    assert "\n" not in str(caught.value)
    assert not (folder / "ran").exists()
    return str(caught.value)


def test_missing_files_are_named(folder):
    (folder / "merges.txt").rename(folder / "kept")
    assert "vocab.json is there but merges.txt is not" in error(folder)
    (folder / "kept").rename(folder / "merges.txt")
    (folder / "vocab.json").unlink()
    assert "no tokenizer.json and no vocab.json" in error(folder)
    (folder / "merges.txt").unlink()
    assert "'XTokenizer'" in error(folder)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", '{"a": 0', "vocab.json is damaged: not JSON"),
        ("vocab.json", '["a"]', "expected a JSON object, found list"),
        ("vocab.json", '{"a": "0"}', "expected texts with ids"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is damaged: not JSON"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"x": {}}}',
            "added_tokens_decoder must be an object that maps ids",
        ),
        ("added_tokens.json", '{"<x>": "y"}', "added_tokens.json: expected texts with ids"),
        ("merges.txt", "#version: 0.2\nh i\nh i j\n", "merges.txt: line 3 is 'h i j', expected two tokens"),
        ("merges.txt", "h missing\n", "merges.txt does not belong to vocab.json"),
    ],
)
def test_damaged_files_are_named(folder, name, content, said):
    (folder / name).write_text(content)
    assert said in error(folder)


def test_ids_that_cannot_be_are_named(folder, whole):
    (whole / "tokenizer.json").rename(whole / "kept")
    edit(folder, added_tokens_decoder={"3": token("<|MASK|>")})
    assert "added token '<|MASK|>' has id 3, but in vocab.json id 3 is 'd'" in error(folder)
    edit(folder, added_tokens_decoder={"450": token("hi")})
    assert "added token 'hi' has id 450, but in vocab.json 'hi' is id" in error(folder)
    edit(folder, added_tokens_decoder={"600": token("<|MASK|>")})
    assert "ids up to 600, the embedding 500 rows" in error(folder)
    (whole / "kept").rename(whole / "tokenizer.json")
    edit(folder, added_tokens_decoder={"450": token("<x>")})
    assert "added token '<x>' has id 450 in the tokenizer's files" in error(folder)


ASKED = {"role": "user", "content": "Hi"}
TOLD = {"role": "system", "content": "Be terse."}
ANSWERED = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}


def test_a_chat_template_reaches_no_python(folder):
    template = f"{{{{ cycler.__init__.__globals__.os.system('touch {folder / 'ran'}') }}}}"
    for in_config in (True, False):
        edit(folder, chat_template=template if in_config else "delete")
        if not in_config:
            (folder / "chat_template.jinja").write_text(template)
        with pytest.raises(PromptError, match="access to attribute '__init__' of 'type' object is unsafe"):
            render_chat([ASKED], open_tokenizer(folder, ROWS), None)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("template", "messages", "wanted"),
    [
        (
            DREAM,
            [ASKED],
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            DREAM,
            [TOLD, ASKED],
            "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (SDAR, [ASKED], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            SDAR,
            [TOLD, ASKED, ANSWERED, ASKED],
            "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            LLADA2,
            [ASKED],
            "<role>SYSTEM</role>detailed thinking off<|role_end|>"
            "<role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>",
        ),
        (
            LLADA2,
            [TOLD, ASKED, {"role": "assistant", "content": "Yes"}, ASKED],
            "<role>SYSTEM</role>Be terse.\ndetailed thinking off<|role_end|><role>HUMAN</role>Hi<|role_end|>"
            "<role>ASSISTANT</role>Yes<|role_end|><role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>",
        ),
    ],
    ids=["dream", "dream-system", "sdar", "sdar-turns", "llada2", "llada2-turns"],
)
def test_chat_templates_of_the_families(folder, template, messages, wanted):
    edit(folder, chat_template="delete")
    assert render_chat(messages, open_tokenizer(folder, ROWS), template) == wanted


def test_sdar_keeps_the_last_thought_and_can_begin_with_an_empty_one(folder):
    edit(folder, chat_template="delete")
    tok = open_tokenizer(folder, ROWS)
    hasty = render_chat([ASKED], tok, SDAR, enable_thinking=False)
    assert hasty == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert render_chat([ASKED], tok, SDAR, enable_thinking=True) == render_chat([ASKED], tok, SDAR)
    output = render_chat([ASKED, ANSWERED], tok, SDAR, add_generation_prompt=False)
    assert output.endswith("<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes<|im_end|>\n")
