"""A run against a baseline: what is a regression, what is excused, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from paths import ROOT
from run_factory import TASK, changed, made, make_run

from dare_bench.analysis import baseline as baselines
from dare_bench.analysis import regression
from dare_bench.analysis.baseline import Baseline
from dare_bench.analysis.regression import compare_baselines
from dare_bench.errors import RunError, UsageError
from dare_bench.formatting import about_points
from dare_bench.reports import regression_report
from dare_bench.reports.elements import markdown
from dare_bench.runs.reader import Run

KEY = "exact_match,none"


def scored(
    values: list[float], *, better: bool = True, other: bool = True, tasks: tuple[str, ...] = (TASK,)
) -> Baseline:
    """A baseline with these values; ``other``: of another checkpoint."""
    score = {"value": sum(values) / len(values), "n": len(values), "higher_is_better": better}
    task = {
        "fingerprint": "a:b", "n_docs": len(values), "tier": "E1", "answers": "text", "headline": KEY,
        "scores": {KEY: score}, "documents": {str(i): ["q", "a", [3, 3], None, [v]] for i, v in enumerate(values)},
    }  # fmt: skip
    checkpoint = {"name": "m", "family": "llada", "content_hash": "y" if other else "x", "dtype": "float32"}
    return Baseline.model_validate(
        {
            "checkpoint": checkpoint, "harness": "lm-eval", "harness_version": "0.4.13", "device": "cpu",
            "seeds": [0, 1, 2, 3], "tasks": dict.fromkeys(tasks, task),
        }
    )  # fmt: skip


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_published_schema_is_the_one_in_the_code() -> None:
    path = ROOT / "docs" / "baseline.schema.json"
    assert json.loads(path.read_text()) == baselines.json_schema()


def test_the_committed_baselines_fit_the_schema() -> None:
    import jsonschema

    files = sorted((ROOT / "leaderboards" / "baselines").glob("*.json"))
    assert {file.stem for file in files} >= {"tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2"}
    for file in files:
        jsonschema.validate(json.loads(file.read_text()), baselines.json_schema())
        assert baselines.text(baselines.read(file)) == file.read_text()


def test_a_file_is_the_same_each_time_and_has_a_line_for_each_document(tmp_path: Path) -> None:
    item = made(tmp_path / "a", tasks={TASK: 0.9, "choice_tiny": 0.5})
    text = baselines.text(item)
    assert text == baselines.text(made(tmp_path / "b", tasks={TASK: 0.9, "choice_tiny": 0.5}))
    assert Baseline.model_validate(json.loads(text)) == item
    rows = [line for line in text.splitlines() if line.startswith('    "') and '": ["' in line]
    assert len(rows) == 40 and all(len(row) < 120 for row in rows)
    assert isinstance(item.tasks[TASK].documents["0"].answer, str) and item.tasks[TASK].answers == "token ids"
    choices = item.tasks["choice_tiny"].documents["0"]
    assert item.tasks["choice_tiny"].answers == "likelihoods"
    assert isinstance(choices.answer, list) and -1.5 in choices.answer and choices.nfe is None


def test_without_traces_the_text_stands_in(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (traces,) = run.glob("traces_*")
    traces.unlink()
    assert baselines.of_run(Run(run)).tasks[TASK].answers == "text"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no baseline at"),
        ("{", "is damaged: not JSON"),
        ("[1]", "is damaged: expected a JSON object"),
        ('{"results": {}}', "is not a baseline"),
        (
            '{"format": "dare-bench baseline", "version": 2}',
            "written in version 2, this dare-bench reads up to 1; upgrade",
        ),
        ('{"format": "dare-bench baseline", "version": "x"}', "version is 'x'; expected a whole number"),
        ('{"format": "dare-bench baseline", "version": 1, "tasks": {}}', "is damaged"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        baselines.read(path)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


# -- exact -------------------------------------------------------------------------------------------------------------


def test_the_same_answers_are_fine(tmp_path: Path) -> None:
    item = made(tmp_path)
    result = regression.judge(Run(tmp_path / "tiny-llada-dare_sudoku-0123abcd"), item)
    assert not result.regressed and not result.flips and result.documents == 20
    assert [(s.task, s.key, s.mode, s.flips) for s in result.scores] == [(TASK, KEY, "exact", 0)]


@pytest.mark.parametrize(("at", "value"), [(1, "another"), (4, [0.25])])
def test_another_answer_or_value_is_red(tmp_path: Path, at: int, value: Any) -> None:
    item = made(tmp_path, n_docs=200)
    other = changed(item, lambda r: r["tasks"][TASK]["documents"]["7"].__setitem__(at, value))
    result = compare_baselines("run", item, other)
    assert result.regressed and [flip.doc_id for flip in result.flips] == ["7"] and "documents 7" in result.reasons[0]
    assert result.scores[0].regressed == (at == 4)


@pytest.mark.parametrize(("flips", "n", "regressed"), [(1, 120, False), (1, 100, True), (2, 120, True)])
@pytest.mark.parametrize("passes", [[99, 16], [12, 15]], ids=str)
def test_another_number_of_passes_alone_is_excused_in_less_than_a_hundredth(
    tmp_path: Path, passes: list[int], flips: int, n: int, regressed: bool
) -> None:
    def other(record: dict[str, Any]) -> None:
        for doc in range(flips):
            record["tasks"][TASK]["documents"][str(doc)][2] = passes

    item = made(tmp_path, n_docs=n)
    result = compare_baselines("run", item, changed(item, other))
    assert result.regressed == regressed and [flip.excused for flip in result.flips] == [True] * flips
    assert "sudoku/0: " in markdown(regression_report.elements(result))
    reason = f"{flips} of {n} document{'s differ' if flips > 1 else ' differs'} only in floating-point ties or numbers"
    assert all(text.startswith(reason) for text in result.reasons) and len(result.reasons) == regressed


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("near_tie", "flips", "regressed"),
    [
        *((True, 1, False), (False, 1, True), (None, 1, True), (True, 2, True)),
        *((9e-5, 1, False), (1e-4, 1, True), (9e-5, 2, True), (0.0, 1, False)),  # margins, of older files
    ],
)
def test_a_tie_excuses_less_than_a_hundredth_of_the_documents(
    tmp_path: Path, side: int, near_tie: bool | float | None, flips: int, regressed: bool
) -> None:
    both = [made(tmp_path, n_docs=200)] * 2

    def other(record: dict[str, Any]) -> None:
        for doc in range(flips):
            record["tasks"][TASK]["documents"][str(doc)][1] = "another"

    def near(record: dict[str, Any]) -> None:
        for doc in range(flips):
            record["tasks"][TASK]["documents"][str(doc)][3] = near_tie

    both[1] = changed(both[1], other)
    both[side] = changed(both[side], near)
    result = compare_baselines("run", *both)
    assert result.regressed == regressed
    excused = near_tie is True or (isinstance(near_tie, float) and near_tie < 1e-4)
    assert [flip.excused for flip in result.flips] == [excused] * flips  # listed in any case


def test_likelihoods_are_compared_as_numbers(tmp_path: Path) -> None:
    item = made(tmp_path, tasks={"choice_tiny": 0.5})

    def by(amount: float) -> Baseline:
        def change(record: dict[str, Any]) -> None:
            record["tasks"]["choice_tiny"]["documents"]["3"][1][0] += amount

        return changed(item, change)

    assert not compare_baselines("run", item, by(1e-4)).regressed
    assert compare_baselines("run", item, by(0.01)).regressed


@pytest.mark.parametrize(
    ("change", "mode"),
    [
        (lambda r: None, "exact"),
        (lambda r: r["checkpoint"].update(content_hash="other"), "paired"),
        (lambda r: r["checkpoint"].update(adapter_hash="other"), "paired"),
        (lambda r: r["checkpoint"].update(dtype="bfloat16"), "paired"),
        (lambda r: r.update(device="NVIDIA H200"), "paired"),
        (lambda r: r["tasks"][TASK].update(tier="E2"), "exact"),
        (lambda r: r["tasks"][TASK].update(tier="A"), "paired"),
        (lambda r: r["versions"].update(torch="1.0"), "exact"),
    ],
)
def test_what_promises_the_same_answers(tmp_path: Path, change: Callable[[Any], None], mode: str) -> None:
    item = made(tmp_path)
    other = changed(item, change)
    result = compare_baselines("run", item, other)
    assert result.scores[0].mode == mode and bool(result.notes) == (other != item and other.tasks[TASK].tier != "E2")


def test_a_gpu_of_the_same_name_promises_nothing(tmp_path: Path) -> None:
    item = made(tmp_path, gpu="NVIDIA H200")
    assert item.device == "NVIDIA H200" and regression.mode(item, item, TASK) == "paired"


# -- paired ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "won", "n", "regressed"),
    [
        (5, 0, 100, True),  # one-sided p = 1/32
        (4, 0, 100, False),  # 1/16
        (20, 10, 100, True),  # 0.049
        (20, 11, 100, False),  # 0.075
        (0, 30, 100, False),
        (5, 0, 501, False),  # significant, and smaller than a point
    ],
)
def test_a_significant_drop_of_another_checkpoint_is_a_regression(lost: int, won: int, n: int, regressed: bool) -> None:
    before = [1.0] * lost + [0.0] * won + [1.0] * (n - lost - won)
    after = [0.0] * lost + [1.0] * won + [1.0] * (n - lost - won)
    result = compare_baselines("run", scored(before, other=False), scored(after))
    assert result.regressed == regressed and len(result.changed) == lost + won
    less = compare_baselines("run", scored(before, other=False, better=False), scored(after, better=False))
    assert less.regressed == (won == 30)
    assert compare_baselines("run", scored(before, other=False), scored(after), 0.001).regressed == (
        lost == 5 or regressed
    )


def test_several_tasks_share_the_level() -> None:
    before, after = [1.0] * 100, [0.0] * 5 + [1.0] * 95
    item = compare_baselines("run", scored(before, other=False), scored(after))
    two = compare_baselines("run", scored(before, other=False, tasks=("a", "b")), scored(after, tasks=("a", "b")))
    assert item.regressed and not two.regressed and two.scores[0].p == pytest.approx(1 / 16)
    assert two.scores[0].detectable > item.scores[0].detectable


def test_what_so_many_documents_could_show_is_told() -> None:
    few = compare_baselines("run", scored([1.0] * 4, other=False), scored([0.0] * 4))
    text = markdown(regression_report.elements(few))
    assert not few.regressed and "no drop is detectable with 4 documents" in text and "points" in text
    many = compare_baselines("run", scored([1.0] * 400, other=False), scored([1.0] * 400))
    assert 0.01 < many.scores[0].detectable < 0.03 and not many.regressed
    reported = markdown(regression_report.elements(many))
    assert (
        "detectable with 400 documents: a drop of " in reported and " points or more (with a power of 80%)" in reported
    )
    better = compare_baselines("run", scored([0.0] * 400, other=False), scored([1.0] * 400))
    assert "can show" not in markdown(regression_report.elements(better))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            [1.0] * 4 + [0.0] * 16,
            [1.0] * 2 + [0.0] * 18,
            "No regression shown; the smallest drop detectable with 20 documents of",
        ),
        ([1.0] * 4, [0.0] * 4, "No regression shown; no drop is detectable with 4 documents of"),
        ([0.0] * 20, [1.0] * 20, "No regression"),
        ([1.0] * 20, [0.0] * 20, "Regression"),
    ],
)
def test_the_headline_names_the_smallest_drop_that_would_have_been_seen(
    before: list[float], after: list[float], said: str
) -> None:
    """20% -> 10% in 20 documents: nothing is shown, and a drop of 31 points would have been."""
    verdict = compare_baselines("run", scored(before, other=False), scored(after))
    line = markdown(regression_report.elements(verdict)).splitlines()[0].removeprefix("## ").replace("\\", "")
    assert line == regression_report.record(verdict)["headline"] and line.startswith(said)
    assert (line == said) == (verdict.regressed or after == [1.0] * 20)
    if len(before) == 20 and "shown" in line:
        (item,) = (item for item in verdict.scores if item.judged)
        assert line.endswith(f"{TASK}: {about_points(item.detectable)}") and 0.2 < item.detectable < 0.4


def test_the_headline_goes_by_the_task_that_can_show_least() -> None:
    def two(other: bool) -> Baseline:
        many, few = (scored([1.0] * n, other=other, tasks=(name,)) for name, n in (("many", 100), ("few", 20)))
        return many.model_copy(update={"tasks": {**many.tasks, **few.tasks}})

    assert " 20 documents of few: " in regression_report.headline(compare_baselines("run", two(False), two(True)))


def test_shares_are_told_in_percent_and_points_and_other_scores_as_they_are() -> None:
    def perplexity(record: dict[str, Any]) -> None:
        task = record["tasks"][TASK]
        task.update(scores={"perplexity,none": task["scores"][KEY]}, headline="perplexity,none")

    two = [scored([1.0] * 60 + [0.0] * 40, other=False), scored([1.0] * 36 + [0.0] * 64)]
    text = markdown(regression_report.elements(compare_baselines("run", *two)))
    assert "| 60.00% | 36.00% | -24.00 | " in text and "dropped by 24 points" in text
    text = markdown(regression_report.elements(compare_baselines("run", *(changed(item, perplexity) for item in two))))
    assert "| 0.6000 | 0.3600 | -0.24 | " in text and "00%" not in text and "dropped by 0.24 (" in text


def test_other_values_than_0_and_1_are_tested_too() -> None:
    before = [0.5 + (i % 7) / 20 for i in range(60)]
    after = [value - 0.1 + (i % 3) / 50 for i, value in enumerate(before)]
    result = compare_baselines("run", scored(before, other=False), scored(after))
    assert result.regressed and result.scores[0].detectable < 0.05
    assert not compare_baselines("run", scored(after, other=False), scored(before)).regressed


def test_a_score_that_is_no_mean_over_documents_is_told() -> None:
    item = changed(scored([1.0, 0.0] * 20, other=False), lambda r: r["tasks"][TASK]["scores"][KEY].update(value=0.9))
    result = compare_baselines("run", item, scored([0.0] * 40))
    assert (
        not result.regressed
        and not result.scores[0].judged
        and "not a mean over common documents" in result.scores[0].reason
    )


def without_scores(record: dict[str, Any]) -> None:
    task = record["tasks"][TASK]
    task.update(scores={}, headline=None, documents={k: [*row[:4], []] for k, row in task["documents"].items()})


@pytest.mark.parametrize("other", [False, True], ids=["exact", "paired"])
def test_a_score_that_is_gone_is_red(other: bool) -> None:
    item, two = scored([1.0, 0.0] * 20, other=False), scored([1.0, 0.0] * 20, other=other)
    result = compare_baselines("run", item, changed(two, without_scores))
    assert result.regressed and "the run has no such score" in result.reasons[0]
    text = markdown(regression_report.elements(result))
    assert "nan" not in text and 'failures="1"' in regression_report.junit_text(result)


def test_documents_that_have_no_value_any_more_are_red() -> None:
    def hide(record: dict[str, Any]) -> None:
        record["tasks"][TASK]["documents"]["7"][4] = [None]

    item, two = scored([1.0] * 40, other=False), scored([1.0] * 40)
    result = compare_baselines("run", item, changed(two, hide))
    assert result.regressed and "no longer has a value in documents 7" in result.reasons[0]
    assert not compare_baselines("run", changed(item, hide), two).regressed


def test_a_value_that_changed_under_the_same_answer_is_no_tie(tmp_path: Path) -> None:
    def other(record: dict[str, Any]) -> None:
        record["tasks"][TASK]["documents"]["7"][3:] = [0.0, [0.25]]

    item = made(tmp_path, n_docs=200)
    result = compare_baselines("run", item, changed(item, other))
    assert result.regressed and [flip.excused for flip in result.flips] == [False]


def test_where_nothing_can_be_judged_it_is_no_success(tmp_path: Path) -> None:
    def corpus(record: dict[str, Any]) -> None:
        record["tasks"][TASK]["scores"][KEY]["value"] = 31.4
        record["checkpoint"]["content_hash"] = "another"

    item = changed(made(tmp_path / "a"), corpus)
    with pytest.raises(RunError, match=r"no score can be judged.*31\.4 -> 0\.9"):
        regression.judge(Run(tmp_path / "a" / "tiny-llada-dare_sudoku-0123abcd"), item)
    result = compare_baselines("run", item, made(tmp_path / "b"))
    assert any("is not judged" in text for text in result.notes)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("headline", "acc,none", "is not a score"),
        ("documents", {"3": ["q", "a", None, None, []]}, "has 0 values"),
    ],
)
def test_a_baseline_that_does_not_fit_together_is_damaged(tmp_path: Path, place: str, value: Any, said: str) -> None:
    record = made(tmp_path / "a").model_dump(mode="json")
    record["tasks"][TASK][place] = value
    (tmp_path / "x.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=f"is damaged.*{said}"):
        baselines.read(tmp_path / "x.json")


def test_a_group_is_told_and_its_tasks_are_judged() -> None:
    item = scored([1.0] * 40, other=False).model_copy(update={"groups": {"all": {"acc,none": 0.9}}})
    two = scored([1.0] * 40).model_copy(update={"groups": {"all": {"acc,none": 0.1}}})
    result = compare_baselines("run", item, two)
    assert not result.regressed and result.groups == [("all", "acc,none", 0.9, 0.1)]
    assert "(not judged, since their tasks are)" in markdown(regression_report.elements(result))


# -- told --------------------------------------------------------------------------------------------------------------

HOSTILE = "<b>\x00\x1b[31m\u202e\ufffe]]>&|`\ud800"


def test_junit_is_xml_whatever_the_model_wrote(tmp_path: Path) -> None:
    item = made(tmp_path, n_docs=200)
    other = changed(item, lambda r: r["tasks"][TASK]["documents"]["7"].__setitem__(4, ["x"]))
    other.tasks[TASK].documents["7"].values[0] = HOSTILE
    result = compare_baselines("run\x07", item, other)
    suite = ElementTree.fromstring(regression_report.junit_text(result))
    cases = {(case.get("classname"), case.get("name")): case for case in suite}
    assert set(cases) == {(TASK, KEY), (TASK, "answers"), ("all tasks", "ties")}
    failure = cases[TASK, KEY].find("failure")
    assert failure is not None and failure.text is not None and f"{TASK}/7" in failure.text and "<b>" in failure.text
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    (tmp_path / "x.xml").write_text(regression_report.junit_text(result))
    ElementTree.parse(tmp_path / "x.xml")


def test_markdown_names_the_documents(tmp_path: Path) -> None:
    item = made(tmp_path, n_docs=200)
    other = changed(item, lambda r: r["tasks"][TASK]["documents"]["7"].__setitem__(1, "x"))
    text = markdown(regression_report.elements(compare_baselines("run", item, other)))
    assert text.startswith("## Regression") and "sudoku/7: a different answer (no near tie)" in text
    assert regression_report.record(compare_baselines("run", item, other))["flips"][0]["doc_id"] == "7"


def test_an_excused_document_is_listed_in_junit_too(tmp_path: Path) -> None:
    item = made(tmp_path, n_docs=200)
    other = item.model_copy(deep=True)
    other.tasks[TASK].documents["7"] = item.tasks[TASK].documents["7"]._replace(answer="x", near_tie=True)
    suite = ElementTree.fromstring(regression_report.junit_text(compare_baselines("run", item, other)))
    assert suite.get("failures") == "0" and f"{TASK}/7" in ElementTree.tostring(suite, encoding="unicode")
