"""Evaluations that stop (``--until-halfwidth``), by lm-eval's tasks and a model without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from require import need_package
from toy_model import ToyModel
from toy_source import register
from toy_tasks import write_data, write_tasks

from dare_bench import seeds
from dare_bench.cli import main
from dare_bench.config import run_spec
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.rescore import rescore
from dare_bench.engine.stopping import is_settled, round_ends
from dare_bench.errors import UsageError
from dare_bench.leaderboards.board_rows import limit_text
from dare_bench.leaderboards.entries import read_entries
from dare_bench.runs.reader import Run
from dare_bench.types import Request

need_package("lm_eval")
SUMS = [{"question": f"{a} plus {b}", "answer": str(a + b)} for a in range(20) for b in range(20)]
TASKS = {
    "pair": "group: toy_pair\ntask: [toy_add, toy_shots]\n"
    "aggregate_metric_list: [{metric: exact_match, aggregation: mean, filter_list: [raw]}]\n",
    "corpus": "include: _base_yaml\ntask: toy_corpus\n"
    "metric_list: [{metric: bleu, aggregation: bleu, higher_is_better: true}]\n",
    "points": "include: _base_yaml\ntask: toy_points\nprocess_results: !function points.score\n"
    "metric_list: [{metric: points, aggregation: mean, higher_is_better: true}]\n",
}
KEY = "exact_match,first-number"


def question(request: Request) -> tuple[int, int]:
    a, b = str(request.prompt).rsplit("Q: ", 1)[1].split("\n")[0].split(" plus ")
    return int(a), int(b)


def reply(request: Request) -> str:
    """Right in about four of five documents."""
    a, b = question(request)
    return str(a + b + (seeds.key(a, b) % 5 == 0))


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("stopping")
    write_tasks(root / "tasks")
    for name, text in TASKS.items():
        (root / "tasks" / f"{name}.yaml").write_text(text)
    (root / "tasks" / "points.py").write_text('def score(doc, results):\n    return {"points": 7.0}\n')
    write_data(root / "data", sums=SUMS)

    def run(out: Path, model: ToyModel | None = None, **fields: Any) -> Run:
        fields = {"tasks": "toy_shots", "include_path": (str(root / "tasks"),), **fields}
        model = model or ToyModel(reply=reply)
        return evaluate(model=model, data_dir=str(root / "data"), output_path=str(out), progress=False, **fields)

    return run


def documents(run: Run, task: str = "toy_shots") -> list[int]:
    return [line["doc_id"] for line in run.samples(task) if line["filter"] == "raw"]


def content(run: Run) -> Any:
    block = run.require_block()
    lines = [{k: v for k, v in line.items() if k != "dare_bench"} for line in run.samples("toy_shots")]
    answers = [(answer["key"], answer["seed"], answer["tokens"]) for line in run.samples("toy_shots")
               for answer in line["dare_bench"]]  # fmt: skip
    return lines, answers, run.results["results"], block.ci, block.tasks["toy_shots"].fingerprint


def test_rounds_end_at_fixed_numbers_of_documents() -> None:
    assert list(round_ends(120)) == [50, 100, 120] and list(round_ends(50)) == [50] and list(round_ends(3)) == [3]
    ends = list(round_ends(10_042))
    assert ends[:3] == [50, 100, 150] and ends[-1] == 10_042 and len(ends) < 50
    assert set(round_ends(2000)) <= {*ends, 2000}


def test_a_run_stops_early_with_the_same_documents_whatever_the_batch_and_is_extended(tmp_path: Path, go: Any) -> None:
    wide = go(tmp_path / "a", until_halfwidth=9, max_rows=3)
    ci = wide.require_block().ci["toy_shots"][KEY]
    chosen = documents(wide)
    assert 50 < len(chosen) < 400 and len(chosen) % 50 == 0 and 50 * (ci.hi - ci.lo) <= 9
    assert chosen != list(range(len(chosen))) and wide.is_limited and ci.method == "anytime beta-binomial"
    assert content(wide) == content(go(tmp_path / "b", until_halfwidth=9, max_rows=64))

    model = ToyModel(reply=reply)
    finer = go(tmp_path / "a", model, until_halfwidth=7)
    added = len(documents(finer)) - len(chosen)
    assert finer.path == wide.path and set(chosen) < set(documents(finer)) and len(model.answered) == added > 0
    assert content(finer) == content(go(tmp_path / "c", until_halfwidth=7))

    for fields in ({"until_halfwidth": 7}, {"until_halfwidth": 20}, {"until_halfwidth": 1, "limit": 60}):
        model = ToyModel(reply=reply)  # done already
        assert content(go(tmp_path / "a", model, **fields)) == content(finer) and not model.answered

    whole = go(tmp_path / "a", until_halfwidth=1)
    assert len(documents(whole)) == 400 and not whole.is_limited


def test_prompts_are_those_among_all_documents_and_the_run_is_another_one(tmp_path: Path, go: Any) -> None:
    stopped, whole = go(tmp_path, until_halfwidth=12), go(tmp_path)
    assert stopped.path != whole.path
    prompts = {line["doc_id"]: line["arguments"] for line in whole.samples("toy_shots")}
    lines = list(stopped.samples("toy_shots"))
    assert len(lines) < 400 and all(line["arguments"] == prompts[line["doc_id"]] for line in lines)
    other = go(tmp_path, until_halfwidth=12, seeds=7)
    assert documents(other) != documents(stopped)


@pytest.mark.parametrize("killed_after", [20, 70, 130])
def test_a_killed_run_goes_on_and_equals_an_unbroken_one(tmp_path: Path, go: Any, killed_after: int) -> None:
    def interrupt(request: Request) -> bool:
        if len(model.answered) > killed_after:
            raise KeyboardInterrupt
        return False

    model = ToyModel(reply=reply, fail_on=interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "a", model, until_halfwidth=7)
    again = ToyModel(reply=reply)
    run, unbroken = go(tmp_path / "a", again, until_halfwidth=7), go(tmp_path / "b", until_halfwidth=7)
    assert content(run) == content(unbroken) and len(again.answered) < len(documents(run))


def test_the_limit_is_the_most_of_each_task_and_may_be_raised(tmp_path: Path, go: Any) -> None:
    run = go(tmp_path / "a", until_halfwidth=2, limit=70)
    block = run.require_block()
    assert len(documents(run)) == 70 and block.limit is None
    unknown = block.model_copy(
        update={"tasks": {name: task.model_copy(update={"n_total": None}) for name, task in block.tasks.items()}}
    )
    spec = run_spec(model="toy", tasks="toy_shots", until_halfwidth=2, limit=70)
    assert is_settled(block, spec) and not is_settled(unknown, spec)
    assert is_settled(unknown, spec.model_copy(update={"until_halfwidth": 40}))
    raised = go(tmp_path / "a", until_halfwidth=2, limit=0.5)
    assert raised.path == run.path and len(documents(raised)) == 200
    assert content(raised) == content(go(tmp_path / "b", until_halfwidth=2, limit=200))


def test_tasks_stop_one_by_one_and_documents_without_an_answer_are_left_out(tmp_path: Path, go: Any) -> None:
    def right_in_shots(request: Request) -> str:
        return reply(request) if request.task == "toy_add" else str(sum(question(request)))

    model = ToyModel(reply=right_in_shots, fail_on=lambda request: request.doc_id == 3)
    run = go(tmp_path, model, tasks="toy_add,toy_shots", until_halfwidth=7)
    block = run.require_block()
    assert len(documents(run)) < len(documents(run, "toy_add")) < 400
    assert block.status == "incomplete" and {failure.doc_id for failure in block.failures} == {3}
    assert all(block.ci[task][KEY].n == len(documents(run, task)) for task in block.tasks)


def test_it_is_labelled_and_scored_again_with_the_same_interval(
    tmp_path: Path, go: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go(tmp_path / "out", until_halfwidth=9)
    ci = run.require_block().ci["toy_shots"][KEY]
    halves = f"±{max(50 * (each.hi - each.lo) for each in run.require_block().ci['toy_shots'].values()):.1f} points"
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        main(["report", str(run.path)])
    text = " ".join(capsys.readouterr().out.split())
    assert f"{halves} after {len(documents(run))} of 400 documents in a random order" in text
    assert "--until-halfwidth 9 was reached" in text
    assert limit_text(read_entries([tmp_path / "out"], pytest.fail)) == "until ±9 points"
    spec = run.requested
    again = rescore(run, data_dir=spec["data_dir"], include_path=spec["include_path"])
    assert again.same and again.counted == len(documents(run)) and ci.n == again.counted


def test_what_cannot_stop_is_refused_in_one_line(tmp_path: Path, go: Any) -> None:
    register()
    refusals = {
        "'toy_choice' compares log-likelihoods": {"tasks": "toy_choice"},
        "'toy_pair' is a group of tasks": {"tasks": "toy_pair"},
        "bleu of task 'toy_corpus' is computed from all documents together": {"tasks": "toy_corpus"},
        "--samples names them": {"samples": {"toy_shots": [1]}},
        "harness 'toy' has no rounds": {"tasks": "toygen", "harness": "toy", "include_path": ()},
        "above 0 and below 50": {"until_halfwidth": 0},
    }
    for text, fields in refusals.items():
        model = ToyModel(reply=reply)
        with pytest.raises(UsageError, match=text) as caught:
            go(tmp_path, model, **{"until_halfwidth": 3, **fields})
        assert not model.answered and "\n" not in str(caught.value) and not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="'toy_points' has no score from 0 to 1"):
        go(tmp_path, tasks="toy_points", until_halfwidth=3)
