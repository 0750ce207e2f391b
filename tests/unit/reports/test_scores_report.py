"""Scores of runs in a report: what stands beside a number that a reader must know, and that a task changed between
two runs."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

from run_factory import make_run

from dare_bench.analysis.task_changes import TaskChange, shared_tasks
from dare_bench.reports.elements import markdown
from dare_bench.reports.scores_report import elements, record, task_elements
from dare_bench.runs.reader import Run


def _run(root: Path, name: str = "a", block: dict[str, Any] | None = None, answers: int = 1, **more: Any) -> Run:
    run = Run(make_run(root, name, **more))
    assert run.results_file is not None
    results = json.loads(run.results_file.read_text())
    results["dare_bench"] |= block or {}
    for own in results["dare_bench"]["tasks"].values():
        own["requests"] *= answers
    run.results_file.write_text(json.dumps(results))
    return Run(run.path)


def _text(*runs: Run) -> str:
    return markdown(elements(runs)).replace("\\", "")


def test_one_run_in_full(tmp_path: Path) -> None:
    text = _text(_run(tmp_path, tasks={"dare_sudoku": 0.9, "choice_x": 0.5}, limit=20))
    assert "tiny-llada (llada, float32) under lm-eval 0.4.13, complete, limited, 2026-11-20 10:30" in text
    assert "| dare_sudoku | exact_match | 90.00 | 69.90 to 97.21 | 20 of 200 | E1 |" in text
    assert "| choice_x | acc | 50.00 | 29.93 to 70.07 | 20 of 200 | E2 |" in text


def test_extraction_failures_and_the_sandbox_are_said(tmp_path: Path) -> None:
    counts = {"matched": 15, "no_match": 3, "truncated": 2, "ambiguous": 0}
    block = {
        "extraction": {"dare_sudoku": {"none": counts}}, "repeats": 2,
        "execution": {"level": "bubblewrap", "statuses": {"passed": 3, "timeout": 1}},
    }  # fmt: skip
    run = _run(tmp_path, block=block, failures=2, status="incomplete", answers=2)
    text = _text(run)
    assert "| E1 | 75.00 |" in text and "| extracted |" in text
    assert "- extracted from answers, dare_sudoku (none): matched 15, no match 3, truncated 2" in text
    assert "- 2 documents have no answer and are left out, the first: dare_sudoku 19: the prompt is too long" in text
    assert "- 2 answers to each prompt" in text
    assert "- generated code ran in bubblewrap: passed 3, timeout 1" in text
    unsafe = _run(tmp_path, "b", {"execution": {"level": "none", "unsafe": True, "statuses": {"passed": 1}}})
    assert "without a sandbox (--unsafe-no-sandbox): passed 1" in _text(unsafe)
    built = record(run)
    assert built["scores"][0]["extraction_rate"] == 0.75 and built["failures"] == 2
    assert built["execution"]["statuses"] == {"passed": 3, "timeout": 1}


def test_noise_of_draws_is_told_of_headline_scores(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", tasks={"choice_x": 0.5}, limit=20)
    results_file = Run(path).results_file
    assert results_file is not None
    results = json.loads(results_file.read_text())
    results["dare_bench"]["ci"]["choice_x"]["acc,none"]["draws"] = {"sd": 0.01, "undecided": 3}
    results_file.write_text(json.dumps(results))
    note = (
        "choice_x acc: other random draws may change 3 of 20 documents, and the score by 1.00 points (sd over seeds)."
        " Their noise alone makes two runs differ by up to 2.77 points"
    )
    assert f"- {note}" in _text(Run(path))
    assert f"- a: {note}" in _text(Run(path), *(_run(tmp_path, name) for name in "bc"))
    assert "random draws" not in _text(_run(tmp_path, "d", tasks={"choice_x": 0.5}))


def test_many_tasks_are_summed(tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(6)]
    result = {name: {"none": {"matched": 10 - i, "no_match": i}} for i, name in enumerate(names)}
    run = _run(tmp_path, tasks=dict.fromkeys(names, 0.5), block={"extraction": result})
    text = _text(run)
    assert "extracted from answers, 6 tasks: matched 45, no match 15; lowest in t5 (none): 50.00%" in text
    assert text.count("extracted from answers") == 1
    assert [score.extraction_rate for score in run.scores()] == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]


def test_more_than_two_runs_are_one_table(tmp_path: Path) -> None:
    runs = [_run(tmp_path, name, tasks={name: 0.5}) for name in "ab"]
    odd = _run(tmp_path, "c", {"execution": {"level": "none", "unsafe": True}}, tasks={"humaneval": 0.5})
    unfinished = tmp_path / "d"
    unfinished.mkdir()
    (unfinished / "run.json").write_text('{"run_id": "d"}')
    text = _text(*runs, odd)
    assert (
        "All: tiny-llada under lm-eval." in text
        and "| task | metric | % |" in text
        and "- c: generated code ran without" in text
    )
    text = _text(*runs, odd, Run(unfinished))
    assert "| task | metric |" in text, "a run without scores is no second model"
    assert "- d: no results yet (status running)" in text
    assert "No results yet (status running)" in _text(Run(unfinished))


def test_a_group_stands_for_its_tasks(tmp_path: Path) -> None:
    run = _run(tmp_path, tasks={"x": 0.5, "y": 1.0}, block={
        "extraction": {"x": {"none": {"matched": 1, "no_match": 1}}, "y": {"none": {"matched": 2}}}
    })  # fmt: skip
    assert run.results_file is not None
    results = json.loads(run.results_file.read_text())
    results["results"]["both"] = {"exact_match,none": 0.75}
    results["group_subtasks"]["both"] = ["x", "y"]
    run.results_file.write_text(json.dumps(results))
    text = _text(Run(run.path))
    assert "| both | exact_match | 75.00 |" in text and "| x |" not in text
    assert "| 75.00 |\n" in text, "the group's extraction rate is over all its answers"


def test_rows_that_would_look_alike_are_told_apart(tmp_path: Path) -> None:
    runs = [_run(tmp_path, name, tasks={"hellaswag": 0.5}) for name in "abc"]
    assert "| run | task | metric |" in _text(*runs) and "| b | hellaswag |" in _text(*runs)
    for run, config in zip(runs, ("hellaswag_gen", "hellaswag_ppl", "hellaswag_x"), strict=True):
        run.results["configs"]["hellaswag"] = {"config": config}
    assert "| config | task | metric |" in _text(*runs) and "| hellaswag_ppl | hellaswag |" in _text(*runs)
    other = _run(tmp_path, "d", model="tiny-dream", tasks={"hellaswag": 0.5})
    assert other.block is not None
    other.block.harness.name = "opencompass"
    text = _text(*runs, other)
    assert "| model | harness | config | task |" in text and "| tiny-dream | oc | hellaswag | hellaswag |" in text
    twin = _run(tmp_path / "twin", "a", tasks={"hellaswag": 0.5})
    assert f"| {twin.path} |" in _text(twin, *(_run(tmp_path, name, tasks={"hellaswag": 0.5}) for name in "ab"))


def test_pass_at_k_and_repeats_are_in_the_table_of_many_runs(tmp_path: Path) -> None:
    run = _run(tmp_path, "a", {"repeats": 4}, answers=4, tasks={"humaneval": 0.5})
    run.results["results"]["humaneval"] |= {"pass@2,none": 0.75, "pass@4,none": 0.875, "other,none": 0.1}
    text = _text(run, *(_run(tmp_path, name, tasks={name: 0.5}) for name in "bc"))
    assert "| humaneval | pass@2 | 75.00 |" in text and "| humaneval | pass@4 | 87.50 |" in text
    assert "| exact_match | 50.00 |" in text and "| other |" not in text
    assert "- a: 4 answers to each prompt; intervals count documents" in text and "- b:" not in text


def test_a_filter_is_named_with_its_metric(tmp_path: Path) -> None:
    run = _run(tmp_path, tasks={"gsm8k": 0.5})
    run.results["results"]["gsm8k"]["exact_match,strict-match"] = 0.25
    text = _text(run)
    assert "| exact_match,strict-match | 25.00 |" in text and "| exact_match | 50.00 |" in text


def _changed_run(
    root: Path, name: str, hashes: dict[int, str] | None = None, version: str = "0.4.13", **more: Any
) -> Run:
    """A run whose prompts' hashes are their numbers, but for ``hashes``."""
    run = Run(make_run(root, name, **{"n_docs": 10, "tasks": {"gsm8k": 0.5}, **more}))
    path = run.samples_file("gsm8k")
    assert path is not None and run.results_file is not None
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["prompt_hash"], row["target_hash"] = (hashes or {}).get(row["doc_id"], str(row["doc_id"])), "t"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = json.loads(run.results_file.read_text())
    results["dare_bench"]["harness"]["version"] = version
    run.results_file.write_text(json.dumps(results))
    return Run(run.path)


def _between(*runs: Run) -> tuple[TaskChange, ...]:
    (requested,) = shared_tasks(runs)
    return requested.changes


def test_the_same_task_is_said_to_be_the_same(tmp_path: Path) -> None:
    (result,) = shared_tasks([_changed_run(tmp_path, "a"), _changed_run(tmp_path, "b")])
    assert not result.changes
    assert "Same prompts, targets, filters and scorer in all runs: gsm8k." in markdown(task_elements([result]))


def test_another_definition_breaks_the_comparison(tmp_path: Path) -> None:
    (requested,) = shared_tasks(
        [_changed_run(tmp_path, "a"), _changed_run(tmp_path, "b", fingerprint="fixed", version="0.4.14")]
    )
    (result,) = requested.changes
    assert len(result.breaks) == 1
    assert "prompts, filters or scorer changed between these runs: their scores aren't comparable" in result.breaks[0]
    assert result.notes == ("the harness's version changed too: 0.4.13 and 0.4.14",)
    text = markdown(task_elements([requested]))
    assert "gsm8k: a and b" in text and "aren't comparable" in text


def test_changed_prompts_are_counted(tmp_path: Path) -> None:
    (result,) = _between(_changed_run(tmp_path, "a"), _changed_run(tmp_path, "b", {3: "x", 4: "y"}, prompts="new"))
    assert result.breaks == ("of 10 documents in both runs, these differ: the prompt in 2",)


def test_more_documents_alone_break_nothing(tmp_path: Path) -> None:
    (result,) = shared_tasks([_changed_run(tmp_path, "a", n_docs=4, limit=4), _changed_run(tmp_path, "b")])
    output = "not the same documents: 4 are in both runs, 6 only in the first, 0 only in the second"
    assert result.changes == (TaskChange("b", "a", (), (output,), result.changes[0].counts),)
    text = markdown(task_elements([result]))
    assert output in text and "Same prompts" not in text


def test_without_sample_lines_the_worst_is_assumed(tmp_path: Path) -> None:
    first, second = _changed_run(tmp_path, "a"), _changed_run(tmp_path, "b", prompts="new")
    path = second.samples_file("gsm8k")
    assert path is not None
    path.unlink()
    (result,) = _between(first, second)
    assert result.breaks == ("the documents or prompts differ (10 and 10 documents): their scores aren't comparable",)


def test_runs_of_one_task_and_harness_are_compared(tmp_path: Path) -> None:
    runs = [_changed_run(tmp_path, name) for name in "abc"]
    other = _changed_run(tmp_path, "d")
    assert other.block is not None
    other.block.harness.name = "opencompass"
    lone = Run(make_run(tmp_path, "e", tasks={"mmlu": 0.5}))
    (result,) = shared_tasks([*runs, other, lone])
    assert not result.changes and result.harness == "lm-eval"
    assert list(task_elements(shared_tasks([runs[0], other, lone]))) == []


def test_two_configs_of_one_name_are_no_change(tmp_path: Path) -> None:
    runs = [_changed_run(tmp_path, "a"), _changed_run(tmp_path, "b", fingerprint="other", prompts="other")]
    for run, config in zip(runs, ("hellaswag_gen", "hellaswag_ppl"), strict=True):
        run.results["configs"]["gsm8k"] = {"config": config}
    (result,) = _between(*runs)
    assert result.breaks == (
        "two configs of one data set, with different prompts or scorer: hellaswag_gen and hellaswag_ppl",
    )


def test_three_runs_are_told_apart_whatever_their_order(tmp_path: Path) -> None:
    runs = [
        _changed_run(tmp_path, "a"),
        _changed_run(tmp_path, "b", {3: "x"}, prompts="new"),
        _changed_run(tmp_path, "c"),
    ]
    runs[1].results["chat_template_sha"] = "81ccac1e89fc1d03"
    reported = {markdown(task_elements(shared_tasks(order))) for order in permutations(runs)}
    assert len(reported) == 1
    (text,) = reported
    assert "Same prompts" not in text and "gsm8k: a and b" in text and "a and c" not in text
    assert "of 10 documents in both runs, these differ: the prompt in 1\n" in text
    assert "chat template: not applied and 81ccac1e89fc…" in text


def test_folders_of_one_run_id_are_told_apart_by_path(tmp_path: Path) -> None:
    runs = [_changed_run(tmp_path / "x", "a"), _changed_run(tmp_path / "y", "a", fingerprint="other")]
    text = markdown(task_elements(shared_tasks(runs))).replace("\\", "")
    assert f"{runs[0].path} and {runs[1].path}" in text
    assert shared_tasks([runs[0], Run(runs[0].path)]) == [], "one folder twice is one run"
