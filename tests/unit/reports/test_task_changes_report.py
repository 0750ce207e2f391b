"""A task that changed between two runs is told, and in how many documents."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

from run_factory import make_run

from dare_bench.analysis.task_changes import TaskChange, shared_tasks
from dare_bench.reports.elements import markdown
from dare_bench.reports.scores_report import task_elements
from dare_bench.runs.reader import Run


def _run(root: Path, name: str, hashes: dict[int, str] | None = None, version: str = "0.4.13", **more: Any) -> Run:
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
    (result,) = shared_tasks([_run(tmp_path, "a"), _run(tmp_path, "b")])
    assert not result.changes
    assert "Same prompts, targets, filters and scorer in all runs: gsm8k." in markdown(task_elements([result]))


def test_another_definition_breaks_the_comparison(tmp_path: Path) -> None:
    (requested,) = shared_tasks([_run(tmp_path, "a"), _run(tmp_path, "b", fingerprint="fixed", version="0.4.14")])
    (result,) = requested.changes
    assert len(result.breaks) == 1
    assert "prompts, filters or scorer changed between these runs: their scores aren't comparable" in result.breaks[0]
    assert result.notes == ("the harness's version changed too: 0.4.13 and 0.4.14",)
    text = markdown(task_elements([requested]))
    assert "gsm8k: a and b" in text and "aren't comparable" in text


def test_changed_prompts_are_counted(tmp_path: Path) -> None:
    (result,) = _between(_run(tmp_path, "a"), _run(tmp_path, "b", {3: "x", 4: "y"}, prompts="new"))
    assert result.breaks == ("of 10 documents in both runs, these differ: the prompt in 2",)


def test_more_documents_alone_break_nothing(tmp_path: Path) -> None:
    (result,) = shared_tasks([_run(tmp_path, "a", n_docs=4, limit=4), _run(tmp_path, "b")])
    output = "not the same documents: 4 are in both runs, 6 only in the first, 0 only in the second"
    assert result.changes == (TaskChange("b", "a", (), (output,), result.changes[0].counts),)
    text = markdown(task_elements([result]))
    assert output in text and "Same prompts" not in text


def test_without_sample_lines_the_worst_is_assumed(tmp_path: Path) -> None:
    first, second = _run(tmp_path, "a"), _run(tmp_path, "b", prompts="new")
    path = second.samples_file("gsm8k")
    assert path is not None
    path.unlink()
    (result,) = _between(first, second)
    assert result.breaks == ("the documents or prompts differ (10 and 10 documents): their scores aren't comparable",)


def test_runs_of_one_task_and_harness_are_compared(tmp_path: Path) -> None:
    runs = [_run(tmp_path, name) for name in "abc"]
    other = _run(tmp_path, "d")
    assert other.block is not None
    other.block.harness.name = "opencompass"
    lone = Run(make_run(tmp_path, "e", tasks={"mmlu": 0.5}))
    (result,) = shared_tasks([*runs, other, lone])
    assert not result.changes and result.harness == "lm-eval"
    assert list(task_elements(shared_tasks([runs[0], other, lone]))) == []


def test_two_configs_of_one_name_are_no_change(tmp_path: Path) -> None:
    runs = [_run(tmp_path, "a"), _run(tmp_path, "b", fingerprint="other", prompts="other")]
    for run, config in zip(runs, ("hellaswag_gen", "hellaswag_ppl"), strict=True):
        run.results["configs"]["gsm8k"] = {"config": config}
    (result,) = _between(*runs)
    assert result.breaks == (
        "two configs of one data set, with different prompts or scorer: hellaswag_gen and hellaswag_ppl",
    )


def test_three_runs_are_told_apart_whatever_their_order(tmp_path: Path) -> None:
    runs = [_run(tmp_path, "a"), _run(tmp_path, "b", {3: "x"}, prompts="new"), _run(tmp_path, "c")]
    runs[1].results["chat_template_sha"] = "81ccac1e89fc1d03"
    reported = {markdown(task_elements(shared_tasks(order))) for order in permutations(runs)}
    assert len(reported) == 1
    (text,) = reported
    assert "Same prompts" not in text and "gsm8k: a and b" in text and "a and c" not in text
    assert "of 10 documents in both runs, these differ: the prompt in 1\n" in text
    assert "chat template: not applied and 81ccac1e89fc…" in text


def test_folders_of_one_run_id_are_told_apart_by_path(tmp_path: Path) -> None:
    runs = [_run(tmp_path / "x", "a"), _run(tmp_path / "y", "a", fingerprint="other")]
    text = markdown(task_elements(shared_tasks(runs))).replace("\\", "")
    assert f"{runs[0].path} and {runs[1].path}" in text
    assert shared_tasks([runs[0], Run(runs[0].path)]) == [], "one folder twice is one run"
