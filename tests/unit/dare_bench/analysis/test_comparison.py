"""Runs compared: what is compared, verdicts, refusals and warnings, the documents that changed; and comparisons with
results of other programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_external import DATA, opencompass_predictions, opencompass_results
from require import need_package
from rich.console import Console
from run_factory import make_run
from sudoku_runs import make_sudoku

from dare_bench.analysis.comparison import compare
from dare_bench.analysis.run_finder import open_run
from dare_bench.analysis.task_changes import shared_tasks
from dare_bench.errors import IncompleteError, RunError, UsageError
from dare_bench.reports import comparison_report as report
from dare_bench.reports.elements import markdown, show
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE

KEY = "exact_match,none"
HALF = [1.0, 0.0] * 30
MORE = [1.0, 1.0, 1.0, 0.0] * 15
ALL = [1.0] * 60


def _run(root: Path, name: str, values: dict[str, list[float]], **more: Any) -> Run:
    return Run(make_run(root, name, values=values, documents="same", **more))


def _edit(run: Run, change: Callable[[dict[str, Any]], None]) -> Run:
    assert run.results_file is not None
    results = json.loads(run.results_file.read_text())
    change(results)
    run.results_file.write_text(json.dumps(results))
    return Run(run.path)


def _group(run: Run, value: float) -> Run:
    def change(results: dict[str, Any]) -> None:
        row = {"alias": "both", KEY: value}
        results["groups"], results["results"]["both"] = {"both": row}, row
        results["group_subtasks"]["both"] = list(results["configs"])

    return _edit(run, change)


def test_every_shared_task_against_the_first_run(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"s": HALF, "choice": HALF, "old": ALL})
    b = _run(tmp_path, "b", {"s": MORE, "choice": HALF, "new": ALL})
    c = _run(tmp_path, "c", {"s": [0.0] * 60})
    built = compare([a, b, c])
    assert [(item.first, item.second, item.task, item.key) for item in built.items] == [
        (0, 1, "s", KEY), (0, 1, "choice", "acc,none"), (0, 2, "s", KEY),
    ]  # fmt: skip
    up, same, down = built.items
    assert (up.values, up.verdict, len(up.better), len(up.worse)) == ((0.5, 0.75), "better", 15, 0)
    assert (same.verdict, same.better, same.worse) == ("no difference shown", (), ())
    assert (down.verdict, down.gain.value) == ("worse", -0.5)
    assert built.left_out == [
        "old: only a has it, not b",
        "new: only b has it, not a",
        "choice: only a has it, not c",
        "old: only a has it, not c",
    ]
    assert [(i.first, i.second) for i in compare([a, b, c], all_pairs=True).items] == [(0, 1), (0, 1), (0, 2), (1, 2)]


def test_holm_counts_every_comparison_made(tmp_path: Path) -> None:
    """Six losses alone are significant at 5%; beside another comparison they are not."""
    fewer = [0.0] * 6 + [1.0] * 54
    a, b = _run(tmp_path, "a", {"s": ALL, "t": ALL}), _run(tmp_path, "b", {"s": fewer, "t": ALL})
    (alone,) = compare([a, b], ["s"]).items
    assert alone.difference.p == alone.adjusted == 0.03125 and alone.verdict == "worse"
    first, second = compare([a, b]).items
    assert (first.adjusted, first.verdict, second.adjusted) == (0.0625, "no difference shown", 1.0)


def test_lower_can_be_better(tmp_path: Path) -> None:
    def change(results: dict[str, Any]) -> None:
        results["higher_is_better"]["s"]["exact_match"] = False

    a, b = _edit(_run(tmp_path, "a", {"s": HALF}), change), _edit(_run(tmp_path, "b", {"s": MORE}), change)
    (item,) = compare([a, b]).items
    assert (item.verdict, item.gain.value, len(item.worse), len(item.better)) == ("worse", -0.25, 15, 0)
    assert "exact\\_match (lower is better)" in _text([a, b])


def test_groups_are_pooled_or_left_to_their_tasks(tmp_path: Path) -> None:
    a = _group(_run(tmp_path, "a", {"x": [1, 0, 1], "y": [0]}), 0.5)
    b = _group(_run(tmp_path, "b", {"x": [1, 1, 0], "y": [1]}), 0.75)
    (item,) = compare([a, b]).items
    assert item.task == "both" and item.difference.n == 4
    assert [(flip.task, flip.doc_id) for flip in item.better + item.worse] == [("x", "1"), ("y", "0"), ("x", "2")]
    mean = _group(_run(tmp_path, "c", {"x": [1, 0, 1], "y": [0]}), 1 / 3)
    built = compare([mean, b])
    assert [item.task for item in built.items] == ["x", "y"]
    assert built.left_out == ["both: its score is not the mean over its documents; its tasks are compared instead"]
    with pytest.raises(UsageError, match="compare its tasks: --task x"):
        compare([mean, b], ["both"])


def test_documents_of_tasks_whose_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    a = _group(_run(tmp_path, "a", {"x": [1, 0], "x/y": [0, 1]}), 0.5)
    b = _group(_run(tmp_path, "b", {"x": [1, 1], "x/y": [1, 1]}), 1.0)
    built = compare([a, b])
    (item,) = built.items
    assert [(flip.task, flip.doc_id) for flip in item.better] == [("x", "1"), ("x/y", "0")]
    assert built.documents(item, item.better[1])[0].task == "x/y"
    assert "better in B: x/1, x/y/0" in _text([a, b])


def test_what_was_asked_differently_is_refused_unless_forced(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"s": HALF, "t": HALF})
    b = _run(tmp_path, "b", {"s": MORE, "t": MORE}, fingerprint="new")
    with pytest.raises(
        UsageError,
        match=r"not comparable: s of a and b: the task's prompts.*\(and 1 more\); compare them anyway: --force",
    ):
        compare([a, b])
    built = compare([a, b], force=True)
    assert built.forced and all("prompts, filters or scorer changed" in item.breaks[0] for item in built.items)
    text = _text([a, b], force=True)
    assert text.count("FORCED") >= 2 + 2 * 2, "above, in each row, before the reasons, beside each document"
    assert all(single["forced"] and single["not_comparable"] for single in report.record(built, 0)["comparisons"])


def test_a_sound_task_beside_a_broken_one_is_named(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"s": HALF, "t": HALF})
    b = _run(tmp_path, "b", {"s": MORE, "t": MORE})
    b = _edit(b, lambda results: results["dare_bench"]["tasks"]["s"].update(fingerprint="new:new"))
    with pytest.raises(UsageError, match="comparable: --task t; compare"):
        compare([a, b])
    assert len(compare([a, b], ["t"]).items) == 1


def test_warnings(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"s": HALF})
    b = _run(tmp_path, "b", {"s": MORE[:50]}, failures=2, status="incomplete", decoding={"gen_length": 32})

    def change(results: dict[str, Any]) -> None:
        results["dare_bench"]["harness"]["version"] = "0.5.0"
        results["dare_bench"]["seeds"] = [0, 1234, 9, 1234]
        results["dare_bench"]["model"] |= {"dtype": "bfloat16", "content_hash": "sha256:new"}
        results["dare_bench"]["environment"]["torch"] = "3.0"
        results["higher_is_better"] = {}

    (item,) = compare([_edit(a, lambda results: results.update(higher_is_better={})), _edit(b, change)]).items
    assert item.warnings == (
        "b is incomplete: 2 documents have no answer and are left out",
        "not the same documents: in both 50 (compared), only in the first 10, only in the second 0",
        "the environments differ: torch (2.13.0 and 3.0)",
        "the direction of exact_match,none is not recorded: higher is assumed to be better",
    )
    assert item.settings_text == (
        "settings differ: dtype (float32 and bfloat16), harness (lm-eval 0.4.13 and lm-eval 0.5.0), sampling seed"
        " (1234 and 9), gen_length (16 and 32)"
    )
    assert item.values[0] == 0.5 and item.scores[0].n == 50, "the score over the documents that are compared"


def test_of_two_families_only_settings_that_both_have_are_compared(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"s": HALF, "t": HALF})
    b = _run(tmp_path, "b", {"s": MORE, "t": MORE}, decoding={"gen_length": 32})

    def dream(results: dict[str, Any]) -> None:
        results["dare_bench"]["model"] |= {"family": "dream", "content_hash": "sha256:new"}
        for task in results["dare_bench"]["tasks"].values():
            task["decoding"]["alg"] = task["decoding"].pop("remasking")

    built = compare([a, _edit(b, dream)])
    assert built.warning_lines() == [
        "llada and dream are two families with different decoding settings; only settings that both have are compared"
    ]
    assert built.settings_lines() == ["settings differ: gen_length (16 and 32)"]
    assert set(built.items[0].settings) == {"checkpoint", "family", "gen_length"}


def test_answers_of_several_programs_and_edited_results_are_told(tmp_path: Path) -> None:
    a, b = (_run(tmp_path, name, {"s": HALF}, programs=({}, {"sampler": f"ast:{name}"})) for name in "ab")
    (b.path / DONE_FILE).write_text('{"results_sha256": "other"}')
    output = compare([a, Run(b.path)]).items[0].warnings
    assert [text.split(":")[0] for text in output] == [f"{name} was answered by 2 programs" for name in "ab"] + ["b"]
    assert "-> ast:b)" in output[1] and output[2] == "b: the results file was changed after the run"


def test_an_edited_samples_file_is_told(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"s": HALF}), _run(tmp_path, "b", {"s": HALF})
    path = b.samples_file("s")
    assert path is not None
    path.write_text(path.read_text() + "\n")
    assert compare([a, b]).items[0].warnings == ("b: the samples of s were changed after the run",)


def test_graded_values_and_repeats(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"s": [0.25, 0.5, 0.75] * 20}), _run(tmp_path, "b", {"s": [0.5, 0.5, 0.5] * 20})
    (item,) = compare([a, b]).items
    assert item.difference.test == "paired permutation" and item.verdict == "no difference shown"
    assert len(item.better) == len(item.worse) == 20 and 0 < item.smallest_drop < 0.2


def test_settings_that_differ_otherwise_in_another_task_are_all_named(tmp_path: Path) -> None:
    def lengths(run: Run, s: int, t: int) -> Run:
        def change(results: dict[str, Any]) -> None:
            for task, length in (("s", s), ("t", t)):
                results["dare_bench"]["tasks"][task]["decoding"]["gen_length"] = length

        return _edit(run, change)

    a, b = (_run(tmp_path, name, {"s": HALF, "t": HALF}) for name in "ab")
    text = markdown(report.elements(compare([lengths(a, 20, 4), lengths(b, 16, 16)]), 0))
    assert "| gen\\_length (s) | 20 | 16 |" in text and "| gen\\_length (t) | 4 | 16 |" in text
    (item,) = compare([_group(lengths(a, 20, 4), 0.5), _group(lengths(b, 16, 16), 0.5)]).items
    assert item.settings == {"gen_length": (20, 16), "gen_length (t)": (4, 16)}


def test_words_that_do_not_fit(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"s": HALF}), _run(tmp_path, "b", {"t": HALF})
    with pytest.raises(UsageError, match="needs at least two runs, found 1"):
        compare([a])
    with pytest.raises(UsageError, match="given twice"):
        compare([a, b, Run(a.path)])
    with pytest.raises(UsageError, match="nothing to compare: s: only a has it, not b; t: only b has it, not a"):
        compare([a, b])
    with pytest.raises(UsageError, match="two runs with s, but only a has it"):
        compare([a, b], ["s"])
    with pytest.raises(UsageError, match="no f1,none in common"):
        compare([a, _run(tmp_path, "c", {"s": HALF})], key="f1,none")
    other = _edit(b, lambda results: results["dare_bench"]["harness"].update(name="opencompass"))
    with pytest.raises(UsageError, match="dare-bench report --agreement"):
        compare([a, other])
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text('{"run_id": "d"}')
    with pytest.raises(IncompleteError, match="no results yet"):
        compare([a, Run(tmp_path / "d")])


def test_another_score_where_both_have_it(tmp_path: Path) -> None:
    need_package("lm_eval")
    a = make_sudoku(tmp_path / "a", lambda doc: doc % 2 == 0, limit=40)
    b = make_sudoku(tmp_path / "b", lambda doc: doc % 3 > 0, limit=40)
    a, b = (
        _edit(run, lambda w, n=n: w["dare_bench"]["model"].update(content_hash=n * 64))
        for n, run in (("a", a), ("b", b))
    )
    (item,) = compare([a, b], key="cell_accuracy,none").items
    assert item.key == "cell_accuracy,none" and item.difference.test == "paired permutation"
    (item,) = compare([a, b]).items
    assert item.key == KEY and item.difference.n == 40 and item.settings.keys() == {"checkpoint"}
    assert all(text.endswith("the results file was changed after the run") for text in item.warnings)  # by this test
    reported = [run.headline("dare_sudoku") for run in (a, b)]
    assert [score.value for score in reported if score] == pytest.approx(item.values)
    assert [(s.lo, s.hi) for s in reported if s] == [(s.lo, s.hi) for s in item.scores]


def _text(runs: list[Run], docs: int = 1, **more: Any) -> str:
    return markdown(report.elements(compare(runs, **more), docs))


def test_documents_are_shown_side_by_side(tmp_path: Path) -> None:
    a = _run(tmp_path, "a", {"s": [1.0, 0.0, 0.0, 1.0, 1.0]})
    b = _run(tmp_path, "b", {"s": [0.0, 1.0, 0.0, 0.0, 1.0]})
    text = _text([a, b])
    assert "- 2 of 5 worse in B: 0, 3\n- 1 of 5 better in B: 1" in text
    assert "### Document 0, worse: 1 in A, 0 in B" in text and "### Document 1, better: 0 in A, 1 in B" in text
    assert "Document 3" not in text and "Document 3" in _text([a, b], 2) and "###" not in _text([a, b], 0)
    target = next(a.samples("s"))["target"]
    assert f"answer (A)\n\n```text\n{target}\n```" in text and f"answer (B)\n\n```text\n{target[::-1]}?\n```" in text
    assert text.count("Question 0: which digits?") == 1, "the prompt is the same and stands once"
    built = compare([a, b])
    item, two = built.documents(built.items[0], built.items[0].worse[0])
    assert (item.doc_id, two.doc_id) == (0, 0) and item.rows[0]["exact_match"] == 1.0


def test_text_of_models_is_harmless(tmp_path: Path) -> None:
    bad = "<script>x</script>\x1b[31m\u202e```\n# not a heading"
    a = _run(tmp_path, "a", {"s": [1.0, 0.0]}, answer="fine")
    b = _run(tmp_path, "b", {"s": [0.0, 0.0]}, answer=bad, model="<b>model</b>")
    text = _text([a, b])
    assert "\x1b" not in text and "\u202e" not in text and "␛[31m⟨U+202E⟩" in text
    assert "````text\n<script>" in text, "inside a fence that the text cannot close"
    assert "\\<b\\>model" in text


def test_a_terminal_shows_the_beginning_of_a_huge_answer_and_a_file_all(tmp_path: Path) -> None:
    a, b = (_run(tmp_path, name, {"s": own}, answer="ox" * 100_000) for name, own in (("a", HALF), ("b", MORE)))
    pieces = list(report.elements(compare([a, b]), 1))
    console = Console(markup=False, highlight=False, width=200)
    with console.capture() as output:
        show(pieces, console)
    assert "190,000" in output.get() and len(output.get()) < 100_000
    assert "ox" * 100_000 in markdown(pieces)


def test_the_record_is_plain_json_with_everything(tmp_path: Path) -> None:
    a, b = _run(tmp_path, "a", {"s": [1.0, 0.0, 1.0]}), _run(tmp_path, "b", {"s": [0.0, 1.0, 1.0]})
    built = json.loads(json.dumps(report.record(compare([a, b]), 1), allow_nan=False))
    assert [run["run_id"] for run in built["runs"]] == ["a", "b"] and built["forced"] is False
    (item,) = built["comparisons"]
    assert item["difference"]["p"] == item["holm_p"] == 1.0 and item["smallest_drop"] is None
    assert item["worse"] == [{"task": "s", "doc_id": "0", "first": 1.0, "second": 0.0}]
    assert [shown["changed"] for shown in item["shown"]] == ["worse", "better"]
    assert item["shown"][0]["first"]["value"] == 1.0 and item["shown"][0]["second"]["answer"].endswith("?")


def test_three_runs_say_which_pair(tmp_path: Path) -> None:
    runs = [_run(tmp_path, name, {"s": own}) for name, own in (("a", HALF), ("b", MORE), ("c", ALL))]
    text = _text(runs, all_pairs=True)
    assert "| A to B | s |" in text and "| B to C | s |" in text
    assert "s, A to C: documents that changed" in text and "can show" not in text
    assert "Holm p: p adjusted over all 3 comparisons" in text


OPENCOMPASS = next((DATA / "opencompass").iterdir()) / "results"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours that solves two of the six documents."""
    need_package("lm_eval")
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
