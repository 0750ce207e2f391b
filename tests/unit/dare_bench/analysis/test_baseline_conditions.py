"""Runs that were asked otherwise than a baseline, are incomplete or cannot be read: what is said, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_factory import TASK, changed, made, make_run, raise_scores

from dare_bench.analysis import regression
from dare_bench.analysis.baseline import Baseline
from dare_bench.analysis.baseline_conditions import mismatches
from dare_bench.errors import IncompleteError, RunError, UsageError
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE, file_digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decoding": {"steps": 8}}, "steps of dare_sudoku: the baseline has 16, the run 8"),
        ({"fingerprint": "new"}, "definition of dare_sudoku"),
        ({"n_docs": 10}, r"documents of dare_sudoku \(--limit\): the baseline has 20, the run 10, without 10, 11"),
        ({"tasks": {"other": 0.9}}, "tasks: the baseline has dare_sudoku, the run other"),
    ],
)
def test_a_run_that_was_asked_otherwise_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    item = made(tmp_path / "a")
    run = Run(make_run(tmp_path / "b", **options))
    with pytest.raises(UsageError, match=said) as caught:
        regression.judge(run, item)
    assert "--update" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda r: r.update(seeds=[0, 1234, 7, 1234]),
            "sampling seed: the baseline has 7, the run 1234",
        ),
        (lambda r: r.update(harness="opencompass"), "harness: the baseline has opencompass"),
        (lambda r: r.update(repeats=4), "answers to each prompt"),
        (
            lambda r: r["tasks"][TASK]["documents"]["3"].__setitem__(0, "other"),
            "prompts or targets of dare_sudoku.*in 3",
        ),
        (lambda r: r["tasks"][TASK].update(answers="text"), "what its answers are compared by"),
        (
            lambda r: r["tasks"][TASK]["decoding"].update(top_p=0.5),
            "top_p.*0.5, the run not set",
        ),
    ],
)
def test_every_difference_is_named(tmp_path: Path, change: Callable[[Any], None], said: str) -> None:
    item = made(tmp_path)
    with pytest.raises(UsageError, match=said):
        regression.judge(Run(tmp_path / "tiny-llada-dare_sudoku-0123abcd"), changed(item, change))


def test_a_setting_that_differs_is_named_for_each_task(tmp_path: Path) -> None:
    def steps(**values: int) -> Baseline:
        def own(record: dict[str, Any]) -> None:
            for task, value in values.items():
                record["tasks"][task]["decoding"]["steps"] = value

        return changed(made(tmp_path, tasks=dict.fromkeys(values, 0.9)), own)

    result = mismatches(steps(a=20, b=4, c=1), steps(a=2, b=2, c=1))
    assert [(item.name, item.expected, item.seen) for item in result] == [
        ("steps of a", "20", "2"), ("steps of b", "4", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(("place", "name"), [("checkpoint", "family"), ("", "harness")])
def test_of_another_family_or_harness_nothing_else_is_said(tmp_path: Path, place: str, name: str) -> None:
    item = made(tmp_path)
    other = changed(item, lambda r: (r[place] if place else r).update({name: "opencompass"}))
    other = changed(other, lambda r: r["tasks"][TASK]["decoding"].update(steps=1, alg="entropy"))
    (result,) = mismatches(item, other)
    assert result.name == name and not result.renewable
    with pytest.raises(UsageError) as caught:
        regression.judge(Run(tmp_path / "tiny-llada-dare_sudoku-0123abcd"), other)
    assert "--update" not in str(caught.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "what"),
    [
        ({}, {"chat template": "ab…"}, "chat template"),
        ({"chat template": "ab…"}, {}, "chat template"),
        ({"examples (n-shot)": 5, "few-shot seed": 1}, {}, "examples (n-shot)"),
        ({}, {"system instruction": "Be brief."}, "system instruction"),
        ({}, {}, "prompts or targets"),
    ],
)
def test_what_stood_around_the_documents_is_named(
    tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any], what: str
) -> None:
    item = made(tmp_path)
    assert item.tasks[TASK].around == {"chat template": "not applied", "examples (n-shot)": 0}

    def other(record: dict[str, Any]) -> None:
        record["tasks"][TASK]["around"].update(theirs)
        record["tasks"][TASK]["documents"]["3"][0] = "other"

    before = changed(item, lambda r: r["tasks"][TASK]["around"].update(ours))
    assert [difference.name for difference in mismatches(before, changed(item, other))] == [f"{what} of {TASK}"]


def test_special_ids_belong_to_the_checkpoint(tmp_path: Path) -> None:
    item = made(tmp_path / "a", decoding={"mask_id": 301})
    run = Run(make_run(tmp_path / "b", decoding={"mask_id": 302}))
    with pytest.raises(UsageError, match="mask_id"):
        regression.judge(run, item)
    assert not regression.judge(run, changed(item, lambda r: r["checkpoint"].update(content_hash="other"))).regressed


@pytest.mark.parametrize(
    "options", [{"status": "incomplete", "failures": 2}, {"done": False}, {"limit": 20, "n_docs": 20}], ids=str
)
def test_an_incomplete_run_is_not_judged(tmp_path: Path, options: dict[str, Any]) -> None:
    item = made(tmp_path / "a", n_docs=20)
    with pytest.raises(IncompleteError) as caught:
        regression.judge(Run(make_run(tmp_path / "b", **options)), item)
    assert caught.value.exit_code == 4


def test_a_run_without_sample_lines_or_with_edited_ones_cannot_be_judged(tmp_path: Path) -> None:
    item = made(tmp_path)
    run = tmp_path / "tiny-llada-dare_sudoku-0123abcd"
    (samples,) = run.glob("samples_*")
    samples.write_text(samples.read_text() + "\n")
    with pytest.raises(RunError, match="changed after the run"):
        regression.judge(Run(run), item)
    samples.unlink()
    with pytest.raises(RunError, match="no sample lines of dare_sudoku"):
        regression.judge(Run(run), item)


@pytest.mark.parametrize("digest", [True, False])
def test_edited_results_are_not_judged(tmp_path: Path, digest: bool) -> None:
    """Not even where the run is too old to know the digest of its results."""
    item = made(tmp_path / "a", tasks={TASK: 0.4333}, n_docs=30)
    run = make_run(tmp_path / "b", tasks={TASK: 0.4333}, n_docs=30)
    if digest:
        known = {"results_sha256": file_digest(next(run.glob("results_*")))}
        (run / DONE_FILE).write_text(json.dumps(known))
    assert not regression.judge(Run(run), item).regressed
    raise_scores(run)
    with pytest.raises(RunError, match="was changed after the run" if digest else "mean over its sample lines 0.433"):
        regression.judge(Run(run), item)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        (({"sampler": "ast:old"},), "a different program version answered .sampler ast:old -> "),
        (({"torch": "1.0"},), "torch 1.0 -> "),
        (({}, {"threads": "9"}), r"answered by 2 programs: .*\(threads none -> 9\)"),
        ((), "the program that answered was not recorded"),
    ],
)
def test_answers_of_another_program_are_not_taken_for_ours(
    tmp_path: Path, programs: tuple[dict[str, str], ...], said: str
) -> None:
    item = made(tmp_path / "a")
    run = Run(make_run(tmp_path / "b", programs=programs))
    with pytest.raises(RunError, match=said) as caught:
        regression.judge(run, item)
    assert "--any-program" in str(caught.value) and "--fresh" in str(caught.value)
    assert not regression.judge(run, item, any_program=True).regressed
    same = Run(make_run(tmp_path / "c", programs=({"device": "other", "threads": "9"},)))  # the run's own affair
    assert not regression.judge(same, item).regressed


@pytest.mark.parametrize("effect", [-0.1, float("nan")])
def test_a_smallest_effect_that_cannot_be(tmp_path: Path, effect: float) -> None:
    item = made(tmp_path)
    with pytest.raises(UsageError, match="smallest effect"):
        regression.judge(Run(tmp_path / "tiny-llada-dare_sudoku-0123abcd"), item, effect)
