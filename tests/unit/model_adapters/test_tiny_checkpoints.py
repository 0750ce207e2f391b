"""The bundled checkpoints: complete, small, in the published layout, with a tokenizer that takes any text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from safetensors import safe_open
from transformers import AutoTokenizer

import dare_bench
import dare_bench.model_adapters
from dare_bench.analysis import baseline as baselines
from dare_bench.tasks.dare_countdown import utils as countdown
from dare_bench.tasks.dare_sort import utils as sort
from dare_bench.tasks.dare_sudoku import utils as sudoku

BASELINES = ROOT / "leaderboards" / "baselines"
TINY = Path(dare_bench.model_adapters.__file__).parent / "tiny"
NAMES = sorted(path.parent.name for path in TINY.glob("*/config.json"))
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
FAMILIES = ("llada", "dream", "sdar", "llada2")
STARTS = {"tiny-llada-sort-base", "tiny-sdar-sort-base", "tiny-llada2-sort-base", "tiny-llada-countdown-base"}
CONTEXT, EOS = 8192, "<|endoftext|>"
QWEN_LAYER = {
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
}


def swiglu(stem: str) -> set[str]:
    return {f"{stem}.{part}_proj.weight" for part in ("gate", "up", "down")}


def llada_keys(config: dict) -> set[str]:
    layer = {"attn_norm", "attn_out", "ff_norm", "ff_out", "ff_proj", "k_proj", "q_proj", "up_proj", "v_proj"}
    blocks = {f"model.transformer.blocks.{i}.{part}.weight" for i in range(config["n_layers"]) for part in layer}
    return blocks | {f"model.transformer.{part}.weight" for part in ("wte", "ln_f", "ff_out")}


def layers(config: dict, parts: set[str], embed: str = "embed_tokens") -> set[str]:
    every = {f"model.layers.{i}.{part}" for i in range(config["num_hidden_layers"]) for part in parts}
    return every | {f"model.{embed}.weight", "model.norm.weight", "lm_head.weight"}


def dream_keys(config: dict) -> set[str]:
    return layers(config, QWEN_LAYER | {f"self_attn.{part}_proj.bias" for part in "qkv"})


def sdar_keys(config: dict) -> set[str]:
    return layers(config, QWEN_LAYER | {f"self_attn.{part}_norm.weight" for part in "qk"})


def llada2_keys(config: dict) -> set[str]:
    norms = {"input_layernorm", "post_attention_layernorm", "attention.query_layernorm", "attention.key_layernorm"}
    same = {f"{part}.weight" for part in norms | {"attention.query_key_value", "attention.dense"}}
    moe = swiglu("mlp.shared_experts") | {"mlp.gate.weight", "mlp.gate.expert_bias"}
    for e in range(config["num_experts"]):
        moe |= swiglu(f"mlp.experts.{e}")
    result = layers(config, same, embed="word_embeddings")
    for i in range(config["num_hidden_layers"]):
        parts = swiglu("mlp") if i < config["first_k_dense_replace"] else moe
        result |= {f"model.layers.{i}.{part}" for part in parts}
    return result


@dataclass(frozen=True)
class Published:
    """What a family's checkpoints carry."""

    model_type: str
    architecture: str
    keys: Callable[[dict], set[str]]
    special: tuple[str, ...]
    mask: str
    context: str = "max_position_embeddings"
    embed: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    width: str = "hidden_size"
    files: frozenset[str] = frozenset(FILES)


PUBLISHED = {
    "llada": Published(
        "llada",
        "LLaDAModelLM",
        llada_keys,
        ("<|startoftext|>", EOS, "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|mdm_mask|>",
        "max_sequence_length",
        "model.transformer.wte.weight",
        "model.transformer.ff_out.weight",
        "d_model",
    ),
    "dream": Published(
        "Dream",
        "DreamModel",
        dream_keys,
        ("<|beginoftext|>", EOS, "<|mask|>", "<|im_start|>", "<|im_end|>"),
        "<|mask|>",
    ),
    "sdar": Published(
        "sdar",
        "SDARForCausalLM",
        sdar_keys,
        (EOS, "<|im_start|>", "<|im_end|>", "<|MASK|>"),
        "<|MASK|>",
        files=frozenset(FILES | {"generation_config.json"}),
    ),
    "llada2": Published(
        "llada2_moe",
        "LLaDA2MoeModelLM",
        llada2_keys,
        (EOS, "<|mask|>", "<role>", "</role>", "<|role_end|>"),
        "<|mask|>",
        embed="model.word_embeddings.weight",
    ),
}


def published(name: str) -> Published:
    return PUBLISHED[name.split("-")[1]]


def config_of(name: str) -> dict:
    return json.loads((TINY / name / "config.json").read_text())


@cache
def tokenizer(name: str):
    return AutoTokenizer.from_pretrained(TINY / name, local_files_only=True, trust_remote_code=False)


def test_two_of_every_family_and_two_starts_for_reinforcement_learning_are_there():
    assert {f"tiny-{family}{stage}" for family in FAMILIES for stage in ("", "-base")} | STARTS == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_complete_small_and_without_leftovers(name):
    files = list((TINY / name).rglob("*"))
    assert {path.name for path in files} == published(name).files
    assert sum(path.stat().st_size for path in files) <= 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_bfloat16_under_the_published_names(name):
    config, facts = config_of(name), published(name)
    assert (config["model_type"], config["architectures"]) == (facts.model_type, [facts.architecture])
    assert config[facts.context] == CONTEXT
    assert config["tie_word_embeddings"] is False
    with safe_open(TINY / name / "model.safetensors", "pt") as shard:
        shapes = {key: tuple(shard.get_slice(key).get_shape()) for key in shard.keys()}  # noqa: SIM118
        assert {shard.get_slice(key).get_dtype() for key in shapes} == {"BF16"}
    assert shapes[facts.embed] == shapes[facts.head] == (config["vocab_size"], config[facts.width])
    assert set(shapes) == facts.keys(config)


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
    config, facts, tok = config_of(name), published(name), tokenizer(name)
    ids = dict(zip(facts.special, tok.convert_tokens_to_ids(list(facts.special)), strict=True))
    assert len(set(ids.values())) == len(facts.special)
    assert None not in ids.values()
    assert config["eos_token_id"] == config["pad_token_id"] == tok.eos_token_id == tok.pad_token_id == ids[EOS]
    assert config["mask_token_id"] == tok.mask_token_id == ids[facts.mask]
    assert max(tok.get_vocab().values()) == config["vocab_size"] - 1
    assert tok("sudoku")["input_ids"] == tok.encode("sudoku", add_special_tokens=False), "no bos or eos by itself"


@pytest.mark.parametrize("name", ["tiny-sdar", "tiny-sdar-base", "tiny-llada2", "tiny-llada2-base"])
def test_block_families_say_their_block_length(name):
    assert config_of(name)["block_size"] == 4


@pytest.mark.parametrize("name", ["tiny-sdar", "tiny-sdar-base"])
def test_sdar_stops_at_either_end_token(name):
    generation = json.loads((TINY / name / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer(name).convert_tokens_to_ids(["<|im_end|>", EOS])


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


def chat(name: str, messages: list[dict], add: bool = True, **options) -> str:
    return tokenizer(name).apply_chat_template(messages, tokenize=False, add_generation_prompt=add, **options)


SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


def test_lladas_chat_template_trims_and_always_opens_the_answer():
    messages = [{"role": "user", "content": " hi "}, TALK[1]]
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
        assert chat("tiny-llada", messages, add) == expected


def test_dreams_chat_template_has_a_system_message_of_its_own():
    talk = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    system = "<|im_start|>system\n{}<|im_end|>\n"
    assert chat("tiny-dream", TALK, False) == system.format("You are a helpful assistant.") + talk
    assert chat("tiny-dream", [SYSTEM, *TALK]) == system.format("Be brief.") + talk + "<|im_start|>assistant\n"


def test_sdars_chat_template_has_none_and_can_skip_the_thought():
    user, answer = "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|>assistant\n"
    assert chat("tiny-sdar", TALK[:1]) == user + answer
    assert chat("tiny-sdar", TALK[:1], enable_thinking=True) == user + answer
    assert chat("tiny-sdar", TALK[:1], enable_thinking=False) == user + answer + "<think>\n\n</think>\n\n"
    assert chat("tiny-sdar", [SYSTEM, *TALK, *TALK[:1]]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n" + user + answer + "yes<|im_end|>\n" + user + answer
    )


def test_llada2s_chat_template_always_opens_with_a_system_message():
    end = "<|role_end|>"
    talk = f"<role>HUMAN</role>hi{end}<role>ASSISTANT</role>yes{end}"
    assert chat("tiny-llada2", TALK, False) == f"<role>SYSTEM</role>detailed thinking off{end}{talk}"
    assert chat("tiny-llada2", [SYSTEM, *TALK]) == (
        f"<role>SYSTEM</role>Be brief.\ndetailed thinking off{end}{talk}<role>ASSISTANT</role>"
    )


ONE_A_STEP = {
    "llada": {},
    "dream": {"alg": "maskgit_plus"},
    "sdar": {"remasking_strategy": "low_confidence_static"},
    "llada2": {"threshold": 1.0},
}
"""What makes each family's sampler take the most probable token, one a step."""


@pytest.mark.parametrize(
    ("name", "task", "gen_length", "least", "most"),
    [
        ("tiny-llada-base", sudoku, 20, 0.2, 0.7),  # a start for trainers: it can do some and has room to learn
        ("tiny-dream-base", sudoku, 20, 0.2, 0.7),
        ("tiny-sdar-base", sudoku, 20, 0.2, 0.7),
        ("tiny-llada2-base", sudoku, 20, 0.2, 0.7),
        ("tiny-llada-sort-base", sort, 8, 0.3, 0.75),
        ("tiny-sdar-sort-base", sort, 8, 0.4, 0.85),
        ("tiny-llada2-sort-base", sort, 8, 0.4, 0.85),
        ("tiny-llada-countdown-base", countdown, 14, 0.2, 0.6),
    ],
)
def test_what_the_base_checkpoints_solve_of_the_first_test_items(name, task, gen_length, least, most):
    """Greedy, as many steps as tokens, the task's own length, which is what they were trained on. The cards say what
    they score on the whole test sets."""
    file = "test3.jsonl" if task is countdown else "test.jsonl"
    lines = (Path(task.__file__).parent / file).read_text().splitlines()[:60]
    docs = [json.loads(line) for line in lines]
    model, how = dare_bench.load(name), ONE_A_STEP[name.split("-")[1]]
    answers = model.generate([task.prompt(doc) for doc in docs], gen_length=gen_length, max_rows=16, **how)
    right = [task.score(doc, [answer.text])["exact_match"] for doc, answer in zip(docs, answers, strict=True)]
    assert least <= sum(right) / len(docs) <= most


@pytest.mark.parametrize(("family", "least"), [("llada", 0.9), ("dream", 0.9), ("sdar", 0.75), ("llada2", 0.75)])
def test_what_the_others_solve_of_the_first_test_items(family, least):
    """By their baselines; ``tests/cli/test_regress.py`` compares the checkpoints with them, answer by answer."""
    baseline = baselines.read(BASELINES / f"tiny-{family}.json")
    shares = {name: task.scores["exact_match,none"].value for name, task in baseline.tasks.items()}
    assert baseline.limit == 60 and shares["dare_sudoku"] >= least and shares["dare_arithmetic"] >= 0.3
