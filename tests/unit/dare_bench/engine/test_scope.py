"""Which documents a run holds, what a second command makes of them, and what a smaller ``limit`` than a finished
run's computes."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy_source
from paths import ROOT
from require import need_package
from toy_model import ToyModel
from toy_source import ToySource
from toy_tasks import write_data, write_tasks

from dare_bench.analysis.run_finder import find_runs
from dare_bench.cli import main
from dare_bench.cli.runs import open_one
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.rundir import read_done
from dare_bench.errors import UsageError
from dare_bench.harness.common.scope import Scope
from dare_bench.runs.reader import Run
from dare_bench.types import Request

TOTALS = {"a": 10, "b": 4}
LIMITS = (None, 1, 2, 4, 5, 10, 99, 0.1, 0.5, 0.75)
CHOSEN = ({"a": [1, 2], "b": [0]}, {"a": [1]}, {"a": [0, 1], "b": [0, 1]}, {"b": [3]})
SCOPES = [Scope.of(limit, None) for limit in LIMITS] + [Scope.of(None, chosen) for chosen in CHOSEN]


def documents(scope: Scope) -> set[tuple[str, int]]:
    """The plain meaning, against which ``covers`` is held."""
    result = set()
    for task, total in TOTALS.items():
        if scope.samples is not None and task in scope.samples:
            ids = set(scope.samples[task])
        elif scope.limit is None:
            ids = set(range(total))
        else:
            ids = set(range(min(total, math.ceil(total * scope.limit) if scope.limit < 1 else int(scope.limit))))
        result |= {(task, i) for i in ids}
    return result


def test_covers_is_inclusion() -> None:
    for held, asked in itertools.product(SCOPES, SCOPES):
        assert held.covers(asked, TOTALS) == (documents(asked) <= documents(held)), (held, asked)


def test_a_share_of_an_unknown_number_is_covered_by_all_alone() -> None:
    unknown = {"a": None}
    assert Scope().covers(Scope.of(0.5, None), unknown)
    assert not Scope.of(50, None).covers(Scope.of(0.5, None), unknown)
    assert not Scope.of(0.5, None).covers(Scope.of(50, None), unknown)
    assert not Scope.of(50, None).covers(Scope(), unknown)


def test_reading() -> None:
    assert Scope.of(2.0, None) == Scope.of(2, None)
    assert Scope.of(None, {"a": [2, 1, 2]}).plain() == {"limit": None, "samples": {"a": [1, 2]}}
    with pytest.raises(UsageError, match="exclude"):
        Scope.of(1, {"a": [1]})


toy_source.register()
BENCH = ROOT / "tests" / "data" / "bench"


def go(out: Path, model: Any = None, **fields: Any) -> Run:
    fields = {"tasks": "toygen,toychoice", "harness": "toy", "output_path": str(out), **fields}
    return evaluate(model=model or ToyModel(), progress=False, **fields)


def lines(run: Run) -> dict[str, list[dict[str, Any]]]:
    return {task: [*run.samples(task), *run.traces(task)] for task in run.tasks}


def assert_same(part: Run, alone: Run) -> None:
    """Equal scores, lines and counts; times are not known of a part."""
    assert lines(part) == lines(alone) and part.scores() == alone.scores()
    assert part.block is not None and alone.block is not None
    timed = {
        "seconds": 0.0,
        "generate_seconds": 0.0,
        "forwards": 0,
        **dict.fromkeys(("occupancy", "peak_memory_mb", "tokens_per_s")),
    }
    assert part.block.cost == alone.block.cost.model_copy(update=timed)
    same = ("status", "tasks", "programs", "limit", "ci", "extraction", "failures")
    assert all(getattr(part.block, name) == getattr(alone.block, name) for name in same)
    names = ("results", "groups", "n-samples", "configs", "config", "task_hashes", "chat_template", "opencompass")
    assert all(part.results.get(name) == alone.results.get(name) for name in names)
    assert not part.results_edited and not any(part.edited(task) or part.traces_edited(task) for task in part.tasks)


@pytest.mark.parametrize(
    ("asked", "name"),
    [({"limit": 3}, "first-3"), ({"limit": 0.1}, "first-0.1"), ({"samples": {"toygen": [2, 7], "toychoice": [1]}}, "")],
)
def test_a_part_of_a_finished_run_is_what_was_asked_for(tmp_path: Path, asked: dict[str, Any], name: str) -> None:
    """It equals the run that would have been made without the larger one, except for times."""
    whole = go(tmp_path)
    files = {p: p.read_bytes() for p in whole.path.rglob("*") if p.is_file()}
    model = ToyModel()
    part, alone = go(tmp_path, model, **asked), go(tmp_path / "b", **asked)
    assert not model.answered and {p: p.read_bytes() for p in whole.path.rglob("*") if p.is_file()} == files
    assert part.path.name.startswith(f"{whole.path.name}-{name}") and part.run_id == part.path.name
    assert_same(part, alone)
    assert part.block is not None
    assert part.block.events[-1].what.startswith(f"a part of the documents of {whole.run_id} was scored")
    assert read_done(part.path).scope == read_done(alone.path).scope  # type: ignore[union-attr]

    built = ToySource.made
    assert go(tmp_path, model, **asked).path == part.path and ToySource.made == built
    assert go(tmp_path, model).path == whole.path and go(tmp_path, model, limit=40).path == whole.path
    assert not model.answered


def test_a_part_has_the_failures_of_its_own_documents(tmp_path: Path) -> None:
    def fails(request: Request) -> bool:
        return request.key == "toygen/4/0/0/v1"

    assert go(tmp_path, ToyModel(fail_on=fails), limit=6).status == "incomplete"
    part = go(tmp_path, ToyModel(fail_on=fails), limit=4)
    assert part.status == "complete" and part.block is not None and part.block.tasks["toygen"].n_docs == 4
    five = go(tmp_path, ToyModel(fail_on=fails), limit=5)
    assert five.status == "incomplete" and five.block is not None
    assert [(f.task, f.doc_id) for f in five.block.failures] == [("toygen", 4)]
    assert five.block.tasks["toygen"].n_docs == five.block.tasks["toygen"].requests == 5
    assert go(tmp_path, limit=5).status == "complete", "the failed document is tried again"


def test_a_part_needs_no_samples_files_and_computes_what_the_journal_lacks(tmp_path: Path) -> None:
    whole, model = go(tmp_path / "a", limit=4, log_samples=False), ToyModel()
    assert go(tmp_path / "a", model, limit=2, log_samples=False).scores()[0].n == 2 and not model.answered
    shutil.rmtree(whole.path / "journal")
    assert go(tmp_path / "a", model, limit=3, log_samples=False).status == "complete" and model.answered
    assert not (whole.path / "journal").exists()
    assert go(tmp_path / "a", limit=2, fresh=True).path.name == f"{whole.path.name}-2"


def lm_eval_tasks(folder: Path, tasks: str) -> dict[str, Any]:
    """The fields of an evaluation of toy tasks, whose files are written to the folder."""
    need_package("lm_eval")
    (folder / "tasks").mkdir()
    write_tasks(folder / "tasks")
    write_data(folder / "data")
    paths = {"include_path": (str(folder / "tasks"),), "data_dir": str(folder / "data")}
    return {"tasks": tasks, "harness": "lm-eval", **paths}


@pytest.fixture
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.usefixtures("_own_caches")
@pytest.mark.parametrize(
    ("tasks", "asked", "fields"),
    [
        # Two filters, a group with a score, a multiple choice, examples, is_greedy, three answers of the task's own.
        ("toy_group,toy_shots,toy_words,toy_twice", {"limit": 2}, {}),
        ("toy_twice,toy_sampled,toy_choice", {"limit": 0.5}, {"repeats": 2}),
        ("toy_add,toy_choice", {"samples": {"toy_add": [1, 4], "toy_choice": [2]}}, {}),
    ],
)
def test_tasks_of_lm_eval(tmp_path: Path, tasks: str, asked: dict[str, Any], fields: dict[str, Any]) -> None:
    given = {**lm_eval_tasks(tmp_path, tasks), **fields}
    go(tmp_path / "runs", **given)
    model = ToyModel()
    part = go(tmp_path / "runs", model, **given, **asked)
    assert not model.answered
    assert_same(part, go(tmp_path / "alone", **given, **asked))


@pytest.mark.usefixtures("_own_caches")
def test_chosen_documents_whose_examples_are_others_are_answered_again(tmp_path: Path) -> None:
    """lm-eval draws the examples of a document after those of the documents before it."""
    given = {**lm_eval_tasks(tmp_path, "toy_add"), "num_fewshot": 1, "samples": {"toy_add": [1, 4]}}
    go(tmp_path / "runs", **{**given, "samples": None})
    model = ToyModel()
    part = go(tmp_path / "runs", model, **given)
    assert model.answered and part.scores() == go(tmp_path / "alone", **given).scores()


@pytest.mark.usefixtures("_own_caches")
def test_data_sets_of_opencompass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_package("opencompass")
    monkeypatch.chdir(tmp_path)
    given = {"harness": "opencompass", "data_dir": str(BENCH), "tasks": "gsm8k_gen,hellaswag_ppl", "repeats": 2}
    given |= {"decoding": {"temperature": 0.5}}
    go(tmp_path / "runs", ToyModel(context_limit=1 << 20), **given)
    model = ToyModel(context_limit=1 << 20)
    part = go(tmp_path / "runs", model, **given, limit=2)
    assert not model.answered
    assert_same(part, go(tmp_path / "alone", ToyModel(context_limit=1 << 20), **given, limit=2))


def test_the_command_prints_the_part_and_again_without_opening_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--model", "tiny-sdar", "--tasks", "dare_sudoku", "-o", str(tmp_path), "--limit"]

    def call(*more: str) -> str:
        with pytest.raises(SystemExit) as left:
            main([*words, *more])
        assert left.value.code in (None, 0)
        return capsys.readouterr().out

    call("6")
    out = call("4")
    assert "4 of 250" in out and "6 of 250" not in out
    results = json.loads(Path(out.splitlines()[-1]).read_text())
    assert results["dare_bench"]["tasks"]["dare_sudoku"]["n_docs"] == results["config"]["limit"] == 4

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("dare_bench.engine.opener.Opener.loaded", refuse)
    record = json.loads(call("4", "--json"))
    assert record["results_path"] == out.splitlines()[-1] and record["scores"][0]["n"] == 4


def test_a_folder_of_runs_has_the_whole_run_and_a_part_is_opened_by_its_own_path(tmp_path: Path) -> None:
    whole = go(tmp_path, limit=6)
    parts = [
        go(tmp_path, **asked) for asked in ({"limit": 4}, {"limit": 2}, {"samples": {"toygen": [1], "toychoice": [2]}})
    ]
    assert len({run.path for run in (whole, *parts)}) == 4
    assert [run.path for run in find_runs(tmp_path)] == [whole.path] == [open_one(str(tmp_path)).path]
    for part in parts:
        assert part.block is not None and part.block.part_of == whole.run_id
        assert open_one(str(part.path)).run_id == part.run_id
    whole.path.rename(tmp_path / "zebra")
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "zebra"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "zebra").rename(tmp_path / "elsewhere" / "zebra")
    assert len(find_runs(tmp_path)) == 4, "a part whose run is in another folder is a run"
