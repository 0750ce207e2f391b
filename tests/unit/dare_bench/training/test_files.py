"""Files of training rows: formats, order, damage."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace

import pytest
from training_samples import lines, read

from dare_bench.errors import DataError
from dare_bench.training.data import read_data
from dare_bench.training.rows import Example, PreferencePair, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.types import RewardPrompt


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
    assert read(tmp_path / "a.json").rows[2].where == f"{tmp_path / 'a.json'}:10"
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
    with pytest.raises(DataError, match=r"array\.json:1: text after"):
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
