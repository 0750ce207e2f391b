"""Seeds of one training recipe, or of one evaluation, are one row of a board: their mean, lowest and highest score,
ranked as one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lineages import make_checkpoint, make_family, trained
from run_factory import alter, make_run
from site_pages import board_data, plain, rows, rows_of

from dare_bench.leaderboards.builder import build


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("family")
    make_family(root / "runs")
    build(root / "runs", root / "site")
    return root


def test_seeds_of_one_recipe_at_one_step_are_one_row(family: Path) -> None:
    records = {tuple(sorted(row["runs"])): row for row in board_data(family / "site")["rows"]}
    assert set(records) == {
        ("base",), ("lora",), ("rl0", "rl1"),
        *(tuple(f"sft{seed}-{step}" for seed in range(3)) for step in (25, 50, 100)),
    }  # fmt: skip
    row = records["sft0-100", "sft1-100", "sft2-100"]
    score = row["scores"]["dare_sudoku"]
    assert row["seeds"] == 3 and "3 seeds" in row["name"] and "seed 1" not in row["name"]
    assert (score["value"], score["lowest"], score["highest"]) == pytest.approx((0.75, 0.7, 0.8))


def test_the_row_says_how_many_seeds_and_leads_to_each(family: Path) -> None:
    html = (family / "site" / "table.html").read_text()
    (row,) = [row for row in html.split("<tr") if "runs/sft2-100/" in row]
    assert re.findall(r'<a href="runs/(sft\d-100)/index.html">(\d)</a>', row) == [
        (f"sft{at}-100", str(at)) for at in range(3)
    ]
    assert "75.0" in row and "70.0–80.0, 3 seeds" in plain(row)


def test_a_rank_is_a_band_and_nothing_else(family: Path) -> None:
    bands = [plain(row).split()[0] for row in rows(family / "site").values()]
    assert all(re.fullmatch(r"\d+(–\d+)?", band) for band in bands) and any("–" in band for band in bands)


@pytest.mark.parametrize(
    ("change", "count"),
    [({}, 1), ({"decoding": {"steps": 8}}, 2), ({"prompts": "v2"}, 2), ({"gpu": "H200"}, 2), ({"limit": 9}, 2)],
    ids=["same", "settings", "prompts", "hardware", "limit"],
)
def test_what_differs_in_more_than_its_seed_is_another_row(tmp_path: Path, change: dict[str, Any], count: int) -> None:
    make_checkpoint(tmp_path, "one", 0.5, trained(seed=1))
    make_checkpoint(tmp_path, "two", 0.7, trained(seed=2), **change)
    make_checkpoint(tmp_path, "three", 0.7, trained(seed=1, method="dpo"))
    assert len(rows_of(tmp_path)) == count + 1


def test_a_run_that_was_repeated_is_no_seed(tmp_path: Path) -> None:
    for name in ("one", "again"):
        make_checkpoint(tmp_path, "one", 0.5, trained(seed=1), run_id=name)
    make_checkpoint(tmp_path, "two", 0.5, trained(seed=2))
    assert sorted(len(row.entries) for row in rows_of(tmp_path)) == [1, 2]


def test_seeds_are_ranked_by_the_mean_of_each_document(tmp_path: Path) -> None:
    """Twenty documents that a base has wrong, and all its seeds right: by the paired test this is better, although the
    intervals overlap."""
    half = [1.0] * 50 + [0.0] * 50
    make_checkpoint(tmp_path / "runs", "base", 0, values={"t": half})
    for seed in range(2):
        values = {"t": [1.0] * 70 + [0.0] * 30}
        make_checkpoint(tmp_path / "runs", f"s{seed}", 0, trained(seed=seed), values=values)
    build(tmp_path / "runs", tmp_path / "site")
    assert [(row["seeds"], row["rank_band"]) for row in board_data(tmp_path / "site")["rows"]] == [
        (2, [1, 1]),
        (1, [2, 2]),
    ]


def test_seeds_of_an_evaluation_are_one_row_with_their_mean_lowest_and_highest(tmp_path: Path) -> None:
    for seed, score in ((None, 0.7), (1, 0.5), (2, 0.6)):
        folder = make_run(tmp_path / "runs", f"run-{seed}", tasks={"t": score}, documents="same")
        if seed is not None:
            alter(folder, seeds=[seed] * 4)
    build(tmp_path / "runs", tmp_path / "site")
    (record,) = board_data(tmp_path / "site")["rows"]
    score = record["scores"]["t"]
    assert record["seeds"] == 3 and record["name"] == "tiny-llada, 3 seeds" and record["rank"] == 1
    assert (score["value"], score["lowest"], score["highest"]) == pytest.approx((0.6, 0.5, 0.7))
    assert "seed" not in record["settings_text"]
    (row,) = rows(tmp_path / "site").values()
    assert "50.0–70.0, 3 seeds" in plain(row) and "seed 1 2 default" in plain(row)


@pytest.mark.parametrize(
    "change", [{"decoding_requested": {"temperature": 1.0}}, {"limit": 9}, {"model__dtype": "bfloat16"}]
)
def test_an_evaluation_that_differs_in_more_than_its_seed_is_another_row(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    make_run(tmp_path, "one", tasks={"t": 0.5}, documents="same")
    alter(make_run(tmp_path, "two", tasks={"t": 0.5}, documents="same"), seeds=[1] * 4, **change)
    assert len(rows_of(tmp_path)) == 2


def test_seeds_with_other_examples_in_the_prompt_are_two_rows(tmp_path: Path) -> None:
    for seed in (1, 2):
        alter(make_run(tmp_path, f"run-{seed}", tasks={"t": 0.5}), seeds=[seed] * 4, results={"n-shot": {"t": 5}})
    assert len(rows_of(tmp_path)) == 2


def test_seeds_of_training_and_evaluation_are_one_row_that_names_both(tmp_path: Path) -> None:
    for at in range(4):
        make_checkpoint(tmp_path, f"c{at // 2}", 0.5, trained(seed=at // 2), run_id=f"run-{at}")
        alter(tmp_path / f"run-{at}", seeds=[at % 2] * 4)
    (row,) = rows_of(tmp_path)
    assert [seed for seed, _ in row.seeds] == ["0/0", "0/1", "1/0", "1/1"] and "4 seeds" in row.name.text
