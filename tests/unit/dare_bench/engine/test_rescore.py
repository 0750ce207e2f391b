"""A run's recorded answers scored again: equal, or where not, what changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_source
from paths import ROOT
from require import lacks, need_package
from sudoku_runs import make_sudoku
from toy_model import ToyModel
from toy_source import ToySource
from toy_tasks import FILES, SUMS, write_data, write_tasks

from dare_bench import sandbox
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.rescore import Rescored, rescore
from dare_bench.engine.verify import verify
from dare_bench.errors import IncompleteError, RunError, UnknownNameError, UsageError
from dare_bench.runs.pack import write_pack
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE
from dare_bench.runs.schema import UNSAFE_ALLOWED
from dare_bench.types import Likelihood, Request

need_package("lm_eval")
toy_source.register()
BENCH = ROOT / "tests" / "data" / "bench"
SCORER = """
def score(doc, results):
    return {"exact_match": float(results[0].strip() == doc["answer"]), "length": len(results[0])}
"""
SCORED = """
include: _base_yaml
task: toy_scored
process_results: !function scorer_of_ours.score
filter_list: [{name: none, filter: [{function: take_first}]}]
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
  - {metric: length, aggregation: mean, higher_is_better: false}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Caches of this test's own; once a run is made, whoever opens a model fails."""
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    yield


def made(tmp_path: Path, tasks: str, model: Any = None, **fields: Any) -> Run:
    """A run of the toy tasks; some answers are right, some hold no number."""

    def reply(request: Any) -> str:
        number = int(request.doc_id)
        nothing = "nobody knows" if number else "nobody that I met knows"  # longer than an answer may be
        return f"it is {2 * number + 3 + request.repeat} Q:" if number % 3 else nothing

    (tmp_path / "tasks").mkdir(exist_ok=True, parents=True)
    write_tasks(tmp_path / "tasks")
    (tmp_path / "tasks" / "scored.yaml").write_text(SCORED)
    (tmp_path / "tasks" / "scorer_of_ours.py").write_text(SCORER)
    write_data(tmp_path / "data")
    given = {"include_path": (str(tmp_path / "tasks"),), "data_dir": str(tmp_path / "data")}
    given |= {"output_path": str(tmp_path / "runs"), **fields}
    return evaluate(model=model or ToyModel(reply=reply), tasks=tasks, progress=False, **given)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of ``toy_add`` and ``toy_shots``, its tasks and its data."""
    folder = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DARE_BENCH_CACHE", str(folder / "cache"))
        patched.delenv("DARE_BENCH_DATA", raising=False)
        patched.setattr("datasets.config.HF_DATASETS_CACHE", folder / "datasets")
        made(folder, "toy_add,toy_shots")
    return folder


@pytest.fixture
def sums(original: Path, tmp_path: Path) -> Run:
    """That run, copied to this test's own folder."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    (folder,) = (tmp_path / "runs").iterdir()
    return Run(folder)


def scored(run: Run, **fields: Any) -> Rescored:
    """With the tasks where :func:`made` has put them."""
    return rescore(run, include_path=[str(run.path.parents[1] / "tasks")], **fields)


def refused(run: Run, **given: Any) -> list[str]:
    """The checks that a pack of the run does not pass."""
    folder = run.path.parents[1]
    given = {"data_dir": str(folder / "data"), "include_path": [str(folder / "tasks")], "allow_partial": True, **given}
    return [f"{c.name}: {c.detail}" for c in verify(write_pack(run, folder / "packs").path, **given) if not c.passed]


def edit(run: Run, task: str, doc: int, change: Callable[[dict[str, Any]], Any], every: bool = True) -> None:
    """Change a document's lines by hand; only the first of them unless ``every``."""
    file = run.samples_file(task)
    assert file is not None
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in [row for row in rows if row["doc_id"] == doc][: None if every else 1]:
        change(row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows if row))


def says(*texts: str) -> Callable[[dict[str, Any]], None]:
    return lambda row: row.update(resps=[list(texts)])


@pytest.mark.parametrize(
    ("tasks", "fields"),
    [
        # Two filters, a group with a score, a multiple choice (acc, acc_norm), a task written inside a group; examples;
        # is_greedy; three answers of the task's own.
        ("toy_group,toy_shots,toy_words,toy_twice", {}),
        ("toy_twice,toy_sampled,toy_choice", {"repeats": 2}),  # each asked twice
        ("toy_add,toy_choice", {"limit": 3}),
        ("toy_add", {"samples": {"toy_add": [4, 1]}}),
        ("toy_scored", {"decoding": {"temperature": 0.3}, "num_fewshot": 1, "system_instruction": "Short."}),
    ],
)
def test_a_run_scored_again_is_the_same(tmp_path: Path, tasks: str, fields: dict[str, Any]) -> None:
    run = made(tmp_path, tasks, **fields)
    done = scored(run)
    assert done.same and not done.documents and not done.changes
    assert {(item.task, item.metric, item.filter): item.again for item in done.scores} == {
        (score.task, score.metric, score.filter): score.value for score in run.scores()
    }
    assert done.counted == sum(block.n_docs for block in run.block.tasks.values())  # type: ignore[union-attr]
    assert set(done.edited.values()) == {False}
    assert refused(run) == []


def test_likelihoods_keep_whether_the_target_was_the_likeliest_text(tmp_path: Path) -> None:
    class Half(ToyModel):
        def _likelihood(self, request: Request) -> Likelihood:
            return replace(super()._likelihood(request), is_greedy=request.doc_id in (1, 2, 5))

    run = made(tmp_path, "toy_words", Half())
    done = scored(run)
    assert done.same and [(item.recorded, item.again) for item in done.scores] == [(0.5, 0.5)]


def test_no_model_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, "toy_add", model="tiny-llada", limit=2, decoding={"steps": 2, "gen_length": 8})

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("dare_bench.engine.opener.Opener.loaded", refuse)
    monkeypatch.setattr("torch.nn.Module.__call__", refuse)
    assert scored(run).same


def test_chat_prompts_are_rendered_by_the_recorded_template(tmp_path: Path) -> None:
    fields = {"apply_chat_template": True, "num_fewshot": 2, "system_instruction": "Add."}
    run = made(tmp_path, "toy_add", model="tiny-llada", limit=2, decoding={"steps": 2, "gen_length": 8}, **fields)
    assert "<|start_header_id|>" in next(run.samples("toy_add"))["arguments"]["gen_args_0"]["arg_0"]
    assert scored(run).same and refused(run) == []
    assert run.results_file is not None
    whole = json.loads(run.results_file.read_text())
    whole["chat_template"] = whole["chat_template"].replace("<|start_header_id|>", "<|begin|>")
    run.results_file.write_text(json.dumps(whole))
    with pytest.raises(RunError, match="recorded answers belong to other prompts"):
        scored(Run(run.path))


def test_an_answer_edited_by_hand_is_scored_as_it_is_now(sums: Run) -> None:
    run = sums
    assert run.edited("toy_add") is False
    edit(run, "toy_add", 2, says("11"))
    done = scored(run)
    assert not done.same and done.edited == {"toy_add": True, "toy_shots": False}
    assert {(item.task, item.doc_id, item.filter, item.recorded, item.again) for item in done.documents} == {
        ("toy_add", "2", "first-number", 0.0, 1.0),
        ("toy_add", "2", "raw", 0.0, 1.0),
    }
    assert {item.task for item in done.scores if not item.same} == {"toy_add"}
    (first,) = [item for item in done.scores if (item.task, item.filter) == ("toy_add", "first-number")]
    assert first.again == pytest.approx(first.recorded + 1 / 6)
    assert scored(run, task="toy_shots").same


def test_an_edited_likelihood_is_scored_as_it_is_now(tmp_path: Path) -> None:
    run = made(tmp_path, "toy_choice")
    before = next(run.samples("toy_choice"))
    right = int(before["target"])
    best = max(range(3), key=lambda i: float(before["resps"][i][0][0]))
    other = next(i for i in range(3) if i != best and (best == right or i == right))
    edit(run, "toy_choice", 0, lambda row: row["resps"].__setitem__(other, [["0.5", "False"]]))
    done = scored(run)
    assert {(item.metric, item.recorded, item.again) for item in done.documents} >= {
        ("acc", float(best == right), float(best != right))
    }


def test_a_changed_scorer_is_seen(tmp_path: Path) -> None:
    run = made(tmp_path, "toy_scored,toy_add")
    (tmp_path / "tasks" / "scorer_of_ours.py").write_text(SCORER.replace("float(", "1.0 - float("))
    done = scored(run)
    assert {(item.task, item.metric) for item in done.scores if not item.same} == {("toy_scored", "exact_match")}
    assert len(done.documents) == 6 and {item.metric for item in done.documents} == {"exact_match"}
    assert [change for change in done.changes if "definition of task 'toy_scored' has changed" in change]
    assert set(done.edited.values()) == {False}


def test_a_changed_target_is_told(tmp_path: Path, sums: Run) -> None:
    data = tmp_path / "other"
    shutil.copytree(tmp_path / "data", data)
    write_data(data, sums=[{**row, "answer": "0"} for row in SUMS])
    done = scored(sums, task="toy_add", data_dir=str(data))
    assert done.changes and "have a different target now" in done.changes[0]
    assert done.scores[0].again == 0.0


def test_numbers_that_print_alike_but_differ_are_told_apart(sums: Run) -> None:
    run = sums
    edit(run, "toy_add", 1, lambda row: row.update(exact_match=row["exact_match"] + 1e-8), every=False)
    assert len(scored(run, task="toy_add").documents) == 1
    edit(run, "toy_add", 1, lambda row: row.update(exact_match=row["exact_match"] - 1e-8 + 1e-12), every=False)
    assert not scored(run, task="toy_add").documents


def test_other_prompts_are_refused(tmp_path: Path, sums: Run) -> None:
    base = FILES["_base_yaml"].replace("Q: {{question}}", "Question: {{question}}")
    (tmp_path / "tasks" / "_base_yaml").write_text(base)
    with pytest.raises(RunError, match=r"document 0 of 'toy_add' \(and 5 more documents\) has a different prompt now"):
        scored(sums, task="toy_add")
    write_tasks(tmp_path / "elsewhere")
    assert rescore(sums, include_path=[str(tmp_path / "elsewhere")]).same


def test_documents_that_went_or_came_are_refused(sums: Run) -> None:
    file = sums.samples_file("toy_add")
    assert file is not None
    before = file.read_bytes()
    edit(sums, "toy_add", 3, dict.clear)
    with pytest.raises(
        RunError, match=r"document 3 of 'toy_add' is in the task now, but .*; the samples file was edited"
    ):
        scored(sums)
    file.write_bytes(before)
    edit(sums, "toy_add", 3, lambda row: row.update(doc_id=17))
    with pytest.raises(RunError, match="document 17 of 'toy_add' has an answer in the run"):
        scored(sums)


def test_files_that_cannot_be_used_are_named(tmp_path: Path, sums: Run) -> None:
    run = sums
    edit(run, "toy_add", 1, says("3"), every=False)
    with pytest.raises(RunError, match="document 1: its lines, one for each filter, have different answers"):
        scored(run)
    edit(run, "toy_add", 1, lambda row: row.update(resps=[[4]]))
    with pytest.raises(RunError, match="document 1: the line is damaged"):
        scored(run)
    with pytest.raises(UnknownNameError, match="unknown task 'toy_ad' in this run; closest: toy_add"):
        scored(run, task="toy_ad")
    quiet = made(tmp_path / "b", "toy_add", log_samples=False)
    with pytest.raises(RunError, match="has no samples file of 'toy_add'"):
        scored(quiet)
    (quiet.path / DONE_FILE).unlink()
    with pytest.raises(IncompleteError, match="is not finished"):
        scored(quiet)


def test_a_task_that_is_gone_is_a_usage_error(tmp_path: Path, sums: Run) -> None:
    (tmp_path / "tasks" / "add.yaml").unlink()
    with pytest.raises(UsageError, match="toy_add"):
        scored(sums)


@pytest.mark.parametrize(("harness", "tasks"), [("lm-eval", "toy_add,toy_choice"), ("toy", "toygen,toychoice")])
def test_failed_documents_stay_failed(tmp_path: Path, harness: str, tasks: str) -> None:
    model = ToyModel(fail_on=lambda request: "too long" if request.doc_id == 1 else False)
    run = made(tmp_path, tasks, model, harness=harness, limit=4)
    assert run.status == "incomplete"
    done = scored(run)
    assert done.same and done.counted == 6
    assert [(f["doc_id"], f["error"]) for f in done.harness.failures] == [(1, "too long")] * 2
    assert refused(run) == []


def test_an_extended_run_is_scored_whole(tmp_path: Path) -> None:
    made(tmp_path, "toygen", ToyModel(), harness="toy", limit=3)
    run = made(tmp_path, "toygen", ToyModel(), harness="toy", limit=7)
    assert run.requested["limit"] == 3 and run.edited("toygen") is False
    done = scored(run)
    assert done.same and done.counted == 7 and done.spec.limit == 7
    assert refused(run) == []


def told(run: Run) -> list[str]:
    assert run.block is not None
    return [event.what for event in run.block.events]


def test_code_runs_again_in_the_sandbox_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox.isolation() == "none":
        lacks("bubblewrap", "is not installed or may not isolate, and neither may namespaces")
    rows = [json.loads(line) for line in (BENCH / "humaneval" / "test.jsonl").read_text().splitlines()]
    model = ToyModel(reply=lambda r: rows[int(r.doc_id)]["canonical_solution"] if r.doc_id == 0 else "    return None")
    run = made(tmp_path, "humaneval", model, data_dir=str(BENCH), decoding={"gen_length": 4096}, unsafe_no_sandbox=True)
    done = scored(run)
    assert done.same and [item.again for item in done.scores] == [0.5]
    assert UNSAFE_ALLOWED in told(run)
    assert done.harness.execution["unsafe"] is False and done.harness.execution["statuses"] == {
        "failed": 1,
        "passed": 1,
    }
    assert refused(run, data_dir=str(BENCH)) == []
    edit(run, "humaneval", 1, lambda row: row.update(resps=[[rows[1]["canonical_solution"]]]))
    assert [(item.doc_id, item.recorded, item.again) for item in scored(run).documents] == [("1", 0.0, 1.0)]
    monkeypatch.setattr("dare_bench.sandbox.isolation", lambda: "none")
    with pytest.raises(UsageError, match="runs code that the model writes"):
        scored(run)


def test_opencompass_answers_and_texts_are_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_package("opencompass")
    monkeypatch.chdir(tmp_path)
    answers = [json.loads(line)["answer"] for line in (BENCH / "gsm8k" / "test.jsonl").read_text().splitlines()]

    def reply(request: Any) -> str:
        right = answers[int(request.doc_id)].split("#### ")[1]
        return f"The answer is {right if (int(request.doc_id) + request.repeat) % 2 == 0 else -1}"

    fields = {
        "harness": "opencompass",
        "data_dir": str(BENCH),
        "repeats": 2,
        "decoding": {"temperature": 0.5},
        "include_path": (),
    }
    run = made(tmp_path, "gsm8k_gen,hellaswag_ppl", ToyModel(reply=reply, context_limit=1 << 20), **fields)
    done = rescore(run)
    assert done.same and done.counted == sum(block.n_docs for block in run.block.tasks.values())  # type: ignore[union-attr]
    assert refused(run, data_dir=str(BENCH), include_path=None) == []
    edit(run, "gsm8k", 0, says("The answer is -1", "The answer is -1"))
    edit(run, "hellaswag", 0, lambda row: row["resps"].__setitem__(int(row["target"]), [["-0.001", "None"]]))
    differing = rescore(run).documents
    assert ("gsm8k", "0", "accuracy", 0.5, 0.0) in {
        (d.task, d.doc_id, d.metric, d.recorded, d.again) for d in differing
    }
    assert rescore(run, task="hellaswag").counted == run.block.tasks["hellaswag"].n_docs  # type: ignore[union-attr]


def test_runs_from_before_digests_are_scored_and_do_not_know_of_edits(tmp_path: Path) -> None:
    folder = make_sudoku(tmp_path / "runs").path
    (results,), (traces,) = folder.glob("results_*"), folder.glob("traces_*")
    whole = json.loads(results.read_text())
    del (
        whole["dare_bench"]["tasks"]["dare_sudoku"]["samples_sha256"],
        whole["dare_bench"]["tasks"]["dare_sudoku"]["traces_sha256"],
    )
    results.write_text(json.dumps(whole))
    (folder / DONE_FILE).write_text(json.dumps({"date": whole["dare_bench"]["created"]}))
    traces.unlink()
    run = Run(folder)
    done = rescore(run)
    assert done.same and done.edited == {"dare_sudoku": None} and run.traces_edited("dare_sudoku") is None
    assert run.results_edited is None


def test_what_a_harness_makes_of_the_toy_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, "toygen,toychoice", ToyModel(), harness="toy", limit=3)
    assert scored(run).same
    monkeypatch.setattr(ToySource, "version", "2")  # in the keys of its requests: a key's hash is not the prompt's
    assert scored(run).changes == [
        "the definition of task 'toygen' has changed: its templates, filters or scorer differ"
        " (toy-toygen-1 then, toy-toygen-2 now)",
        "the definition of task 'toychoice' has changed: its templates, filters or scorer differ"
        " (toy-toychoice-1 then, toy-toychoice-2 now)",
    ]
