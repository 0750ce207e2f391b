"""Folders in the current folder that are called as data sets of the hub and metrics are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from require import need_package
from toy_model import ToyModel

from dare_bench.config import run_spec
from dare_bench.errors import DataError
from dare_bench.harness.common.by_name import by_name, origin

need_package("lm_eval")
datasets = need_package("datasets")
ROW = '{"question": "1 + 1?", "answer": "#### 2"}\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with ``./openai/gsm8k`` and ``./bleu/bleu.py``, and caches of the test's own."""
    for split in ("train", "test"):
        file = tmp_path / "openai" / "gsm8k" / "main" / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ROW * 3)
    (tmp_path / "bleu").mkdir()
    (tmp_path / "bleu" / "bleu.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    return tmp_path


def requests(task: str) -> Any:
    from dare_bench.harness.lm_eval.source import LmEvalSource

    return LmEvalSource(run_spec(model="toy", tasks=task), ToyModel()).requests()


def test_a_folder_is_not_taken_for_a_data_set_of_the_hub(here: Path) -> None:
    for path in ("openai/gsm8k", "./openai/gsm8k"):
        assert datasets.load_dataset(path, data_dir="main")["test"].num_rows == 3, "what the library itself does"
    message = (
        r"data set 'openai/gsm8k' cannot be loaded from the hub \(the hub is not asked in offline mode .*\), and the "
        "folder of that name here is not taken for it"
    )
    with pytest.raises(DataError, match=message):
        requests("gsm8k")
    with by_name():
        assert datasets.load_dataset("./openai/gsm8k", data_dir="main")["test"].num_rows == 3
        (here / "json").mkdir()
        of_file = datasets.load_dataset("json", data_files={"test": "openai/gsm8k/main/test.jsonl"})
        assert of_file["test"].num_rows == 3
    assert Path.cwd() == here


def test_a_folder_is_not_run_for_a_metric(here: Path) -> None:
    with pytest.raises(DataError, match="metric 'bleu' of the evaluate library is a script, of the hub or"):
        requests("meqsum")
    assert not (here / "ran").exists()


def test_the_origin_of_a_data_set(here: Path) -> None:
    made = datasets.Dataset.from_list([{"a": 1}])
    assert origin(made) is None
    folder = here / "openai" / "gsm8k" / "main"
    assert origin(datasets.load_dataset("./openai/gsm8k", data_dir="main")["test"]) == str(folder)
    hub = "hf://datasets/openai/gsm8k@e53f048856ff4f594e959d75785d2c2d37b678ee/main/test-00000-of-00001.parquet"
    made.info.download_checksums = {hub: {"num_bytes": 1, "checksum": None}}
    assert origin(made) == "hub openai/gsm8k@e53f048856ff"


METRICS = """
import os, sys
from dare_bench.errors import DataError
from dare_bench.harness.common.by_name import by_name, origin

with by_name():
    import evaluate
    try:
        evaluate.load("bleu")
    except DataError:
        print("refused", os.path.exists("ran"))
    print(evaluate.load(sys.argv[1]).name)
try:
    evaluate.load("bleu")
except Exception:
    print("run", os.path.exists("ran"))
"""


@pytest.mark.slow
def test_metrics_come_from_installed_packages(here: Path) -> None:
    """In a process that imports evaluate only then, as evaluations do."""
    metric = Path(need_package("opencompass").__file__).parent / "openicl/icl_evaluator/hf_metrics/accuracy.py"
    words = [sys.executable, "-P", "-c", METRICS, str(metric)]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines() == ["refused False", "accuracy", "run True"], done.stderr
