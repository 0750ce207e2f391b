"""The committed files of docs/trained and docs/rl-runs: what training did to the bundled bases. The pages claim no
more."""

from __future__ import annotations

import csv
import shutil

import pytest
from lineages import script as loaded
from paths import ROOT
from run_factory import make_run

from dare_bench.fingerprint import content_hash
from dare_bench.loading import locate

BASES = ("tiny-dream-base", "tiny-llada-base", "tiny-llada2-base", "tiny-sdar-base")
STARTS = ("tiny-llada-sort-base", "tiny-sdar-sort-base", "tiny-llada2-sort-base", "tiny-llada-countdown-base")
PAGES = ("trained", "rl-runs")


@pytest.fixture(scope="module")
def script():
    """scripts/trained.py."""
    return loaded()


@pytest.fixture(scope="module")
def results(script) -> dict:
    """The groups of docs/trained."""
    return script.groups(script.read_outcomes(ROOT / "docs" / "trained"))


@pytest.mark.parametrize("page", PAGES)
def test_the_page_holds_the_table_that_its_runs_give(script, page):
    outcomes = script.read_outcomes(ROOT / "docs" / page)
    assert script.table(script.groups(outcomes)) in (ROOT / "docs" / page / "README.md").read_text()
    for outcome in outcomes:
        if outcome.solved:
            assert len(outcome.solved) == outcome.documents, outcome.run
            assert outcome.solved.count("1") / outcome.documents == pytest.approx(outcome.accuracy)


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
def test_they_were_made_from_the_checkpoints_that_are_bundled(script, page):
    content = {base: content_hash(locate(base)) for base in (*BASES, *STARTS)}
    for outcome in script.read_outcomes(ROOT / "docs" / page):
        assert outcome.base_content == content[outcome.base]


# Reinforcement learning

ALGORITHMS = (*("bgpo", "cj_grpo", "coupled_grpo", "d1", "dtreerpo", "ebpo", "espo", "just_grpo", "mdpo", "spg"),)


@pytest.fixture(scope="module")
def learned(script) -> dict:
    """The groups of docs/rl-runs."""
    return script.groups(script.read_outcomes(ROOT / "docs" / "rl-runs"))


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


def test_the_sweep_of_what_is_missing_has_what_the_page_says():
    from dare_bench.sweeps.sweep_graph import graph
    from dare_bench.sweeps.sweep_spec import read_spec

    names = [node.id for node in graph(read_spec(ROOT / "docs" / "rl-runs" / "more.yaml")) if node.kind == "train"]
    assert any("seed=0" in name for name in names) and any("just_grpo" in name for name in names)
    assert len(names) == 2 * (3 * 2 + 3 + 4), "two models: seeds of three, just_grpo, controls of four"


def test_a_sweep_becomes_the_files_of_its_page(script, tmp_path, monkeypatch):
    """Runs without samples keep what the page knows of them; the tables can be made again without the sweep."""
    page, out = tmp_path / "page", tmp_path / "out"
    page.mkdir()
    marks = (script.BEGIN, script.END)
    (page / "README.md").write_text("\n".join(["# Head", *marks, "tail", ""]))
    base = {"documents": "same", "model": "tiny"}
    make_run(out / "runs", "base", values={"dare_sort": [1.0, 0.0, 0.0, 0.0]}, **base)
    for number in range(2):
        lineage = {
            "base": "tiny", "base_content": f"sha256:{'ab' * 32}", "method": "mdpo", "peft": None, "data": "dare_sort",
            "options": {"reward": {"random": number == 1}}, "seed": 0, "steps": 20, "forwards": {"rollout": 9000},
        }  # fmt: skip
        given = {"content": f"{number}" * 64, "lineage": lineage, **base}
        make_run(out / "runs", f"trained{number}", values={"dare_sort": [1.0, 1.0, float(number), 0.0]}, **given)
        folder = out / "train" / str(number)
        folder.mkdir(parents=True)
        log = [{"step": step, "loss": 0.5, "accuracy": 0.25} for step in (10, 20)]
        about = {"lineage": lineage, "trainer_state": {"log_history": log}}
        for name, value in about.items():
            (folder / f"{name}.json").write_text(script.json.dumps(value))
    monkeypatch.setattr("sys.argv", ["trained.py", str(page), str(out)])
    script.main()
    first = {file.name: file.read_bytes() for file in page.iterdir()}
    written = first["README.md"].decode()
    assert "| `tiny` | mdpo | `dare_sort` | 9 | `dare_sort` | 4 | 25.0" in written and "75.0 [" in written
    assert written.endswith("tail\n")
    assert script.read_outcomes(page)[1].solved == "1100" and {"curves.csv", "curves.svg"} <= set(first)
    for samples in out.glob("runs/trained0/samples_*"):
        samples.unlink()
    script.main()
    assert {file.name: file.read_bytes() for file in page.iterdir()} == first
    shutil.rmtree(out)
    monkeypatch.setattr("sys.argv", ["trained.py", str(page)])
    script.main()
    assert {file.name: file.read_bytes() for file in page.iterdir()} == first
