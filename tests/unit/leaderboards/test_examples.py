"""The committed runs of docs/trained and docs/rl-runs: what training did to the bundled bases. The pages claim no
more."""

from __future__ import annotations

import csv
import importlib.util
from types import ModuleType

import pytest
from paths import ROOT

from dare_bench.analysis.opening import find_runs
from dare_bench.fingerprint import content_hash
from dare_bench.loading import locate
from dare_bench.runs.reader import Run

BASES = ("tiny-dream-base", "tiny-llada-base", "tiny-llada2-base", "tiny-sdar-base")
STARTS = ("tiny-llada-sort-base", "tiny-sdar-sort-base", "tiny-llada2-sort-base", "tiny-llada-countdown-base")
PAGES = ("trained", "rl-runs")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/trained.py."""
    spec = importlib.util.spec_from_file_location("trained_script", ROOT / "scripts" / "trained.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def runs_of(page: str) -> list[Run]:
    return find_runs(ROOT / "leaderboards" / "examples" / page)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return runs_of("trained")


@pytest.fixture(scope="module")
def results(script, runs) -> dict:
    """The groups of docs/trained."""
    return script.groups(runs, script.read_outcomes(ROOT / "docs" / "trained" / "outcomes.csv"))


@pytest.mark.parametrize("page", PAGES)
def test_the_page_holds_the_table_that_its_runs_give(script, page):
    runs, solved = runs_of(page), script.read_outcomes(ROOT / "docs" / page / "outcomes.csv")
    assert script.table(script.groups(runs, solved)) in (ROOT / "docs" / page / "README.md").read_text()
    assert script.outcomes(runs).items() <= solved.items(), "samples that are committed agree"
    for run in runs:
        (task,) = run.tasks
        if run.run_id in solved:
            digits = solved[run.run_id]
            assert digits.count("1") / len(digits) == pytest.approx(run.results["results"][task]["exact_match,none"])


def test_every_seed_of_sft_and_lora_solves_more_than_its_base(results):
    wanted = [(base, method, "dare_sudoku") for base in BASES for method in ("sft", "sft + lora")]
    wanted += [("tiny-llada-base", method, "dare_arithmetic") for method in ("sft", "sft + lora")]
    for base, method, task in wanted:
        seeds = results[base, method, task, task]
        assert len(seeds) == 3
        assert all(item.won > item.lost and item.p < 1e-6 for item in seeds), (base, method, task)


def test_vrpo_raises_the_margin_and_the_model_survives(results):
    for item in results["tiny-llada-base", "vrpo", "dare_sudoku", "dare_sudoku"]:
        assert item.won >= item.lost or item.p > 0.05
    margins: dict[str, list[float]] = {}
    for line in csv.DictReader((ROOT / "docs" / "trained" / "curves.csv").read_text().splitlines()):
        if line["reward_margin"]:
            margins.setdefault(line["training"], []).append(float(line["reward_margin"]))
    assert len(margins) == 3
    assert all(abs(seen[0]) < 1e-3 and seen[-1] > 0.3 for seen in margins.values())


@pytest.mark.parametrize("page", PAGES)
def test_they_were_made_from_the_checkpoints_that_are_bundled(page):
    content = {base: content_hash(locate(base)) for base in (*BASES, *STARTS)}
    for run in runs_of(page):
        lineage = run.block.model.lineage
        if lineage is None:
            assert run.block.model.content_hash == content[run.block.model.name]
        else:
            assert lineage["base_content"] == content[lineage["base"]]
        assert run.status == "complete"


# Reinforcement learning

ALGORITHMS = (*("bgpo", "cj_grpo", "coupled_grpo", "d1", "dtreerpo", "ebpo", "espo", "just_grpo", "mdpo", "spg"),)


@pytest.fixture(scope="module")
def learned(script) -> dict:
    """The groups of docs/rl-runs."""
    return script.groups(runs_of("rl-runs"), script.read_outcomes(ROOT / "docs" / "rl-runs" / "outcomes.csv"))


@pytest.fixture(scope="module")
def largest_p(script, learned) -> dict:
    """By group of docs/rl-runs, adjusted by Holm's method."""
    return script.largest_p(learned)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_seed_of_an_algorithm_rises_and_its_control_does_not(learned, largest_p, name):
    """In the order in which it trains, by Holm's method over the ten."""
    base, orders = "tiny-llada-sort-base", ("dare_sort", "dare_sort, strategy=sequential")
    trained = orders[name == "just_grpo"]
    seeds = learned[base, name, "dare_sort", trained]
    assert len(seeds) == 3 and seeds[0].documents == 1000
    assert largest_p[base, name, "dare_sort", trained] < 1e-4
    assert all(len(learned[base, name, "dare_sort", order]) == 3 for order in orders), "both orders are shown"
    for control in learned.get((base, f"{name} with random rewards", "dare_sort", "dare_sort"), ()):
        assert control.trained < control.base


def test_the_page_names_the_trainings_that_took_long(script):
    page = (ROOT / "docs" / "rl-runs" / "README.md").read_text()
    every = script.trainings(ROOT / "leaderboards" / "examples" / "rl-runs" / "train")
    shown = script.slow(every)
    assert shown in page and "Twelve of the 76 trainings took longer than ten minutes" in page
    assert len(every) == 76 and len(shown.splitlines()) == 2 + 12
    for training in every:  # a step's phases are nearly all of its time
        took = sum(training.phases.values()) * training.lineage["steps"]
        assert 0.9 * training.seconds - 10 < took < training.seconds, training.name


def test_the_sweep_of_what_is_missing_has_what_the_page_says(capsys, tmp_path):
    from dare_bench.cli import main

    file = str(ROOT / "docs" / "rl-runs" / "more.yaml")
    with pytest.raises(SystemExit) as left:
        main(["sweep", file, "--output-path", str(tmp_path / "out"), "--dry-run"])
    shown = capsys.readouterr().out
    assert not left.value.code and "seed=0" in shown and "just_grpo" in shown
    nodes = {word for word in shown.split() if word.startswith("train/")}
    assert len(nodes) == 2 * (3 * 2 + 3 + 4), "two models: seeds of three, just_grpo, controls of four"


def test_the_committed_sweep_is_done_without_its_weights(capsys):
    from dare_bench.cli import main

    folder = ROOT / "leaderboards" / "examples" / "rl-runs"
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    assert not any(file.suffix == ".safetensors" for file in before)
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(ROOT / "docs/rl-runs/sweep.yaml"), "--output-path", str(folder), "--dry-run"])
    assert not left.value.code and "all nodes are done" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in before} == before
