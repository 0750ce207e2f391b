"""In a terminal of 80 columns no command prints a line that is longer, and no table folds a cell.

What is to be copied (Markdown, prompts) is left whole, as is a single word that is longer than a line (a path).
"""

from __future__ import annotations

import io
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from run_factory import alter, make_run
from typer.testing import CliRunner

from dare_bench.cli import VERBS, app, main
from dare_bench.cli.ls import BEST_KNOWN
from dare_bench.cli.plain import echo_columns
from dare_bench.cli.words import HEADINGS
from dare_bench.formatting import about_points

HALF, MORE = [1.0, 0.0] * 20, [1.0, 1.0, 1.0, 0.0] * 10
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """What a command prints where stdout is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 0) -> list[str]:
    """The lines that a command prints in a terminal of 80 columns; of one that fails (``code``) those on stderr."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr" if code else "stdout", terminal)
    with pytest.raises(SystemExit) as left:
        main(words)
    monkeypatch.undo()
    assert (left.value.code or 0) == code, words
    return [line.rstrip() for line in COLOR.sub("", terminal.getvalue()).splitlines()]


def too_long(lines: list[str]) -> list[str]:
    return [line for line in lines if len(line) > 80 and " " in line.strip()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with long names, of two tasks."""
    root = tmp_path_factory.mktemp("runs")
    before = {"values": {"dare_sudoku": HALF, "minerva_math_prealgebra": MORE}, "decoding": {"steps": 32}}
    after = {"values": {"dare_sudoku": MORE, "minerva_math_prealgebra": HALF}, "gpu": "NVIDIA H100 80GB HBM3"}
    make_run(root, "before-the-training-0123abcd", model="LLaDA-8B-Instruct", documents="same", **before)  # type: ignore[arg-type]
    folder = make_run(
        root, "after-the-training-89ab0123", model="LLaDA-8B-Instruct-sft-checkpoint", documents="same",
        content="c" * 64, **after,  # type: ignore[arg-type]
    )  # fmt: skip
    alter(folder, notes=["a note with many words, which say something about the run that is longer than a line is"])
    return root


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs of one model and two tasks, with other settings, prompts and documents."""
    root = tmp_path_factory.mktemp("many")
    for at in range(6):
        changes = {"fingerprint": "other"} if at > 3 else {}
        folder = make_run(
            root, f"many-{at}", model="LLaDA-8B-Instruct-with-a-long-name", decoding={"steps": 8 * at + 8},
            values={"dare_sudoku": HALF, "minerva_math_counting_and_probability": MORE}, documents="same", **changes,  # type: ignore[arg-type]
        )  # fmt: skip
        alter(folder, notes=["a note"])
    return root


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three decoders with long names under five templates, which change their order."""
    root = tmp_path_factory.mktemp("templated")
    for at in range(15):
        strategy = {"name": "low_confidence", "threshold": 0.5 + at % 3 / 10, "settings": "with a long text"}
        folder = make_run(
            root, f"run-{at}", model="LLaDA-8B-Instruct-with-a-long-name", decoding={"strategy": strategy},
            values={"minerva_math_counting_and_probability": (HALF, MORE, [0.0] * 40)[(at % 3 + at // 3) % 3]},
            documents="same",
        )  # fmt: skip
        alter(
            folder,
            results={"n-shot": {"minerva_math_counting_and_probability": at // 3}, "system_instruction": "word " * 40},
        )
    return root


def test_a_report_of_many_runs_says_each_thing_once(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, "report", str(many))
    rows = [line for line in lines if "dare_sudoku" in line and "[" in line]
    assert [row.split()[0] for row in rows] == [f"many-{at}" for at in range(6)]
    assert all(row.split()[1:5] == ["dare_sudoku", "50.0", "[35.2,", "64.8]"] for row in rows)
    assert next(line for line in lines if "and 2 others" in line) == "dare_sudoku: many-0 and 2 others"
    assert sum("changed between these runs" in line for line in lines) == 2, "once for each task"


READ = {
    "tasks": "ls tasks",
    "models": "ls models",
    "suites": "ls suites",
    "recipes": "ls recipes",
    "recipe": "ls recipes d3llm-coder/humaneval",
    "trainers": "ls trainers",
    "rewards": "ls rewards",
    "strategies": "ls strategies",
    "runs": "ls runs RUNS",
    "doctor": "doctor",
    "show": "show AFTER",
    "show a document": "show AFTER --doc 1",
    "report": "report RUNS",
    "report of many": "report RUNS MANY",
    "compare": "compare BEFORE AFTER",
    "compare many": "compare BEFORE AFTER MANY/many-2 --force",
    "compare templates": "compare TEMPLATED --templates",
    "regress": "regress AFTER --baseline OUT/base.json --update",
    "leaderboard build": "leaderboard build RUNS -o OUT/site --no-samples",
    "leaderboard submit": "leaderboard submit AFTER -o OUT/packs",
    "leaderboard help": "leaderboard build --help",
    "convert help": "convert --help",
    "dry run of an evaluation": "eval --model tiny-llada --tasks dare_sort --limit 2 --dry-run",
    "dry run of a training": "train sft --model tiny-llada --task dare_sort --dry-run",
    "evaluation": "eval --model tiny-llada --tasks dare_sort,dare_arithmetic --limit 2 -o OUT/eval",
}


@pytest.mark.parametrize("words", READ.values(), ids=READ.keys())
def test_no_line_is_longer_and_no_cell_is_folded(
    words: str, runs: Path, many: Path, templated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = runs / "before-the-training-0123abcd", runs / "after-the-training-89ab0123"
    places = {"RUNS": runs, "BEFORE": before, "AFTER": after, "MANY": many, "TEMPLATED": templated}
    filled = [
        str(places.get(word, word)).replace("OUT", str(tmp_path)).replace("MANY", str(many)) for word in words.split()
    ]
    lines = printed(monkeypatch, *filled)
    assert too_long(lines) == []
    for head, first in pairwise(lines):
        if head.startswith("task ") and "95%" in head:  # a folded interval goes on below its cell
            assert re.search(r"\d%? to \d|─", first), (head, first)


def test_only_a_cell_that_is_cut_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    echo_columns([["a", "x" * 30, "left out"], ["b", "whole", "too"]])
    echo_columns([["a", "x" * 60, "left out"], ["b", "whole", "too"]])
    echo_columns([["a", "x" * 20, "y" * 30], ["b", "whole", "too"]])
    echo_columns([["a", "x" * 27, "fits"], ["b", "whole", "too"]])
    lines = terminal.getvalue().splitlines()
    assert lines[:4] == ["a  " + "x" * 30, "b  whole", "a  " + "x" * 36 + "…", "b  whole"]
    assert lines[4:] == ["a  " + "x" * 20, "b  whole", "a  " + "x" * 27 + "  fits", "b  whole" + " " * 24 + "too"]


def test_the_word_that_chooses_a_family_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, "ls", "models")
    assert all(
        any(line.startswith(f"a2d_{kind} ") and f"'{kind}'" in line for line in lines) for kind in ("bd3lm", "mdlm")
    )


@pytest.mark.parametrize(
    "words",
    [
        "show out/a-run-that-was-never-made-or-is-in-another-folder-0123abcd",
        "eval --model nothing --tasks dare_sudoku",
        "train sft --model tiny-llada --task dare_sort",
        "compare out/one out/other",
    ],
)
def test_an_error_is_wrapped_at_spaces(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, *words.split(), code=2)
    assert lines[0].startswith("error: ") and too_long(lines) == []


def test_columns_that_matter_least_are_left_out(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, "show", str(runs / "after-the-training-89ab0123"))
    head = next(line for line in lines if line.startswith("task "))
    assert head.split() == ["task", "metric", "filter", "value", "95%", "interval", "n", "tier"]
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit):
        main(["show", str(runs / "after-the-training-89ab0123")])
    monkeypatch.undo()
    head = next(line for line in COLOR.sub("", terminal.getvalue()).splitlines() if line.startswith("task "))
    assert "filter" not in head and "tier" not in head and "95% interval" in head


# -- What the command line lists, and its help: short, under headings, without folders of this  ------------------------


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_the_list_of_tasks_begins_with_ours_and_counts_the_rest() -> None:
    *lines, last = shown("ls", "tasks").splitlines()
    names = [line.split()[0] for line in lines]
    ours = [name for name in names if name.startswith("dare_") or name.endswith("_line_middle")]
    assert names[: len(ours)] == ours and "dare_sudoku" in ours and "gsm8k" in names
    assert set(names) - set(ours) == BEST_KNOWN, "each of them is a name of this lm-eval"
    every = shown("ls", "tasks", "--all").splitlines()
    assert last == f"and {len(every) - len(lines):,} more: dare-bench ls tasks PART_OF_A_NAME, or --all"
    assert len(json.loads(shown("ls", "tasks", "--json"))) == len(every)
    assert "gsm8k_cot_llama" in shown("ls", "tasks", "gsm8k")


def test_the_list_of_models_has_no_folders_and_json_has_them() -> None:
    listed = json.loads(shown("ls", "models", "--json"))["checkpoints"]
    text = shown("ls", "models")
    assert all(each["name"] in text and each["path"] not in text for each in listed)


def test_every_command_is_under_a_heading_of_the_help() -> None:
    text = shown("--help")
    names = {verb.__module__.rpartition(".")[2] for verb in VERBS} | {"ls", "leaderboard", "export", "rl", "train"}
    assert {name for names in HEADINGS.values() for name in names} == names
    assert [line[:-1] for line in text.splitlines() if line.endswith(":")] == ["Options", *HEADINGS]
    assert max(map(len, text.splitlines())) <= 80 and "Example: dare-bench eval" in text


@pytest.mark.parametrize(
    ("share", "text"), [(0.06462, "6.5 points"), (0.1286, "13 points"), (1.0, "100 points"), (0.01, "1 point")]
)
def test_estimates_have_two_digits(share: float, text: str) -> None:
    assert about_points(share) == text
