"""``dare-bench sweep`` with a name that nobody knows: a usage error before any node starts, in a dry run too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from require import need_package

from dare_bench.cli import main
from dare_bench.costs import sweep
from dare_bench.errors import UsageError
from dare_bench.sweeps.run import refuse_unknown
from dare_bench.sweeps.sweep_graph import SweepNode

need_package("lm_eval")
GOOD = {
    "models": "tiny-llada-base",
    "train": {"method": "sft", "task": "dare_sudoku", "max_steps": 2, "rows": 8},
    "eval": {"tasks": "dare_sudoku", "limit": 2},
}


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["real", "dry"])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"eval": {"tasks": "dare_sudoko"}}, "dare_sudoko: unknown task 'dare_sudoko'; closest: dare_sudoku"),
        ({"eval": {"tasks": "dare_sudoku", "harness": "lm-evil"}}, "unknown harness 'lm-evil'; closest: lm-eval"),
        ({"train": {**GOOD["train"], "task": "dare_sudoko"}}, "seed=0: unknown training data 'dare_sudoko'; closest"),
        ({"models": "tiny-lada-base"}, "no checkpoint 'tiny-lada-base': no such folder or bundled name"),
        ({"models": {"model": "tiny-llada-base", "adapter": "./none"}}, "no checkpoint './none'"),
        ({"train": {**GOOD["train"], "noise": "unifrom"}}, "train[0]: noise='unifrom': must be 'uniform', 'even'"),
        ({"eval": {"tasks": "dare_sudoku", "gen_kwargs": {"stepz": 4}}}, "a decoding field 'stepz'; closest: steps"),
        ({"board": "maybe"}, "board: unknown board 'maybe'; "),
        ({"board": {"titel": "Mine"}}, "board: 'titel' is not a field of a board"),
        ({"board": {"board": "demo", "title": "Mine"}}, "board: 'board' is not a field of a board"),
    ],
)
def test_a_name_nobody_knows_is_a_usage_error(
    fields: dict[str, Any], says: str, dry: list[str], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "off.yaml").write_text(yaml.safe_dump({**GOOD, **fields}))
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "off.yaml"), "--output-path", str(tmp_path / "out"), *dry])
    output = capsys.readouterr()
    assert left.value.code == 2 and not output.out
    assert says in output.err and len(output.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_hub_ids_are_not_asked_for_and_what_is_done_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dare_bench.loading._from_hub", lambda name: pytest.fail(f"{name} was fetched"))
    nodes = [
        SweepNode("eval/a/b", "eval", {"model": "owner/name", "tasks": "dare_sudoku"}),
        SweepNode("eval/c/b", "eval", {"model": "gone", "tasks": "dare_sudoku"}),
    ]
    refuse_unknown(nodes, {"eval/a/b"})
    with pytest.raises(UsageError, match="eval/c/b: no checkpoint 'gone'"):
        refuse_unknown(nodes, {"eval/c/b"})


def test_a_dry_run_shows_what_would_fail_and_ends_with_a_usage_error(tmp_path: Path, capsys: Any) -> None:
    """Twelve completions are no groups of eight."""
    train = {"method": "cj_grpo", "task": "dare_sort", "num_generations": 8, "per_device_train_batch_size": [12, 16]}
    (tmp_path / "odd.yaml").write_text(
        yaml.safe_dump({"models": "tiny-llada-sort-base", "train": {**train, "max_steps": 2}})
    )
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "odd.yaml"), "--output-path", str(tmp_path / "out"), "--dry-run"])
    output = capsys.readouterr()
    assert left.value.code == 2 and "would fail: 12 completions" in output.err
    assert "per_device_train_batch_size=12" in output.err
    assert output.out.count("would fail") == 1 and "2 steps of 16 completions" in output.out


def test_a_dry_run_cuts_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = "word " * 200 + "end"
    monkeypatch.setattr(sweep, "_cost", lambda *_: sweep.NodeCost(text))
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "good.yaml"), "--output-path", str(tmp_path / "out"), "--dry-run"])
    output = capsys.readouterr().out
    assert not left.value.code and output.count(text) == 3
