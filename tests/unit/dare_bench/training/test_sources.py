"""Where training rows come from: files, their formats and damage, folders, patterns, the hub and memory."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from dataclasses import fields, replace
from typing import Any

import pytest
import training_samples as samples
from paths import ROOT
from require import need_package
from training_samples import FOLDER as SAMPLES
from training_samples import lines, read

from dare_bench.errors import DataError, UsageError
from dare_bench.training.data import read_data
from dare_bench.training.rows import Data, Example, PreferencePair, digest
from dare_bench.training.sources import open_memory
from dare_bench.training.spec import TrainSpec, train_spec
from dare_bench.types import RewardPrompt


def test_a_folder_is_its_files_of_the_split(tmp_path):
    for name in ("train-00001.jsonl", "train-00000.jsonl", "test.jsonl", "trainer.jsonl"):
        lines(tmp_path, [{"prompt": name, "answer": "a"}], name)
    (tmp_path / "README.md").write_text("no data")
    assert [row.prompt for row in read(tmp_path).rows] == ["train-00000.jsonl", "train-00001.jsonl"]
    assert [row.prompt for row in read(tmp_path, split="test").rows] == ["test.jsonl"]
    assert [row.prompt for row in read(tmp_path / "train-*").rows] == ["train-00000.jsonl", "train-00001.jsonl"]
    with pytest.raises(UsageError, match=r"no file of the split 'dev' .*test\.jsonl"):
        read(tmp_path, split="dev")


def test_a_folder_without_splits_is_all_its_files(tmp_path):
    (tmp_path / "part").mkdir()
    lines(tmp_path / "part", [{"prompt": "2", "answer": "a"}], "b.jsonl")
    lines(tmp_path, [{"question": "1", "answer": "a"}], "a.jsonl")
    rows = read(tmp_path).rows
    assert [row.prompt for row in rows] == [({"role": "user", "content": "1"},), "2"]  # each file by its own columns


def test_a_hub_id_goes_to_the_datasets_library(monkeypatch):
    datasets = need_package("datasets")
    requested: list[Any] = []

    def load_dataset(*args: Any, **named: Any) -> Any:
        requested.append((args, named))
        return datasets.Dataset.from_list(samples.SFT)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = read("owner/name:main", split="train[:10]")
    assert requested == [(("owner/name", "main"), {"split": "train[:10]"})]
    assert data.hash == read(SAMPLES / "dare_sft.parquet").hash
    assert data.rows[1].where == "owner/name:main[train[:10]]:row 2"
    assert data.name == "owner/name:main"


def test_a_hub_id_without_network_is_one_line():
    need_package("datasets")
    with pytest.raises(DataError, match=r"^no-such-owner/no-such-data: the hub is not asked in offline mode") as met:
        read("no-such-owner/no-such-data")
    assert "\n" not in str(met.value)


BENCH = ROOT / "tests" / "data" / "bench"


def test_a_hub_id_is_read_from_the_local_data_of_evaluations(tmp_path, monkeypatch, caplog):
    """Without a network, and as the same training as from the hub: neither its name nor its hash knows the folder."""
    need_package("datasets")
    monkeypatch.setenv("DARE_BENCH_DATA", str(BENCH))
    task = read_data(train_spec(method="d1", model="m", task="gsm8k", output_path="o"), "prompts")
    assert task.hash == read(BENCH / "gsm8k" / "train.jsonl", "prompts").hash and len(task.rows) == 8
    assert (task.name, task.rows[0].where) == ("openai/gsm8k:main", "openai/gsm8k:main[train]:row 1")
    assert caplog.text.count("data set openai/gsm8k is local and incomplete: a few rows for tests") == 1
    assert read("openai/gsm8k:main", split="test[:2]").hash == read(BENCH / "gsm8k" / "test.jsonl", rows=2).hash
    with pytest.raises(DataError, match=r"manifest\.json lists for it cannot be loaded .* they have train, test$"):
        read("openai/gsm8k:main", split="validation")
    copied = shutil.copytree(BENCH, tmp_path / "bench")
    (copied / "gsm8k" / "train.jsonl").write_text('{"question": "other", "answer": "#### 1"}\n')
    monkeypatch.setenv("DARE_BENCH_DATA", str(copied))
    with pytest.raises(DataError, match=r"train\.jsonl: sha256 is .*the file was changed"):
        read("openai/gsm8k:main")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.jsonl", r"missing\.jsonl is not there; give a file"),
        ("a/b/c", "is not there"),
        ("*.parquet", r"no training file matches '.*\*\.parquet'"),
        ("notes.txt", r"notes\.txt is not recognized as training data by its name; allowed: \.jsonl"),
        ("empty", "empty holds no training file"),
    ],
)
def test_sources_that_are_not_there(tmp_path, name, message):
    (tmp_path / "notes.txt").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        read(tmp_path / name)


# -- rows in memory ----------------------------------------------------------------------------------------------------


def in_memory(given: Any, kind: Any = "examples", **fields: Any) -> Data:
    memory = open_memory(given)
    return read_data(train_spec(method="m", model="x", output_path="o", data=memory.name, **fields), kind, memory)


def test_rows_in_memory_are_the_rows_of_a_file(tmp_path):
    datasets = need_package("datasets")
    rows = [*samples.CHAT]
    of_file = read(lines(tmp_path, rows))
    for given in (
        rows,
        tuple(rows),
        datasets.Dataset.from_list(rows),
        datasets.Dataset.from_list(rows).with_format("numpy"),
    ):
        data = in_memory(given)
        assert data.hash == of_file.hash
        assert data.rows[0].where == "data:row 1"
    assert [row.where for row in in_memory(rows, rows=2).rows][1:] == ["data:row 2 (turn 1)", "data:row 2 (turn 2)"]
    struct = datasets.Dataset.from_list(samples.SFT)
    assert in_memory(struct).hash == in_memory(samples.SFT).hash
    assert len(in_memory(samples.DPO, "pairs").rows) == len(samples.DPO)


def test_the_name_of_rows_in_memory_follows_their_content():
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    name = open_memory(rows).name
    assert re.fullmatch(r"list of 2 rows \(sha256:[0-9a-f]{16}\)", name)
    assert open_memory([dict(reversed(row.items())) for row in rows]).name == name
    assert open_memory(rows[::-1]).name != name
    assert open_memory([rows[0], {**rows[1], "answer": "3"}]).name != name


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "c"}, r"data:row 2: no 'answer'"),
        ({"prompt": "c", "answer": ""}, r"data:row 2: answer is empty"),
        ({"prompt": "c", "answer": float("nan")}, r"data:row 2: answer is nan, a float"),
        ("text", r"data:row 2: a row is an object of columns, this is a str \('text'\)"),
        ({"prompt": "c", "answer": "d", 0: "e"}, r"data:row 2: a column is called 0, a int; expected text"),
        ({"prompt": "c", "answer": "d", ("f",): "e"}, r"data:row 2: a column is called \('f',\)"),
        ({"prompt": "c", "answer": LOOP}, r"data:row 2: nested deeper than 64 levels"),
        ({"prompt": "c", "answer": "\ud800"}, r"data:row 2: answer is not Unicode text"),
    ],
)
def test_malformed_rows_in_memory_are_named_by_number(row, problem):
    rows = [{"prompt": "a", "answer": "b"}, row, {"prompt": "a", "answer": 7}]
    with pytest.raises(DataError, match=rf"^{problem}.*; data:row 3: answer is 7, a int.* \(2 of 3 rows malformed"):
        in_memory(rows)


def test_other_objects_are_no_data():
    datasets = need_package("datasets")
    part = datasets.Dataset.from_list([{"prompt": "a", "answer": "b"}])
    with pytest.raises(UsageError, match=r"data is a DatasetDict with the splits train, test; choose one; give a path"):
        in_memory(datasets.DatasetDict({"train": part, "test": part}))
    for wrong, name in (({"prompt": ["a"], "answer": ["b"]}, "dict"), ((row for row in [{}]), "generator"), (7, "int")):
        with pytest.raises(UsageError, match=rf"data is a {name}; give a path, a hub id, a list of dicts or"):
            in_memory(wrong)
    with pytest.raises(DataError, match="data is an empty list"):
        in_memory([])
    with pytest.raises(UsageError, match=r"sha256:.* is not there; give a file"):  # a spec alone does not have the rows
        read(open_memory([{"prompt": "a", "answer": "b"}]).name)


def test_json_arrays_gzip_and_blank_lines_are_the_same_rows(tmp_path):
    rows = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(5)]
    plain = read(lines(tmp_path, rows))
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    (tmp_path / "c.jsonl").write_bytes(
        b"\xef\xbb\xbf\n" + (tmp_path / "rows.jsonl").read_bytes().replace(b"\n", b"\r\n\n")
    )
    for name in ("a.json", "b.jsonl.gz", "c.jsonl"):
        assert read(tmp_path / name).hash == plain.hash, name
    assert read(tmp_path / "a.json").rows[2].where == f"{tmp_path / 'a.json'}:row 3"
    assert read(tmp_path / "c.jsonl").rows[0].where.endswith("c.jsonl:2")


def test_rows_takes_the_first_and_looks_no_further(tmp_path):
    file = lines(tmp_path, [{"prompt": str(i), "answer": "a"} for i in range(4)])
    file.write_text(file.read_text() + "no json\n")
    assert [row.prompt for row in read(file, rows=3).rows] == ["0", "1", "2"]
    with pytest.raises(DataError, match=r"rows\.jsonl:5: not valid JSON"):
        read(file, rows=5)
    two = tmp_path / "two"
    two.mkdir()
    for name in "ab":
        lines(two, [{"prompt": name, "answer": str(i)} for i in range(3)], f"{name}.jsonl")
    assert [row.prompt for row in read(two, rows=4).rows] == ["a", "a", "a", "b"]


def test_damaged_and_empty_files(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "p", "answer": "a"}\n' * 9)[:-12])
    with pytest.raises(DataError, match=r"cut\.jsonl\.gz:\d+: cannot be read any further"):
        read(tmp_path / "cut.jsonl.gz")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.jsonl holds no rows"):
        read(tmp_path / "empty.jsonl")
    (tmp_path / "array.json").write_text('[\n{"prompt": "p", "answer": "a"},\n{"prompt": }\n]')
    with pytest.raises(DataError, match=r"array\.json:3: not valid JSON"):
        read(tmp_path / "array.json")
    (tmp_path / "array.json").write_text('[{"prompt": "p", "answer": "a"}] {}')
    with pytest.raises(DataError, match=r"array\.json:1: not valid JSON \(Extra data"):
        read(tmp_path / "array.json")
    (tmp_path / "object.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"object\.jsonl:1: an object without columns"):
        read(tmp_path / "object.jsonl")


# -- A hash of data is of what the rows teach, and stays what recorded trainings have ----------------------------------


@pytest.mark.parametrize(
    ("row", "taught"),
    [
        (Example("2+2=", "4", "a:1"), {"prompt", "answer"}),
        (PreferencePair("2+2=", "4", "5", "a:1"), {"prompt", "chosen", "rejected"}),
        (RewardPrompt("2+2=", "4", "math", "a:1", {"n": 1}), {"prompt", "truth", "task", "extra"}),
    ],
)
def test_the_hash_is_of_the_prompt_its_answers_and_what_the_reward_reads(row, taught):
    for field in fields(row):
        other = {"extra": {"n": 2}, "key": 7}.get(field.name, "other")
        assert (digest([replace(row, **{field.name: other})]) != digest([row])) == (field.name in taught), field.name


@pytest.mark.parametrize(
    ("task", "seed", "recorded"),
    [("dare_sort", 0, "1897e350bf36"), ("dare_sort", 1, "7f9571c13550"), ("dare_countdown3", 2, "6fa3af7b62e2")],
)
def test_committed_trainings_have_todays_hash(task, seed, recorded, tmp_path):
    """The sampling keys of docs/rl-runs are derived from the same text."""
    spec = TrainSpec(method="cj_grpo", model="tiny-llada-sort-base", task=task, seed=seed, output_path=str(tmp_path))
    assert read_data(spec, "prompts").hash.startswith(recorded)
