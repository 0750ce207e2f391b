"""Averages in OpenCompass's summary, and the data sets that they are of. The texts are as OpenCompass 0.5.4 wrote them
of tests/data/external with these groups."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hostile_external import DATA, opencompass_config

from dare_bench.analysis.run_finder import find_runs, open_run
from dare_bench.errors import RunError
from dare_bench.runs.reader import Run

DATA_SETS = {"ARC-c", "gsm8k", "gsm8k-twice"}
GROUPS = """
summarizer = dict(
    dataset_abbrs=None,
    summary_groups=[
        dict(name='exam', subsets=[
            'ARC-c',
            'gsm8k',
        ]),
        dict(
            name='weighted',
            subsets=[
                'ARC-c',
                'gsm8k',
            ],
            weights=dict({
                'ARC-c': 1,
                'gsm8k': 3
            })),
        dict(
            name='pairs',
            subsets=[
                [
                    'ARC-c',
                    'accuracy',
                ],
                [
                    'gsm8k',
                    'accuracy',
                ],
            ]),
        dict(name='all', subsets=[
            'exam',
            'ARC-c',
        ]),
        dict(name='none', subsets=[
            'mmlu',
        ]),
        dict(name='mixed', subsets=[
            'ARC-c',
            'gsm8k-twice',
        ]),
    ])
"""
SUMMARY = """\
dataset,version,metric,mode,tiny-llada,tiny-llada-base
gsm8k,f21b64,accuracy,gen,0.00,0.00
gsm8k-twice,f21b64,accuracy (2 runs average),gen,0.00,0.00
ARC-c,a450bd,accuracy,ppl,0.00,50.00
exam,-,accuracy,mixed,0.00,25.00
exam,-,naive_average,mixed,0.00,25.00
weighted,-,accuracy,mixed,0.00,12.50
weighted,-,weighted_average,mixed,0.00,12.50
pairs,-,naive_average,mixed,0.00,25.00
all,-,accuracy,mixed,0.00,37.50
all,-,naive_average,mixed,0.00,37.50
mixed,-,naive_average,mixed,0.00,25.00
none,-,-,-,-,-
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def summarized(data: Path, summary: str = SUMMARY, groups: str = GROUPS) -> Run:
    """The results of tiny-llada-base with a newer summary and configuration."""
    config = opencompass_config(data)
    config.write_text(config.read_text() + groups)
    work = config.parents[1]
    (work / "summary" / "summary_20261123_092420.csv").write_text(summary)
    return open_run(work / "results" / "tiny-llada-base")


def averages(run: Run) -> dict[str, tuple[str, float]]:
    return {score.task: (score.metric, score.value) for score in run.scores() if score.is_group}


def test_plain_means_are_read_with_the_intervals_of_groups(data: Path) -> None:
    run = summarized(data)
    assert averages(run) == {"exam": ("accuracy", 0.25), "pairs": ("accuracy", 0.25), "all": ("accuracy", 0.375)}
    scores = {score.task: score for score in run.scores()}
    exam, whole = scores["exam"], scores["all"]
    assert exam.method == "Wilson over tasks and MOVER" and exam.lo is not None and exam.lo < 0.25 and exam.n == 8
    assert whole.limited and whole.higher_is_better is True and run.top_level() == ["gsm8k-twice", "pairs", "all"]


def test_every_model_has_its_own_column(data: Path) -> None:
    summarized(data)
    runs = {run.model: averages(run) for run in find_runs(data / "opencompass", lambda problem: None)}
    assert runs["tiny-llada"] == dict.fromkeys(("exam", "pairs", "all"), ("accuracy", 0.0))
    assert runs["tiny-llada-base"]["all"] == ("accuracy", 0.375)


def test_what_cannot_be_read_is_named_with_its_reason(data: Path) -> None:
    run = summarized(
        data, SUMMARY.replace("all,-,naive_average,mixed,0.00,37.50\n", "mmlu,-,naive_average,gen,1,61.00\n")
    )
    assert {text.split(", ", 1)[1] for text in run.left_out} == {
        "weighted: its average is not read: it is not a plain mean (weights)",
        "mixed: its average is not read: naive_average is not one metric of its data sets",
        "mmlu: its average is not read: the configuration does not name its data sets",
    }


@pytest.mark.parametrize("old", ["exam,-,accuracy,mixed,0.00,25.00", "exam,-,naive_average,mixed,0.00,25.00"])
def test_a_number_that_is_not_the_mean_is_not_taken_over(data: Path, old: str) -> None:
    """Of scores that were computed again since, or edited."""
    only = "\n".join(line for line in SUMMARY.splitlines() if not line.startswith("exam") or line == old)
    run = summarized(data, only.replace(old, old.replace("25.00", "25.02")))
    assert set(averages(run)) == {"pairs"}, "'all' is of an average that is not known"
    reasons = [text for text in run.left_out if ", exam: " in text or ", all: " in text]
    assert len(reasons) == 2 and "25.02 is not the mean of its data sets' accuracy" in reasons[0]
    assert "exam has no score" in reasons[1]


def test_without_groups_in_the_configuration_only_data_sets_have_scores(data: Path) -> None:
    run = summarized(data, groups="")
    assert averages(run) == {} and len(run.left_out) == 5 and set(run.tasks) == DATA_SETS


@pytest.mark.parametrize(
    "summary",
    ["", "\n", "a,b\n", SUMMARY.replace("tiny-llada-base", "other"), SUMMARY.replace("tiny-llada,", "tiny-llada-base,"),
     SUMMARY.replace(",25.00", ",nan"), SUMMARY.replace("mixed,", "")],
)  # fmt: skip
def test_a_damaged_summary_has_no_average_and_hides_no_score(data: Path, summary: str) -> None:
    run = summarized(data, summary)
    assert averages(run) == {} and {score.task for score in run.scores()} == DATA_SETS


def test_a_summary_outside_the_folder_is_refused(data: Path, tmp_path: Path) -> None:
    summarized(data)
    file = opencompass_config(data).parents[1] / "summary" / "summary_20261123_092420.csv"
    file.rename(tmp_path / "elsewhere.csv")
    file.symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(RunError, match="link"):
        open_run(opencompass_config(data).parents[1] / "results" / "tiny-llada-base")
