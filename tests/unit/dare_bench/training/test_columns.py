"""Training rows by their columns: what is read, and how bad rows are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import training_samples as samples
from require import need_package
from training_samples import lines, read

from dare_bench.errors import DataError, UsageError
from dare_bench.training.columns import ROW_FORMATS
from dare_bench.training.rows import Example, Kind, PreferencePair, content
from dare_bench.types import RewardPrompt

SAMPLES = samples.FOLDER


def first(folder: Path, row: dict[str, Any], kind: Kind = "examples") -> Any:
    return read(lines(folder, [row]), kind).rows[0]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_every_assistant_turn_is_an_example_with_what_came_before():
    data = read(SAMPLES / "chat.jsonl")
    rows = [row for row in data.rows if isinstance(row, Example)]
    assert [row.answer for row in rows] == ["4", "5", "10", "3,14 ≈ π"]
    assert rows[2].prompt == (samples.SYSTEM, user("2+3?"), said("5"), user("And twice that?"))
    assert rows[1].where.endswith("chat.jsonl:2 (turn 1)") and rows[3].where.endswith("chat.jsonl:3")


Q, A = user("Hi?"), said("Yes.")
EXAMPLES = {
    "chat": ({"messages": [Q, A]}, (Q,), "Yes."),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Yes."}]},
        (Q,),
        "Yes.",
    ),
    "sharegpt-roles": ({"conversations": [Q, A]}, (Q,), "Yes."),
    "raw": ({"prompt": "Hi?", "completion": " Yes."}, "Hi?", " Yes."),
    "response": ({"prompt": "Hi?", "response": "Yes."}, "Hi?", "Yes."),
    "answer": ({"prompt": [Q], "answer": "Yes."}, (Q,), "Yes."),
    "completion-turn": ({"prompt": [Q], "completion": [A]}, (Q,), "Yes."),
    "text-and-turn": ({"prompt": "Hi?", "completion": [A]}, (Q,), "Yes."),
    "alpaca": ({"instruction": "Hi?", "input": "", "output": "Yes."}, (Q,), "Yes."),
    "alpaca-input": ({"instruction": "Add", "input": "1 2", "output": "3"}, (user("Add\n1 2"),), "3"),
    "gsm8k": ({"question": "Hi?", "answer": "Yes."}, (Q,), "Yes."),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(tmp_path, name):
    row, prompt, answer = EXAMPLES[name]
    result = first(tmp_path, row)
    assert (result.prompt, result.answer) == (prompt, answer)
    assert result.where == f"{tmp_path / 'rows.jsonl'}:1"


PAIRS = {
    "text": ({"prompt": "Hi?", "chosen": "Yes.", "rejected": "No."}, "Hi?", "Yes.", "No."),
    "text-that-repeats-its-prompt": ({"prompt": "A", "chosen": "Apple", "rejected": "Ant"}, "A", "Apple", "Ant"),
    "turns": ({"prompt": [Q], "chosen": [A], "rejected": [said("No.")]}, (Q,), "Yes.", "No."),
    "whole": ({"prompt": [Q], "chosen": [Q, A], "rejected": [Q, said("No.")]}, (Q,), "Yes.", "No."),
    "ultrafeedback": ({"prompt": "Hi?", "chosen": [Q, A], "rejected": [Q, said("No.")]}, (Q,), "Yes.", "No."),
    "ultrafeedback-and-messages": (
        {"prompt": "Hi?", "chosen": [Q, A], "rejected": [Q, said("No.")], "messages": [Q, A], "score_chosen": 8.0},
        (Q,), "Yes.", "No.",
    ),
    "shared": ({"chosen": [Q, A], "rejected": [Q, said("No.")]}, (Q,), "Yes.", "No."),
    "shared-text": ({"chosen": "The sky is blue.", "rejected": "The sky is black."}, "The sky is", " blue.", " black."),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(tmp_path, name):
    row, prompt, chosen, rejected = PAIRS[name]
    result = first(tmp_path, row, "pairs")
    assert (result.prompt, result.chosen, result.rejected) == (prompt, chosen, rejected)


def test_a_file_with_preferences_and_messages_is_read_as_the_method_needs(tmp_path):
    row = PAIRS["ultrafeedback-and-messages"][0]
    assert isinstance(first(tmp_path, row), Example)


def test_dare_parquet():
    need_package("pyarrow")
    sft = read(SAMPLES / "dare_sft.parquet").rows
    assert [(row.prompt, row.answer) for row in sft if isinstance(row, Example)] == [
        ((user(row["extra_info"]["question"]),), row["extra_info"]["answer"]) for row in samples.SFT
    ]
    assert sft[1].where.endswith("dare_sft.parquet:row 2")
    pair = read(SAMPLES / "dare_dpo.parquet", "pairs").rows[0]
    assert pair == PreferencePair((user("Capital of France?"),), "Paris.", "Lyon.", pair.where)
    rl = read(SAMPLES / "dare_rl.parquet", "prompts").rows
    extra = {"split": "train", "index": 0, "puzzle": "1.3."}
    assert rl[0] == RewardPrompt((user("Solve 1.3."),), "1234", "sudoku", rl[0].where, extra)
    assert isinstance(rl[1], RewardPrompt) and rl[1].extra["numbers"] == "[2, 5]" and rl[1].task == "countdown"


def test_committed_parquet_files_are_what_the_maker_makes():
    parquet = need_package("pyarrow.parquet")
    for name, table in samples.tables().items():
        assert parquet.read_table(SAMPLES / name).equals(table), name


def test_equal_rows_hash_equal_whatever_file_they_are_in(tmp_path):
    need_package("pyarrow")
    for name, rows, kind in (("dare_sft", samples.SFT, "examples"), ("dare_rl", samples.RL, "prompts"),
                             ("dare_dpo", samples.DPO, "pairs")):  # fmt: skip
        known = read(SAMPLES / f"{name}.parquet", kind)
        written = read(lines(tmp_path, rows), kind)
        assert written.hash == known.hash and len(known.hash) == 64
        assert list(map(content, written.rows)) == list(map(content, known.rows))
        assert read(lines(tmp_path, rows[::-1]), kind).hash != known.hash
        assert read(lines(tmp_path, rows[:1]), kind).hash == read(SAMPLES / f"{name}.parquet", kind, rows=1).hash


# -- malformed rows ----------------------------------------------------------------------------------------------------

GOOD = json.dumps({"messages": [Q, A]})
MALFORMED = {
    "json": (b'{"messages": [', r"not valid JSON"),
    "list": (b'["a", "b"]', r"a row is an object of columns, this is a list \(\['a', 'b'\]\)"),
    "null": (b"null", r"this is a NoneType"),
    "utf-8": (b'{"messages": "\xff"}', r"not UTF-8: byte 0xff at 14"),
    "twice": (b'{"messages": 1, "messages": 2}', r"duplicate key 'messages'"),
    "twice-inside": (b'{"messages": [{"role": "user", "role": "user"}]}', r"duplicate key 'role'"),
    "deep": (b"[" * 100_000, r"not valid JSON \(nested too deeply\)"),
    "number": (b'{"messages": 1' + b"0" * 5000 + b"}", r"not valid JSON"),
    "missing": (b'{"text": "x"}', r"no 'messages'; expected it, as in the file's first row \(it has \['text'\]\)"),
    "null-column": (b'{"messages": null}', r"messages is null"),
    "text": (b'{"messages": "hi"}', r"messages is 'hi', a str; expected a list of chat messages"),
    "empty": (b'{"messages": []}', r"messages is an empty list"),
    "surrogate": (json.dumps({"messages": [Q, said("\ud800")]}).encode(), r"half a surrogate pair at character 0"),
}
TURNS = {
    "no role": ([{"content": "x"}], r"messages\[0\] is .*expected an object with 'role' and 'content'"),
    "role": ([{"role": "tool", "content": "x"}], r"role 'tool'; allowed: system, user, assistant"),
    "null content": ([Q, {"role": "assistant", "content": None}], r"messages\[1\]\.content is None.*expected text"),
    "parts": ([user([{"type": "text"}]), A], r"messages\[0\]\.content is \[.*a list; expected text"),  # type: ignore[arg-type]
    "blank": ([Q, said("  ")], r"messages\[1\]\.content is empty \(' '\)"),
    "begins": ([A], r"messages\[0\] is a turn of 'assistant'; expected 'user'"),
    "twice user": ([Q, Q, A], r"messages\[1\] is a turn of 'user'; expected 'assistant'"),
    "late system": ([Q, samples.SYSTEM, A], r"messages\[1\] is a turn of 'system'"),
    "no answer": ([Q, A, Q], r"messages ends with a turn of 'user'; expected 'assistant'"),
    "calls": ([Q, {**A, "tool_calls": [1]}], r"messages\[1\] has 'tool_calls'"),
}


@pytest.mark.parametrize("name", [*MALFORMED, *TURNS])
def test_a_malformed_row_is_named_by_file_and_line(tmp_path, name):
    line, message = MALFORMED.get(name) or (json.dumps({"messages": TURNS[name][0]}).encode(), TURNS[name][1])
    file = tmp_path / "rows.jsonl"
    file.write_bytes(GOOD.encode() + b"\n\n" + line + b"\n" + GOOD.encode())
    with pytest.raises(DataError, match=rf"rows\.jsonl:3: .*{message}.*1 of 3 rows malformed") as met:
        read(file)
    assert "\n" not in str(met.value) and len(str(met.value)) < 500


PAIRS_MALFORMED = {
    "same": ({"prompt": "p", "chosen": "a", "rejected": "a"}, r"chosen and rejected are the same \('a'\)"),
    "same turn": ({"prompt": [Q], "chosen": [A], "rejected": [Q, A]}, r"answers are the same \('Yes\.'\)"),
    "no rejected": ({"prompt": "p", "chosen": "a"}, r"no 'rejected'"),
    "null": ({"prompt": "p", "chosen": "a", "rejected": None}, r"rejected is null"),
    "mixed": ({"prompt": "p", "chosen": "a", "rejected": [A]}, r"chosen is 'a', a str; expected a list"),
    "number": ({"prompt": "p", "chosen": 1, "rejected": "a"}, r"chosen is 1, a int"),
    "other question": ({"prompt": "x", "chosen": [Q, A], "rejected": [Q, said("n")]}, r"prompt is 'x', but .* 'Hi\?'"),
    "other beginning": (
        {"prompt": "Hi?", "chosen": [Q, A], "rejected": [user("Other?"), said("n")]},
        r"rejected is not the prompt followed by one answer",
    ),
    "ends with user": ({"prompt": [Q, A], "chosen": [A], "rejected": [said("n")]}, r"prompt ends with a turn of"),
}


@pytest.mark.parametrize("name", PAIRS_MALFORMED)
def test_malformed_pairs(tmp_path, name):
    row, message = PAIRS_MALFORMED[name]
    file = lines(tmp_path, [PAIRS["text"][0], row])
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: .*{message}"):
        read(file, "pairs")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": [A], "rejected": [said("No.")]}, "no prompt: the answers are single turns"),
        ({"chosen": "yes", "rejected": "no"}, "no common beginning"),
    ],
)
def test_malformed_pairs_without_a_prompt(tmp_path, row, message):
    with pytest.raises(DataError, match=rf"rows\.jsonl:1: .*{message}"):
        first(tmp_path, row, "pairs")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward_model": {"ground_truth": None}}, "reward_model.ground_truth is null"),
        ({"reward_model": None}, "reward_model is null"),
        ({"reward_model": {"ground_truth": ""}}, "reward_model.ground_truth is empty"),
        ({"prompt": [A]}, r"prompt\[0\] is a turn of 'assistant'; expected 'user'"),
        ({"extra_info": "x"}, "extra_info is 'x'; expected an object of fields"),
        ({"extra_info": None, "data_source": None}, "data_source is null"),
    ],
)
def test_malformed_prompts(tmp_path, change, message):
    file = lines(tmp_path, [samples.RL[0], samples.RL[0] | change])
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: {message}"):
        read(file, "prompts")


def test_what_a_reward_needs_is_kept(tmp_path):
    row = samples.RL[0] | {"extra_info": None, "reward_model": {"ground_truth": ["7", 8]}}
    result = first(tmp_path, row, "prompts")
    assert (result.task, result.truth, result.extra) == ("sudoku", '["7", 8]', {})


def test_the_first_three_are_named_and_all_are_counted(tmp_path):
    file = lines(tmp_path, [{"prompt": "p", "answer": "a" if i % 2 else ""} for i in range(12)])
    with pytest.raises(DataError) as met:
        read(file)
    text = str(met.value)
    assert [text.count(f"rows.jsonl:{i}:") for i in (1, 3, 5, 7)] == [1, 1, 1, 0]
    assert "and 3 more" in text and "6 of 12 rows malformed; fix or remove them)" in text


def test_malformed_parquet_rows_and_files(tmp_path):
    pa, parquet = need_package("pyarrow"), need_package("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    rows = [*samples.DPO, samples.DPO[0] | {"chosen": None}]
    parquet.write_table(pa.Table.from_pylist(rows, samples.tables()["dare_dpo.parquet"].schema), file)
    with pytest.raises(DataError, match=r"rows\.parquet:row 3: chosen is null"):
        read(file, "pairs")
    broken = pa.array([b"good", b"\xff"], pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"prompt": broken, "answer": ["a", "b"]}), file)
    with pytest.raises(DataError, match=r"rows\.parquet:row 2: not UTF-8: byte 0xff"):
        read(file)
    parquet.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["prompt", "prompt"]), file)
    with pytest.raises(DataError, match="column 'prompt' occurs more than once"):
        read(file)
    file.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read(file)


# -- the wrong file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "dare_dpo.parquet",
            "examples",
            r"holds preferences \(.*\): columns prompt, chosen, rejected; .* dare-bench train dpo or vrpo",
        ),
        ("chat.jsonl", "pairs", r"chat\.jsonl holds a prompt and an answer: columns messages; .* dare-bench train sft"),
        ("dare_rl.parquet", "pairs", r"holds prompts with a reference answer"),
    ],
)
def test_a_file_for_another_method_says_what_is_there(name, kind, message):
    need_package("pyarrow")
    with pytest.raises(UsageError, match=message):
        read(SAMPLES / name, kind)


def test_columns_that_mean_nothing_or_two_things(tmp_path):
    with pytest.raises(DataError, match=r"has columns 'a, text'; expected \(messages\) or .*\(question, answer\)"):
        first(tmp_path, {"text": "x", "a": 1})
    with pytest.raises(
        UsageError, match=r"columns of chat \(messages\) and of question and answer .*; keep those of one"
    ):
        first(tmp_path, {"messages": [Q, A], "question": "q", "answer": "a"})


def test_every_shape_says_where_it_comes_from():
    assert len({shape.name for shape in ROW_FORMATS}) == len(ROW_FORMATS)
    assert all(shape.source and shape.required for shape in ROW_FORMATS)


def test_reading_imports_no_torch():
    code = (
        "import sys; from dare_bench.training import data, tokens; from dare_bench.training.spec import TrainSpec;"
        f"data.read_data(TrainSpec(method='m', model='x', output_path='o', data={str(SAMPLES / 'chat.jsonl')!r}),"
        "'examples'); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
