"""Data sets from local files by a manifest, and the sentence model that IFEval needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_tasks import write_data

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.data import LocalData
from dare_bench.harness.punkt import check_punkt
from dare_bench.harness.task_index import TaskIndex

SMALL = {"dataset_path": "toys/sums", "dataset_name": "small"}


def test_redirection_names_files_by_split_and_config(tmp_path: Path) -> None:
    data = LocalData(write_data(tmp_path))
    found = data.redirect(SMALL)
    assert found == {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {s: str(tmp_path / "sums" / "small" / f"{s}.jsonl") for s in ("test", "train")}
        },
    }
    choices = data.redirect({"dataset_path": "toys/choices"})
    assert choices is not None and choices["training_split"] is None
    assert data.notes == ["data set toys/choices is local and not whole: five rows only"]


@pytest.mark.parametrize(
    "config",
    [
        {"dataset_path": "toys/sums", "dataset_name": "large"},
        {"dataset_path": "toys/sums"},
        {"dataset_path": "toys/choices", "dataset_name": "other"},
        {"dataset_path": "toys/other"},
        {"dataset_path": None},
        {**SMALL, "custom_dataset": print},
    ],
)
def test_what_the_manifest_lacks_comes_from_the_hub(tmp_path: Path, config: dict[str, object]) -> None:
    assert LocalData(write_data(tmp_path)).redirect(config) is None


def test_an_id_with_a_config_serves_that_config_alone(tmp_path: Path) -> None:
    place = write_data(tmp_path) / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["datasets"][0]["hf_ids"] = ["toys/sums:small"]
    place.write_text(json.dumps(manifest))
    assert LocalData(tmp_path).redirect(SMALL) is not None
    assert LocalData(tmp_path).redirect({**SMALL, "dataset_name": "large"}) is None


def test_a_missing_or_changed_file_is_one_line(tmp_path: Path) -> None:
    folder = write_data(tmp_path)
    file = folder / "sums" / "small" / "test.jsonl"
    file.write_text(file.read_text() + "{}\n")
    with pytest.raises(DataError, match=r"test\.jsonl: sha256 is \w{12}\.\.\., .*manifest\.json says") as error:
        LocalData(folder).redirect(SMALL)
    assert "\n" not in str(error.value)
    file.unlink()
    with pytest.raises(DataError, match=r"test\.jsonl: missing"):
        LocalData(folder).redirect(SMALL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not valid JSON"),
        ("{}", "no list 'datasets'"),
        ('{"datasets": [{"name": "x", "lm_eval": {}}]}', "entry 'x' is malformed"),
        (
            '{"datasets": [{"name": "x", "hf_ids": ["a/b"], "lm_eval": {"dataset_path": "a/b",'
            ' "dataset_kwargs": {"data_files": {"test": "t"}}}}]}',
            "dataset_path is 'a/b'; allowed: json, csv, parquet, text",
        ),
        ('{"datasets": [{"name": "x", "hf_ids": 3, "lm_eval": {"dataset_kwargs": {"data_files": {}}}}]}', "malformed"),
    ],
)
def test_a_bad_manifest_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=message):
        LocalData(tmp_path)


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    assert LocalData.find(None) is None
    monkeypatch.setenv("DARE_BENCH_DATA", str(write_data(tmp_path / "a")))
    found = LocalData.find(None)
    assert found is not None and found.folder == tmp_path / "a"
    other = LocalData.find(str(write_data(tmp_path / "b")))
    assert other is not None and other.folder == tmp_path / "b"
    with pytest.raises(DataError, match=r"manifest\.json: No such file"):
        LocalData.find(str(tmp_path))


def test_ifeval_is_refused_where_nltk_has_no_sentence_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    index = TaskIndex()
    check_punkt(index.leaves(["gsm8k", "minerva_math"]))
    for name in ("ifeval", "leaderboard_ifeval"):
        with pytest.raises(UsageError, match=f"task '{name}' needs .*python -m nltk.downloader punkt_tab") as error:
            check_punkt(index.leaves(["gsm8k", name]))
        assert "\n" not in str(error.value) and error.value.exit_code == 2
    (tmp_path / "tokenizers" / "punkt_tab" / "english").mkdir(parents=True)
    check_punkt(index.leaves(["ifeval"]))
