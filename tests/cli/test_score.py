"""``dare-bench score`` and what ``show`` says of an edited file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command
import pytest
import typer
from require import need_package
from run_factory import make_run
from sudoku_runs import make_sudoku

from dare_bench.cli.score import score
from dare_bench.cli.show import show
from dare_bench.errors import DareError, IncompleteError, RunError, UnknownNameError
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE

need_package("lm_eval")
Out = pytest.CaptureFixture[str]


def made(out: Path, *, wrong: bool = False, **fields: Any) -> Run:
    """A run of the bundled sudoku task; ``wrong`` answers all in vain."""
    return make_sudoku(out, lambda doc: not wrong, **fields)


def edit(run: Run) -> None:
    file = run.samples_file("dare_sudoku")
    assert file is not None
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[2]["resps"] = [["1111\n2222\n3333\n4444"]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def code_of(*words: Any, **named: Any) -> int:
    with pytest.raises(typer.Exit) as left:
        score(*words, **named)
    return left.value.exit_code


def test_the_same_scores(tmp_path: Path, capsys: Out) -> None:
    run = made(tmp_path)
    score(str(run.path))
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "the same: 2 scores, values of 4 documents"
    assert "exact_match" in out and "cell_accuracy" in out and "changed" not in out


def test_an_edited_answer_leaves_with_3_and_its_document(tmp_path: Path, capsys: Out) -> None:
    run = made(tmp_path)
    edit(run)
    assert code_of(str(run.path)) == 3
    out = capsys.readouterr().out
    assert "CHANGED: 2 of 2 scores (dare_sudoku exact_match,none, dare_sudoku cell_accuracy,none)" in out
    assert out.splitlines()[-1].startswith("EDITED after the run: the samples file of dare_sudoku; CHANGED: 2 of 2")
    assert out.endswith("1 of 4 documents (dare_sudoku 2)\n")
    assert [line.split() for line in out.splitlines() if line.startswith("dare_sudoku  exact_match")] == [
        ["dare_sudoku", "exact_match", "none", "100.00%", "75.00%", "changed"]
    ]
    assert code_of(str(run.path), json=True) == 3
    record = json.loads(capsys.readouterr().out)
    assert record["same"] is False and record["edited"] == {"dare_sudoku": True}
    assert {(item["metric"], item["recorded"], item["again"], item["same"]) for item in record["scores"]} >= {
        ("exact_match", 1.0, 0.75, False)
    }
    assert {item["doc_id"] for item in record["differing"]} == {"2"}
    assert code_of(str(run.path), docs=1) == 3
    assert "1 more values differ; --docs 2 shows all" in capsys.readouterr().out


def test_a_folder_of_runs_has_a_line_each(tmp_path: Path, capsys: Out) -> None:
    good, bad = made(tmp_path / "suite"), made(tmp_path / "suite", seed=1)
    score(str(tmp_path / "suite"))
    assert capsys.readouterr().out.splitlines() == [
        f"{run.run_id}: the same: 2 scores, values of 4 documents" for run in (good, bad)
    ]
    file = good.samples_file("dare_sudoku")
    assert file is not None
    file.unlink()
    assert code_of(str(tmp_path / "suite")) == 1
    assert f"{good.run_id}: NOT SCORED: " in capsys.readouterr().out
    edit(bad)
    assert code_of(str(tmp_path / "suite"), json=True) == 3
    records = json.loads(capsys.readouterr().out)
    assert "no samples file" in records[0]["error"] and records[1]["same"] is False


def test_incomplete_runs_leave_with_4(tmp_path: Path, capsys: Out) -> None:
    run = made(tmp_path, fail_on=lambda request: request.doc_id == 3)
    assert code_of(str(run.path)) == 4
    assert "the same: 2 scores, values of 3 documents; the run is incomplete" in capsys.readouterr().out
    (run.path / DONE_FILE).unlink()
    with pytest.raises(IncompleteError) as caught:
        score(str(run.path))
    assert caught.value.exit_code == 4
    assert code_of(str(tmp_path)) == 4


def test_what_cannot_be_done(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.json does not have the run's settings"):
        score(str(make_run(tmp_path)))
    with pytest.raises(RunError, match="there is no folder"):
        score(str(tmp_path / "gone"))
    with pytest.raises(UnknownNameError, match="closest: dare_sudoku"):
        score(str(made(tmp_path / "runs").path), task="dare_sudok")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no runs in"):
        score(str(tmp_path / "empty"))
    for folder, says in (("", "'' names no folder"), (str(tmp_path / "empty"), "no task file in this folder")):
        with pytest.raises(DareError, match=says):
            score(str(made(tmp_path / "runs").path), include_path=[folder])


def test_show_says_that_a_file_was_edited(tmp_path: Path, capsys: Out) -> None:
    run = made(tmp_path)
    show(str(run.path))
    assert "EDITED" not in capsys.readouterr().out
    edit(run)
    show(str(run.path), doc="1")
    assert "EDITED: the samples file of dare_sudoku was changed after the run wrote it" in capsys.readouterr().out
    show(str(run.path), json=True)
    assert json.loads(capsys.readouterr().out)["edited"] is True


def test_the_command_from_end_to_end(tmp_path: Path) -> None:
    folder = made(tmp_path).path
    done = command.run("score", str(folder))
    assert done.returncode == 0, done.stderr
    assert "the same: 2 scores, values of 4 documents" in done.stdout
    done = command.run("score", str(folder / "gone"))
    assert done.returncode == 2 and done.stderr.startswith("error: there is no folder") and done.stderr.count("\n") == 1
