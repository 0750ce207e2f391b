"""What the command line lists, and its help: short, under headings, without folders of this machine."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dare_bench.cli import VERBS, app
from dare_bench.cli.ls import BEST_KNOWN
from dare_bench.cli.words import HEADINGS
from dare_bench.formatting import about_points


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_the_list_of_tasks_begins_with_ours_and_counts_the_rest() -> None:
    *lines, last = shown("ls", "tasks").splitlines()
    names = [line.split()[0] for line in lines]
    ours = [name for name in names if name.startswith("dare_")]
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
