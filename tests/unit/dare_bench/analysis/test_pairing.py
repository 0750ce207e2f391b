"""One score of two runs paired by document: values, what differs, what cannot be paired, and which scores answer the
question as it is now."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_factory import make_run

from dare_bench.analysis.pairing import NotPooledError, pair
from dare_bench.analysis.settings import prompt_context
from dare_bench.analysis.task_changes import DatedScore, current, question_difference, task_change
from dare_bench.errors import IncompleteError, RunError, UnknownNameError, UsageError
from dare_bench.runs.reader import Run

KEY = "exact_match,none"


def _run(root: Path, name: str, values: dict[str, list[float]], **more: Any) -> Run:
    """A run whose documents are those of every other run made here."""
    return Run(make_run(root, name, values=values, documents="same", **more))


def _edit(run: Run, change: Callable[[dict[str, Any]], None]) -> Run:
    """The run with its results file changed."""
    assert run.results_file is not None
    results = json.loads(run.results_file.read_text())
    change(results)
    run.results_file.write_text(json.dumps(results))
    return Run(run.path)


def _rows(run: Run, task: str, change: Callable[[dict[str, Any]], None]) -> Run:
    """The run with every sample line of a task changed."""
    path = run.samples_file(task)
    assert path is not None
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(run.path)


def _group(run: Run, value: float) -> Run:
    """The run with a group "both" of its tasks that scores ``value``."""

    def change(results: dict[str, Any]) -> None:
        row = {"alias": "both", KEY: value, "exact_match_stderr,none": 0.01}
        results["groups"], results["results"]["both"] = {"both": row}, row
        results["group_subtasks"]["both"] = list(results["configs"])
        results["higher_is_better"]["both"] = {"exact_match": True}

    return _edit(run, change)


def test_documents_are_paired_by_their_ids(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"t": [1, 0, 1, 1, 0]}), _run(tmp_path, "b", {"t": [1, 1, 0, 1, 1]})
    path = b.samples_file("t")
    assert path is not None
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    result = pair(a, b, "t")
    assert result.key == KEY and result.ids == ["0", "1", "2", "3", "4"]
    assert (result.first, result.second) == ([1, 0, 1, 1, 0], [1, 1, 0, 1, 1])
    assert (result.only_first, result.only_second, b.failed_documents("t")) == (0, 0, 0)
    assert result.breaks == [] and result.differences == {} and result.higher_is_better is True
    change = result.difference()
    assert (change.value, change.won, change.lost, change.p) == (pytest.approx(0.2), 2, 1, 1.0)


def test_what_one_run_alone_has_is_counted_and_left_out(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"t": [1, 0, 1, 1, 0, 1]})
    b = _run(tmp_path, "b", {"t": [1, 1, 0]}, limit=5, failures=2, status="incomplete")
    result = pair(a, b, "t")
    assert result.ids == ["0", "1", "2"] and result.breaks == []
    assert (result.only_first, result.only_second, b.failed_documents("t")) == (3, 0, 2)


def test_documents_without_a_value_are_left_out(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"t": [1, 0, 1, 0]}), _run(tmp_path, "b", {"t": [1, 1, 0, 0]})
    b = _rows(b, "t", lambda row: row.update(exact_match=None) if row["doc_id"] in (1, 2) else None)
    result = pair(a, b, "t")
    assert result.ids == ["0", "3"] and result.only_first == 2 and result.breaks == []


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"t": [1, 0]})
    b = _run(tmp_path, "b", {"t": [1, 0]}, decoding={"gen_length": 32, "trajectory": False})

    def change(results: dict[str, Any]) -> None:
        block = results["dare_bench"]
        block["model"] |= {"content_hash": "sha256:other", "dtype": "bfloat16", "adapter_hash": "sha256:lora"}
        block["seeds"], block["harness"]["version"] = (0, 1234, 7, 1234), "0.5.0"

    result = pair(a, _edit(b, change), "t")
    assert result.differences == {
        "checkpoint": ("sha256:" + "ab" * 32, "sha256:other"),
        "adapter": (None, "sha256:lora"),
        "dtype": ("float32", "bfloat16"),
        "harness": ("lm-eval 0.4.13", "lm-eval 0.5.0"),
        "sampling seed": (1234, 7),
        "gen_length": (16, 32),
    }
    assert result.breaks == [], "settings are the caller's business"


def test_another_definition_does_not_compare(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"t": [1, 0]})
    b = _run(tmp_path, "b", {"t": [1, 1]}, fingerprint="new")
    (text,) = pair(a, b, "t").breaks
    assert "prompts, filters or scorer changed" in text


@pytest.mark.parametrize(("field", "word"), [("prompt_hash", "the prompt in 1"), ("target_hash", "the target in 1")])
def test_other_prompts_or_targets_of_the_same_documents_do_not_compare(tmp_path: Path, field: str, word: str) -> None:
    a = _run(tmp_path, "a", {"t": [1, 0]})
    b = _run(tmp_path, "b", {"t": [1, 1, 1]}, prompts="other")
    assert pair(a, b, "t").breaks == [], "one more document is no other question"
    b = _rows(b, "t", lambda row: row.update({field: "new"}) if row["doc_id"] == 1 else None)
    b = _edit(b, lambda results: results.update(system_instruction="Be brief."))
    result = pair(a, b, "t")
    assert any(word in text for text in result.breaks)
    assert result.notes == ["system instruction: not set and Be brief."], "the likely reason is told"


def test_the_documents_of_a_group_are_pooled(tmp_path: Path) -> None:
    a = _group(_run(tmp_path, "a", {"x": [1, 0, 1], "x/y": [0]}), 0.5)
    b = _group(_run(tmp_path, "b", {"x": [1, 1, 1], "x/y": [1]}), 1.0)
    result = pair(a, b, "both")
    assert result.ids == ["x/0", "x/1", "x/2", "x/y/0"] and result.breaks == []
    assert (result.first, result.second) == ([1, 0, 1, 0], [1, 1, 1, 1])


def test_a_group_that_is_no_mean_over_documents_is_refused(tmp_path: Path) -> None:
    a = _group(_run(tmp_path, "a", {"x": [1, 0, 1], "y": [0]}), 1 / 3)  # the plain mean of 2/3 and 0
    b = _group(_run(tmp_path, "b", {"x": [1, 1, 1], "y": [1]}), 1.0)
    with pytest.raises(NotPooledError, match=r"compare its tasks: --task x"):
        pair(a, b, "both")


def test_groups_of_other_tasks_do_not_compare(tmp_path: Path) -> None:
    a = _group(_run(tmp_path, "a", {"x": [1, 0], "y": [1, 1]}), 0.75)
    b = _group(_run(tmp_path, "b", {"x": [1, 0], "z": [1, 1]}), 0.75)
    result = pair(a, b, "both")
    assert result.breaks == ["both does not have the same tasks: only one of the runs has y, z"]
    assert result.ids == ["x/0", "x/1"]


def test_several_parts_of_a_document_weigh_as_in_the_score(tmp_path: Path) -> None:
    """IFEval's instructions: the score is the mean over all of them, not over documents."""
    parts = {"a": [[1, 0, 0], [1]], "b": [[1, 1, 0], [1]]}
    runs = []
    for name, own in parts.items():
        run = _rows(
            _run(tmp_path, name, {"t": [0, 0]}),
            "t",
            lambda row, own=own: row.update(exact_match=own[row["doc_id"]]),  # type: ignore[misc]
        )
        mean = sum(map(sum, own)) / 4
        runs.append(_edit(run, lambda results, mean=mean: results["results"]["t"].update({KEY: mean})))  # type: ignore[misc]
    result = pair(*runs, "t")
    assert result.breaks == [] and result.difference().value == pytest.approx(0.25)
    assert result.second == pytest.approx([1.0, 0.5]), "two and one of four, twice as documents are two"


def test_a_score_that_is_no_mean_does_not_compare(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"t": [1, 0]}), _run(tmp_path, "b", {"t": [1, 1]})
    b = _edit(b, lambda results: results["results"]["t"].update({KEY: 0.3}))
    (text,) = pair(a, b, "t").breaks
    assert "exact_match,none is 0.3, the mean over its sample lines 1" in text
    b = _rows(b, "t", lambda row: row.update(exact_match=["text", 1]))
    (text,) = pair(a, b, "t").breaks
    assert "no values of exact_match,none" in text


def test_likelihood_tasks_and_lower_is_better(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"choice": [0.5, 0.25]}), _run(tmp_path, "b", {"choice": [0.5, 0.75]})
    a = _edit(a, lambda results: results["higher_is_better"]["choice"].update(acc=False))
    result = pair(a, b, "choice")
    assert result.key == "acc,none" and result.higher_is_better is False and result.difference().value == 0.25


def test_what_cannot_be_paired(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"t": [1, 0]}), _run(tmp_path, "b", {"t": [1, 0]})
    with pytest.raises(UnknownNameError, match="unknown task 'T2' in a; closest: t"):
        pair(a, b, "T2")
    with pytest.raises(UnknownNameError, match=r"unknown score 'f1,none' in t of a; known: exact_match,none"):
        pair(a, b, "t", "f1,none")
    other = _edit(_run(tmp_path, "c", {"t": [1, 0]}), lambda r: r["dare_bench"]["harness"].update(name="opencompass"))
    with pytest.raises(UsageError, match="report --agreement"):
        pair(a, other, "t")
    path = b.samples_file("t")
    assert path is not None
    path.unlink()
    with pytest.raises(RunError, match="no sample lines of t; evaluate without --no-log-samples"):
        pair(a, b, "t")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text('{"run_id": "d"}')
    with pytest.raises(IncompleteError, match="no results yet"):
        pair(a, Run(tmp_path / "d"), "t")


def test_no_document_in_common(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"t": [1, 0]}), _run(tmp_path, "b", {"t": [1, 0]}, prompts="other")
    result = pair(a, _rows(b, "t", lambda row: row.update(doc_id=row["doc_id"] + 10)), "t")
    assert result.ids == [] and result.breaks
    with pytest.raises(RunError, match="nothing to pair"):
        result.difference()


def run(root: Path, name: str, template: str = "", shots: int = 0, **options: Any) -> Run:
    folder = make_run(root, name, tasks={"a": 0.5}, **options)
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_bytes())
    results["chat_template"] = template or None
    results["n-shot"] = {"a": shots}
    file.write_text(json.dumps(results))
    return Run(folder)


def dated(run: Run, complete: bool = True) -> DatedScore:
    score = run.headline("a")
    assert score is not None
    return DatedScore(score, run.created, complete, prompt_context(run, "a"))


def test_the_newest_whole_run_of_all_documents_defines_the_current_question(tmp_path: Path) -> None:
    old = dated(run(tmp_path, "old", created="2026-11-01T00:00:00"))
    new = dated(run(tmp_path, "new", fingerprint="v2", created="2026-11-02T00:00:00"))
    limited = dated(run(tmp_path, "limited", limit=5, fingerprint="v3", created="2026-11-03T00:00:00"))
    broken = dated(run(tmp_path, "broken", fingerprint="v4", created="2026-11-04T00:00:00"), complete=False)
    assert current([old, new, limited, broken]) is new and current([limited, broken]) is None
    assert (
        question_difference(old, new) == "definition"
        and question_difference(new, new) is None
        and question_difference(old, None) is None
    )


def test_the_usual_prompts_are_the_question_and_not_the_newest(tmp_path: Path) -> None:
    usual = [dated(run(tmp_path, f"r{at}", created=f"2026-11-0{at}T00:00:00")) for at in (1, 2)]
    other = dated(run(tmp_path, "other", shots=1, prompts="one shot", created="2026-11-09T00:00:00"))
    assert current([*usual, other]) is usual[1]
    assert question_difference(other, usual[1]) == "prompts"


def test_each_checkpoint_may_have_a_chat_template_of_its_own(tmp_path: Path) -> None:
    llada = run(tmp_path, "llada", "<user>{{ x }}", prompts="llada")
    dream = run(tmp_path, "dream", "[INST]{{ x }}", prompts="dream")
    raw = run(tmp_path, "raw", prompts="raw")
    shots = run(tmp_path, "shots", "<bos>{{ x }}", shots=5, prompts="shots")
    same = run(tmp_path, "same", "[INST]{{ x }}", prompts="other data")
    fewer = run(tmp_path, "fewer", "<s>{{ x }}", prompts="fewer", n_docs=10)
    now = dated(dream)
    assert question_difference(dated(llada), now) is None
    assert [question_difference(dated(item), now) for item in (raw, shots, same, fewer)] == ["prompts"] * 4


def test_compared_they_get_a_note_and_no_refusal(tmp_path: Path) -> None:
    def of(name: str, template: str, target: str | None = None) -> Run:
        built = run(tmp_path, name, template, prompts=name)
        file = next(built.path.glob("samples_a_*"))
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row |= {"prompt_hash": f"{name}{row['doc_id']}", "target_hash": f"{target}{row['doc_id']}"}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return built

    llada, dream, raw = of("llada", "<user>"), of("dream", "[INST]"), of("raw", "")
    result = task_change(llada, dream, "a")
    assert not result.breaks and any("its own chat template" in note for note in result.notes)
    assert task_change(llada, raw, "a").breaks and task_change(dream, of("moved", "<x>", "other"), "a").breaks
