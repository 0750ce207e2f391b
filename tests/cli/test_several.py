"""``eval`` on a suite and on recipes, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dare_bench.cli import main

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
