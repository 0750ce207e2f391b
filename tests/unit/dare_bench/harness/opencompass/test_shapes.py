"""Data sets in their hub columns as OpenCompass's loaders get them: made rows, one data set after another."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opencompass_data import bench, built, offline
from require import need_package

from dare_bench.errors import DataError
from dare_bench.harness.opencompass.catalog import ConfigCatalog
from dare_bench.harness.opencompass.layout import lay_out

need_package("opencompass")


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from offline(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def catalog() -> ConfigCatalog:
    return ConfigCatalog()


def mbpp_rows(numbers: range, text: str) -> list[dict[str, Any]]:
    return [
        {"task_id": n, text: f"task {n}", "code": "def f(): pass", "test_list": [f"assert f() == {n}", "assert f()"]}
        for n in numbers
    ]


def test_mbpp_is_cut_where_opencompass_cuts_it(tmp_path: Path, catalog: ConfigCatalog) -> None:
    parts = {"train": range(15, 17), "prompt": range(1, 11), "validation": range(13, 15), "test": range(11, 13)}
    whole = {split: mbpp_rows(numbers, "text") for split, numbers in parts.items()}
    folder = bench(tmp_path / "a", "mbpp", "google-research-datasets/mbpp:full", **whole)
    (result,) = built(catalog, lay_out(folder), "mbpp_gen")
    assert [row["task_id"] for row in result.train] == list(range(1, 11))
    assert [row["task_id"] for row in result.test] == list(range(11, 17))
    assert result.test[0]["test_list"] == "assert f() == 11\nassert f()"
    parts["prompt"] = range(1, 8)
    whole = {split: mbpp_rows(numbers, "prompt") for split, numbers in parts.items()}
    folder = bench(tmp_path / "b", "mbpp_sanitized", "google-research-datasets/mbpp:sanitized", **whole)
    (result,) = built(catalog, lay_out(folder), "sanitized_mbpp_gen_830460")
    assert [row["task_id"] for row in result.test] == list(range(11, 17))
    assert result.test[0]["text"] == "task 11"


def test_half_of_mbpp_is_an_error_and_no_smaller_data_set(tmp_path: Path, catalog: ConfigCatalog) -> None:
    rows = mbpp_rows(range(11, 13), "text")
    folder = bench(tmp_path, "mbpp", "google-research-datasets/mbpp:full", test=rows)
    with pytest.raises(
        DataError, match=r"no local data for OpenCompass data set mbpp: data/mbpp/mbpp.jsonl is missing"
    ):
        built(catalog, lay_out(folder), "mbpp_gen")


def test_mbpp_plus_has_the_column_that_its_configs_ask_for(tmp_path: Path, catalog: ConfigCatalog) -> None:
    rows = [{**row, "test": "assert True"} for row in mbpp_rows(range(2, 4), "prompt")]
    (result,) = built(catalog, lay_out(bench(tmp_path, "mbpp_plus", "evalplus/mbppplus", test=rows)), "mbpp_plus_gen")
    assert [row["text"] for row in result.test] == ["task 2", "task 3"]
    assert result.test[0]["test"] == "assert True"


def test_mmlu_pro_is_read_by_category_with_its_shots(tmp_path: Path, catalog: ConfigCatalog) -> None:
    row = {"question": "?", "options": ["x", "y"], "answer": "B", "answer_index": 1, "cot_content": "", "src": "s"}
    rows = [{"question_id": n, "category": "law" if n % 2 else "math", **row} for n in range(5)]
    folder = bench(tmp_path, "mmlu_pro", "TIGER-Lab/MMLU-Pro", test=rows, validation=rows[:2])
    (result,) = built(catalog, lay_out(folder), "mmlu_pro_gen:mmlu_pro_law")
    assert [row["question_id"] for row in result.test] == [1, 3]


def test_ceval_tests_on_its_validation_split(tmp_path: Path, catalog: ConfigCatalog) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        row = {"question": "何？", "A": "a,", "B": 'b"', "C": "c\n", "D": "d", "answer": "C", "explanation": ""}
        return [{"id": number, **row} for number in range(count)]

    splits = {"test": rows(3), "val": rows(2), "dev": rows(5)}
    folder = bench(tmp_path, "ceval", "ceval/ceval-exam", ["accountant"], **splits)
    (result,) = built(catalog, lay_out(folder), "ceval_gen:ceval-accountant")
    assert (len(result.test), len(result.train)) == (2, 5)
    assert [result.test[0][letter] for letter in "ABCD"] == ["a,", 'b"', "c\n", "d"]


def test_aime_and_olympiad_rows(tmp_path: Path, catalog: ConfigCatalog) -> None:
    hub = [{"ID": "2024-I-1", "Problem": "p", "Solution": "s", "Answer": 33}]
    layout = lay_out(bench(tmp_path / "a", "aime24", "Maxwell-Jia/AIME_2024", train=hub))
    (result,) = built(catalog, layout, "aime2024_gen")
    assert (result.test[0]["question"], result.test[0]["answer"]) == ("p", "33")
    assert any("wording" in note for note in layout.notes)
    own = [{"origin_prompt": "q", "gold_answer": "33"}]
    layout = lay_out(bench(tmp_path / "b", "aime24", "Maxwell-Jia/AIME_2024", train=hub, opencompass=own))
    (result,) = built(catalog, layout, "aime2024_gen")
    assert result.test[0]["question"] == "q"
    assert layout.notes == []
    rows = [{"id": "0", "problem": "p", "answer": "70"}, {"id": "1", "problem": "r", "answer": "588"}]
    layout = lay_out(bench(tmp_path / "c", "aime25", "math-ai/aime25", test=rows))
    (result,) = built(catalog, layout, "aime2025_gen_repeat8_5e9f4f")
    assert [row["answer"] for row in result.test] == ["70", "588"] * 8  # its n is 8
    rows = [
        {"question": "o", "final_answer": ["$1$"], "answer_type": "Numerical", "is_multiple_answer": False}
        | {"unit": None, "error": None, "id": 1, "solution": ["s"]}
    ]
    hub_id = "Hothan/OlympiadBench:OE_TO_maths_en_COMP"
    layout = lay_out(bench(tmp_path / "d", "olympiadbench", hub_id, train=rows))
    (result,) = built(catalog, layout, "OlympiadBench_0shot_gen_be8b13:*maths_en*")
    assert (result.test[0]["solution"], result.test[0]["subject"]) == ("$1$", "Math")
    with pytest.raises(
        DataError, match=r"physics_en_COMP.json is missing.*has a different part.*CONFIG:ABBR.* in place of --recipe"
    ):
        built(catalog, layout, "OlympiadBench_0shot_gen_be8b13:*physics_en*")


def test_math_500_serves_both_loaders_and_humaneval_may_be_compressed(tmp_path: Path, catalog: ConfigCatalog) -> None:
    rows = [{"problem": "p", "solution": "so \\boxed{7}", "answer": "7", "subject": "Algebra", "level": 1}]
    layout = lay_out(bench(tmp_path / "a", "math500", "HuggingFaceH4/MATH-500", test=rows))
    for name, solution in (("math_500_gen", "so \\boxed{7}"), ("math_prm800k_500_0shot_cot_gen", "7")):
        (result,) = built(catalog, layout, name)
        assert [row["solution"] for row in result.test] == [solution]
    rows = [
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "", "canonical_solution": ""}
    ]
    folder = bench(tmp_path / "b", "humaneval", "openai/openai_humaneval", test=rows)
    plain = folder / "humaneval" / "test.jsonl"
    plain.with_name("test.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace("test.jsonl", "test.jsonl.gz"))
    (result,) = built(catalog, lay_out(folder), "humaneval_gen")
    assert result.test[0]["prompt"] == "def f():\n"
