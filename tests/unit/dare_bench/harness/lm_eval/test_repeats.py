"""``--repeats n`` through lm-eval: every prompt is answered n times, each repeat is scored on its own; what other
draws would score; the keys of results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from require import need_package
from toy_model import ToyModel
from toy_tasks import CHOICES, SUMS, answer_with, write_data, write_tasks

from dare_bench import seeds
from dare_bench.analysis.comparison import compare
from dare_bench.config import run_spec
from dare_bench.engine.evaluate import evaluate
from dare_bench.harness.lm_eval.redrawn import mark_redrawn, redrawn_values
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.types import Likelihood, Request, Sample

Make = Callable[..., LmEvalSource]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    folder, data = write_tasks(tmp_path / "tasks"), write_data(tmp_path / "data")

    def source(tasks: str, model: ToyModel | None = None, **fields: Any) -> LmEvalSource:
        given = {"include_path": str(folder), "data_dir": str(data), **fields}
        return LmEvalSource(run_spec(model="toy", tasks=tasks, **given), model or ToyModel())

    return source


def right_until(repeats: int) -> Callable[[Request], str]:
    """Document d is answered rightly in the first ``repeats - d`` repeats."""

    def reply(request: Request) -> str:
        right = request.repeat < repeats - int(request.doc_id)
        return f" {SUMS[int(request.doc_id)]['answer'] if right else -1} r{request.repeat}"

    return reply


def test_prompts_are_repeated_and_likelihoods_are_not(make: Make) -> None:
    requests = make("toy_add,toy_twice,toy_choice,toy_words", repeats=4).requests()
    count = {task: sum(r.task == task for r in requests) for task in ("toy_add", "toy_twice", "toy_choice")}
    assert count == {"toy_add": 4 * len(SUMS), "toy_twice": 12 * len(SUMS), "toy_choice": 3 * len(CHOICES)}
    first = [r for r in requests if r.task == "toy_add" and r.doc_id == 0]
    assert [r.repeat for r in first] == [0, 1, 2, 3] and len({r.seed for r in first}) == 4
    assert first[3].seed == seeds.sample_key(1234, "toy_add", 0, 3)
    assert {r.prompt for r in first} == {first[0].prompt} and len({r.key for r in requests}) == len(requests)
    alone = make("toy_add", repeats=1).requests()
    assert [r.key for r in alone] == [r.key for r in requests if r.task == "toy_add" and r.repeat == 0]


def test_every_repeat_is_scored_and_all_become_one_result(make: Make) -> None:
    model = ToyModel(reply=right_until(4))
    result = make("toy_group", model, repeats=4).run(answer_with(model))
    right = [4, 3, 2, 1, 0, 0]  # of four, by document
    row = result.results["results"]["toy_add"]
    assert row["exact_match,first-number"] == pytest.approx(sum(right) / 24)
    assert row["exact_match,raw"] == 0.0
    assert row["pass@2,first-number"] == pytest.approx((1 + 1 + 5 / 6 + 1 / 2) / 6)
    assert row["pass@4,first-number"] == pytest.approx(4 / 6)
    rows = [line for line in result.samples["toy_add"] if line["filter"] == "first-number"]
    assert [line["exact_match"] for line in rows] == [c / 4 for c in right]
    assert rows[1]["resps"] == [[" 7 r0", " 7 r1", " 7 r2", " -1 r3"]]
    assert rows[1]["filtered_resps"] == ["7", "7", "7", "-1"]
    assert result.results["n-samples"]["toy_add"] == {"original": 6, "effective": 6}

    inline = result.results["results"]["toy_group::toy_inline"]["exact_match,none"]
    group = result.results["groups"]["toy_group"]["exact_match,first-number"]
    assert group == pytest.approx(row["exact_match,first-number"])
    assert result.results["groups"]["toy_group"]["exact_match,none"] == pytest.approx(inline)
    plain = make("toy_group", ToyModel(reply=right_until(4))).run(answer_with(ToyModel(reply=right_until(4))))
    assert result.samples["toy_choice"] == plain.samples["toy_choice"]
    assert result.results["results"]["toy_choice"] == plain.results["results"]["toy_choice"]
    assert result.fingerprints == plain.fingerprints
    assert set(result.results) == set(plain.results) and set(result.results["groups"]) == set(plain.results["groups"])


def test_the_answers_of_a_task_that_repeats_itself_stay_together(make: Make) -> None:
    model = ToyModel(reply=lambda request: f"r{request.repeat}")
    result = make("toy_twice", model, repeats=2).run(answer_with(model))
    row = next(line for line in result.samples["toy_twice"] if line["filter"] == "raw")
    assert row["resps"] == [["r0", "r1", "r2", "r3", "r4", "r5"]]
    assert row["filtered_resps"] == ["r0", "r3"], "the first of three, of each repeat"


def test_one_failed_repeat_leaves_the_document_out(make: Make) -> None:
    model = ToyModel(reply=right_until(9), fail_on=lambda r: r.task == "toy_add" and r.doc_id == 2 and r.repeat == 1)
    result = make("toy_add,toy_choice", model, repeats=3).run(answer_with(model))
    assert result.failures == [{"task": "toy_add", "doc_id": 2, "error": "the toy was told to fail"}]
    assert {line["doc_id"] for line in result.samples["toy_add"]} == {0, 1, 3, 4, 5}
    assert result.results["n-samples"]["toy_add"]["effective"] == 5
    assert result.results["results"]["toy_add"]["exact_match,first-number"] == 1.0
    assert [line["doc_id"] for line in result.samples["toy_choice"]] == list(range(len(CHOICES)))


def test_limits_and_samples_hold_in_every_repeat(make: Make) -> None:
    model = ToyModel(reply=right_until(1))
    result = make("toy_add", model, repeats=2, samples={"toy_add": [5, 0]}).run(answer_with(model))
    rows = [line for line in result.samples["toy_add"] if line["filter"] == "first-number"]
    assert [(line["doc_id"], line["exact_match"]) for line in rows] == [(0, 0.5), (5, 0.0)]


def test_repeats_that_cannot_differ_are_noted(make: Make) -> None:
    notes = make("toy_add", repeats=2, limit=1).run(answer_with(ToyModel())).notes
    assert sum("repeats of a document are equal" in note for note in notes) == 1
    for fields in ({"decoding": {"temperature": 0.5}}, {"decoding": {"remasking": "random"}}):
        notes = make("toy_add", repeats=2, limit=1, **fields).run(answer_with(ToyModel())).notes
        assert not any("repeats" in note for note in notes)


def likelihood(value: float, deviations: list[float]) -> Likelihood:
    return Likelihood(value, float(np.linalg.norm(deviations)), None, 16, deviations=deviations)


def marked(likelihoods: list[Likelihood], gold: Any, **metrics: float) -> dict[str, Any]:
    """The row of a document with choices of 1, 2, 3, ... letters."""
    choices = ["é" * (n + 1) for n in range(len(likelihoods))]
    task = SimpleNamespace(
        OUTPUT_TYPE="multiple_choice",
        multiple_input=0,
        doc_to_choice=lambda doc: choices,
        doc_to_target=lambda doc: gold,
    )
    row = {"doc": {}, "doc_id": 0, "resps": [[]] * len(choices), "metrics": list(metrics), **metrics}
    request = Request("k", "score", "q", "a")
    mark_redrawn({"t": task}, {"t": [row]}, lambda task, doc, index: Sample(request, likelihoods[index]))
    return row


def test_errors_of_differences_are_those_of_the_deviations() -> None:
    """Choices that share their draws differ by less than their own errors."""
    first, second = likelihood(-5.0, [3.0, 1.0]), likelihood(-6.0, [3.0, 1.5])
    values_SC = redrawn_values([first, second, likelihood(-7.0, [])])
    assert values_SC.mean(0) == pytest.approx([-5, -6, -7])
    assert values_SC[:, 0].std() == pytest.approx(first.stderr, rel=0.1)
    assert (values_SC[:, 0] - values_SC[:, 1]).std() == pytest.approx(0.5, rel=0.1)
    assert (values_SC[:, 2] == -7).all()


def test_shares_are_those_of_the_metric() -> None:
    close = [likelihood(-1.0, [1.0, 0.0]), likelihood(-1.0 - 2**0.5, [0.0, 1.0])]  # 1 error of the difference apart
    row = marked(close, 0, acc=1.0, acc_norm=1.0, acc_bytes=1.0)
    assert row["redrawn"]["acc"] == pytest.approx(0.841, abs=0.03)
    assert row["redrawn"]["acc_norm"] == row["redrawn"]["acc_bytes"] == pytest.approx(0.573, abs=0.03)
    assert marked(close, ["éé"], acc=0.0)["redrawn"]["acc"] == pytest.approx(0.159, abs=0.03)
    assert "redrawn" not in marked([likelihood(-1.0, []), likelihood(-2.0, [])], 0, acc=1.0)
    assert marked(close, 0, acc=0.0)["redrawn"] == {}  # another rule than lm-eval's: nothing is claimed


def test_a_run_records_its_draws_and_every_reader_uses_them(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "model": "tiny-llada-base",
        "tasks": "hellaswag",
        "limit": 4,
        "data_dir": str(ROOT / "tests" / "data" / "bench"),
        "output_path": str(tmp_path / "runs"),
        "progress": False,
    }
    drawn = evaluate(**fields, likelihood={"estimator": "fast", "mc_num": 8})
    for line in drawn.samples("hellaswag"):
        assert set(line["redrawn"]) == {"acc", "acc_norm"}
        for answer in line["dare_bench"]:
            assert np.linalg.norm(answer["deviations"]) == pytest.approx(answer["stderr"], rel=1e-3)
    ci = drawn.require_block().ci["hellaswag"]["acc_norm,none"]
    assert ci.method.endswith("and draws") and ci.draws is not None
    other = evaluate(**fields, likelihood={"estimator": "fast", "mc_num": 8}, seeds=[1, 1, 1, 1])
    (item,) = compare([drawn, other]).items
    assert item.scores[0].lo == ci.lo and item.difference.method.endswith("and draws")


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
