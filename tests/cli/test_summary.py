"""The table that a run ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_factory import alter, make_run

from dare_bench.cli.summary import print_run, record
from dare_bench.runs.reader import Run

TASKS = {"gsm": 0.5, "choice_x": 0.3}


def test_seeds_are_named_by_what_they_are_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path)
    print_run(Run(folder))
    assert "float32, seeds 0 (Python), 1234 (NumPy, PyTorch, few-shot examples)\n" in capsys.readouterr().out
    alter(folder, seeds=(7, 7, 7, 7))
    print_run(Run(folder))
    assert "float32, seed 7\n" in capsys.readouterr().out


def test_the_share_of_answers_that_could_be_read_is_a_column_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path, tasks=TASKS)
    print_run(Run(folder))
    assert "extracted" not in capsys.readouterr().out

    (path,) = folder.glob("results_*.json")
    results = json.loads(path.read_text())
    results["dare_bench"]["extraction"] = {"gsm": {"none": {"matched": 12, "ambiguous": 1, "no_match": 7}}}
    path.write_text(json.dumps(results))
    run = Run(folder)
    print_run(run)
    head, generated, choices, *_ = capsys.readouterr().out.splitlines()
    at = head.index("extracted")
    assert generated[at:].split()[0] == "65.0%"
    assert not choices[at : at + len("extracted")].strip()
    assert [score["extraction_rate"] for score in record(run)["scores"]] == [0.65, None]


def test_decoding_fields_at_the_familys_defaults_are_counted_and_with_verbose_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = {"gen_length": 128, "temperature": 0.0, "remasking": "low_confidence", "cfg_scale": 1.5, "steps": 8}
    alter(folder := make_run(tmp_path, decoding=decoding), decoding_requested={"steps": 8})
    run = Run(folder)
    print_run(run)
    short = capsys.readouterr().out
    assert "remasking" not in short and "cfg_scale=1.5" in short
    (hidden,) = (line for line in short.splitlines() if line.startswith("decoding"))
    assert hidden.endswith("more with -v)") and "temperature=0.0" in hidden and "requested: steps=8;" in hidden
    print_run(run, verbose=True)
    whole = capsys.readouterr().out
    assert "remasking=low_confidence" in whole and "with -v" not in whole
    alter(folder := make_run(tmp_path, "b", decoding={**decoding, "remasking": "random"}), decoding_requested={})
    print_run(Run(folder))
    assert "remasking=random" in capsys.readouterr().out
