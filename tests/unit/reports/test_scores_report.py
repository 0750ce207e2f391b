"""Scores of runs in a report: what stands beside a number that a reader must know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from run_factory import make_run

from dare_bench.reports.elements import markdown
from dare_bench.reports.scores_report import elements, record
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
