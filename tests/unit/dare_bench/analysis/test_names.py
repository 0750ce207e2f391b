"""Names of trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_factory import make_run

from dare_bench.analysis.names import letter, method_of, training_chain, trainings
from dare_bench.analysis.settings import row_key
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import no_formula


def test_methods_have_their_usual_spelling() -> None:
    names = ("sft", "vrpo", "cj_grpo", "coupled_grpo", "d1", "dtreerpo", "just_grpo", "my_method")
    spelled = [method_of({"method": name}) for name in names]
    assert spelled == ["SFT", "VRPO", "CJ-GRPO", "coupled-GRPO", "d1", "d-TreeRPO", "JustGRPO", "my_method"]
    assert method_of({"method": "sft", "peft": "lora"}, ["seed 1"]) == "SFT (LoRA, seed 1)"


# -- Rules that boards, tables and comparisons share: what is a share, which runs are one row,  ------------------------


@pytest.mark.parametrize(
    ("metric", "values", "share"),
    [
        ("acc,none", (0.0, 1.0), True), ("acc", (), True), ("acc", (0.5, 1.5), False), ("acc", (-0.1,), False),
        ("bits_per_byte,none", (0.8, 0.7), False), ("word_perplexity,none", (0.9,), False), ("chrf", (0.2,), False),
    ],
)  # fmt: skip
def test_only_shares_are_told_in_percent(metric: str, values: tuple[float, ...], share: bool) -> None:
    assert are_shares(metric, *values) is share


def test_letters_go_on_after_z() -> None:
    assert [letter(at) for at in (0, 25, 26, 27, 51, 52, 701, 702)] == ["A", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA"]


def test_no_cell_is_a_formula() -> None:
    for text in ("=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "  =1"):
        assert no_formula(text) == f"'{text}"
    assert [no_formula(text) for text in ("a=1", "", "3", " a")] == ["a=1", "", "3", " a"]


def test_a_name_tells_the_base_and_every_training() -> None:
    first = {"base": "/data/models/tiny", "method": "sft", "peft": "lora", "base_adapter": "sha256:0123456789"}
    last = {"base": "own", "method": "my_own", "parents": [first, "odd"]}
    assert training_chain(trainings(last), [["seed 1"]]) == "tiny+01234567 → SFT (LoRA, seed 1) → my_own"
    assert training_chain([{"base": "owner/name", "method": "dpo"}]) == "owner/name → DPO"
    assert trainings(None) == trainings({}) == trainings({"base": "x"}) == []


def _run(root: Path, name: str, spec: dict[str, Any] | None = None, **changes: Any) -> Run:
    folder = make_run(root, name)
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_text())
    results["dare_bench"] |= changes.pop("block", {})
    file.write_text(json.dumps(results | changes))
    about = json.loads((folder / "run.json").read_text())
    about["spec"] |= spec or {}
    (folder / "run.json").write_text(json.dumps(about))
    return Run(folder)


def test_runs_share_a_row_where_they_were_asked_alike(tmp_path: Path) -> None:
    item = row_key(_run(tmp_path, "one"))
    assert item.joins(row_key(_run(tmp_path, "other"))) and item.is_independent
    requested = {
        "template": {"chat_template_sha": "ab"},
        "system": {"system_instruction": "be brief"}, "steps": {"block": {"decoding_requested": {"steps": 8}}},
        "repeats": {"block": {"repeats": 4}}, "seeds": {"block": {"seeds": [1, 1, 1, 1]}},
    }  # fmt: skip
    for name, change in requested.items():
        assert not item.joins(row_key(_run(tmp_path, name, **change))), name
    for name, change in {
        "shots": {"spec": {"num_fewshot": 5}},
        "harness": {"block": {"harness": {"name": "opencompass", "version": "1"}}},
    }.items():
        assert item.joins(row_key(_run(tmp_path, name, **change))), name
    part = row_key(_run(tmp_path, "part", block={"suite": "s", "decoding_requested": {"steps": 8}}))
    same = row_key(_run(tmp_path, "same", block={"suite": "s"}))
    assert part.joins(same) and same.joins(item) and not part.joins(item) and not part.is_independent
    seeded = row_key(_run(tmp_path, "seeded", block={"suite": "s", "seeds": [1, 1, 1, 1]}))
    assert not seeded.joins(same)


def test_only_where_speeds_are_told_machines_are_rows_of_their_own(tmp_path: Path) -> None:
    item, other = _run(tmp_path, "one"), _run(tmp_path, "other")
    assert row_key(item).joins(row_key(other))
    assert not row_key(item, "a").joins(row_key(other, "b")) and row_key(item, "a").joins(row_key(other, "a"))
