"""Comparisons with results of other programs: paired by document, with what is not recorded said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_external import DATA, opencompass_predictions, opencompass_results
from require import need_package
from run_factory import make_run
from sudoku_runs import make_sudoku

from dare_bench.analysis.comparison import compare
from dare_bench.analysis.run_finder import open_run
from dare_bench.analysis.task_changes import shared_tasks
from dare_bench.errors import RunError, UsageError

need_package("lm_eval")
OPENCOMPASS = next((DATA / "opencompass").iterdir()) / "results"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours that solves two of the six documents."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DARE_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return make_sudoku(tmp_path_factory.mktemp("ours"), lambda doc: doc in (1, 5), limit=6).path


@pytest.fixture
def lm_eval(tmp_path: Path) -> Path:
    """The result of the same task by lm-eval's own command."""
    return Path(shutil.copytree(DATA / "lm-eval" / "tiny-llada", tmp_path / "tiny-llada"))


def _change(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.suffix == ".jsonl" else None
    value = lines[0] if lines else json.loads(file.read_text())
    change(value)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) if lines else json.dumps(value))


def test_a_run_and_a_result_of_lm_eval_are_paired_by_document(ours: Path, lm_eval: Path) -> None:
    comparison = compare([open_run(ours), open_run(lm_eval)])
    (item,) = comparison.items
    assert (item.task, item.key, item.difference.n, item.breaks) == ("dare_sudoku", "exact_match,none", 6, ())
    assert item.values == (pytest.approx(1 / 3), 1.0) and [changed.doc_id for changed in item.better] == list("0234")
    assert set(item.settings) <= {"dtype", "harness"}  # checkpoint, tier and decoding are known of one side only
    unknown = [text for text in comparison.warning_lines() if "is external" in text]
    assert len(unknown) == 1 and "exactness tier" in unknown[0] and "cost" in unknown[0]
    assert not any("environments" in text or "is incomplete" in text for text in comparison.warning_lines())
    first, second = comparison.documents(item, item.better[0])
    assert first.rows[0]["prompt_hash"] == second.rows[0]["prompt_hash"]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("samples_dare_sudoku", lambda line: line.update(prompt_hash="0" * 64), "the prompt in 1"),
        ("samples_dare_sudoku", lambda line: line.update(target_hash="0" * 64), "the target in 1"),
        ("results", lambda value: value["versions"].update(dare_sudoku=2.0), "two versions of the task: 1.0 and 2.0"),
        ("results", lambda value: value["configs"]["dare_sudoku"].update(metric_list=[]), "metric_list differs"),
        (
            "results",
            lambda value: value["configs"]["dare_sudoku"].update(process_results=""),
            "process_results differs",
        ),
    ],
)
def test_other_tasks_or_prompts_are_refused(
    ours: Path, lm_eval: Path, file: str, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    _change(next(lm_eval.glob(f"{file}_*")), change)
    with pytest.raises(UsageError, match=f"not comparable: .*{words}"):
        compare([open_run(ours), open_run(lm_eval)])


def test_addresses_in_recorded_functions_are_no_difference(lm_eval: Path) -> None:
    other = Path(shutil.copytree(lm_eval, lm_eval.with_name("other")))
    for folder, address in ((lm_eval, "0x1f"), (other, "0x2e")):
        metrics = [{"metric": "exact_match", "aggregation": f"<function mean at {address}>"}]
        _change(next(folder.glob("results_*")), lambda v: v["configs"]["dare_sudoku"].update(metric_list=metrics))  # noqa: B023
    assert len(compare([open_run(lm_eval), open_run(other)]).items) == 2


def test_without_samples_there_is_nothing_to_pair(ours: Path, lm_eval: Path) -> None:
    for file in lm_eval.glob("samples_*"):
        file.unlink()
    with pytest.raises(RunError, match="no sample lines of dare_sudoku; lm-eval writes them with --log_samples"):
        compare([open_run(ours), open_run(lm_eval)])


def test_models_of_one_opencompass_run_are_paired() -> None:
    comparison = compare([open_run(OPENCOMPASS / name) for name in ("tiny-llada-base", "tiny-llada")], ["ARC-c"])
    (item,) = comparison.items
    assert item.values == (0.5, 0.0) and [changed.doc_id for changed in item.worse] == ["0", "3"]
    assert item.settings == {}  # two models of unknown content: neither equal nor different


def test_other_harnesses_are_refused(lm_eval: Path) -> None:
    with pytest.raises(UsageError, match="different harnesses"):
        compare([open_run(lm_eval), open_run(OPENCOMPASS / "tiny-llada")])


def test_perplexities_of_whole_texts_are_another_score_than_ours(tmp_path: Path) -> None:
    data = Path(shutil.copytree(DATA, tmp_path / "data"))
    result = opencompass_results(data).parent
    for file in (opencompass_results(data), opencompass_predictions(data)):
        file.rename(file.with_name("choice_arc.json"))
    own = make_run(tmp_path, tasks={"choice_arc": 0.5}, n_docs=4)
    _change(next(own.glob("results_*")), lambda value: value["dare_bench"]["harness"].update(name="opencompass"))
    for file in own.glob("samples_*"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["accuracy"] = line.pop("acc")
            line["metrics"] = ["accuracy"]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = next(own.glob("results_*")).read_text().replace('"acc,none"', '"accuracy,none"')
    next(own.glob("results_*")).write_text(text)
    with pytest.raises(UsageError, match="compares whole texts by perplexity"):
        compare([open_run(own), open_run(result)], ["choice_arc"], "accuracy,none")


def test_a_report_says_the_same_task_only_as_far_as_it_is_recorded(ours: Path, lm_eval: Path) -> None:
    (shared,) = shared_tasks([open_run(ours), open_run(lm_eval)])
    assert shared.task == "dare_sudoku" and not any(change.breaks for change in shared.changes) and not shared.recorded
    _change(next(lm_eval.glob("results_*")), lambda value: value["versions"].update(dare_sudoku=2.0))
    (shared,) = shared_tasks([open_run(ours), open_run(lm_eval)])
    assert any(change.breaks for change in shared.changes)
