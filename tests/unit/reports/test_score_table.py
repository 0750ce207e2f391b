"""Runs as the table of a paper: rows, names, bold, marks, and how each form is escaped."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_external import DATA
from hostile_files import in_json
from hypothesis import given
from hypothesis import strategies as st
from lineages import make_trained
from markdown_it import MarkdownIt
from run_factory import alter, make_run
from typesetting import tabular, typeset

from dare_bench.analysis.run_finder import find_runs
from dare_bench.errors import RunError, UnknownNameError
from dare_bench.reports.export_formats import SIGNS, latex_text, render
from dare_bench.reports.score_table import (
    MARK_NOTES,
    ExportCell,
    ExportRow,
    ScoreTable,
    export_column,
    mark_best,
    score_table,
    table_notes,
)
from dare_bench.runs.reader import Run

SERVED: dict[str, Any] = {
    "model__family": "unknown",
    "model__engine": {"name": "sglang", "version": None, "content_verified": True},
}
STATED: dict[str, Any] = {
    "model__family": "unknown", "model__dtype": "unknown", "model__content_hash": "stated:x",
    "model__engine": {"name": "sglang", "version": None, "content_verified": False},
}  # fmt: skip


def edit(run: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    (file,) = run.glob("results_*.json")
    whole = json.loads(file.read_text())
    change(whole)
    file.write_text(json.dumps(whole))
    return run


def table(*runs: Path, tasks: list[str] | None = None) -> ScoreTable:
    return score_table([Run(run) for run in runs], tasks)


def bold(made: ScoreTable, column: int = 0) -> list[str]:
    return [row.name for row in made.rows if row.cells[column] and row.cells[column].best]


def test_the_best_alone_is_bold_only_where_intervals_separate_it(tmp_path: Path) -> None:
    shares = {"far": 0.2, "near": 0.94, "best": 1.0}
    runs = [make_run(tmp_path, name, model=name, tasks={"t": share}, n_docs=50) for name, share in shares.items()]
    assert bold(table(*runs)) == ["near", "best"]
    assert bold(table(runs[0], runs[2])) == ["best"]
    assert bold(table(runs[0])) == []  # nothing to be better than


def test_lower_is_better_and_an_unknown_direction(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, model=name, tasks={"t": share}) for name, share in (("a", 0.1), ("b", 0.9))]

    def turn(better: bool | None) -> Callable[[dict[str, Any]], None]:
        return lambda whole: whole["higher_is_better"]["t"].update(exact_match=better)

    lower = table(*(edit(run, turn(False)) for run in runs))
    assert bold(lower) == ["a"] and "Lower is better: t." in lower.notes
    assert bold(table(*(edit(run, turn(None)) for run in runs))) == []


def test_limited_incomplete_and_stale_scores_are_marked_and_never_bold(tmp_path: Path) -> None:
    now = {"created": "2026-11-20T10:00:00", "tasks": {"t": 0.5}, "n_docs": 40}
    before = {"created": "2026-11-01T10:00:00", "tasks": {"t": 1.0}, "n_docs": 40}
    runs = [
        make_run(tmp_path, "a", model="a", **now),
        make_run(tmp_path, "b", model="b", **{**now, "tasks": {"t": 0.1}}),
        make_run(tmp_path, "limited", model="limited", limit=40, **before),
        make_run(tmp_path, "failed", model="failed", failures=2, status="incomplete", **before),
        make_run(tmp_path, "running", model="running", done=False, **before),
        make_run(tmp_path, "stale", model="stale", fingerprint="old", **before),
        make_run(tmp_path, "asked", model="asked", prompts="old", **before),
        make_run(tmp_path, "mixed", model="mixed", programs=({}, {"sampler": "other"}), **before),
        make_run(
            tmp_path,
            "newer",
            model="newer",
            failures=1,
            fingerprint="new",
            **{**before, "created": "2026-11-21T10:00:00"},
        ),
    ]
    edit(runs[1], lambda whole: whole["dare_bench"]["tasks"]["t"].update(tier="A"))
    built = table(*runs)
    assert {row.name: row.cells[0].marks for row in built.rows if row.cells[0]} == {
        "a": (), "b": ("approximate",), "limited": ("limited",), "failed": ("incomplete",),
        "running": ("incomplete",), "stale": ("definition",), "asked": ("prompts",),
        "mixed": ("doubtful",),
        "newer": ("incomplete", "definition"),  # it is not whole, so it does not say what the task is now
    }  # fmt: skip
    assert bold(built) == ["a"]  # compared with b, which is approximate but whole
    text = render(built)
    assert "100.0† (" in text and "10.0∗ (" in text and "- § another task version" in text
    assert [line for line in text.splitlines() if line.startswith("- ")][-1].startswith("- ∗ approximate sampler")
    assert "only a part" not in render(table(runs[0]))


def test_other_tasks_of_equal_settings_share_a_row_and_other_settings_do_not(tmp_path: Path) -> None:
    first = make_run(tmp_path, "first", tasks={"t": 0.5})
    second = make_run(tmp_path, "second", tasks={"u": 0.6})
    longer = make_run(tmp_path, "longer", tasks={"u": 0.6}, decoding={"gen_length": 32})
    built = table(first, second, longer)
    assert [column.name for column in built.columns] == ["t", "u"]
    shown = [(row.name, row.settings, [cell and cell.score.value for cell in row.cells]) for row in built.rows]
    assert shown == [
        ("tiny-llada", "gen_length 16", [0.5, 0.6]),
        ("tiny-llada", "gen_length 32", [None, 0.6]),
    ]
    assert "settings" not in render(table(first, second)).splitlines()[0]


def test_the_parts_of_a_suite_are_one_row_whatever_each_asks_for(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, name, tasks={name: 0.5}, decoding={"gen_length": length})
        for name, length in (("t", 16), ("u", 32))
    ]
    assert len(table(*runs).rows) == 2
    for run in runs:
        edit(run, lambda whole: whole["dare_bench"].update(suite="dare-table1"))
    assert len(table(*runs).rows) == 1


def test_a_run_made_again_is_left_out_and_said_so_but_other_prompts_are_a_row(tmp_path: Path) -> None:
    old = make_run(tmp_path, "old", tasks={"t": 0.5}, created="2026-11-01T10:00:00")
    new = make_run(tmp_path, "new", tasks={"t": 0.7}, created="2026-11-02T10:00:00")
    built = table(old, new)
    assert [row.cells[0].score.value for row in built.rows if row.cells[0]] == [0.7]
    assert any(note.startswith("Left out: 1 score with the same checkpoint") for note in built.notes)
    limited = make_run(tmp_path, "limited", tasks={"t": 0.9}, limit=20)
    both = table(limited, new)
    assert len(both.rows) == 2 and len({row.settings for row in both.rows}) == 2
    assert all(row.settings.startswith("fingerprint ") for row in both.rows)


def test_tasks_are_chosen_in_order_and_unknown_ones_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, tasks={"t": 0.5, "u": 0.6, "v": 0.7})
    assert [column.name for column in table(run, tasks=["v", "t"]).columns] == ["v", "t"]
    with pytest.raises(UnknownNameError, match="unknown task 'w'; known: "):
        table(run, tasks=["w"])
    with pytest.raises(RunError, match="none of the 0 runs has a score"):
        score_table([])


def test_a_task_under_two_metrics_has_two_columns(tmp_path: Path) -> None:
    first = make_run(tmp_path, "first", model="a", tasks={"t": 0.5})
    second = make_run(tmp_path, "second", model="b", tasks={"t": 0.6})

    def rename(whole: dict[str, Any]) -> None:
        whole["results"]["t"] = {"accuracy,none": 0.6}

    built = table(first, edit(second, rename))
    assert [column.name for column in built.columns] == ["t (exact_match)", "t (accuracy)"]
    assert [[cell is not None for cell in row.cells] for row in built.rows] == [[True, False], [False, True]]


def test_names_of_trained_checkpoints_tell_them_apart(tmp_path: Path) -> None:
    built = table(*make_trained(tmp_path))
    names = [row.name for row in built.rows]
    assert len(set(names)) == len(names) == 37  # the 38th is tiny-llada-base on its second task: the same row
    assert "tiny-llada-base → SFT (LoRA, on dare_sudoku, seed 1)" in names
    assert "tiny-llada-base → VRPO (seed 0)" in names and "tiny-sdar-base → SFT (seed 2)" in names
    base = built.rows[names.index("tiny-llada-base")]
    assert all(base.cells) and names.index("tiny-llada-base") < names.index("tiny-llada-base → VRPO (seed 0)")


def test_a_chain_of_trainings_and_paths(tmp_path: Path) -> None:
    sft = {"base": "/data/llada", "method": "sft", "data": "/data/rows.jsonl", "step": 5, "steps": 9, "seed": 0}
    chain = {**sft, "base": "/out/sft", "method": "dpo", "peft": "lora", "data": "pairs", "parents": [sft]}
    runs = []
    for name, step in (("a", 5), ("b", 9)):
        built = {**chain, "step": step}
        runs.append(
            edit(make_run(tmp_path, name, model=name), lambda w, m=built: w["dare_bench"]["model"].update(lineage=m))
        )
    assert [row.name for row in table(*runs).rows] == [
        "llada → SFT → DPO (LoRA, step 5 of 9)", "llada → SFT → DPO (LoRA, 9 steps)",
    ]  # fmt: skip
    twin = edit(make_run(tmp_path, "c", model="c"), lambda w: w["dare_bench"]["model"].update(lineage=chain))
    names = [row.name for row in table(*runs, twin).rows]
    assert len(set(names)) == 3 and sum("[" in name for name in names) == 2


def test_numbers_that_are_no_shares(tmp_path: Path) -> None:
    run = make_run(tmp_path, tasks={"t": 0.5})

    def perplexity(whole: dict[str, Any]) -> None:
        whole["results"]["t"] = {"word_perplexity,none": 12.3456, "word_perplexity_stderr,none": 0.1}
        ci = {"method": "normal", "level": 0.95, "lo": 12.1496, "hi": 12.5416, "n": 20}
        whole["dare_bench"]["ci"] = {"t": {"word_perplexity,none": ci}}

    built = table(edit(run, perplexity))
    assert "12.35 (12.15 to 12.54)" in render(built) and "percent" not in render(built)
    assert "12.35 ± 0.20" in render(built, intervals="pm")
    assert "| 12.35 |" in render(built, intervals="none") and "interval" not in render(built, intervals="none")


def test_an_interval_is_not_made_symmetric(tmp_path: Path) -> None:
    """Nothing right of 20: a share of 0 to 16.1%, which no ± states."""
    built = table(make_run(tmp_path, tasks={"t": 0.0}))
    assert "| 0.0 (0.0 to 16.1) |" in render(built) and "- In brackets: the 95 % interval" in render(built)
    text = render(built, "latex")
    assert r"& 0.0$_{-0.0}^{+16.1}$ \\" in text and "Sub- and superscripts: distances to the ends of the 95" in text
    assert "±: half the width" in render(built, "latex", intervals="pm").replace(r"$\pm$", "±")


def test_a_setting_that_tasks_have_differently_is_stated_by_task(tmp_path: Path) -> None:
    def row(name: str, steps: int, **tasks: int) -> Path:
        run = make_run(
            tmp_path, name, model=name, tasks=dict.fromkeys(tasks, 0.5), decoding={"gen_length": 16, "steps": steps}
        )

        def lengths(whole: dict[str, Any]) -> None:
            for task, length in tasks.items():
                whole["dare_bench"]["tasks"][task]["decoding"]["gen_length"] = length

        return edit(run, lengths)

    long, short = row("long", 8, t=256, u=512, v=256), row("short", 8, t=256, u=128, v=256)
    assert [row.settings for row in table(long, short).rows] == [
        "gen_length 256 (t, v), 512 (u)",
        "gen_length 256 (t, v), 128 (u)",
    ]
    # Without a common task, all values are compared.
    assert [row.settings for row in table(row("only-t", 8, t=1), row("t-and-u", 8, u=1, v=2)).rows] == [
        "gen_length 1",
        "gen_length 1 (u), 2 (v)",
    ]
    # What differs only in tasks that one of the rows, or the table, does not have is no difference of their scores.
    fewer = row("fewer", 4, t=256)
    assert [row.settings for row in table(short, fewer).rows] == ["steps 8", "steps 4"]
    assert [row.settings for row in table(long, row("few", 4, u=512), tasks=["u"]).rows] == ["steps 8", "steps 4"]


def test_counts_stand_in_the_header_or_where_they_differ(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{n}", model=f"m{n}", tasks={"t": 0.5}, n_docs=n) for n in (20, 40)]
    assert render(table(runs[0])).startswith("| checkpoint | t (n=20) |")
    text = render(table(*runs))
    assert text.startswith("| checkpoint | t |") and "(n=20)" in text and "(n=40)" in text
    assert r" (n=20)} \\" in render(table(*runs), "latex"), "a space before it"


def test_every_footnote_of_a_table_is_below_it_and_says_what_is_not_compared(tmp_path: Path) -> None:
    """A marked score that is the highest of its column is not bold, except that of an approximate sampler."""
    plain = [make_run(tmp_path, name, model=name, tasks={"t": share}) for name, share in (("a", 0.5), ("b", 0.45))]
    assert bold(table(*plain)) == ["a", "b"]
    for mark, sign in SIGNS.items():
        cell = table(*plain).rows[0].cells[0]
        assert cell is not None
        marked, other = ExportCell(cell.score, (mark,)), ExportCell(cell.score)
        mark_best([marked, other, ExportCell(cell.score)])
        assert marked.best == (mark == "approximate") and other.best
        column = export_column("t", cell.score.key, "t", [cell.score])
        built = ScoreTable([column], [ExportRow("a", "", [marked]), ExportRow("b", "", [other])])
        built.notes.extend(table_notes(built))
        text = html.unescape(render(built).replace("\\", ""))
        assert f"50.0{sign} (" in text and f"- {sign} {MARK_NOTES[mark]}." in text
        assert "scores with a footnote, unless it is that of approximate samplers, are not compared" in text


def test_equal_seeds_are_one_setting(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{seed}", tasks={"t": 0.5}) for seed in (1, 2)]
    for seed, run in enumerate(runs, start=1):
        alter(run, seeds=[seed] * 4)
    assert [row.settings for row in table(*runs, make_run(tmp_path, "r", tasks={"t": 0.5})).rows] == [
        "seed 1", "seed 2", "seed 0,1234,1234,1234",
    ]  # fmt: skip


HOSTILE = "a|b <img src=x onerror=alert(1)> *b* _c_ `d` [e](http://f) ~~g~~ &amp; $x$ @me \u202e\x1b[31m\nnext"


def test_markdown_shows_hostile_names_as_text(tmp_path: Path) -> None:
    text = render(table(make_run(tmp_path, "r", model=HOSTILE)), caption=HOSTILE)
    page = MarkdownIt("gfm-like", {"linkify": False}).enable("table").render(text)
    assert page.count("<td") == 2 and page.count("<tr>") == 2 and "<img" not in page
    assert "a|b &lt;img src=x onerror=alert(1)&gt; *b* _c_ `d` [e](http://f) ~~g~~ &amp;amp; $x$ @me" in page
    assert not any(tag in page for tag in ("<a ", "<em>", "<s>", "<code>")) and "\x1b" not in page
    assert "$" not in text and "@" not in text  # GitHub makes formulas and mentions of them


def test_latex_of_real_runs_and_of_hostile_names(tmp_path: Path) -> None:
    real = table(*make_trained(tmp_path / "real"))
    text = render(real, "latex", fingerprints=True, caption="50 % of a_b & #1")
    cells = tabular(text)
    assert cells[0] == ["checkpoint", "dare_sudoku (n=250)", "dare_arithmetic (n=300)", "settings fingerprint"]
    (base,) = [line for line in cells if line[0] == "tiny-llada-base"]
    assert base[1:3] == ["37.2-5.8+6.1", "7.7-2.5+3.6"] and re.fullmatch("[0-9a-f]{8} [0-9a-f]{8}", base[3])
    assert r"\textbf{90.0$_{-4.3}^{+3.1}$}" in text and r"\caption{50 \% of a\_b \& \#1}" in text
    assert text.startswith("% needs \\usepackage{booktabs}\n")
    hostile = r"\input{/etc/passwd} 50% {a}_b^c~d #1 $x$ & é 漢 -- \\ <x> α"
    built = table(
        make_run(tmp_path, "r", model=hostile, tasks={"a_b": 0.5}), make_run(tmp_path, "s", model="[1] *", limit=9)
    )
    cells = tabular(render(built, "latex"))
    assert cells[1][0] == hostile.replace("漢", "U+6F22") and cells[2][0] == "[1] *"
    assert "[T1]{fontenc}" in render(built, "latex").splitlines()[0]
    for note in render(built, "latex").split(r"\footnotesize")[1].split("\\end{minipage}")[0].split("\\par"):
        typeset(note)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("éßÜłš±†–—…α”“‘’∗×"), max_size=40))
def test_escaped_latex_prints_the_text(text: str) -> None:
    straight = str.maketrans({'"': "”", "'": "’"})  # TeX has no others
    assert typeset(latex_text(text)) == " ".join(text.split()).translate(straight)


@given(st.text(max_size=60))
def test_no_text_stops_latex(text: str) -> None:
    built = latex_text(text)
    assert "\n" not in built and typeset(built) is not None


def test_csv_has_plain_numbers_and_no_formulas(tmp_path: Path) -> None:
    built = table(make_run(tmp_path, "r", model="=HYPERLINK(1)", tasks={"t": 0.9}, limit=20), tasks=["t"])
    (row,) = csv.DictReader(io.StringIO(render(built, "csv")))
    assert row["checkpoint"] == "'=HYPERLINK(1)" and row["t"] == "0.9" and row["t n"] == "20"
    assert float(row["t lo"]) < 0.9 < float(row["t hi"])
    assert row["t nfe_per_request"] == ""
    assert row["t marks"] == "limited" and row["t tier"] == "E1" and len(row["t fingerprint"]) == 16


def test_forward_passes_stand_after_the_task_that_has_them(tmp_path: Path) -> None:
    def spend(results: dict[str, Any]) -> None:
        of_task = results["dare_bench"]["tasks"]["gsm8k"]
        of_task["nfe"] = 16 * of_task["requests"]

    built = table(edit(make_run(tmp_path, "r", tasks={"gsm8k": 0.5, "arc": 0.5}), spend))
    head, _, line = render(built, intervals="none", passes=True).splitlines()[:3]
    assert head == "| checkpoint | gsm8k (n=20) | gsm8k NFE | arc (n=20) |"
    assert line == "| tiny-llada | 50.0 | 16.0 | 50.0 |"
    (row,) = csv.DictReader(io.StringIO(render(built, "csv")))
    assert row["gsm8k nfe_per_request"] == "16.0" and row["arc nfe_per_request"] == ""


def test_one_model_is_one_row_whatever_asked_it(tmp_path: Path) -> None:
    """Where it has a task in several ways, each is a column, named by what tells them apart."""
    make_run(tmp_path, "own", tasks={"dare_sudoku": 0.5, "gsm8k": 0.4})
    alter(make_run(tmp_path, "shots", tasks={"gsm8k": 0.7}, prompts="5"), results={"n-shot": {"gsm8k": 5}})
    alter(make_run(tmp_path, "harness", tasks={"math": 0.7}), harness__name="opencompass")
    alter(make_run(tmp_path, "served", tasks={"arc": 0.4}), **SERVED)
    alter(make_run(tmp_path, "stated", tasks={"mmlu": 0.3}), **STATED)
    make_run(tmp_path, "other", model="other", tasks={"gsm8k": 0.2}, content="cd" * 32)
    shutil.copytree(DATA, tmp_path / "external")
    built = score_table(find_runs(tmp_path))
    shown = {
        row.name: {column.name: cell.score.value for column, cell in zip(built.columns, row.cells, strict=True) if cell}
        for row in built.rows
    }
    assert shown["other"] == {"gsm8k (0-shot)": 0.2}
    assert shown["tiny-llada"] == {
        "dare_sudoku (native)": 0.5, "dare_sudoku (external)": 1.0, "dare_arithmetic": 1.0, "math": 0.7, "mmlu": 0.3,
        "arc": 0.4, "gsm8k (0-shot)": 0.4, "gsm8k (5-shot)": 0.7, "gsm8k (examples not recorded)": 0.0,
        "ARC-c": 0.0, "gsm8k-twice": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "facts",
    [
        {"decoding_requested": {"steps": 2}},
        {"model__dtype": "float16"},
        {"model__content_hash": "sha256:0"},
        {"seeds": [7] * 4},
    ],
)
def test_a_server_with_other_settings_is_another_row(tmp_path: Path, facts: dict[str, Any]) -> None:
    own, served = make_run(tmp_path, "own", tasks={"t": 0.5}), make_run(tmp_path, "served", tasks={"u": 0.4})
    alter(served, **SERVED)
    assert len(table(own, served).rows) == 1
    alter(served, **facts)
    assert len(table(own, served).rows) == 2


def _external(folder: Path, pretrained: str, task: str, gen_kwargs: dict[str, Any] | None = None) -> Path:
    """One task's result of lm-eval's own command."""
    shutil.copytree(DATA / "lm-eval" / "tiny-llada", folder)
    (file,) = folder.glob("results_*.json")
    whole = json.loads(file.read_text())
    for table in ("results", "group_subtasks", "n-samples"):
        whole[table] = {task: whole[table][task]} if task in whole[table] else {}
    whole["model_name"] = whole["config"]["model_args"]["pretrained"] = pretrained
    whole["config"]["gen_kwargs"] = gen_kwargs or {}
    file.write_text(json.dumps(whole))
    return folder


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        ("/exp/a/checkpoint-500", "/exp/b/checkpoint-500", 2), ("/exp/a/checkpoint-500", "/exp/a/checkpoint-500", 1),
        ("./checkpoint-500", "./checkpoint-500", 2), ("checkpoint-500", "checkpoint-500", 2),
        ("org/model", "org/model", 1), ("org/model", "gro/model", 2), ("tiny-llada", "tiny-llada", 1),
    ],
)  # fmt: skip
def test_external_results_of_one_model_are_those_that_name_one_checkpoint(
    tmp_path: Path, first: str, second: str, rows: int
) -> None:
    """A relative path, or a bare name that is not bundled, is another checkpoint in another folder."""
    _external(tmp_path / "a", first, "dare_sudoku")
    _external(tmp_path / "b", second, "dare_arithmetic")
    table = score_table(find_runs(tmp_path))
    assert len(table.rows) == len({row.name for row in table.rows}) == rows
    assert "/exp" not in render(table)


def test_a_checkpoint_elsewhere_is_not_the_bundled_one_of_its_name(tmp_path: Path) -> None:
    make_run(tmp_path, tasks={"u": 0.5})
    _external(tmp_path / "external", "/other/place/tiny-llada", "dare_sudoku")
    assert len({row.name for row in score_table(find_runs(tmp_path)).rows}) == 2


def test_external_results_with_other_settings_are_two_rows_of_one_name(tmp_path: Path) -> None:
    make_run(tmp_path, tasks={"u": 0.5})
    _external(tmp_path / "a", "tiny-llada", "dare_sudoku", {"steps": "8"})
    _external(tmp_path / "b", "tiny-llada", "dare_arithmetic", {"steps": "4"})
    make_run(tmp_path, "eight", tasks={"v": 0.5}, decoding={"steps": 8})
    table = score_table(find_runs(tmp_path))
    assert sorted((row.settings, sum(cell is not None for cell in row.cells)) for row in table.rows) == [
        ("steps 16", 1), ("steps 4", 1), ("steps 8", 2),
    ]  # fmt: skip
    assert len({row.name for row in table.rows}) == 1


def test_two_results_of_one_question_are_two_rows_of_one_name() -> None:
    built = score_table(find_runs(DATA / "lm-eval" / "org__dummy"))
    assert [row.name for row in built.rows] == ["org/dummy"] * 2 and len({row.settings for row in built.rows}) == 2


@pytest.mark.parametrize(
    "facts", [{"config/model_dtype": "bfloat16"}, {"config/model_args": {"pretrained": "tiny-llada", "peft": "lora"}}]
)
def test_what_contradicts_a_checkpoint_is_another_row(tmp_path: Path, facts: dict[str, Any]) -> None:
    make_run(tmp_path, tasks={"u": 0.5})
    shutil.copytree(DATA / "lm-eval" / "tiny-llada", tmp_path / "external" / "lm-eval")
    assert len(score_table(find_runs(tmp_path)).rows) == 1
    in_json(lambda root: next(root.rglob("external/lm-eval/results_*.json")), facts)(tmp_path)
    assert len(score_table(find_runs(tmp_path)).rows) == 2


def test_external_results_are_marked_and_not_compared(tmp_path: Path) -> None:
    """They are newer and better than our runs, and decide neither the best nor the current version."""
    for name, share in (("good", 0.9), ("bad", 0.3)):
        make_run(tmp_path, name, tasks={"dare_sudoku": share}, content=name * 16, created="2026-11-01T00:00:00")
    external = find_runs(DATA / "lm-eval" / "tiny-llada")
    table = score_table([*find_runs(tmp_path), *external], ["dare_sudoku"])
    cells = [row.cells[0] for row in table.rows]
    assert [(cell.score.value, cell.marks, cell.best) for cell in cells if cell] == [
        (pytest.approx(0.3), (), False),
        (pytest.approx(0.9), (), True),
        (1.0, ("limited", "external"), False),
    ]
    assert "100.0†# (" in render(table, "markdown") and "- # external: " in render(table, "markdown")
    assert "unknown" not in " ".join(row.settings for row in table.rows)
