"""lm-eval's own tasks, unmodified, on a few rows of their real data (``tests/data/bench``), without the network.

DARE_BENCH_DATA may name a folder of whole data sets; the tests of single tasks then run on that too.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from require import need_package
from toy_model import ToyModel
from toy_tasks import answer_with

from dare_bench.config import run_spec
from dare_bench.errors import DataError
from dare_bench.harness.lm_eval.source import LmEvalSource

need_package("lm_eval")
BENCH = ROOT / "tests" / "data" / "bench"
WHOLE = os.environ.get("DARE_BENCH_DATA")
FOLDERS = [pytest.param(BENCH, id="rows"), *([pytest.param(Path(WHOLE), id="whole")] if WHOLE else [])]

MATH = ("algebra", "counting_and_prob", "geometry", "intermediate_algebra", "num_theory", "prealgebra", "precalc")
# Each task's data set and config, a field of the row that its prompt holds, requests of a document, a metric.
TASKS = {
    "gsm8k": ("gsm8k", "", "question", 1, "exact_match,strict-match"),
    "arc_challenge": ("arc_challenge", "", "question", 4, "acc_norm,none"),
    "hellaswag": ("hellaswag", "", "ctx_a", 4, "acc_norm,none"),
    "mmlu_anatomy": ("mmlu", "anatomy", "question", 4, "acc,none"),
    "minerva_math_algebra": ("hendrycks_math", "algebra", "problem", 1, "math_verify,none"),
    "bbh_cot_fewshot_boolean_expressions": ("bbh", "boolean_expressions", "input", 1, "exact_match,get-answer"),
    "bbh_cot_fewshot_navigate": ("bbh", "navigate", "input", 1, "exact_match,get-answer"),
    "ifeval": ("ifeval", "", "prompt", 1, "prompt_level_strict_acc,none"),
}


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Caches of this test's own, and no way out: asking for an address is noted, even if the error is swallowed."""
    requested: list[Any] = []

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        requested.append(host)
        raise OSError(f"the test has no network, not even for {host!r}")

    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert requested == []


@cache
def manifest(folder: Path) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads((folder / "manifest.json").read_text())["datasets"]}


def rows(folder: Path, name: str, config: str = "", split: str | None = None) -> list[dict[str, Any]]:
    """The rows of a data set's split; by default of the one that the tasks above are scored on."""
    files = manifest(folder)[name]["lm_eval"]["dataset_kwargs"]["data_files"]
    scored = split or next(key for key in ("test", "validation", "train") if key in files)
    blob = (folder / files[scored].replace("{config}", config)).read_bytes()
    text = gzip.decompress(blob) if blob[:2] == b"\x1f\x8b" else blob
    return [json.loads(line) for line in text.decode().split("\n") if line]


def need_punkt() -> None:
    try:
        need_package("nltk").data.find("tokenizers/punkt_tab/english")
    except LookupError:
        pytest.skip("nltk's punkt_tab is not installed (NLTK_DATA may name a folder that has it)")


def source(tasks: str, model: ToyModel, folder: Path = BENCH, **fields: Any) -> LmEvalSource:
    return LmEvalSource(run_spec(model="toy", tasks=tasks, data_dir=str(folder), **fields), model)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("task", TASKS)
def test_a_public_task_asks_its_own_rows(task: str, folder: Path) -> None:
    name, config, text, each, metric = TASKS[task]
    if task == "ifeval":
        need_punkt()
    model = ToyModel()
    built = source(task, model, folder, limit=2)
    requests = built.requests()
    assert [r.doc_id for r in requests] == [doc for doc in (0, 1) for _ in range(each)]
    assert {r.kind for r in requests} == {"generate" if each == 1 else "score"}
    for row, request in zip(rows(folder, name, config), requests[::each], strict=False):
        assert row[text].strip() in str(request.prompt)

    result = built.run(answer_with(model))
    assert result.results["n-samples"][task]["effective"] == 2
    assert 0 <= result.results["results"][task][metric] <= 1
    assert result.results["configs"][task]["dataset_path"] in str(manifest(folder)[name]["hf_ids"])
    assert str(folder) not in str(result.results) + str(result.samples)
    if folder == BENCH:
        assert any("a few rows for tests" in note for note in result.notes)


def test_all_subjects_of_a_group_at_once() -> None:
    model = ToyModel()
    result = source("minerva_math", model).run(answer_with(model))
    subjects = {f"minerva_math_{subject}" for subject in MATH}
    assert set(result.samples) == subjects
    assert {task: n["effective"] for task, n in result.results["n-samples"].items()} == dict.fromkeys(subjects, 2)
    assert result.results["groups"]["minerva_math"]["math_verify,none"] == 0


def test_examples_come_from_the_files_too() -> None:
    """GSM8K's five examples are train rows, MMLU's the dev rows in their order."""
    train = [row["question"] for row in rows(BENCH, "gsm8k", split="train")]
    prompt = str(source("gsm8k", ToyModel(), limit=1).requests()[0].prompt)
    assert sum(question in prompt for question in train) == 5
    dev = [row["question"] for row in rows(BENCH, "mmlu", "anatomy", "dev")]
    prompt = str(source("mmlu_anatomy", ToyModel(), limit=1, num_fewshot=5).requests()[0].prompt)
    places = [prompt.index(question) for question in dev]
    assert len(places) == 5 and places == sorted(places)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    ("task", "answer", "metrics"),
    [
        ("gsm8k", lambda row: " " + row["answer"], ("exact_match,strict-match", "exact_match,flexible-extract")),
        ("minerva_math_algebra", lambda row: " " + row["solution"], ("math_verify,none",)),
        ("bbh_cot_fewshot_navigate", lambda row: f" So the answer is {row['target']}.", ("exact_match,get-answer",)),
    ],
)
def test_the_right_answers_score_full_and_others_nothing(task: str, answer: Any, metrics: Any, folder: Path) -> None:
    name, config, *_ = TASKS[task]
    gold = rows(folder, name, config)

    def score(shift: int) -> list[float]:
        model = ToyModel(reply=lambda r: answer(gold[int(r.doc_id)]) if not shift else " I do not know")
        fields: dict[str, Any] = {"limit": 2, "num_fewshot": 0, "decoding": {"gen_length": 2048}}
        result = source(task, model, folder, **fields).run(answer_with(model)).results["results"][task]
        return [result[metric] for metric in metrics]

    assert score(0) == [1.0] * len(metrics)
    assert score(1) == [0.0] * len(metrics)


def test_the_right_choice_scores_full() -> None:
    gold = {"hellaswag": [int(row["label"]) for row in rows(BENCH, "hellaswag")]}
    gold["mmlu_anatomy"] = [row["answer"] for row in rows(BENCH, "mmlu", "anatomy")]
    gold["arc_challenge"] = [row["choices"]["label"].index(row["answerKey"]) for row in rows(BENCH, "arc_challenge")]

    class Knows(ToyModel):
        def _likelihood(self, request: Any) -> Any:
            result = super()._likelihood(request)
            choice = int(request.key.split("/")[2])
            result.value = -1.0 if choice == gold[request.task][int(request.doc_id)] else -1000.0
            return result

    model = Knows()
    results = source(",".join(gold), model).run(answer_with(model)).results["results"]
    assert {task: results[task]["acc,none"] for task in gold} == dict.fromkeys(gold, 1.0)


def test_what_the_folder_lacks_is_not_made_up() -> None:
    """A config that the manifest does not list goes to the hub, which is not there."""
    with pytest.raises(DataError, match="does not list its data set"):
        source("mmlu_astronomy", ToyModel(), limit=1).requests()


def test_a_gated_data_set_is_said_to_be_gated() -> None:
    says = r"task 'gpqa_main_zeroshot' .* Idavidrein/gpqa is not in .* gated: accept its terms at https://\S+/gpqa, .*"
    with pytest.raises(DataError, match=says) as error:
        source("gpqa_main_zeroshot", ToyModel(), limit=1).requests()
    assert "\n" not in str(error.value)


def test_a_data_set_that_the_hub_calls_gated_is_said_to_be_gated(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets.exceptions import DatasetNotFoundError

    def refuse(*_: Any, **__: Any) -> Any:
        raise DatasetNotFoundError("Dataset 'x/y' is a gated dataset on the Hub. Visit the dataset page.")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(DataError, match=r"its data set cais/mmlu is gated .*HF_TOKEN"):
        source("mmlu_astronomy", ToyModel(), limit=1).requests()


def test_every_file_is_listed_with_license_and_source() -> None:
    listed = {row["file"] for entry in manifest(BENCH).values() for row in entry["files"]}
    there = {str(path.relative_to(BENCH)) for path in BENCH.rglob("*.jsonl")}
    assert listed == there
    assert sum(path.stat().st_size for path in BENCH.rglob("*") if path.is_file()) < 150_000
    for entry in manifest(BENCH).values():
        assert entry["licence"] in {"MIT", "Apache-2.0", "CC BY-SA 4.0", "CC BY 4.0"} and entry["source"].startswith(
            "https://"
        )


def test_a_real_checkpoint_from_end_to_end(tmp_path: Path) -> None:
    import dare_bench

    model = dare_bench.load("tiny-llada")
    requested: dict[str, Any] = {
        "tasks": "gsm8k,hellaswag",
        "data_dir": str(BENCH),
        "limit": 2,
        "num_fewshot": 0,
        "decoding": {"gen_length": 32},
        "likelihood": {"mc_num": 4, "batch_size": 4},
        "max_rows": 4,
        "output_path": str(tmp_path / "out"),
        "progress": False,
    }
    run = dare_bench.evaluate(model=model, **requested)
    assert run.status == "complete" and run.block is not None
    assert {task: (about.n_docs, about.requests) for task, about in run.block.tasks.items()} == {
        "gsm8k": (2, 2),
        "hellaswag": (2, 8),
    }
    assert all(0 <= score.value <= 1 for score in run.scores())
    answers = [a for line in run.samples("hellaswag") for a in line["dare_bench"]]
    assert len(answers) == 8
    assert all(math.isfinite(a["value"]) and a["value"] < 0 and math.isfinite(a["stderr"]) for a in answers)
    assert {a["nfe"] for a in answers if a["estimator"] == "reference"} == {4}
    texts = [a for line in run.samples("gsm8k") if line["filter"] == "strict-match" for a in line["dare_bench"]]
    assert [0 < a["tokens"] <= 32 for a in texts] == [True, True]
    assert all(isinstance(a["near_tie"], bool) for a in texts)
    assert dare_bench.evaluate(model=model, **requested).path == run.path
