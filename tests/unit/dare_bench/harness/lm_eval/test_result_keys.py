"""Results files have the keys that lm-eval's own have, with the values that lm-eval would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from require import need_package
from toy_model import ToyModel
from toy_tasks import write_data, write_tasks

from dare_bench.engine.evaluate import evaluate


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need_package("lm_eval")
    tmp = tmp_path_factory.mktemp("keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DARE_BENCH_CACHE", str(tmp / "cache"))
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp / "datasets")
        run = evaluate(
            model=ToyModel(),
            progress=False,
            tasks="toy_group",
            include_path=str(write_tasks(tmp / "tasks")),
            data_dir=str(write_data(tmp / "data")),
            output_path=str(tmp / "out"),
            apply_chat_template=True,
            system_instruction="Add.",
        )
    assert run.results_file is not None
    result: dict[str, Any] = json.loads(Path(run.results_file).read_text())
    result["samples"] = {task: list(run.samples(task)) for task in run.tasks}
    return result


def test_every_key_of_lm_evals_files_is_there(results: dict[str, Any]) -> None:
    schema = need_package("lm_eval.result_schema")
    assert set(schema.EvalResults.__annotations__) - set(results) == set()
    config = set(schema._EvalConfig.__annotations__)
    assert config - set(results["config"]) == set()


def test_the_files_of_the_data_are_named(results: dict[str, Any]) -> None:
    origins = {name: Path(task["data"]) for name, task in results["dare_bench"]["tasks"].items()}
    assert set(origins) == set(results["samples"]) and all(place.exists() for place in origins.values())
    assert origins["toy_add"].parts[-3:] == ("data", "sums", "small")


def test_hashes_are_lm_evals(results: dict[str, Any]) -> None:
    """As ``EvaluationTracker.save_results_aggregated`` makes them."""
    hash_string = need_package("lm_eval.utils").hash_string
    assert results["system_instruction_sha"] == hash_string("Add.")
    assert results["chat_template_sha"] == hash_string(results["chat_template"])
    assert set(results["task_hashes"]) == set(results["samples"]) != set()
    for task, rows in results["samples"].items():
        whole = "".join(row["doc_hash"] + row["prompt_hash"] + row["target_hash"] for row in rows)
        assert results["task_hashes"][task] == hash_string(whole)


def test_config_says_what_we_know(results: dict[str, Any]) -> None:
    config = results["config"]
    assert config["model_sha"] == results["dare_bench"]["model"]["content_hash"] != ""
    assert config["batch_size"] == "auto" and config["model"] == "dare"
    assert config["limit"] == results["dare_bench"]["limit"] and config["device"] == "cpu"
