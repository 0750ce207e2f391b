"""Files of training rows: formats, order, damage."""

from __future__ import annotations

import gzip
import json

import pytest
from training_samples import lines, read

from dare_bench.errors import DataError


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
