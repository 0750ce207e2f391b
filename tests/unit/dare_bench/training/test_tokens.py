"""Rows as token ids: chat turns end as the template ends them, keys follow content, long rows are counted."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from toy_model import EOS, MASK, ToyModel

import dare_bench
from dare_bench.errors import DataError, UsageError
from dare_bench.training import run
from dare_bench.training.rows import Data, Example, Item, PreferencePair, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import histogram, percentile, tokenize, turn_end
from dare_bench.types import RewardPrompt

HI = ({"role": "user", "content": "Hi?"},)


def data(*rows: Item, kind: Any = "examples", canvas: int | None = None) -> Data:
    return Data(kind, rows, digest(rows), "some data", canvas)


def spec(**fields: Any) -> TrainSpec:
    return TrainSpec(method="m", model="x", output_path="o", data="d", **fields)


def example(prompt: Any, answer: str, where: str = "f:1") -> Example:
    return Example(prompt, answer, where)


def test_raw_text_stays_as_it_is_and_messages_get_the_assistants_header():
    built = tokenize(data(example("ab", "c"), example(HI, "d"), canvas=7), ToyModel(), spec())
    (raw,), (chat,) = built.items
    assert (raw.prompt, raw.answer) == (tuple(b"ab"), tuple(b"c"))
    assert (bytes(chat.prompt), bytes(chat.answer)) == (b"[user]Hi?[assistant]", b"d")
    assert (built.kind, built.name, built.canvas, raw.where) == ("examples", "some data", 7, "f:1")


def test_pairs_are_two_rows_and_questions_a_prompt_alone():
    built = tokenize(data(PreferencePair("q", "good", "bad", "f:1"), kind="pairs"), ToyModel(), spec())
    ((chosen, rejected),) = built.items
    assert (bytes(chosen.answer), bytes(rejected.answer)) == (b"good", b"bad")
    assert chosen.prompt == rejected.prompt and chosen.key != rejected.key
    ((requested,),) = tokenize(data(RewardPrompt("q", "1", "t", "f:1"), kind="prompts"), ToyModel(), spec()).items
    assert (requested.prompt, requested.answer) == (tuple(b"q"), ())


def test_a_key_follows_the_rows_content_and_not_its_place():
    rows = [example("a", "1"), example("b", "2"), example("a", "1"), example("a", "2")]
    keys = [item[0].key for item in tokenize(data(*rows), ToyModel(), spec()).items]
    assert len(set(keys)) == 4  # the same row twice has noise of its own each time
    moved = [replace(row, where=f"other:{i}") for i, row in enumerate([rows[3], rows[1], rows[0], rows[2]])]
    assert [item[0].key for item in tokenize(data(*moved), ToyModel(), spec()).items] == [keys[i] for i in (3, 1, 0, 2)]


# -- the canvas of data that states none -------------------------------------------------------------------------------


def test_the_canvas_is_that_of_the_source_and_rows_know_their_limit():
    built = tokenize(data(example("a", "b"), canvas=7), ToyModel(), spec(max_length=12))
    assert (built.canvas, built.limit) == (7, 12)
    built = tokenize(data(example("a", "b")), ToyModel(), spec())
    assert (built.canvas, built.limit) == (None, ToyModel().spec.context_limit)


# -- chat templates ----------------------------------------------------------------------------------------------------

ENDS = {
    "tiny-llada": "<|eot_id|>",
    "tiny-dream": "<|im_end|>",
    "tiny-sdar": "<|im_end|>",
    "tiny-llada2": "<|role_end|>",
}


@pytest.mark.parametrize("name", ENDS)
def test_an_answer_ends_as_the_familys_template_ends_a_turn(name):
    model = dare_bench.load(name).loaded
    tokenizer = model.tokenizer
    (end,) = turn_end(tokenizer, ())
    assert tokenizer.decode([end]) == ENDS[name]
    header = tokenizer.apply_chat_template(list(HI), tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([*HI, {"role": "assistant", "content": "Yes. No."}], tokenize=False)

    ((row,),) = tokenize(data(example(HI, "Yes. No.")), model, spec()).items
    assert tokenizer.decode(list(row.prompt)) == header
    eos = model.spec.eos_ids[0]  # training puts it behind every answer
    assert [*row.answer, eos][-1 - (eos != end)] == end  # SDAR's first EOS is what ends its turns: it stands there once
    assert row.answer.count(end) == (eos != end)
    output = tokenizer.decode([token for token in row.answer if token != end])
    assert output == "Yes. No." and output + ENDS[name] in whole

    ((raw,),) = tokenize(data(example("Hi?", "Yes.")), model, spec()).items
    assert tokenizer.decode(list(raw.answer)) == "Yes."
    (pair,) = tokenize(data(PreferencePair(HI, "a", "b", "f:1"), kind="pairs"), model, spec()).items
    assert [side.answer[1:] for side in pair] == [row.answer[len(row.answer) - (eos != end) :]] * 2


class Template:
    """A tokenizer of bytes whose template puts ``tail`` behind an assistant's turn; ``~`` is a special token."""

    all_special_ids = (ord("~"),)

    def __init__(self, tail: str) -> None:
        self.tail = tail

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        if self.tail == "refuse":
            raise ValueError("no assistant here\nreally")
        return messages[-1]["content"] + self.tail

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


@pytest.mark.parametrize(("tail", "wanted"), [("~\n", "~"), ("\n~~ab", "\n~"), ("", ""), (" \n", ""), ("\n##", "")])
def test_the_end_of_a_turn_is_its_first_special_token(tail, wanted):
    assert bytes(turn_end(Template(tail), (EOS,))).decode() == wanted


def test_a_template_that_takes_no_answer_is_an_error():
    with pytest.raises(DataError, match=r"does not accept an assistant's turn \(ValueError: no assistant here\)$"):
        turn_end(Template("refuse"), ())


# -- long rows ---------------------------------------------------------------------------------------------------------

LONG = [example("ab", "12345", "f:1"), example("ab", "123456", "f:2"), example("ab", "1", "f:3")]
"""8, 9 and 4 tokens with the EOS."""


def test_long_rows_are_an_error_that_counts_them():
    assert len(tokenize(data(*LONG), ToyModel(), spec(max_length=9)).items) == 3
    with pytest.raises(DataError, match=r"^2 of 3 rows are longer than 7 tokens, the first is f:1 \(8 tokens\); give"):
        tokenize(data(*LONG), ToyModel(), spec(max_length=7))


def test_long_rows_can_be_dropped_and_it_is_said(caplog):
    with caplog.at_level(logging.WARNING, "dare_bench"):
        built = tokenize(data(*LONG), ToyModel(), spec(max_length=8, overlong="drop"))
    assert [item[0].where for item in built.items] == ["f:1", "f:3"]
    assert "1 of 3 rows are longer than 8 tokens, the first is f:2 (9 tokens): dropped" in caplog.text
    assert built.hash == digest([LONG[0], LONG[2]])  # what is learned from
    with pytest.raises(DataError, match="some data: no row is within 3 tokens"):
        tokenize(data(*LONG), ToyModel(), spec(max_length=3, overlong="drop"))


def test_long_answers_can_be_cut_and_it_is_said(caplog):
    with caplog.at_level(logging.WARNING, "dare_bench"):
        built = tokenize(data(*LONG), ToyModel(), spec(max_length=6, overlong="truncate"))
    assert [bytes(item[0].answer) for item in built.items] == [b"123", b"123", b"1"]
    assert "2 of 3 rows are longer than 6 tokens" in caplog.text and "truncated" in caplog.text
    assert built.hash == data(*LONG).hash
    with pytest.raises(DataError, match=r"f:1: its prompt of 2 tokens leaves no room"):
        tokenize(data(*LONG), ToyModel(), spec(max_length=3, overlong="truncate"))
    pair = PreferencePair("q", "same then a", "same then b", "f:1")
    with pytest.raises(DataError, match="f:1: truncated, both answers are the same"):
        tokenize(data(pair, kind="pairs"), ToyModel(), spec(max_length=6, overlong="truncate"))


def test_a_pair_is_as_long_as_its_longer_answer():
    pair = PreferencePair("q", "a", "bbbb", "f:1")
    with pytest.raises(DataError, match=r"f:1 \(6 tokens\)"):
        tokenize(data(pair, kind="pairs"), ToyModel(), spec(max_length=5))


def test_the_models_context_is_the_limit():
    model = ToyModel(context_limit=8)
    with pytest.raises(DataError, match="1 of 3 rows are longer than 8 tokens"):
        tokenize(data(*LONG), model, spec())
    with pytest.raises(UsageError, match="max_length=9: the model's context is 8 tokens"):
        tokenize(data(*LONG), model, spec(max_length=9))


def test_rows_that_cannot_be_encoded_are_named():
    with pytest.raises(DataError, match=r"^f:9: this toy has no tokenizer"):
        tokenize(data(example(HI, "a", "f:9")), ToyModel(tokenizer=False), spec())
    masked = Example((1, MASK, 2), "a", "f:4")
    with pytest.raises(DataError, match=r"f:4: its text contains the mask token \(id 257\)"):
        tokenize(data(masked), ToyModel(), spec())


# -- histogram ---------------------------------------------------------------------------------------------------------


def test_the_histogram_counts_every_row_and_names_the_longest():
    rows = [example("p" * (i % 7 + 1), "a" * (i + 1), f"f:{i}") for i in range(100)]
    text = histogram(tokenize(data(*rows), ToyModel(), spec()))
    head, names, prompt, answer, row, *bars, longest = text.splitlines()
    assert head == f"some data: 100 examples, {sum(i % 7 + i + 2 for i in range(100)):,} tokens"
    assert names.split() == ["tokens", "of", "mean", "5%", "50%", "95%", "99%", "most"]
    assert answer.split() == ["answer", "50.5", "5", "50", "95", "99", "100"]
    assert prompt.split()[0] == "prompt" and row.split()[-1] == "105"  # row 97: 7 + 98
    assert len(bars) <= 10 and sum(int(bar.split()[-1]) for bar in bars) == 100
    assert longest == "longest: f:97 (7 + 98 tokens)"


def test_the_histogram_is_logged_a_line_at_a_time(caplog):
    tokens = tokenize(data(example("p", "aa"), example("pp", "a")), ToyModel(), spec())
    with caplog.at_level(logging.INFO, "dare_bench"):
        run._report_lengths(tokens)
    assert [record.getMessage() for record in caplog.records] == histogram(tokens).splitlines()


def test_the_histogram_of_one_row_and_of_pairs():
    text = histogram(tokenize(data(example("p", "aa")), ToyModel(), spec()))
    assert text.splitlines()[-2].split() == ["3", "#" * 40, "1"]
    text = histogram(tokenize(data(PreferencePair("q", "a", "bbbb", "f:1"), kind="pairs"), ToyModel(), spec()))
    assert [line.split()[0] for line in text.splitlines()[2:6]] == ["prompt", "chosen", "rejected", "row"]


@pytest.mark.parametrize(("share", "wanted"), [(0, 1), (25, 1), (26, 2), (50, 2), (99, 4), (100, 4)])
def test_percentiles_are_of_the_nearest_rank(share, wanted):
    assert percentile([4, 2, 1, 3], share) == wanted
