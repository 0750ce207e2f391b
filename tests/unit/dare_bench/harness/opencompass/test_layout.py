"""Local data as OpenCompass's own loaders read it: the right rows, in their hub columns, written once, and never a
download."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opencompass_data import BENCH, bench, built, offline, row_of
from require import need_package

from dare_bench.errors import DataError
from dare_bench.harness.opencompass.catalog import ConfigCatalog
from dare_bench.harness.opencompass.layout import ROOT, lay_out

need_package("opencompass")
WHOLE = os.environ.get("DARE_BENCH_DATA")


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from offline(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def catalog() -> ConfigCatalog:
    return ConfigCatalog()


@pytest.mark.parametrize(
    ("name", "rows", "column", "of", "field"),
    [
        ("gsm8k_gen", 4, "question", "gsm8k/test.jsonl", "question"),
        ("ARC_c_gen", 2, "question", "arc_challenge/validation.jsonl", "question"),
        ("mmlu_gen_a484b3:*anatomy", 4, "input", "mmlu/anatomy/test.jsonl", "question"),
        ("math_gen", 14, "problem", "hendrycks_math/algebra/test.jsonl", "problem"),
        ("bbh_gen:bbh-navigate", 4, "input", "bbh/navigate/test.jsonl", "input"),
        ("IFEval_gen", 4, "prompt", "ifeval/train.jsonl", "prompt"),
    ],
)
def test_rows_of_the_bench_arrive_in_opencompass_s_columns(
    catalog: ConfigCatalog, name: str, rows: int, column: str, of: str, field: str
) -> None:
    (result,) = built(catalog, lay_out(BENCH), name)
    assert len(result.test) == rows
    assert result.test[0][column] == row_of(of)[field]


def test_choices_and_answers_keep_their_order(catalog: ConfigCatalog) -> None:
    layout = lay_out(BENCH)
    (mmlu,) = built(catalog, layout, "mmlu_gen_a484b3:*anatomy")
    row = row_of("mmlu/anatomy/test.jsonl")
    assert [mmlu.test[0][letter] for letter in "ABCD"] == row["choices"]
    assert mmlu.test[0]["target"] == "ABCD"[row["answer"]]
    assert len(mmlu.train) == 5
    (arc,) = built(catalog, layout, "ARC_c_gen")
    row = row_of("arc_challenge/validation.jsonl")
    assert [arc.test[0][f"text{letter}"] for letter in "ABCD"] == row["choices"]["text"]
    assert arc.test[0]["answerKey"] == "ABCD"[row["choices"]["label"].index(row["answerKey"])]
    (gsm,) = built(catalog, layout, "gsm8k_gen")
    assert (len(gsm.train), gsm.test[0]["answer"]) == (8, row_of("gsm8k/test.jsonl")["answer"])


def test_hellaswag_text_is_what_lm_eval_s_task_makes_of_it(catalog: ConfigCatalog) -> None:
    lm_eval = need_package("lm_eval.tasks.hellaswag.utils")
    (result,) = built(catalog, lay_out(BENCH), "hellaswag_gen_6faab5")
    assert len(result.test) == 4
    for number in range(4):
        row = row_of("hellaswag/validation.jsonl", number)
        query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        assert result.test[number]["ctx"] == lm_eval.preprocess(query).split(": ", 1)[1]
        endings = [lm_eval.preprocess(ending).strip() for ending in row["endings"]]
        assert [result.test[number][letter] for letter in "ABCD"] == endings
        assert result.test[number]["label"] == "ABCD"[int(row["label"])]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_it_is_written_once_outside_the_folder_and_only_what_is_asked_for(
    tmp_path: Path, catalog: ConfigCatalog
) -> None:
    folder = tmp_path / "bench"
    shutil.copytree(BENCH, folder)
    before = contents(folder)
    layout = lay_out(folder)
    assert layout.root is not None
    assert layout.root.is_relative_to(tmp_path / "cache")
    built(catalog, layout, "gsm8k_gen")
    assert [path.name for path in (layout.root / "data").iterdir()] == ["gsm8k"]
    created = contents(layout.root)
    again = lay_out(folder)
    built(catalog, again, "gsm8k_gen")
    assert again.root == layout.root
    assert contents(layout.root) == created
    assert contents(folder) == before
    assert again.notes == layout.notes == ["data set openai/gsm8k is local and incomplete: a few rows for tests"]


def test_other_content_is_another_layout_and_a_changed_file_an_error(tmp_path: Path, catalog: ConfigCatalog) -> None:
    folder = tmp_path / "bench"
    shutil.copytree(BENCH, folder)
    first = lay_out(folder)
    built(catalog, first, "gsm8k_gen")
    path = folder / "gsm8k" / "test.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(DataError, match="the file was changed or cut short"):
        built(catalog, lay_out(folder), "gsm8k_gen")
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["datasets"]:
        for file in entry["files"]:
            file.pop("sha256")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    second = lay_out(folder)
    (result,) = built(catalog, second, "gsm8k_gen")
    assert second.root != first.root
    assert len(result.test) == 2
    path.unlink()
    with pytest.raises(DataError, match=r"missing; .* lists it"):
        built(catalog, lay_out(folder), "gsm8k_gen")


def _count(folder: str, waiting: Any, counts: Any) -> None:
    waiting.wait()
    result = built(ConfigCatalog(), lay_out(folder), "mmlu_gen_a484b3:*anatomy")
    counts.put(len(result[0].test))


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    waiting, counts = context.Barrier(2), context.Queue()
    both = [context.Process(target=_count, args=(str(BENCH), waiting, counts)) for _ in range(2)]
    for item in both:
        item.start()
    assert [counts.get(timeout=60) for _ in both] == [4, 4]
    for item in both:
        item.join()
    (root,) = (tmp_path / "cache" / "opencompass-data").iterdir()
    assert [path.name for path in (root / "data").iterdir()] == ["mmlu"]


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, catalog: ConfigCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (result,) = built(catalog, lay_out(BENCH), "gsm8k_gen")
    assert len(result.test) == 4


def test_nothing_is_downloaded_and_the_error_says_both_ways(catalog: ConfigCatalog) -> None:
    with pytest.raises(DataError) as raised:
        built(catalog, lay_out(None), "gsm8k_gen")
    output = str(raised.value)
    for part in ("data/gsm8k is missing", "--data-dir", "openai/gsm8k:main", "./data/gsm8k", ROOT):
        assert part in output
    with pytest.raises(DataError, match=r"the manifest of \S+ lacks it: .*ceval/ceval-exam"):
        built(catalog, lay_out(BENCH), "ceval_gen:*accountant")
    with pytest.raises(DataError, match=r"knowledge_dev\.csv is missing; the manifest of \S+ has a different part"):
        built(catalog, lay_out(BENCH), "mmlu_gen_a484b3:*clinical_knowledge")


def test_gpqa_says_where_its_gated_file_goes_and_reads_it_there(catalog: ConfigCatalog) -> None:
    with pytest.raises(DataError) as raised:
        built(catalog, lay_out(BENCH), "gpqa_fewshot_gen")
    for part in ("gated", "accept its terms", "./data/gpqa/gpqa_diamond.csv"):
        assert part in str(raised.value)
    place = Path("data/gpqa")
    place.mkdir(parents=True)
    row = [f"c{n}" for n in range(7)] + ["made up?", "right", "w1", "w2", "w3"]
    head = [f"h{n}" for n in range(7)] + ["Question", "Correct Answer", "1", "2", "3"]
    (place / "gpqa_diamond.csv").write_text("\n".join(",".join(line) for line in (head, row)))
    (result,) = built(catalog, lay_out(BENCH), "gpqa_fewshot_gen")
    assert result.test[0][result.test[0]["answer"]] == "right"


def test_a_cache_of_the_user_s_own_is_used_and_the_manifest_comes_first(
    tmp_path: Path, catalog: ConfigCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "data" / "gsm8k"
    own.mkdir(parents=True)
    for split in ("train", "test"):
        (own / f"{split}.jsonl").write_text('{"question": "mine", "answer": "#### 1"}\n')
    monkeypatch.setenv(ROOT, str(tmp_path / "own"))
    (result,) = built(catalog, lay_out(None), "gsm8k_gen")
    assert result.test[0]["question"] == "mine"
    monkeypatch.setenv("DATASET_SOURCE", "ModelScope")
    (result,) = built(catalog, lay_out(BENCH), "gsm8k_gen")
    assert result.test[0]["question"] == row_of("gsm8k/test.jsonl")["question"]
    assert (os.environ[ROOT], os.environ["DATASET_SOURCE"]) == (str(tmp_path / "own"), "ModelScope")


def test_data_beside_the_user_is_found_as_opencompass_finds_it(catalog: ConfigCatalog) -> None:
    place = Path("data/gsm8k")
    place.mkdir(parents=True)
    for split in ("train", "test"):
        (place / f"{split}.jsonl").write_text('{"question": "here", "answer": "#### 1"}\n')
    (result,) = built(catalog, lay_out(None), "gsm8k_gen")
    assert result.test[0]["question"] == "here"


def test_rows_without_the_hub_s_columns_are_one_line(tmp_path: Path, catalog: ConfigCatalog) -> None:
    folder = bench(tmp_path, "mbpp_plus", "evalplus/mbppplus", test=[{"task_id": 1}])
    with pytest.raises(
        DataError, match=r"rows of evalplus/mbppplus are not in the hub's columns \(KeyError: 'prompt'\)"
    ):
        built(catalog, lay_out(folder), "mbpp_plus_gen")
    (tmp_path / "mbpp_plus" / "test.jsonl").write_text('{"task_id": 1')
    with pytest.raises(DataError, match="cannot be read as json"):
        built(catalog, lay_out(folder), "mbpp_plus_gen")


WHOLE_ROWS: Mapping[str, int] = {
    "gsm8k_gen": 1319,
    "ARC_c_gen": 295,  # the development split, rows with four choices
    "mmlu_gen_a484b3": 14042,
    "ceval_gen": 1346,
    "mmlu_pro_gen": 12032,
    "hellaswag_gen_6faab5": 10042,
    "math_gen": 5000,
    "math_prm800k_500_0shot_cot_gen": 500,
    "math_500_gen": 500,
    "humaneval_gen": 164,
    "humaneval_plus_gen": 164,
    "mbpp_gen": 500,
    "sanitized_mbpp_gen_830460": 257,
    "mbpp_plus_gen": 378,
    "bbh_gen": 6511,
    "aime2024_gen_repeat8_6e39a4": 240,
    "aime2025_gen_repeat8_5e9f4f": 240,
    "OlympiadBench_0shot_gen_be8b13:*maths_en*": 675,
    "IFEval_gen": 541,
}


@pytest.mark.skipif(WHOLE is None, reason="DARE_BENCH_DATA names no folder of whole data sets")
@pytest.mark.parametrize(("name", "rows"), WHOLE_ROWS.items())
def test_whole_data_sets_have_their_published_sizes(catalog: ConfigCatalog, name: str, rows: int) -> None:
    assert sum(len(result.test) for result in built(catalog, lay_out(WHOLE), name)) == rows


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
