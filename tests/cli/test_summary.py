"""The table that a run ends with."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from run_factory import alter, make_run

from dare_bench.cli import leaderboard, main
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
    assert hidden.endswith("more with -v)") and "temperature" not in hidden and "requested: steps=8;" in hidden
    print_run(run, verbose=True)
    whole = capsys.readouterr().out
    assert "remasking=low_confidence" in whole and "with -v" not in whole
    alter(folder := make_run(tmp_path, "b", decoding={**decoding, "remasking": "random"}), decoding_requested={})
    print_run(Run(folder))
    shown = capsys.readouterr().out
    assert "remasking=random" in shown and "steps=8" in shown, "the task's steps, which are not gen_length"


def test_nothing_requested_prints_no_field_that_the_family_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = {"gen_length": 20, "stop": ["\n"], "steps": 20, "block_length": 20, "confidence_dtype": "float32"}
    alter(folder := make_run(tmp_path, decoding={**decoding, "temperature": 0.0}), decoding_requested={})
    print_run(Run(folder))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("decoding"))
    assert line.partition(": ")[2] == "gen_length=20 stop=['\\n'] (7 more with -v)"


# -- Progress of counted work: a bar on a terminal, lines now and then off it, nothing where it ------------------------


def test_off_a_terminal_what_is_done_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with leaderboard.counting("runs", "boards") as tell:
        tell(1, 2)
        tell(2, 2)
    result = capsys.readouterr()
    assert (result.out, result.err) == ("", "")


def test_off_a_terminal_long_work_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(leaderboard.time, "monotonic", lambda: now[0])
    with leaderboard.counting("runs", "boards") as tell:
        for done in range(1, 31):
            now[0] += 1.0
            tell(done, 30)
    result = capsys.readouterr()
    assert (result.out, result.err) == ("", "10/30 runs\n20/30 runs\n30/30 runs; boards\n")


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with leaderboard.counting("runs", "boards") as tell:
        tell(3, 4)
        tell(4, 4)
    assert "4/4" in screen.getvalue() and "boards" in screen.getvalue()


# -- ``eval`` on a suite and on recipes, as a user meets them ----------------------------------------------------------


SUITE = """
about: two small ones and one that nobody has
entries:
  - {name: boards, harness: lm-eval, tasks: dare_sudoku, limit: 2}
  - {name: sums, harness: lm-eval, tasks: dare_arithmetic, limit: 2}
  - {name: lost, harness: lm-eval, tasks: no_such_task, note: only to show what is said}
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from dare_bench import suites

    pytest.importorskip("lm_eval")
    file = tmp_path / "little.yaml"
    file.write_text(SUITE)
    monkeypatch.setattr(suites, "find", lambda word: suites.read(file) if word == "little" else None)
    monkeypatch.chdir(tmp_path)
    return "little"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_one_word_runs_all_and_says_what_was_not_run(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "eval", "--model", "tiny-llada", "--tasks", suite)
    assert code == 4
    assert "boards" in out and "sums" in out and "NOT RUN: lost: unknown task 'no_such_task'" in out
    assert "only to show what is said" in out and "[3/3] lost" in err
    paths = [line for line in out.splitlines() if line.endswith(".json")]
    assert len(paths) == 2 and all(Path(path).is_file() for path in paths)
    code, out, _ = call(capsys, "eval", "--model", "tiny-llada", "--tasks", suite, "--json")
    result = json.loads(out)
    assert code == 4 and [item["name"] for item in result] == ["boards", "sums", "lost"]
    assert result[2]["run"] is None and "no_such_task" in result[2]["not_run"]


def test_a_dry_run_of_a_recipe_needs_no_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "eval", "--recipe", "llada-8b-instruct/gsm8k", "--dry-run")
    assert code == 0
    assert "337,664 forward passes" in out  # 1,319 documents x 256 steps
    assert "GPU hours" in out and "not on this machine" in out and "assumed:" in out
    code, out, _ = call(capsys, "eval", "--recipe", "llada-8b-instruct/gsm8k", "--dry-run", "--json", "--limit", "10")
    assert code == 0 and json.loads(out)["forwards"] == 2560


def test_a_dry_run_without_the_size_of_the_test_set_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    dry = ("eval", "--recipe", "llada2.0-mini/c-eval.report", "--dry-run")
    code, out, _ = call(capsys, *dry)
    assert code == 0 and "model: inclusionAI/LLaDA2.0-mini" in out and "GPU hours" not in out
    assert "cost unknown: the size of its test set is not recorded (" in out and out.endswith("; --limit N gives one\n")
    code, out, _ = call(capsys, *dry, "--json")
    assert code == 0 and json.loads(out)["cost"].startswith("cost unknown: the size")
    code, out, _ = call(capsys, *dry, "--limit", "10")
    assert code == 0 and "10 documents" in out and "GPU" in out
    code, _, err = call(capsys, *dry, "--gen-kwargs", "stepps=3")
    assert code == 2 and "'stepps'" in err


def test_a_dry_run_of_a_recipe_counts_the_flags_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    dry = ("eval", "--recipe", "llada-8b-instruct/gsm8k", "--dry-run")
    short = ("--gen-length", "32", "--steps", "32", "--repeats", "4")
    code, out, _ = call(capsys, *dry, *short)
    assert code == 0 and f"{1319 * 4 * 32:,} forward passes" in out
    assert "from its dimensions and the given settings" in out
    code, out, _ = call(capsys, *dry, "--model", "org/another")
    assert code == 0 and "from the dimensions of GSAI-ML/LLaDA-8B-Instruct" in out and "org/another is not known" in out
    code, _, err = call(capsys, *dry, "--gen-length", "33")
    assert code != 0 and "gen_length=33 is not divisible by block_length=8" in err
    code, out, _ = call(capsys, "eval", "--recipe", "sdar-8b-chat/olympiadbench", "--dry-run")
    assert code == 0 and "2,674 documents" in out
