"""The page of a checkpoint: its scores over all settings, the passes that they take, its runs, lineage and citation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lineages import make_family
from run_factory import alter, make_run
from site_pages import Page, change

from dare_bench.leaderboards.builder import build

WEIGHTS = "cd" * 32


def run_of(root: Path, steps: int, share: float, **more: Any) -> None:
    known = {"n_docs": 100, "n_total": 100, "documents": "same", "content": WEIGHTS, "tasks": {"dare_sudoku": share}}
    run = make_run(root, f"s{steps}", decoding={"steps": steps}, **known | more)
    alter(run, cost__nfe=100 * steps, cost__requests=100)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    for steps, share in ((4, 0.4), (8, 0.79), (16, 0.8), (32, 0.82)):
        run_of(root, steps, share)
    make_family(root)
    build(root, out)
    return out


def test_the_passes_for_nearly_the_best_score_are_the_fewest_that_were_measured(site: Path) -> None:
    """95 % of 82.0 is 77.9: eight steps reach it, four do not."""
    page = Page(site / "checkpoints/cdcdcdcdcdcd.html")
    assert "dare_sudokuexact_match 82.0" in page.words and "100 of 100 32.0 8.079.0" in page.words
    assert "../runs/s8/index.html" in page.links and "../runs/s4/index.html" in page.links
    assert "parameters861,000" in page.words and f"sha256:{WEIGHTS}" in page.text


def test_scores_are_drawn_against_passes_with_a_band(site: Path) -> None:
    html = (site / "checkpoints/cdcdcdcdcdcd.html").read_text()
    chart = html.split('class="chart lines"')[1].split("</figure>")[0]
    assert chart.count('class="band"') == 1 and chart.count('<a href="../runs') == 4
    assert "8 forward passes per request" in chart and 'href="../runs/s32/index.html"' in chart
    assert 'class="chart' not in (site / "checkpoints/base.html").read_text()


def test_a_checkpoint_leads_to_its_base_and_to_those_trained_from_it(site: Path) -> None:
    tuned, base = (Page(site / f"checkpoints/{name}.html") for name in ("sft2-100", "base"))
    assert "base.html" in {Path(link).name for link in tuned.links}
    assert {"rl0.html", "rl1.html"} <= {Path(link).name for link in tuned.links}
    assert "SFT on dare_sudoku, step 100 of 100, seed 2" in tuned.words
    assert "sft2-100.html" in {Path(link).name for link in base.links}


def test_weights_with_an_adapter_have_a_page_of_their_own(site: Path) -> None:
    page = Page(site / "checkpoints/base-lora0.html")
    assert "adaptersha256:lora0" in page.words and "1 run " in page.words


def test_it_has_the_command_and_a_citation(site: Path) -> None:
    page = Page(site / "checkpoints/cdcdcdcdcdcd.html")
    assert "dare-bench eval" in page.text and "@misc{checkpoint:cdcdcdcdcdcd," in page.text
    assert f"Content sha256:{WEIGHTS}; best scores by dare-bench: dare\\_sudoku 82.00\\% (n 100)" in page.text


def test_it_shows_the_badge_with_the_line_to_copy(site: Path, tmp_path: Path) -> None:
    page = site / "checkpoints/cdcdcdcdcdcd.html"
    drawing = (site / "badge/s32.svg").read_text().replace(' xmlns="http://www.w3.org/2000/svg"', "")
    assert drawing in page.read_text() and "../badge/s32.svg" in Page(page).links
    assert "[![dare-bench](SITE/badge/s32.svg)](SITE/checkpoints/cdcdcdcdcdcd.html)" in Page(page).text
    run_of(tmp_path / "runs", 16, 0.8)
    build(tmp_path / "runs", tmp_path / "site", url="https://example.org/board")
    text = Page(tmp_path / "site/checkpoints/cdcdcdcdcdcd.html").text
    assert "(https://example.org/board/badge/s16.svg)" in text and "SITE/" not in text


def test_of_equal_scores_the_best_is_that_with_the_fewest_passes(tmp_path: Path) -> None:
    for steps in (8, 20, 4):
        run_of(tmp_path / "runs", steps, 0.7 if steps == 4 else 0.9)
    build(tmp_path / "runs", tmp_path / "site")
    page = Page(tmp_path / "site/checkpoints/cdcdcdcdcdcd.html")
    assert "dare_sudokuexact_match 90.0" in page.words and "100 of 100 8.0 8.090.0" in page.words


def test_published_scores_stand_beside_the_reproduced_ones(tmp_path: Path) -> None:
    run_of(tmp_path / "runs", 16, 0.8)
    recipe = {
        "name": "llada-sudoku",
        "published": {"value": 0.785, "measures": "accuracy"},
        "score": {"task": "dare_sudoku", "metric": "exact_match"},
        "settings": "complete",
    }
    alter(tmp_path / "runs/s16", recipes=[recipe])
    build(tmp_path / "runs", tmp_path / "site")
    page = Page(tmp_path / "site/checkpoints/cdcdcdcdcdcd.html")
    words = page.words.replace(" ", "")
    assert "llada-sudokuaccuracy78.580.071.1–86.7" in words and "../runs/s16/index.html#published" in page.links


def test_a_limited_run_is_the_best_only_where_there_is_no_other(tmp_path: Path) -> None:
    run_of(tmp_path / "runs", 16, 0.5)
    run_of(tmp_path / "runs", 4, 0.9, n_docs=10, limit=10)
    build(tmp_path / "runs", tmp_path / "site")
    page = Page(tmp_path / "site/checkpoints/cdcdcdcdcdcd.html")
    assert "exact_match 50.0" in page.words and "limit 10" in page.words


def test_names_on_the_overview_and_in_the_table_lead_to_it(site: Path) -> None:
    for place in ("index.html", "table.html"):
        assert "checkpoints/cdcdcdcdcdcd.html" in Page(site / place).links
    assert "runs/s32/index.html" in Page(site / "table.html").links


def test_a_rebuild_keeps_it_and_a_new_run_of_it_writes_it_again(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    run_of(runs, 16, 0.8)
    build(runs, out)
    page = out / "checkpoints/cdcdcdcdcdcd.html"
    before = page.stat().st_mtime_ns
    build(runs, out)
    assert page.stat().st_mtime_ns == before
    run_of(runs, 8, 0.7)
    build(runs, out)
    assert page.stat().st_mtime_ns > before and "2 runs" in Page(page).words


def test_beside_a_task_stand_its_own_settings(tmp_path: Path) -> None:
    """On the pages of checkpoints, answers and unmasking: tasks of one run may be answered in different lengths."""
    lengths = dict.fromkeys(("gen_length", "block_length", "steps"), 4)
    for number, family in enumerate(("llada", "dream")):
        known: dict[str, Any] = {"model": family, "content": f"{number}" * 64, "documents": "same"}
        run = make_run(tmp_path / "runs", family, tasks={"long": 0.9, "short": 0.5}, **known)
        alter(run, model__family=family)
        change(run, lambda results: results["dare_bench"]["tasks"]["short"]["decoding"].update(lengths))
    build(tmp_path / "runs", tmp_path / "site")
    settings = "llada, float32, lm-eval, gen_length {0}, block_length {0}, steps {0}"
    long, short = settings.format(16), settings.format(4)
    for task, own, other in (("long", long, short), ("short", short, long)):
        for name in ("1", "index"):
            words = Page(tmp_path / f"site/runs/llada/samples/{task}/{name}.html").words
            assert own in words and other not in words and "by task" not in words
    checkpoint = Page(tmp_path / "site/checkpoints/000000000000.html").words
    best = checkpoint.partition("Best scores")[2].partition("Settings: 1 run")[0]
    assert best.count(long) == best.count(short) == 1
    scenes = Page(tmp_path / "site/unmasking.html").words
    assert scenes.count(long) == scenes.count(short) == 1 and "by task" not in scenes
