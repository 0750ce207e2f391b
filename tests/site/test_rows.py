"""Which runs share a row of a board, and what the row then says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy_source
from run_factory import alter, make_run
from site_pages import Page, rows_of
from toy_model import ToyModel

from dare_bench.engine.evaluate import evaluate
from dare_bench.leaderboards.builder import build
from dare_bench.runs.schema import UNSAFE_ALLOWED

toy_source.register()
HELD = "gen_length 16, block_length 16, steps 16"


def together(runs: Path, **changes: Any) -> list[set[str]]:
    return sorted(({entry.run_id for entry in row.entries} for row in rows_of(runs, **changes)), key=sorted)


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
        "settings": {"decoding_requested": {"cfg_scale": 1.5}},
        "other-content": {"model__content_hash": "sha256:" + "cd" * 32},
        "other-name": {"model__name": "other", "spec": {"model": "other"}},
        "adapter": {"model__adapter_hash": "sha256:" + "ef" * 32},
        "dtype": {"model__dtype": "bfloat16"},
        "seeds": {"seeds": [1, 1, 1, 1]},
        "hardware": {"environment": {"gpu": "NVIDIA H200"}},
        "family": {"model__family": "llada2.1"},
        "estimator": {"spec": {"likelihood": {"mc_num": 1}}},
        "estimator-draws": {"spec": {"likelihood": {"mc_num": 16}}},
        "mask": {"results": {"config": {"model_args": {"pretrained": "m", "mask_id": 7}}}},
        "template": {"results": {"chat_template": "<u>", "fewshot_as_multiturn": True}},
        "one-turn": {"results": {"chat_template": "<u>", "fewshot_as_multiturn": False}},
        "repeats": {"repeats": 4},
        "limit": {"limit": 20},
        "stopped": {"until_halfwidth": 8},
    }.items():
        make_run(tmp_path, name, tasks={"b": 0.5})
        alter(tmp_path / name, **change)
    assert all(len(row.entries) == 1 for row in rows_of(tmp_path))


def test_a_row_says_how_many_runs_it_has(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5})
    make_run(tmp_path, "b", tasks={"b": 0.5})
    make_run(tmp_path, "other", tasks={"c": 0.5}, decoding={"steps": 8})
    assert together(tmp_path) == [{"a", "b"}, {"other"}]
    build(tmp_path, tmp_path / "site", samples=False)
    text = Page(tmp_path / "site/table.html").text
    assert "2 runs, the newest of 2026-" in text and "· run of 2026-" in text


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
    assert row.settings == "llada, float32, lm-eval, gen_length 16–32 by task, block_length 16, steps 16"


def test_speed_of_a_row_is_that_of_its_runs_together(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5}, n_docs=10)
    make_run(tmp_path, "b", tasks={"b": 0.5}, n_docs=30)
    (row,) = rows_of(tmp_path)
    assert row.nfe_per_request == 12 and row.tpf is not None and abs(row.tpf - 11 / 12) < 1e-9
    assert row.tokens_per_s is not None and abs(row.tokens_per_s - (10 + 30) * 11 / 25) < 1e-9


def test_where_most_rows_lack_tasks_the_usual_one_ranks(tmp_path: Path) -> None:
    """A sweep trains each checkpoint for one task: a mean over all would rank the untrained base alone."""
    make_run(tmp_path, "base", model="base", tasks={"a": 0.2, "b": 0.1}, n_docs=60)
    for at, share in enumerate((0.9, 0.5)):
        make_run(tmp_path, f"a{at}", model=f"a{at}", tasks={"a": share}, n_docs=60)
    make_run(tmp_path, "b", model="b", tasks={"b": 0.9}, n_docs=60)
    result = {row.main.model: (row.rank, [badge.kind for badge in row.badges]) for row in rows_of(tmp_path)}
    lacks = ["missing"]
    assert result == {"a0": (1, lacks), "a1": (2, lacks), "base": (3, []), "b": (None, lacks)}
    mean = {row.main.model: row.rank for row in rows_of(tmp_path, rank_by="mean")}
    assert mean == {"base": 1, "a0": None, "a1": None, "b": None}


def test_bands_of_rows_that_cannot_be_told_apart_have_a_rank_in_common(tmp_path: Path) -> None:
    for name, share in (("a", 0.9), ("b", 0.8), ("c", 0.7), ("d", 0.1)):
        make_run(tmp_path, name, model=name, tasks={"t": share}, n_docs=60)
    rows = [row for row in rows_of(tmp_path) if row.mean_interval]
    for item in rows:
        for other in rows:
            assert item.mean_interval and other.mean_interval and item.rank and other.rank and item.last and other.last
            apart = (item.mean_interval.lo or 0) > (other.mean_interval.hi or 0)
            overlap = item.rank <= other.last and other.rank <= item.last
            assert overlap or apart or (other.mean_interval.lo or 0) > (item.mean_interval.hi or 0)
            assert not apart or item.rank < other.rank
    assert (rows[0].rank, rows[-1].rank, rows[-1].last) == (1, 4, 4) and rows[0].last in (2, 3)


def test_examples_and_templates_that_were_asked_for_are_named_and_keep_rows_apart(tmp_path: Path) -> None:
    make_run(tmp_path, "zero", tasks={"a": 0.5})
    folder = make_run(tmp_path, "five", tasks={"b": 0.5, "c": 0.5})
    alter(
        folder,
        spec={"num_fewshot": 5, "apply_chat_template": True},
        results={"n-shot": {"b": 5, "c": 3}, "chat_template": "<user>"},
    )
    rows = {row.main.run_id: row for row in rows_of(tmp_path)}
    assert {name: row.settings for name, row in rows.items()} == {
        "zero": f"llada, float32, lm-eval, {HELD}",
        "five": f"llada, float32, lm-eval, chat template, {HELD}",
    }
    assert [[cell.shots for cell in row.cells if cell] for row in rows.values()] == [["5-shot", "3-shot"], ["0-shot"]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model__dtype": "bfloat16"}, f"llada, bfloat16, lm-eval, {HELD}"),
        ({"seeds": [7, 7, 7, 7]}, f"llada, float32, lm-eval, {HELD}, seed 7"),
        ({"seeds": [0, 1, 2, 3]}, f"llada, float32, lm-eval, {HELD}, seed 0,1,2,3"),
        ({"repeats": 4}, f"llada, float32, lm-eval, {HELD}, repeats 4"),
        ({"spec": {"likelihood": {"mc_num": 1}}}, f"llada, float32, lm-eval, {HELD}, likelihood mc_num 1"),
        ({"results": {"config": {"model_args": {"mask_id": 7}}}}, f"llada, float32, lm-eval, {HELD}, mask_id 7"),
        (
            {"results": {"chat_template": "<u>", "fewshot_as_multiturn": False}},
            f"llada, float32, lm-eval, chat template, {HELD}, fewshot_as_multiturn no",
        ),
    ],
)
def test_a_row_shows_what_sets_it_apart(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    alter(make_run(tmp_path, "a", tasks={"a": 0.5}), **change)
    (row,) = rows_of(tmp_path)
    assert row.settings == told


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unsafe_no_sandbox": True}},
        {"execution": {"level": "none", "unsafe": True}},
        {"events": [{"what": UNSAFE_ALLOWED}]},
    ],
)
def test_a_run_that_might_do_without_a_sandbox_has_no_rank(tmp_path: Path, change: dict[str, Any]) -> None:
    alter(make_run(tmp_path, "a", tasks={"a": 0.5}), **change)
    (row,) = rows_of(tmp_path)
    assert row.rank is None and [badge.kind for badge in row.badges] == ["unsafe"]


@pytest.mark.parametrize("limit", [2, 4])
def test_a_resumed_run_is_unsafe_if_any_session_was(tmp_path: Path, limit: int) -> None:
    def badges(**fields: Any) -> list[str]:
        evaluate(model=ToyModel(), tasks="toygen", harness="toy", output_path=str(tmp_path), progress=False, **fields)
        (row,) = rows_of(tmp_path)
        return [badge.text for badge in row.badges if badge.kind == "unsafe"]

    assert badges(limit=2) == []
    assert badges(limit=limit, unsafe_no_sandbox=True) == ["sandbox not required"] == badges(limit=6)


def test_the_settings_that_held_are_told_and_not_those_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5, "choice_b": 0.5}, decoding={"steps": 8, "cfg_scale": 1.5})
    alter(tmp_path / "a", decoding_requested={"steps": 1000, "cfg_scale": 1.5, "mc_num": 4})
    (row,) = rows_of(tmp_path)
    assert row.settings == "llada, float32, lm-eval, gen_length 16, block_length 16, steps 8, cfg_scale 1.5, mc_num 4"


def test_the_rows_of_single_runs_have_their_seeds(tmp_path: Path) -> None:
    for name, seeds in (("default", [0, 1234, 1234, 1234]), ("all", [7, 7, 7, 7]), ("sampling", [0, 1234, 5, 1234])):
        make_run(tmp_path, name, tasks={"a": 0.5})
        alter(tmp_path / name, seeds=seeds)
    reported = {row.main.run_id: row.settings.partition("steps 16")[2] for row in rows_of(tmp_path, rows="run")}
    assert reported == {"default": "", "all": ", seed 7", "sampling": ", seed 0,1234,5,1234"}


def test_every_row_that_lacks_tasks_says_so(tmp_path: Path) -> None:
    tasks = dict.fromkeys("abcdefgh", 0.5)
    for at in range(3):
        make_run(tmp_path, f"m{at}", model=f"m{at}", tasks={"a": 0.5})
    make_run(tmp_path, "whole", model="whole", tasks=tasks)
    make_run(tmp_path, "last", model="last", tasks={"h": 0.5})
    result = {row.main.model: [badge.text for badge in row.badges] for row in rows_of(tmp_path)}
    assert result["last"] == result["m0"] == ["7 of 8 tasks missing"] and result["whole"] == []


def test_a_run_scored_again_is_no_second_measurement(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tasks={"a": 0.5})
    alter(tmp_path / "a", events=[{"what": "the recorded answers of x were scored again"}])
    (row,) = rows_of(tmp_path)
    assert row.rank is None and [badge.kind for badge in row.badges] == ["rescored"]
