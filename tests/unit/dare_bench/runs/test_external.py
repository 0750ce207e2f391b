"""Results of lm-eval's and OpenCompass's own commands, read as runs. tests/data/external has genuine ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hostile_external import DATA, lm_eval_results, opencompass_config, opencompass_predictions, opencompass_results
from run_factory import make_run

from dare_bench.analysis.run_finder import find_runs, open_run
from dare_bench.cli import main
from dare_bench.cli.runs import open_runs
from dare_bench.errors import RunError
from dare_bench.runs.opencompass_results import OpenCompassRun
from dare_bench.runs.schema import UNKNOWN

DUMMY = DATA / "lm-eval" / "org__dummy"
LIMITED, WHOLE = sorted(DUMMY.glob("results_*.json"))
OPENCOMPASS = next((DATA / "opencompass").iterdir())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def test_every_result_of_a_folder_is_a_run_of_its_own() -> None:
    runs = find_runs(DATA)
    assert [(run.model, run.status, run.created[:16]) for run in runs] == [
        ("tiny-llada", "external", "2026-11-23T09:05"),
        ("tiny-llada-base", "external", "2026-11-23T09:24"),
        ("tiny-llada", "external", "2026-11-23T09:24"),
        ("org/dummy", "external", "2026-11-23T09:39"),
        ("org/dummy", "external", "2026-11-23T09:40"),
    ]
    assert len({run.run_id for run in runs}) == len({run.path for run in runs}) == 5


def test_scores_of_lm_eval_are_its_own_with_intervals_from_the_samples() -> None:
    run, table = open_run(WHOLE), json.loads(WHOLE.read_text())["results"]
    scores = {(score.task, score.key): score for score in run.scores()}
    assert {name: score.value for name, score in scores.items()} == {
        (task, key): value
        for task, row in table.items()
        for key, value in row.items()
        if "," in key and "_stderr," not in key
    }
    group = scores["words", "acc,none"]
    assert group.is_group and group.n == 8 and group.method == "Wilson over tasks and MOVER"
    first = scores["words_gen", "exact_match,first"]
    assert (first.method, first.n, first.n_total, first.limited) == ("Wilson", 8, 8, False)
    assert first.higher_is_better is True and run.top_level() == ["words_gen", "words"]
    assert [score.n_text for score in open_run(LIMITED).scores()] == ["4 of 8"] * 5


def test_what_lm_eval_does_not_record_is_unknown() -> None:
    run = open_run(WHOLE)
    block = run.require_block()
    assert (block.model.family, block.model.dtype, block.model.content_hash) == (UNKNOWN,) * 3
    assert block.seeds == (7, 7, 7, 7) and (block.harness.name, block.harness.version) == ("lm-eval", "0.4.13")
    assert {score.exactness for score in run.scores()} == {"tier unknown"}
    assert (
        {score.fingerprint for score in run.scores()} == {score.task_fingerprint for score in run.scores()} == {UNKNOWN}
    )
    assert "cost" in run.unknown and "dtype" in run.unknown and "seeds" not in run.unknown
    trained = open_run(next((DATA / "lm-eval" / "tiny-llada").glob("results_*")))
    assert trained.require_block().model.dtype == "float32" and "dtype" not in trained.unknown


def test_documents_of_lm_eval_have_all_filters_and_repeats() -> None:
    documents = list(open_run(WHOLE).documents("words_gen"))
    assert [document.doc_id for document in documents] == list(range(8))
    assert [row["filter"] for row in documents[0].rows] == ["first", "vote"]
    assert len(documents[0].rows[0]["resps"][0]) == 2 and documents[0].answers == []


def test_scores_without_samples_have_lm_evals_error(data: Path) -> None:
    results = data / WHOLE.relative_to(DATA)
    for file in results.parent.glob("samples_*"):
        file.unlink()
    run = open_run(results)
    assert {score.task: score.method for score in run.scores()} == {
        "words": "MOVER", "words_choice": "normal", "words_gen": "normal",
    }  # fmt: skip
    with pytest.raises(RunError, match=r"no sample lines of words_gen; lm-eval writes them with --log_samples"):
        run.require_index("words_gen")


def test_a_name_given_as_output_path_is_found(data: Path) -> None:
    results = data / WHOLE.relative_to(DATA)
    renamed = results.rename(results.with_name(results.name.replace("results_", "words_")))
    assert renamed in [run.path for run in find_runs(data)]
    assert len(list(open_run(renamed).documents("words_gen"))) == 8


def test_a_folder_of_one_result_is_that_result_and_of_several_is_refused(data: Path) -> None:
    assert open_run(data / "lm-eval" / "tiny-llada").model == "tiny-llada"
    with pytest.raises(RunError, match="contains 2 external results; give one of them"):
        open_run(data / "lm-eval" / "org__dummy")
    with pytest.raises(RunError, match="is not a results file"):
        open_run(next(data.rglob("samples_*")))


def test_our_own_runs_stay_our_own(tmp_path: Path, data: Path) -> None:
    """Also in folders whose names are OpenCompass's."""
    own = make_run(tmp_path / "project" / "results", "own")
    for name in ("configs", "predictions"):
        (tmp_path / "project" / name).mkdir()
    make_run(data / "lm-eval", "beside")
    (own / "run.json").unlink()
    assert [(run.run_id, run.is_external) for run in find_runs(tmp_path / "project")] == [(own.name, False)]
    assert [run.is_external for run in find_runs(data / "lm-eval")] == [False, True, True, True]


def test_scores_of_opencompass_are_shares_with_the_values_of_documents() -> None:
    run = open_run(OPENCOMPASS / "results" / "tiny-llada-base")
    scores = {score.task: score for score in run.scores()}
    assert {task: (score.metric, score.value, score.n) for task, score in scores.items()} == {
        "ARC-c": ("accuracy", 0.5, 4),
        "gsm8k": ("accuracy", 0.0, 4),
        "gsm8k-twice": ("accuracy (2 runs average)", 0.0, 4),
    }
    assert [score.limited for score in run.scores()] == [True, False, False]  # test_range of the configuration
    assert scores["ARC-c"].method == "Wilson" and scores["ARC-c"].n_text == "4 of unknown"
    assert [row["accuracy"] for row in run.samples("ARC-c")] == [1.0, 0.0, 0.0, 1.0]
    block = run.require_block()
    assert block.seeds is None and block.harness.version == UNKNOWN and block.model.path == "tiny-llada-base"


def test_documents_of_opencompass_have_prompt_answers_and_reference() -> None:
    run = open_run(OPENCOMPASS / "results" / "tiny-llada-base")
    choice = run.require_index("ARC-c").document(0).rows[0]
    assert [part["arg_1"] for part in choice["arguments"].values()] == ["A", "B", "C", "D"]
    assert choice["target"] == "C" and choice["prompt_hash"] == ""  # four texts, not one
    likelihoods = [float(answer[0][0]) for answer in choice["resps"]]
    assert likelihoods == pytest.approx([-24.590, -24.500, -24.340, -24.537], abs=1e-3)
    predictions = json.loads((OPENCOMPASS / "predictions" / "tiny-llada-base" / "gsm8k-twice.json").read_text())
    twice = run.require_index("gsm8k-twice").document(1).rows[0]
    assert twice["resps"] == [[predictions[number]["prediction"] for number in ("1", "5")]]
    assert twice["target"] == "3" and twice["arguments"]["gen_args_0"]["arg_0"] == predictions["1"]["origin_prompt"]


def _opencompass(data: Path) -> Path:
    return opencompass_results(data).parent


def test_repeats_are_means_and_need_no_configuration(data: Path) -> None:
    results = _opencompass(data) / "gsm8k-twice.json"
    value = json.loads(results.read_text())
    value["accuracy (2 runs average)"], value["details"][2]["correct"] = 12.5, [True, False]
    results.write_text(json.dumps(value))
    for configured in (True, False):
        if not configured:
            opencompass_config(data).unlink()
        run = open_run(_opencompass(data))
        assert [len(row["resps"][0]) for row in run.samples("gsm8k-twice")] == [2] * 4
        (score,) = [score for score in run.scores() if score.task == "gsm8k-twice"]
        assert (score.value, score.n) == (0.125, 4)
        assert [row[score.metric] for row in run.samples("gsm8k-twice")] == [0.0, 0.0, 0.5, 0.0]


def test_predictions_in_parts_are_put_together(data: Path) -> None:
    file = opencompass_predictions(data)
    rows = list(json.loads(file.read_text()).values())
    before = list(open_run(_opencompass(data)).samples("ARC-c"))
    file.unlink()
    for number, part in enumerate((rows[:3], rows[3:])):
        file.with_name(f"ARC-c_{number}.json").write_text(json.dumps({str(at): row for at, row in enumerate(part)}))
    assert list(open_run(_opencompass(data)).samples("ARC-c")) == before
    shutil.copy(opencompass_results(data), _opencompass(data) / "ARC-c_0.json")  # now they are another data set's
    assert open_run(_opencompass(data)).samples_file("ARC-c") is None


def test_a_score_without_details_keeps_its_unit_or_says_what_it_assumes(data: Path) -> None:
    results = opencompass_results(data)
    for total, value, notes in ((30.0, 0.3, 0), (0.5, 0.005, 1), (-3.0, -3.0, 0), (300.0, 300.0, 0)):
        results.write_text(json.dumps({"accuracy": total}))
        run = open_run(_opencompass(data))
        (score,) = [score for score in run.scores() if score.task == "ARC-c"]
        assert (score.value, score.n, score.lo, len(run.require_block().notes)) == (
            pytest.approx(value),
            4,
            None,
            notes,
        )


def test_a_data_set_without_a_score_is_left_out_and_named(data: Path) -> None:
    opencompass_results(data).write_text('{"error": "out of memory"}')
    (_opencompass(data) / "gsm8k.json").write_text('{"accuracy": 50.0}')
    shutil.rmtree(opencompass_predictions(data).parent)
    reported: list[str] = []
    run = next(run for run in find_runs(data / "opencompass", reported.append) if run.model == "tiny-llada")
    assert run.tasks == ["gsm8k-twice"] and len(reported) == 2
    assert (
        "ARC-c: its evaluator failed: out of memory" in reported[0] and "gsm8k: its number of documents" in reported[1]
    )
    for file in _opencompass(data).glob("gsm8k*"):
        file.unlink()
    with pytest.raises(RunError, match=r"has no score; .*out of memory"):
        open_run(_opencompass(data))


def test_the_configuration_is_never_executed(data: Path, tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    config = opencompass_config(data)
    config.write_text(
        f"open({str(trace)!r}, 'w')\n{config.read_text()}\nmodels[0]['path'] = __import__('os').getcwd()\n"
    )
    assert open_run(_opencompass(data)).require_block().model.path == "tiny-llada" and not trace.exists()


def test_a_results_file_that_is_not_lm_evals_is_refused(data: Path) -> None:
    file = lm_eval_results(data)
    file.write_text('{"results": {}}')
    with pytest.raises(RunError, match="is not a results file of lm-eval: it has no table 'configs'"):
        open_run(file)


def test_a_result_that_breaks_its_reader_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DATA, tmp_path / "runs")
    read = OpenCompassRun._readable

    def broken(run: OpenCompassRun, task: str) -> Any:
        return {}[task] if run.model == "tiny-llada" else read(run, task)

    monkeypatch.setattr(OpenCompassRun, "_readable", broken)
    problems: list[str] = []
    assert len(find_runs(tmp_path / "runs", problems.append)) == 4
    (problem,) = problems
    assert (
        "results/tiny-llada: KeyError: 'ARC-c'; this is a bug in dare-bench: add --debug for the traceback" in problem
    )
    for debug in (["--debug"], []):
        with pytest.raises(SystemExit):
            main(["ls", "runs", str(tmp_path / "runs"), *debug])
        error = capsys.readouterr().err
        assert problem in error and ("in broken\n" in error) == bool(debug)


def test_a_damaged_result_in_a_folder_of_several_is_left_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged,) = data.rglob("predictions/tiny-llada/ARC-c.json")
    damaged.unlink()
    (damaged.parent / "ARC-c_0.json").write_text("{}")
    (folder,) = data.glob("opencompass/*")
    assert [run.model for run in open_runs(str(folder))] == ["tiny-llada-base"]
    assert capsys.readouterr().err == f"left out: {damaged.parent}/ARC-c_0.json is damaged: it has no predictions\n"
