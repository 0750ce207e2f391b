"""Published beside reproduced: the interval of the difference, the verdict, and what has to be said with it."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_factory import make_run
from statsmodels.stats.proportion import confint_proportions_2indep

from dare_bench.analysis.intervals import wilson, wilson_bounds
from dare_bench.analysis.published import (
    Bounded,
    PublishedComparison,
    compare_with_published,
    comparisons,
    effective_size,
    published_score,
)
from dare_bench.analysis.settings import answers_each
from dare_bench.reports.elements import markdown, show
from dare_bench.reports.scores_report import EXPLAINED, published_elements
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import RecipeBlock

PUBLISHED = {
    "value": 0.7968, "n": 1319, "metric": "accuracy", "measures": "accuracy", "mean_over": "documents", "repeats": 1,
    "source": "Table 1",
}  # fmt: skip
SCORE = {"task": "dare_sudoku", "metric": "exact_match", "filter": "none"}


def _recipe(published: dict[str, Any] | None = None, **more: Any) -> RecipeBlock:
    given = {"name": "llada/gsm8k", "score": SCORE, "settings": "recorded", **more}
    return RecipeBlock.model_validate({**given, "published": {**PUBLISHED, **(published or {})}})


def _run(tmp_path: Path, share: float = 0.8, **more: Any) -> Run:
    return Run(make_run(tmp_path, tasks={"dare_sudoku": share}, **{"n_docs": 200, **more}))


def _edited(run: Run, change: Callable[[dict[str, Any]], None]) -> Run:
    """The run with its results file changed."""
    assert run.results_file is not None
    results = json.loads(run.results_file.read_text())
    change(results)
    run.results_file.write_text(json.dumps(results))
    return Run(run.path)


@pytest.mark.parametrize(("share", "n", "count", "total"), [(0.8, 200, 1051, 1319), (0.05, 20, 9, 30), (1.0, 50, 0, 9)])
def test_the_differences_interval_is_newcombes(tmp_path: Path, share: float, n: int, count: int, total: int) -> None:
    run, recipe = _run(tmp_path, share, n_docs=n), _recipe({"value": count / total, "n": total})
    built = compare_with_published(run, recipe).difference
    assert built is not None
    lo, hi = confint_proportions_2indep(round(share * n), n, count, total, method="newcomb", compare="diff")
    assert built.value == pytest.approx(share - count / total)
    assert (built.lo, built.hi) == (pytest.approx(lo, abs=1e-9), pytest.approx(hi, abs=1e-9))


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.80, "within noise"), (0.76, "within noise"), (0.6, "differs beyond noise")]
)
def test_verdict(tmp_path: Path, share: float, verdict: str) -> None:
    assert compare_with_published(_run(tmp_path, share), _recipe()).verdict == verdict


@pytest.mark.parametrize(
    ("published", "score", "says"),
    [
        ({"n": None}, {}, "size of the published test set is not recorded"),
        ({"value": None}, {}, "no number was published"),
        ({"value": 79.68}, {}, "79.68 is not a share"),
        ({}, {"metric": "acc"}, "no score task 'dare_sudoku' metric 'acc'"),
        ({}, {"task": "gsm8k"}, "no score task 'gsm8k'"),
        ({}, {"filter": "strict"}, "filter 'strict'"),
    ],
)
def test_why_it_cannot_tell(tmp_path: Path, published: dict[str, Any], score: dict[str, Any], says: str) -> None:
    built = compare_with_published(_run(tmp_path, 0.6), _recipe(published, score={**SCORE, **score}))
    assert built.verdict == "cannot tell" and says in built.reason
    assert "cannot tell: " + built.reason in _text(built)


def test_a_score_without_an_interval_cannot_tell(tmp_path: Path) -> None:
    def forget(results: dict[str, Any]) -> None:
        results["dare_bench"]["ci"] = {}

    built = compare_with_published(_edited(_run(tmp_path), forget), _recipe())
    assert built.verdict == "cannot tell" and "no interval (n=200)" in built.reason
    assert built.difference is not None and built.difference.lo is None


def test_the_interval_of_a_printed_share() -> None:
    whole = wilson(1051, 1319)
    assert wilson_bounds(1051 / 1319, 1319, 0.95) == (pytest.approx(whole.lo), pytest.approx(whole.hi))
    assert wilson_bounds(0.0, 30, 0.95)[0] == 0.0 and wilson_bounds(1.0, 30, 0.95)[1] == 1.0
    assert published_score({"value": 0.0208, "n": 30})[0] is not None, "5 of 240 answers are no whole document"


def test_small_sets_in_a_plain_mean_count_as_fewer_documents() -> None:
    assert effective_size([100, 100, 100]) == pytest.approx(300), "equal sizes lose nothing"
    sizes = [10, 1000]
    variance = sum(0.25 / size for size in sizes) / len(sizes) ** 2
    assert 0.25 / effective_size(sizes) == pytest.approx(variance), "the variance of the plain mean"
    plain, wider = (published_score({"value": 0.5, "n": 1010}, of)[0] for of in ([], sizes))
    assert plain and wider and plain.lo is not None and wider.lo is not None and wider.lo < plain.lo
    assert wider.n == 1010


def test_a_groups_sizes_come_from_the_run(tmp_path: Path) -> None:
    def group(results: dict[str, Any]) -> None:
        row = {"exact_match,none": 0.8, "exact_match_stderr,none": 0.02}
        results["results"]["both"] = row
        results["group_subtasks"]["both"] = ["dare_sudoku", "other"]
        results["dare_bench"]["ci"]["both"] = {
            "exact_match,none": {"method": "MOVER", "level": 0.95, "lo": 0.76, "hi": 0.84, "n": 20}
        }
        results["dare_bench"]["tasks"]["other"]["n_total"] = 10

    run = Run(make_run(tmp_path, tasks={"dare_sudoku": 0.8, "other": 0.8}, n_docs=200))
    recipe = _recipe({"mean_over": "subsets", "n": 210}, score={**SCORE, "task": "both"})
    built = compare_with_published(_edited(run, group), recipe).published
    assert built is not None and (built.lo, built.hi) == pytest.approx(
        wilson_bounds(0.7968, effective_size([200, 10]), 0.95)
    )


def test_subsets_that_the_run_does_not_have_make_a_rough_interval(tmp_path: Path) -> None:
    built = compare_with_published(_run(tmp_path), _recipe({"mean_over": "subsets"}))
    assert any("its interval is approximate" in note for note in built.notes)


def test_what_is_said_beside_the_numbers(tmp_path: Path) -> None:
    built = compare_with_published(
        _run(tmp_path, limit=200, n_total=1319, failures=3, status="incomplete"),
        _recipe(
            {"repeats": 8, "measures": "mean reward with partial credit"},
            settings="partly", missing=["cache", "hardware"], doubts=["best of two caches"],
            deviations=["decoding.steps: 64 instead of 256", "limit: 200"],
        ),
    )  # fmt: skip
    text = _text(built)
    for words in (
        "mean reward with partial credit", "Table 1",
        "deviations from the recipe: decoding.steps: 64 instead of 256; limit: 200",
        "settings that were not published: cache, hardware",
        "doubt: best of two caches",
        "limited: the run has 197 of 1319 documents, the published number is of 1319",
        "the run is incomplete: 3 documents have no answer and are left out",
        "answers to each prompt: published 8, this run 1",
    ):  # fmt: skip
        assert words in text, words


def test_repeats_that_the_task_itself_asks_for_are_counted(tmp_path: Path) -> None:
    def eight(results: dict[str, Any]) -> None:
        results["dare_bench"]["tasks"]["dare_sudoku"]["requests"] = 8 * 200

    built = compare_with_published(_edited(_run(tmp_path), eight), _recipe({"repeats": 8}))
    assert "answers to each prompt: published 8, this run 8" in _text(built)


def test_repeats_that_were_asked_for_but_not_made_are_not_counted(tmp_path: Path) -> None:
    def likelihoods(results: dict[str, Any]) -> None:
        block = results["dare_bench"]
        block["repeats"] = 4
        block["tasks"]["dare_sudoku"] |= {"requests": 4 * 200, "decoding": {}, "likelihood": {"mc_num": 8}}

    run = _edited(_run(tmp_path), likelihoods)
    assert answers_each(run, "dare_sudoku") == 1, "four choices, each compared once"


def test_settings_recorded_nowhere_and_another_test_set(tmp_path: Path) -> None:
    built = compare_with_published(_run(tmp_path), _recipe(settings="unrecorded", missing=["everything"]))
    assert "its settings were not published" in _text(built) and "settings that were not published" not in _text(built)
    assert "not the same test set: the published one has 1319 documents, this one 200" in _text(built)


def test_an_exact_run_of_a_clean_recipe_has_no_caveat(tmp_path: Path) -> None:
    built = compare_with_published(_run(tmp_path, n_total=200), _recipe({"n": 200}))
    assert built.notes == () and built.reason == "" and built.verdict == "within noise"


def test_code_without_a_sandbox_is_said(tmp_path: Path) -> None:
    def unsafe(results: dict[str, Any]) -> None:
        results["dare_bench"]["execution"] = {"level": "none", "unsafe": True}

    built = compare_with_published(_edited(_run(tmp_path), unsafe), _recipe())
    assert any("--unsafe-no-sandbox" in note for note in built.notes)


def test_only_runs_of_a_recipe_are_compared(tmp_path: Path) -> None:
    def add(results: dict[str, Any]) -> None:
        results["dare_bench"]["recipes"] = [_recipe().model_dump()]

    plain, built = _run(tmp_path / "a"), _edited(_run(tmp_path / "b"), add)
    unfinished = Run(make_run(tmp_path / "c"))
    assert [item.recipe for item in comparisons([plain, built, unfinished])] == ["llada/gsm8k"]
    assert list(published_elements([])) == []


def test_both_numbers_and_their_intervals_stand_in_one_row(tmp_path: Path) -> None:
    built = compare_with_published(_run(tmp_path), _recipe())
    row = next(line for line in markdown(published_elements([built])).splitlines() if line.startswith("| llada/gsm8k"))
    assert "79.68 (77.42 to 81.76) of 1319" in row and "80.00 (73.91 to 84.95) of 200" in row
    assert "+0.32 (" in row and "within noise" in row


def test_nothing_to_compare_is_shown_as_dashes() -> None:
    bare = Bounded(0.5, None, None, None)
    built = PublishedComparison(
        "r/x", "run", "m", "t", "acc,none", "", "accuracy", bare, None, None, "cannot tell", "why", "recorded",
        (), (), (), (),
    )  # fmt: skip
    assert "| r/x | 50.00 (—) of an unknown number | — | — | cannot tell |" in markdown(published_elements([built]))


def _text(made: PublishedComparison) -> str:
    return markdown(published_elements([made])).replace("\\", "")


def test_another_model_gets_no_verdict_by_noise(tmp_path: Path) -> None:
    other = _recipe(deviations=["model: tiny-llada instead of GSAI-ML/LLaDA-8B-Instruct", "limit: 4"])
    built = compare_with_published(_run(tmp_path, 0.1), other)
    assert (
        built.verdict == "another model"
        and "| another model |" in _text(built)
        and "beyond noise |" not in _text(built)
    )
    limited = _recipe(deviations=["limit: 4"])
    assert compare_with_published(_run(tmp_path, 0.1), limited).verdict == "differs beyond noise"


def test_a_terminal_shows_each_doubts_first_sentence(tmp_path: Path) -> None:
    doubts = ["Two columns, 79.68 and 76.5. A maximum is biased.", "No seed."]
    built = compare_with_published(_run(tmp_path), _recipe(doubts=doubts))
    out = io.StringIO()
    show(published_elements([built]), Console(file=out, width=80, markup=False, highlight=False))
    text = out.getvalue()
    assert "doubt: Two columns, 79.68 and 76.5.\n" in text.replace(" \n", "\n") and "biased" not in text
    assert "dare-bench ls recipes llada/gsm8k" in text
    assert "A maximum is biased." in _text(built) and "ls recipes" not in _text(built)
    assert len(textwrap.wrap(EXPLAINED, 80)) == 2
