"""How rows of a board are ranked: by the paired test where they answered the same documents, else by intervals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from run_factory import alter, make_run
from site_pages import rows_of

from dare_bench.analysis.comparison import compare
from dare_bench.leaderboards import board_ranking
from dare_bench.leaderboards.builder import build
from dare_bench.runs.reader import Run


def board_of(runs: Path, out: Path, **options: Any) -> dict[str, Any]:
    """The rows of a built board by model."""
    build(runs, out, **options)
    return {row["model"]: row for row in json.loads((out / "data/board.json").read_text())["rows"]}


def shared(root: Path, name: str, values: dict[str, list[float]], documents: str = "same", **more: Any) -> Path:
    return make_run(root, name, model=name, content=name, values=values, documents=documents, **more)


HALF = [1.0] * 60 + [0.0] * 60
MORE = [1.0] * 70 + [0.0] * 50  # ten documents won, none lost: p 0.002


@pytest.mark.parametrize(
    ("values", "documents", "ranks"),
    [
        ({"a": {"t": HALF}, "b": {"t": MORE}}, "same", (2, 1)),
        ({"a": {"t": HALF}, "b": {"t": MORE}}, "other", (1, 1)),  # not the same questions: the intervals overlap
        ({"a": {"t": HALF}, "b": {"t": HALF[::-1]}}, "same", (1, 1)),
        ({"a": {"t": HALF, "u": HALF}, "b": {"t": MORE, "u": MORE}}, "same", (2, 1)),  # the mean of two tasks
        ({"a": {"t": [x / 2 for x in HALF]}, "b": {"t": [x / 2 for x in MORE]}}, "same", (2, 1)),
    ],
)
def test_rows_of_the_same_documents_are_ranked_by_the_paired_test(
    tmp_path: Path, values: dict[str, dict[str, list[float]]], documents: str, ranks: tuple[int, int]
) -> None:
    shared(tmp_path / "runs", "a", values["a"])
    shared(tmp_path / "runs", "b", values["b"], documents)
    if documents != "same":  # what was asked differs by the checkpoints' own templates alone
        for name in "ab":
            alter_template(tmp_path / "runs" / name, name)
    rows = board_of(tmp_path / "runs", tmp_path / "site")
    assert (rows["a"]["rank"], rows["b"]["rank"]) == ranks, rows
    assert [rows[name]["rank_band"][1] for name in "ab"] == ([2, 1] if ranks == (2, 1) else [2, 2])


def alter_template(folder: Path, template: str) -> None:
    file = next(folder.glob("results_*.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))


def _as_group(folder: Path) -> None:
    """Give a run a group "both" whose score is the mean over the documents of its tasks."""
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_text())
    sizes = {task: results["results"][task]["sample_len"] for task in results["configs"]}
    results["n-samples"] = {task: {"original": n, "effective": n} for task, n in sizes.items()}
    key = "exact_match,none"
    mean = sum(results["results"][task][key] * n for task, n in sizes.items()) / sum(sizes.values())
    row = {"alias": "both", key: mean, "exact_match_stderr,none": 0.05}
    results["groups"], results["results"]["both"] = {"both": row}, row
    results["group_subtasks"]["both"] = list(sizes)
    results["higher_is_better"]["both"] = {"exact_match": True}
    ci = {"method": "normal", "level": 0.95, "lo": mean - 0.1, "hi": mean + 0.1, "n": sum(sizes.values())}
    results["dare_bench"]["ci"]["both"] = {key: ci}
    file.write_text(json.dumps(results))


@pytest.mark.parametrize("kind", ["right or wrong", "graded", "group"])
@pytest.mark.parametrize("gain", [0.0, 0.06, 0.1, 0.14, 0.3])
def test_a_board_and_compare_agree(tmp_path: Path, kind: str, gain: float) -> None:
    """Two rows have two ranks exactly where ``compare`` of their runs shows a difference, the better one first."""
    rng = random.Random(f"{kind}{gain}")
    values: dict[str, dict[str, list[float]]] = {"a": {}, "b": {}}
    for task, n in {"t": 60, "u": 30}.items() if kind == "group" else [("t", 60)]:
        hard = [rng.random() for _ in range(n)]
        for name, skill in (("a", 0.5), ("b", 0.5 + gain)):
            noisy = [(skill - difficulty) * 2 + rng.uniform(-0.5, 0.5) for difficulty in hard]
            shares = [round(min(max(0.5 + x, 0.0), 1.0), 3) for x in noisy]
            values[name][task] = shares if kind == "graded" else [float(x > 0) for x in noisy]
    folders = [shared(tmp_path / "runs", name, own) for name, own in values.items()]
    for folder in folders if kind == "group" else []:
        _as_group(folder)
    rows = {row.main.model: row for row in rows_of(tmp_path / "runs", tmp_path / "site")}
    (item,) = compare([Run(folder) for folder in folders]).items
    ranks = {"better": (2, 1), "worse": (1, 2)}.get(item.verdict, (1, 1))
    assert (rows["a"].rank, rows["b"].rank) == ranks, item.difference


def test_a_rank_is_held_against_all_comparisons_of_its_row(tmp_path: Path) -> None:
    """Of 20 equal rows beside the best one, p 0.03 alone is no proof; the best one has 20 comparisons too."""
    better = [1.0] * 66 + [0.0] * 54  # six won, none lost: p 0.031
    for at in range(20):
        shared(tmp_path / "runs", f"equal{at}", {"t": HALF})
    shared(tmp_path / "runs", "best", {"t": better})
    assert [row.rank for row in rows_of(tmp_path / "runs", tmp_path / "site")] == [1] * 21


def test_values_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in (("a", HALF), ("b", MORE)):
        shared(tmp_path / "runs", name, {"t": values})
    first = board_of(tmp_path / "runs", tmp_path / "site")
    monkeypatch.setattr(board_ranking, "all_pairs", None)  # a rebuild needs no statistics
    assert (
        board_of(tmp_path / "runs", tmp_path / "site") == first
        and build(tmp_path / "runs", tmp_path / "site").parts_written == 0
    )
    # Without samples only result files are read, and the intervals decide.
    alone = board_of(tmp_path / "runs", tmp_path / "alone", samples=False)
    assert {row["rank"] for row in alone.values()} == {1}


def test_a_row_without_an_interval_is_not_ranked(tmp_path: Path) -> None:
    """Eight equal models; of one nobody knows how far chance could move its score."""
    for at in range(8):
        make_run(tmp_path, f"m{at}", model=f"m{at}", tasks={"t": 0.5}, n_docs=60)
    alter(tmp_path / "m0", ci={})
    result = {row.main.model: (row.rank, row.last, [badge.kind for badge in row.badges]) for row in rows_of(tmp_path)}
    assert result.pop("m0") == (None, None, ["uncertain"])
    assert set(result) == {f"m{at}" for at in range(1, 8)} and set(map(str, result.values())) == {"(1, 7, [])"}


def test_a_part_of_a_mean_without_an_interval_may_be_anywhere(tmp_path: Path) -> None:
    for name, share in (("low", 0.1), ("high", 0.6), ("top", 1.0)):
        make_run(tmp_path, name, model=name, tasks=dict.fromkeys("tuv", share), n_docs=300)
        file = next((tmp_path / name).glob("results_*.json"))
        results = json.loads(file.read_text())
        del results["dare_bench"]["ci"]["u"]
        file.write_text(json.dumps(results))
    rows = {row.main.model: row for row in rows_of(tmp_path)}
    assert [(rows[name].rank, rows[name].last) for name in ("top", "high", "low")] == [(1, 2), (1, 3), (2, 3)]
    built = rows["low"].mean_interval
    assert built is not None and built.lo is not None and built.lo == pytest.approx(0.1 - 0.1 / 3, abs=0.01)


def test_the_bands_by_one_column_are_those_of_a_board_that_ranks_by_it(tmp_path: Path) -> None:
    """By the intervals alone: with rows of all badges, and rows that lack the column."""
    for at in range(12):
        tasks = {"a": 0.1 + 0.07 * at, **({"b": 0.9 - 0.06 * at} if at % 3 else {})}
        limit = 40 if at == 5 else None
        make_run(tmp_path, f"r{at}", model=f"m{at}", content=f"c{at}", tasks=tasks, n_docs=40, limit=limit)
    rows = rows_of(tmp_path, rank_by="mean")
    for at, task in enumerate(("a", "b")):
        bands = {row.main.run_id: band for row, band in zip(rows, board_ranking.column_bands(rows, at), strict=True)}
        alone = {
            row.main.run_id: None if row.rank is None else (row.rank, row.last)
            for row in rows_of(tmp_path, rank_by=task)
        }
        assert bands == alone and len({band for band in bands.values() if band}) > 3
