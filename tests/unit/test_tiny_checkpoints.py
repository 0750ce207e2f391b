"""The bundled checkpoints: complete, small, in the published layout, with a tokenizer that takes any text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoTokenizer

import dare_bench
import dare_bench.model_adapters
from dare_bench.tasks.dare_arithmetic import utils as arithmetic
from dare_bench.tasks.dare_sudoku import utils as sudoku

TINY = Path(dare_bench.model_adapters.__file__).parent / "tiny"
NAMES = sorted(path.parent.name for path in TINY.glob("*/config.json"))
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@cache
def tokenizer(name: str):
    return AutoTokenizer.from_pretrained(TINY / name, local_files_only=True, trust_remote_code=False)


def test_the_two_of_the_first_family_are_there():
    assert {"tiny-llada", "tiny-llada-base"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_complete_small_and_without_leftovers(name):
    files = list((TINY / name).rglob("*"))
    assert {path.name for path in files} == FILES
    assert sum(path.stat().st_size for path in files) <= 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_bfloat16_under_the_published_names(name):
    config = json.loads((TINY / name / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("llada", ["LLaDAModelLM"])
    assert config["max_sequence_length"] == 8192
    assert config["weight_tying"] is False
    with safe_open(TINY / name / "model.safetensors", "pt") as shard:
        shapes = {key: tuple(shard.get_slice(key).get_shape()) for key in shard.keys()}  # noqa: SIM118
        assert {shard.get_slice(key).get_dtype() for key in shapes} == {"BF16"}
    vocab, width = config["embedding_size"], config["d_model"]
    assert shapes["model.transformer.wte.weight"] == shapes["model.transformer.ff_out.weight"] == (vocab, width)
    layer = {"attn_norm", "attn_out", "ff_norm", "ff_out", "ff_proj", "k_proj", "q_proj", "up_proj", "v_proj"}
    expected = {f"model.transformer.blocks.{i}.{part}.weight" for i in range(config["n_layers"]) for part in layer}
    assert set(shapes) == expected | {f"model.transformer.{part}.weight" for part in ("wte", "ln_f", "ff_out")}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_names_the_machine_it_was_made_on(name):
    for path in (TINY / name).iterdir():
        if path.suffix in (".json", ".md"):
            text = path.read_text()
            assert "/tmp" not in text
            assert "/home" not in text
            assert "/work" not in text


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_agree_with_the_config(name):
    config = json.loads((TINY / name / "config.json").read_text())
    tok = tokenizer(name)
    ids = tok.convert_tokens_to_ids(list(SPECIAL))
    assert len(set(ids)) == len(SPECIAL)
    assert None not in ids
    assert config["eos_token_id"] == config["pad_token_id"] == tok.eos_token_id == tok.pad_token_id == ids[1]
    assert config["mask_token_id"] == tok.mask_token_id == ids[2]
    assert max(tok.get_vocab().values()) < config["embedding_size"]
    assert tok("sudoku")["input_ids"] == tok.encode("sudoku", add_special_tokens=False), "no bos or eos by itself"


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(name, text):
    tok = tokenizer(name)
    assert tok.decode(tok.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", " ", "\r\n\t ", "1 234 , . ! 'll don 't", "é e\u0301 \u200b\ufeff", "🙂👩‍👩‍👧", "漢字 العربية", "\x00\x7f"],
)
def test_awkward_text_comes_back(text):
    tok = tokenizer("tiny-llada")
    assert tok.decode(tok.encode(text)) == text


def test_digits_are_single_tokens_and_prompts_are_short():
    tok = tokenizer("tiny-llada")
    assert len(tok.encode("2047")) == 4
    assert len(tok.encode("sudoku\n.3.4\n4..3\n.431\n.14.\n=\n")) == 24
    assert len(tok.encode("1324\n4213\n2431\n3142")) == 19


def test_the_chat_template_is_the_familys():
    tok = tokenizer("tiny-llada")
    messages = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yes"}]
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    expected = (
        "<|startoftext|>"
        + head.format("user")
        + "hi<|eot_id|>"
        + head.format("assistant")
        + "yes<|eot_id|>"
        + head.format("assistant")
    )
    for add in (True, False):
        assert tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=add) == expected


@pytest.mark.parametrize(
    ("name", "task", "gen_length", "least", "most"),
    [
        ("tiny-llada", sudoku, 20, 0.9, 1.0),
        ("tiny-llada", arithmetic, 4, 0.3, 1.0),
        ("tiny-llada-base", sudoku, 20, 0.2, 0.7),  # a start for trainers: it can do some and has room to learn
    ],
)
def test_what_they_solve_of_the_first_test_items(name, task, gen_length, least, most):
    """Greedy, as many steps as tokens, the task's own length, which is what they were trained on: on a longer one
    arithmetic fails. The cards say what they score on the whole test sets."""
    lines = (Path(task.__file__).parent / "test.jsonl").read_text().splitlines()[:60]
    docs = [json.loads(line) for line in lines]
    model = dare_bench.load(name)
    answers = model.generate([task.prompt(doc) for doc in docs], gen_length=gen_length, max_rows=16)
    right = [task.score(doc, [answer.text])["exact_match"] for doc, answer in zip(docs, answers, strict=True)]
    assert least <= sum(right) / len(docs) <= most
