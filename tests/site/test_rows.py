"""Which runs share a row of a board, and what the row then says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from run_factory import make_run

from dare_bench.leaderboards.board import load_board
from dare_bench.leaderboards.entries import read_entries
from dare_bench.leaderboards.ranking import make_rows
from dare_bench.leaderboards.rows import Row


def rows_of(runs: Path, **changes: Any) -> list[Row]:
    board = load_board("default").model_copy(update=changes)
    entries = read_entries([runs], lambda text: None)
    return make_rows(board, board.columns(entries), entries)


def together(runs: Path, **changes: Any) -> list[set[str]]:
    return sorted(({entry.run_id for entry in row.entries} for row in rows_of(runs, **changes)), key=sorted)


def alter(folder: Path, **changes: Any) -> None:
    """Change the block of a run's results: ``model__dtype="bfloat16"`` sets ``model.dtype``."""
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_bytes())
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        if inner:
            results["dare_bench"][part][inner] = value
        else:
            results["dare_bench"][part] = value
    file.write_text(json.dumps(results))


def test_runs_of_one_checkpoint_with_other_tasks_share_a_row(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5})
    make_run(tmp_path, "b", tasks={"b": 0.7}, created="2026-11-21T00:00:00")
    (row,) = rows_of(tmp_path)
    assert [cell.score.value for cell in row.cells if cell] == [0.5, 0.7] and not row.badges and row.rank == 1
    assert row.main.run_id == "b" and row.mean == 0.6
    assert [cell.entry.run_id for cell in row.cells if cell] == ["a", "b"]
    assert together(tmp_path, rows="run") == [{"a"}, {"b"}]


def test_what_differs_keeps_runs_apart(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5})
    for name, change in {
        "other-content": {"model__content_hash": "sha256:" + "cd" * 32},
        "other-name": {"model__name": "other"},
        "adapter": {"model__adapter_hash": "sha256:" + "ef" * 32},
        "dtype": {"model__dtype": "bfloat16"},
        "seeds": {"seeds": [1, 1, 1, 1]},
        "hardware": {"environment": {"gpu": "NVIDIA H200"}},
        "settings": {"decoding_requested": {"steps": 8}},
    }.items():
        make_run(tmp_path, name, tasks={"b": 0.5})
        alter(tmp_path / name, **change)
    assert all(len(row.entries) == 1 for row in rows_of(tmp_path))


def test_the_same_task_twice_is_two_rows(tmp_path: Path) -> None:
    make_run(tmp_path, "old", tasks={"a": 0.5, "b": 0.5}, created="2026-11-01T00:00:00")
    make_run(tmp_path, "new", tasks={"a": 0.6}, created="2026-11-20T00:00:00")
    make_run(tmp_path, "partial", tasks={"c": 0.6}, failures=1, status="incomplete", created="2026-11-22T00:00:00")
    make_run(tmp_path, "unfinished", tasks={"d": 0.6}, done=False)
    assert together(tmp_path) == [{"new", "partial"}, {"old"}, {"unfinished"}]


def test_a_suite_may_ask_each_task_with_settings_of_its_own(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5}, decoding={"gen_length": 32})
    make_run(tmp_path, "b", tasks={"b": 0.5})
    make_run(tmp_path, "c", tasks={"c": 0.5}, decoding={"gen_length": 32})
    for name in ("a", "b"):
        alter(tmp_path / name, suite="dare")
    assert together(tmp_path) == [{"a", "b"}, {"c"}]
    row = next(row for row in rows_of(tmp_path) if len(row.entries) == 2)
    assert "settings differ by task" in row.settings


def test_speed_of_a_row_is_that_of_its_runs_together(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5}, n_docs=10)
    make_run(tmp_path, "b", tasks={"b": 0.5}, n_docs=30)
    (row,) = rows_of(tmp_path)
    assert row.nfe_per_request == 12 and row.tpf is not None and abs(row.tpf - 11 / 12) < 1e-9
    assert row.tokens_per_s is not None and abs(row.tokens_per_s - (10 + 30) * 11 / 25) < 1e-9
