"""Reading run directories back: scores, documents, traces, and what is damaged or foreign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from require import need_package
from run_factory import make_run

from dare_bench.analysis.intervals import confidence_intervals, group_interval, wilson
from dare_bench.analysis.run_finder import find_runs
from dare_bench.errors import RunError, UnknownNameError
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import Block
from dare_bench.runs.scores import headline, scores_of, weakest


def test_scores_carry_interval_size_and_settings(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path, tasks={"dare_sudoku": 0.9, "choice_x": 0.5}, limit=20))
    assert (run.model, run.status, run.tasks) == ("tiny-llada", "complete", ["dare_sudoku", "choice_x"])
    score = run.headline("dare_sudoku")
    assert score is not None and score.key == "exact_match,none" and score.value == pytest.approx(0.9)
    assert score.lo == pytest.approx(0.699, abs=1e-3) and score.hi == pytest.approx(0.972, abs=1e-3)
    assert (score.n, score.n_total, score.tier, score.limited) == (20, 200, "E1", True)
    assert score.stderr == pytest.approx(0.0688, abs=1e-4) and score.higher_is_better is True
    assert [s.task for s in run.scores()] == ["dare_sudoku", "choice_x"]
    assert run.headline("choice_x") is not None


@pytest.mark.parametrize("ask", [Run.headline, Run.samples, Run.traces, Run.documents])
def test_a_task_that_the_run_does_not_have_is_refused_and_the_nearest_named(tmp_path: Path, ask: Any) -> None:
    run = Run(make_run(tmp_path, tasks={"dare_sudoku": 0.9, "choice_x": 0.5}))
    with pytest.raises(UnknownNameError, match="unknown task 'dare_sudoko'; closest: dare_sudoku"):
        ask(run, "dare_sudoko")


def test_documents_bring_rows_and_traces_together(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path))
    documents = list(run.documents("dare_sudoku"))
    assert [d.doc_id for d in documents] == list(range(20))
    third = documents[3]
    assert list(third.traces) == [third.answers[0]["trace_ref"]]
    assert third.traces[third.answers[0]["key"]]["doc_id"] == 3
    index = run.index("dare_sudoku")
    assert index is not None and len(index) == 20 and index.document(3) == third
    assert len(list(run.samples("dare_sudoku"))) == len(list(run.traces("dare_sudoku"))) == 20


def test_rows_of_several_filters_come_together(tmp_path: Path) -> None:
    folder = make_run(tmp_path, n_docs=3)
    file = next(folder.glob("samples_*"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    again = [{**line, "filter": "strict"} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *again]))
    for document in Run(folder).documents("dare_sudoku"):
        assert [row["filter"] for row in document.rows] == ["none", "strict"]
        assert {row["doc_id"] for row in document.rows} == {document.doc_id}


def test_without_the_commit_marker_a_run_is_not_finished(tmp_path: Path) -> None:
    assert Run(make_run(tmp_path, "a", done=False)).status == "running"
    assert Run(make_run(tmp_path, "b", status="incomplete", failures=1)).status == "incomplete"


def test_a_run_without_results_is_running(tmp_path: Path) -> None:
    folder = tmp_path / "young"
    folder.mkdir()
    (folder / "run.json").write_text('{"run_id": "young", "created": "2026-11-20", "spec": {"model": "m"}}')
    run = Run(folder)
    assert (run.status, run.model, run.created, run.block) == ("running", "m", "2026-11-20", None)
    assert run.scores() == [] and run.tasks == [] and list(run.samples("t")) == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("results_2026-11-20T10-30-00.123456.json", "{half", "not JSON"),
        ("results_2026-11-20T10-30-00.123456.json", "[]", "expected a JSON object, found list"),
        ("results_2026-11-20T10-30-00.123456.json", '{"results": {}}', "not written by dare-bench"),
        ("run.json", "\x00", "not JSON"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    folder = make_run(tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(RunError) as caught:
        Run(folder)
    assert words in str(caught.value) and name in str(caught.value)


def test_a_damaged_sample_line_is_named_with_its_number(tmp_path: Path) -> None:
    folder = make_run(tmp_path, n_docs=3)
    file = next(folder.glob("samples_*"))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b'{"doc_id": 1, ' + b"\n" + lines[2])
    with pytest.raises(RunError, match="line 2 is damaged"):
        list(Run(folder).documents("dare_sudoku"))


def test_bytes_that_are_no_text_are_read_as_marks(tmp_path: Path) -> None:
    folder = make_run(tmp_path, n_docs=1, answer="zebra")
    file = next(folder.glob("samples_*"))
    file.write_bytes(file.read_bytes().replace(b"zebra", b"z\xff\xfebra"))
    (document,) = Run(folder).documents("dare_sudoku")
    assert document.rows[0]["resps"] == [["z\ufffd\ufffdbra"]]


def test_no_folder_and_foreign_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no folder"):
        Run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"contains no run: neither results_.* nor run\.json"):
        Run(tmp_path)


def test_find_runs_goes_deep_sorts_by_date_and_skips_damage(tmp_path: Path) -> None:
    make_run(tmp_path / "sweep" / "x", "late", created="2026-11-21T00:00:00")
    make_run(tmp_path, "early", created="2026-11-19T00:00:00")
    broken = make_run(tmp_path, "broken", created="2026-11-20T00:00:00")
    next(broken.glob("results_*")).write_text("{")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.json").write_text("{}")
    reported: list[str] = []
    assert [run.run_id for run in find_runs(tmp_path, reported.append)] == ["early", "late"]
    assert len(reported) == 1 and "broken" in reported[0]
    with pytest.warns(UserWarning, match="left out"):
        find_runs(tmp_path)
    with pytest.raises(RunError, match="no folder"):
        find_runs(tmp_path / "nowhere")


def test_the_settings_fingerprint_changes_with_what_changes_an_answer() -> None:
    task = {"fingerprint": "f", "n_docs": 2, "decoding": {"steps": 8, "trajectory": False}, "tier": "E1"}
    model = {"name": "m", "family": "f", "content_hash": "h", "dtype": "float32"}
    arguments = {"pretrained": "m", "dtype": "float32"}

    def made(asked: dict[str, Any] | None = None, **fields: Any) -> str:
        results = {"results": {"t": {"acc,none": 0.5}}, "config": {"model_args": asked or arguments}}
        whole = {"tasks": {"t": task}, "model": model, **fields}
        return str(_scores(results, **whole)[0].fingerprint)

    same = {**task, "n_docs": 5, "decoding": {"trajectory": True, "steps": 8, "near_tie": True}}
    assert made(tasks={"t": same}) == made(arguments | {"pretrained": "n"}, model={**model, "name": "n"}) == made()
    others = [
        *(made(tasks={"t": {**task, name: value}})
          for name, value in (("fingerprint", "g"), ("decoding", {"steps": 9}), ("likelihood", {"mc_num": 1}))),
        made(arguments | {"mask_id": 7}),
        made(model={**model, "dtype": "bfloat16"}),
        made(seeds=(0, 0, 1, 0)),
        made(repeats=2),
    ]  # fmt: skip
    assert len({*others, made()}) == len(others) + 1


def test_the_headline_is_the_metric_people_quote() -> None:
    results = {"results": {"t": {"alias": "t", "acc,none": 0.2, "acc_stderr,none": "N/A", "acc_norm,none": 0.3}}}
    result = headline(_scores(results), "t")
    assert result is not None and result.metric == "acc_norm" and result.stderr is None


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        (("exact_match", "math_verify"), "math_verify"),  # minerva_math: the exact match reads one phrase only
        (("accuracy", "pass@1", "pass@8"), "accuracy"),  # OpenCompass, repeated
        (("timeout", "humaneval_pass@1"), "humaneval_pass@1"),
        (("pass", "timeout", "score"), "score"),
        (("sample_accuracy", "digit"), "sample_accuracy"),
    ],
)
def test_the_headline_knows_both_harnesses_names(metrics: tuple[str, ...], chosen: str) -> None:
    result = headline(_scores({"results": {"t": {f"{metric},none": 0.5 for metric in metrics}}}), "t")
    assert result is not None and result.metric == chosen


def test_scores_say_how_many_answers_could_be_read() -> None:
    results = {
        "results": {
            "g": {"acc,strict": 0.5},
            "a": {"acc,strict": 0.5, "acc,flexible": 0.5},
            "b": {"acc,strict": 0.5, "f1,none": 0.5},
        },
        "group_subtasks": {"g": ["a", "b"], "a": [], "b": []},
    }
    extraction = {
        "a": {"strict": {"matched": 6, "no_match": 2}, "flexible": {"ambiguous": 8}},
        "b": {"strict": {"truncated": 2}},
    }
    rates = {(s.task, s.filter): s.extraction_rate for s in _scores(results, extraction=extraction)}
    assert rates == {
        ("g", "strict"): 0.6,
        ("a", "strict"): 0.75,
        ("a", "flexible"): 1.0,
        ("b", "strict"): 0.0,
        ("b", "none"): None,
    }


def _scores(results: dict, **fields: Any) -> list:  # type: ignore[type-arg]
    block = Block.model_validate(
        {
            "status": "complete", "run_id": "r", "created": "2026-11-20", "seeds": (0, 0, 0, 0),
            "model": {"name": "m", "family": "f", "content_hash": "h", "dtype": "float32"},
            "harness": {"name": "lm-eval", "version": "1"},
            "tasks": {name: {"fingerprint": name, "n_docs": 4, "n_total": 4, "tier": tier}
                      for name, tier in (("t", "E1"), ("a", "E1"), ("b", "A"))},
            **fields,
        }
    )  # fmt: skip
    return scores_of(results, block)


def test_a_group_sums_its_members() -> None:
    results = {
        "results": {"g": {"acc,none": 0.5, "acc_stderr,none": 0.1}, "a": {"acc,none": 0.5}, "b": {"acc,none": 0.5}},
        "group_subtasks": {"g": ["a", "b"], "a": [], "b": []},
        "n-samples": {"a": {"effective": 4}, "b": {"effective": 4}},
    }
    group = _scores(results)[0]
    assert (group.task, group.is_group, group.n, group.n_total, group.tier) == ("g", True, 8, 8, "A")
    built = confidence_intervals(results, {})  # without the documents its error is all there is
    assert built["g"]["acc,none"].method == "normal" and built["g"]["acc,none"].n == 8 and "a" not in built


@pytest.mark.parametrize(("group", "weights"), [(0.125, (0.25, 0.75)), (0.25, (0.5, 0.5)), (0.3, None)])
def test_the_interval_of_a_group_comes_from_its_tasks(group: float, weights: tuple[float, float] | None) -> None:
    """By their sizes, or all alike, whichever gives its score; at any depth. Where none does, by its standard error."""
    right = {"a": [True] * 5 + [False] * 5, "b": [False] * 30}
    results = {
        "results": {"a": {"acc,none": 0.5}, "b": {"acc,none": 0.0}},
        "groups": {name: {"acc,none": group, "acc_stderr,none": 0.4} for name in ("outer", "g")},
        "group_subtasks": {"outer": ["g"], "g": ["a", "b"], "a": [], "b": []},
        "n-samples": {name: {"effective": len(values)} for name, values in right.items()},
    }
    samples = {name: [{"metrics": ["acc"], "acc": value} for value in values] for name, values in right.items()}
    built = confidence_intervals(results, samples)
    assert built["g"] == built["outer"]
    result = built["g"]["acc,none"]
    if weights is None:
        assert (result.method, result.lo) == ("normal", 0.0) and result.hi == 1.0
    else:
        expected = group_interval([wilson(5, 10), wilson(0, 30)], [0.5, 0.0], weights)
        assert expected is not None and (result.method, result.lo, result.hi) == (
            "Wilson over tasks and MOVER", expected.lo, expected.hi,
        )  # fmt: skip


def test_a_group_of_wrong_answers_alone_is_not_certain() -> None:
    results = {
        "results": {name: {"acc,none": 0.0, "acc_stderr,none": 0.0} for name in ("g", "a", "b")},
        "group_subtasks": {"g": ["a", "b"], "a": [], "b": []},
        "n-samples": {name: {"effective": 10} for name in "ab"},
    }
    samples = {name: [{"metrics": ["acc"], "acc": 0.0}] * 10 for name in "ab"}
    result = confidence_intervals(results, samples)["g"]["acc,none"]
    assert result.lo == 0.0 and result.hi == pytest.approx(0.2775 / 2**0.5, abs=1e-3)


def test_members_survive_a_loop() -> None:
    assert members({"group_subtasks": {"g": ["h", "x"], "h": ["g", "y"]}}, "g") == ["x", "y"]


def test_intervals_come_from_documents_only_where_the_score_is_their_mean() -> None:
    rows = [{"filter": "none", "metrics": ["acc", "f1", "many"], "acc": bool(i % 2), "f1": 0.1 * i, "many": [1, i % 2]}
            for i in range(10)]  # fmt: skip
    results = {"results": {"t": {"acc,none": 0.5, "f1,none": 0.99, "many,none": 0.75}}}
    built = confidence_intervals(results, {"t": rows})["t"]
    assert built["acc,none"].method == "Wilson"
    assert "f1,none" not in built  # an F1 over all documents is no mean of theirs, and lm-eval gave no error
    assert "documents" in built["many,none"].method


def test_weakest_tier() -> None:
    assert weakest(["E0", "E2", None]) == "E2" and weakest([]) is None


def test_lm_eval_prints_our_file(tmp_path: Path) -> None:
    utils = need_package("lm_eval.utils")
    run = Run(make_run(tmp_path, tasks={"dare_sudoku": 0.9, "choice_x": 0.5}, n_docs=1))
    table = utils.make_table(run.results)
    assert "dare_sudoku" in table and "exact_match" in table and "N/A" in table


def test_reading_needs_no_torch() -> None:
    import subprocess
    import sys

    modules = "dare_bench.runs.reader, dare_bench.leaderboards.builder, dare_bench.cli.show"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
