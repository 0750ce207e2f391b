"""Data sets from local files by a manifest, and the sentence model that IFEval needs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from require import need_package
from toy_tasks import write_data

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.local_data import LocalData
from dare_bench.harness.lm_eval.code_tasks import check_punkt
from dare_bench.harness.lm_eval.task_index import TaskIndex
from dare_bench.harness.opencompass import manifest_rows as bench
from dare_bench.harness.opencompass.manifest_rows import ManifestRows
from dare_bench.reading import check_json_depth

SMALL = {"dataset_path": "toys/sums", "dataset_name": "small"}


def test_redirection_names_files_by_split_and_config(tmp_path: Path) -> None:
    data = LocalData(write_data(tmp_path))
    result = data.redirect(SMALL)
    assert result == {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {s: str(tmp_path / "sums" / "small" / f"{s}.jsonl") for s in ("test", "train")}
        },
    }
    choices = data.redirect({"dataset_path": "toys/choices"})
    assert choices is not None and choices["training_split"] is None
    assert data.notes == ["data set toys/choices is local and incomplete: five rows only"]


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
        ("[", "is damaged: not JSON"),
        pytest.param(f'{{"datasets": {"[" * 100}{"]" * 100}}}', "nested deeper than 64 levels", id="deep"),
        ("[]", "expected a JSON object, found list"),
        ("{}", "no list 'datasets'"),
        ('{"datasets": [{"name": "x", "lm_eval": {}}]}', "entry 'x' is malformed"),
        (
            '{"datasets": [{"name": "x", "hf_ids": ["a/b"], "lm_eval": {"dataset_path": "a/b",'
            ' "dataset_kwargs": {"data_files": {"test": "t"}}}}]}',
            "entry 'x' is malformed: lm_eval.dataset_path='a/b': must be 'json', 'csv', 'parquet' or 'text'",
        ),
        ('{"datasets": [{"name": "x", "hf_ids": 3, "lm_eval": {"dataset_kwargs": {"data_files": {}}}}]}', "malformed"),
    ],
)
def test_a_bad_manifest_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=message) as error:
        LocalData(tmp_path)
    assert "\n" not in str(error.value)


def change(folder: Path, **keys: object) -> Path:
    """The first entry of the manifest with these keys in the place of its own; ``lm_eval`` is added to."""
    place = folder / "manifest.json"
    manifest = json.loads(place.read_text())
    entry = manifest["datasets"][0]
    entry |= {key: {**entry["lm_eval"], **value} if key == "lm_eval" else value for key, value in keys.items()}  # type: ignore[dict-item]
    place.write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("reader", [LocalData, ManifestRows])
@pytest.mark.parametrize(
    "key",
    [
        *("doc_to_text", "doc_to_target", "doc_to_choice", "gen_prefix", "use_prompt", "description", "fewshot_config"),
        *("process_docs", "process_results", "custom_dataset", "class", "include", "metric_list", "filter_list"),
        *("generation_kwargs", "dataset_path", "dataset_kwargs", "unsafe_code", "task", "metadata"),
    ],
)
def test_a_manifest_sets_splits_of_a_task_and_nothing_else(tmp_path: Path, key: str, reader: type[LocalData]) -> None:
    folder = change(write_data(tmp_path), lm_eval={"also_set": {"fewshot_split": "test", key: "{{ 6 * 7 }}"}})
    allowed = "allowed: training_split, validation_split, test_split, fewshot_split"
    with pytest.raises(DataError, match=f"a manifest cannot set '{key}' of a task; {allowed}") as error:
        reader(folder)
    assert "\n" not in str(error.value)


def test_a_split_is_a_name(tmp_path: Path) -> None:
    folder = change(write_data(tmp_path), lm_eval={"also_set": {"fewshot_split": "test", "training_split": None}})
    result = LocalData(folder).redirect(SMALL)
    assert result is not None and (result["fewshot_split"], result["training_split"]) == ("test", None)
    change(folder, lm_eval={"also_set": {"fewshot_split": ["test"]}})
    with pytest.raises(DataError, match=r"fewshot_split=.*must be a text"):
        LocalData(folder)


@pytest.mark.parametrize("reader", [LocalData, ManifestRows])
@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd", "../outside.jsonl", "sums/../../outside.jsonl", "", "a\\b", "a\nb"),
        *("sums/*.jsonl", "sums/small/tes?.jsonl", "**", "sums/[st]mall.jsonl"),
        *("hf://datasets/a/b/test.jsonl", "https://example.org/test.jsonl", "zip://test.jsonl::sums.zip"),
    ],
)
def test_a_manifest_names_plain_files_of_its_folder(tmp_path: Path, name: str, reader: type[LocalData]) -> None:
    folder = write_data(tmp_path / "data")
    for keys in (
        {"lm_eval": {"dataset_kwargs": {"data_files": {"test": name}}}},
        {"lm_eval": {"dataset_kwargs": {"data_files": {"test": ["sums/small/test.jsonl", name]}}}},
        {"files": [{"file": name}]},
        {"configs": [name]},
    ):
        with pytest.raises(DataError, match=r"entry 'sums' is malformed.*a file is named") as error:
            reader(change(write_data(tmp_path / "data"), **keys))
        assert "\n" not in str(error.value) and folder.is_dir()


def test_what_is_no_file_of_the_folder_is_not_read(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data")
    (tmp_path / "secret.jsonl").write_text('{"question": "?", "answer": "1"}\n')
    file = folder / "sums" / "small" / "test.jsonl"
    file.unlink()
    file.symlink_to(tmp_path / "secret.jsonl")
    change(folder, files=[])
    with pytest.raises(DataError, match=r"test\.jsonl: a link leads out of the data folder, to .*secret\.jsonl"):
        LocalData(folder).redirect(SMALL)
    with pytest.raises(DataError, match="a link leads out of the data folder"):
        ManifestRows(folder).rows(["toys/sums"], "test", "small")
    with pytest.raises(DataError, match="a link leads out of the data folder"):
        ManifestRows(folder).key()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=r"test\.jsonl: not a regular file"):
        LocalData(folder).redirect(SMALL)
    file.unlink()
    inside = folder / "sums" / "small" / "train.jsonl"
    file.symlink_to(inside)
    result = LocalData(folder).redirect(SMALL)
    assert result is not None and result["dataset_kwargs"]["data_files"]["test"] == str(inside)


def test_a_manifest_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(DataError, match=r"manifest\.json: it is a FIFO, not a regular file"):
        LocalData(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a": ' * 100_000, b'{"a":%s%s}' % (b"[" * 500, b"]" * 500), b"\x1f\x8b\x08\x00damaged here"],
)
def test_rows_that_cannot_be_read_are_one_line(tmp_path: Path, content: bytes) -> None:
    folder = change(write_data(tmp_path), files=[])
    name = "test.jsonl.gz" if content.startswith(b"\x1f") else "test.jsonl"
    (folder / "sums" / "small" / name).write_bytes(content)
    change(folder, lm_eval={"dataset_kwargs": {"data_files": {"test": f"sums/{{config}}/{name}"}}})
    with pytest.raises(DataError, match=r"test\.jsonl.*(nested deeper|cannot be read)") as error:
        ManifestRows(folder).rows(["toys/sums"], "test", "small")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("loader", ["json", "csv", "text", "parquet"])
@pytest.mark.parametrize("limit,fits", [(1 << 20, False), (1 << 24, True)])
def test_a_small_file_of_too_much_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str, limit: int, fits: bool
) -> None:
    monkeypatch.setattr(bench, "MAX_DATA", limit)
    name = "sums/small/test.parquet" if loader == "parquet" else "sums/small/test.jsonl.gz"
    folder = change(
        write_data(tmp_path), files=[], lm_eval={"dataset_path": loader, "dataset_kwargs": {"data_files": {"a": name}}}
    )
    row = "x" * 1000
    if loader == "parquet":
        table = need_package("pyarrow").table({"text": [row] * 4000})
        need_package("pyarrow.parquet").write_table(table, folder / name)
    else:
        (folder / name).write_bytes(gzip.compress(f'{{"text": "{row}"}}\n'.encode() * 4000))
    assert (folder / name).stat().st_size < 100_000
    rows = ManifestRows(folder).rows
    if fits:
        assert len(rows(["toys/sums"], "a", "small") or ()) == 4000 - (loader == "csv")
    else:
        with pytest.raises(DataError, match="larger than 1,048,576 bytes decompressed"):
            rows(["toys/sums"], "a", "small")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a": ' + "[" * 60 + "]" * 60 + "}\n", True),
        ('{"a": ' + "[" * 65 + "]" * 65 + "}\n", False),
        ('{"a": ' + "[" * 20_000, False),
        ('{"a":\n' + "[\n" * 20_000 + "]\n" * 20_000 + "}", False),
        ('{"a": "' + "[" * 100 + '\\"", "b": "]"}\n' * 3, True),
        ('{"a": "' + "x" * (5 << 20) + "[" * 100 + '"}\n', True),  # a text that is read in two pieces
    ],
)
def test_rows_nested_too_deep_are_refused_before_pyarrow_reads_them(
    tmp_path: Path, text: str, fits: bool, packed: bool
) -> None:
    """It dies of a few thousand levels."""
    file = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    if fits:
        check_json_depth(file, DataError)
    else:
        with pytest.raises(DataError, match=r"rows\.jsonl(\.gz)?: nested deeper than 64 levels"):
            check_json_depth(file, DataError)
    folder = write_data(tmp_path / "data", zipped=packed)
    (place,) = (folder / "sums" / "small").glob("test.jsonl*")
    place.write_bytes(file.read_bytes())
    data = LocalData(change(folder, files=[]))
    if fits:
        assert data.redirect(SMALL)
    else:
        with pytest.raises(DataError, match="nested deeper"):
            data.redirect(SMALL)


def test_a_manifest_names_so_many_files_and_no_more(tmp_path: Path) -> None:
    many = {"test": ["sums/small/test.jsonl"] * 5000}
    folder = change(write_data(tmp_path), lm_eval={"dataset_kwargs": {"data_files": many}})
    with pytest.raises(DataError, match=r"at most 4096 items"):
        LocalData(folder)


SCRIPT = """
from pathlib import Path
import datasets

Path({ran!r}).touch()

class Planted(datasets.GeneratorBasedBuilder):
    def _info(self):
        return datasets.DatasetInfo(features=datasets.Features({{"question": datasets.Value("string")}}))
    def _split_generators(self, manager):
        return [datasets.SplitGenerator(name="test")]
    def _generate_examples(self):
        yield 0, {{"question": "1"}}
"""
TASK = """
task: planted
dataset_path: {folder}
dataset_kwargs: {{trust_remote_code: true}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "1"
"""


def _by_lm_eval(folder: Path) -> None:
    from toy_model import ToyModel

    from dare_bench.config import run_spec
    from dare_bench.harness.lm_eval.source import LmEvalSource

    (folder.parent / "tasks").mkdir()
    (folder.parent / "tasks" / "planted.yaml").write_text(TASK.format(folder=folder))
    spec = run_spec(model="toy", tasks="planted", include_path=str(folder.parent / "tasks"))
    LmEvalSource(spec, ToyModel()).requests()


def _by_opencompass(folder: Path) -> None:
    need_package("opencompass")
    from opencompass.datasets import HFDataset

    from dare_bench.harness.opencompass.layout import lay_out

    reader = {"input_columns": ["question"], "output_column": None}
    config = {
        "type": HFDataset,
        "path": str(folder),
        "trust_remote_code": True,
        "reader_cfg": reader,
        "abbr": "planted",
    }
    lay_out(None).build(config)


def test_the_script_of_a_data_set_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder, ran = tmp_path / "planted", tmp_path / "ran"
    folder.mkdir()
    (folder / "planted.py").write_text(SCRIPT.format(ran=str(ran)))
    for build in (_by_lm_eval, _by_opencompass):
        with pytest.raises(DataError, match=r"loaded by a script, which dare-bench never runs"):
            build(folder)
        assert not ran.exists()
    code = f"import datasets; datasets.load_dataset({str(folder)!r}, trust_remote_code=True)"
    caches = {
        "HF_HOME": str(tmp_path / "home"),
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
    }
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **caches}, check=True, capture_output=True)
    assert ran.exists()  # the script works where it is run


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    assert LocalData.find(None) is None
    monkeypatch.setenv("DARE_BENCH_DATA", str(write_data(tmp_path / "a")))
    result = LocalData.find(None)
    assert result is not None and result.folder == tmp_path / "a"
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
