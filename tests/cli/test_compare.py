"""``dare-bench compare`` and ``report``."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from run_factory import alter, make_run

from dare_bench.analysis.comparison import RunComparison
from dare_bench.analysis.comparison import compare as compare_runs
from dare_bench.cli import main
from dare_bench.cli.compare import compare
from dare_bench.cli.report import report
from dare_bench.errors import RunError, SaveError, UnknownNameError, UsageError
from dare_bench.reports.comparison_report import elements
from dare_bench.reports.elements import ReportTable, show
from dare_bench.runs.reader import Run

Out = pytest.CaptureFixture[str]
HALF = [1.0, 0.0] * 20
MORE = [1.0, 1.0, 1.0, 0.0] * 10


def _two(root: Path, **more: object) -> list[str]:
    """Two runs of the same documents; the second is better by a quarter."""
    return [
        str(make_run(root, "a", values={"s": HALF}, documents="same")),
        str(make_run(root, "b", values={"s": MORE}, documents="same", **more)),  # type: ignore[arg-type]
    ]


def test_prints_scores_difference_and_documents(tmp_path: Path, capsys: Out) -> None:
    compare(_two(tmp_path), docs=1)
    output = capsys.readouterr()
    assert "+25.00 (" in output.out and "exact McNemar" in output.out and "better" in output.out and output.err == ""
    assert "10 of 40 better in B: 1, 5, 9" in output.out and "Document 1, better: 0 in A, 1 in B" in output.out
    assert "Document 5" not in output.out


@pytest.mark.parametrize("width", [80, 60, 45])
def test_a_narrow_terminal_has_one_line_a_task(tmp_path: Path, width: int) -> None:
    """The columns that matter least go first; nothing is folded."""
    tasks = {f"dare_sudoku{at}": [HALF, MORE] for at in range(3)}
    runs = [
        Run(make_run(tmp_path, name, values={task: values[at] for task, values in tasks.items()}, documents="same"))
        for at, name in enumerate(("before", "after-some-training-of-a-long-name"))
    ]
    console = Console(width=width, file=io.StringIO(), force_terminal=False, markup=False, highlight=False)
    show([each for each in elements(compare_runs(runs), 0) if isinstance(each, ReportTable)], console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("dare_")]
    assert len(rows) == 3 and all(line.rstrip().endswith("better") for line in rows)
    shown = ["+25.0 [" in rows[0]] + [part in rows[0] for part in ("+10 -0", "50.0 -> 75.0", "0.0059")]
    assert shown == {80: [True] * 4, 60: [True, False, False, True], 45: [True, False, False, False]}[width], lines


def in_80_columns(comparison: RunComparison) -> str:
    console = Console(width=80, file=io.StringIO(), force_terminal=False, markup=False, highlight=False)
    show(list(elements(comparison, 0)), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_verdict_is_in_full_and_the_number_of_documents_is_told(tmp_path: Path) -> None:
    values = {"t": HALF, "u": HALF}
    runs = [Run(make_run(tmp_path, name, values=values, documents="same")) for name in ("before", "after")]
    text = in_80_columns(compare_runs(runs))
    assert text.count("no difference shown\n") == 2
    assert text.count("detectable with 40 documents") == 1, "once for both tasks"


def test_the_line_of_a_task_says_how_many_documents_changed(tmp_path: Path) -> None:
    right = [1.0] * 250
    values = {"before": right, "after": [0.0] * 22 + right[22:]}
    runs = [
        Run(make_run(tmp_path, name, values={"dare_countdown3": own}, documents="same")) for name, own in values.items()
    ]
    text = in_80_columns(compare_runs(runs))
    line = next(line for line in text.splitlines() if line.startswith("dare_countdown3 "))
    assert re.fullmatch(
        r"dare_countdown3  100\.0 -> 91\.2  -8\.8 \[-\d.*\]  \+0 -22   < 0\.0001  worse", line.rstrip()
    ), line
    assert "22 of 250 worse in B: 0, 1, 2" in text


def test_a_run_that_stopped_by_its_score_has_a_note(tmp_path: Path, capsys: Out) -> None:
    names = _two(tmp_path)
    compare(names, docs=0)
    assert "--until-halfwidth" not in capsys.readouterr().out
    alter(Path(names[1]), until_halfwidth=5.0)
    compare(names, docs=0)
    text = " ".join(capsys.readouterr().out.split())
    assert "stopped by --until-halfwidth: b at ±5 points. The intervals of their scores hold" in text


def test_a_limited_run_is_said_to_be_limited(tmp_path: Path, capsys: Out) -> None:
    names = _two(tmp_path, limit=40, n_total=100)
    compare(names, docs=0)
    first, second = [line for line in capsys.readouterr().out.splitlines() if " complete" in line]
    assert "complete, limited" in second and "limited" not in first
    compare(names, json=True)
    assert [run["limited"] for run in json.loads(capsys.readouterr().out)["runs"]] == [False, True]


def test_each_difference_of_settings_is_told_once(tmp_path: Path, capsys: Out) -> None:
    compare(_two(tmp_path, decoding={"gen_length": 32}), docs=0)
    output = capsys.readouterr()
    assert (output.out + output.err).count("gen_length") == 1 and "Settings that differ" in output.out


def test_interval_and_verdict_do_not_contradict(tmp_path: Path, capsys: Out) -> None:
    """Five documents, all better: the exact test cannot show it (p = 0.062), so that 0 lies in the interval."""
    values = {"a": [0.0] * 5, "b": [1.0] * 5}
    compare([str(make_run(tmp_path, name, values={"s": own}, documents="same")) for name, own in values.items()])
    output = capsys.readouterr().out
    assert "+100.00 (+0.00 to +100.00)" in output and "no difference shown" in output
    assert "0 lies inside unless the test rejects it at 95%" in output


def test_refuses_with_two_and_one_line(tmp_path: Path, capsys: Out) -> None:
    names = _two(tmp_path, fingerprint="new")
    with pytest.raises(SystemExit) as stop:
        main(["compare", *names])
    output = capsys.readouterr()
    assert stop.value.code == 2 and output.out == ""
    assert (
        output.err.count("\n") == 1 and "prompts, filters or scorer changed" in output.err and "--force" in output.err
    )
    with pytest.raises(SystemExit) as stop:
        main(["compare", *names, "--force", "--docs", "0"])
    output = capsys.readouterr()
    assert stop.value.code == 0 and "FORCED: better" in output.out and output.err == ""


def test_a_run_that_has_not_finished_is_incomplete(tmp_path: Path, capsys: Out) -> None:
    names = _two(tmp_path)
    for file in Path(names[1]).glob("results_*"):
        file.unlink()
    with pytest.raises(SystemExit) as stop:
        main(["compare", *names])
    assert stop.value.code == 4 and "no results yet" in capsys.readouterr().err


def test_what_documents_could_show_is_said_only_where_they_show_nothing(tmp_path: Path, capsys: Out) -> None:
    names = _two(tmp_path)
    compare(names, docs=0)
    assert "detectable with" not in capsys.readouterr().out
    same = str(make_run(tmp_path, "c", values={"s": HALF}, documents="same", seed=1))
    compare([names[0], same], docs=0)
    output = capsys.readouterr().out
    assert "- detectable with 40 documents: a drop of " in output and " points or more (with a power of 80%)" in output


def test_json_and_markdown(tmp_path: Path, capsys: Out) -> None:
    names, file = _two(tmp_path), tmp_path / "new" / "compare.md"
    compare(names, json=True, markdown=str(file), docs=1)
    output = capsys.readouterr()
    built = json.loads(output.out)
    assert built["comparisons"][0]["verdict"] == "better" and len(built["comparisons"][0]["shown"]) == 1
    assert output.err == f"wrote {file}\n"
    text = file.read_text()
    assert text.startswith("## Comparison\n") and "### Document 1, better" in text
    with pytest.raises(SaveError, match="cannot write"):
        compare(names, markdown=str(file / "below" / "a file.md"))


def test_tasks_and_scores_can_be_chosen(tmp_path: Path, capsys: Out) -> None:
    names = [
        str(make_run(tmp_path, name, values={"s": own, "choice": own}, documents="same"))
        for name, own in (("a", HALF), ("b", MORE))
    ]
    compare(names, task="choice, s", json=True)
    assert [item["task"] for item in json.loads(capsys.readouterr().out)["comparisons"]] == ["choice", "s"]
    compare(names, score="acc,none", json=True)
    built = json.loads(capsys.readouterr().out)
    assert [item["score"] for item in built["comparisons"]] == ["acc,none"]
    assert built["not_compared"] == ["s: a and b have no acc,none in common"]
    with pytest.raises(UsageError, match="unknown task 'sudoku'"):
        compare(names, task="sudoku")


def compare_runs_without_the_chosen_task_are_left_out(tmp_path: Path, capsys: Out) -> None:
    """Also the reference: the first run that has the task takes its place."""
    lacking = str(make_run(tmp_path, "lacking", tasks={"other": 0.5}))
    compare([lacking, *_two(tmp_path)], task="s", json=True)
    record = json.loads(capsys.readouterr().out)
    assert record["not_compared"] == ["lacking is left out: it has no s"]
    assert [run["run_id"] for run in record["runs"]] == ["a", "b"]
    compare([*_two(tmp_path), lacking], task="s,other", json=True)
    record = json.loads(capsys.readouterr().out)
    assert record["not_compared"] == ["a has no other", "b has no other", "lacking has no s"]
    assert [item["task"] for item in record["comparisons"]] == ["s"]
    with pytest.raises(UsageError, match="two runs with other, but only lacking has it"):
        compare([lacking, *_two(tmp_path)], task="other")
    with pytest.raises(UnknownNameError, match="unknown task 'nothing'; known: other, s"):
        compare([lacking, *_two(tmp_path)], task="nothing")


def test_all_pairs_and_a_folder_of_runs(tmp_path: Path, capsys: Out) -> None:
    _two(tmp_path)
    make_run(tmp_path, "c", values={"s": HALF}, documents="same", created="2026-11-21T10:30:00.000001")
    compare([str(tmp_path)], json=True)
    result = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(item["first"], item["second"]) for item in result] == [("A", "B"), ("A", "C")]
    compare([str(tmp_path)], all_pairs=True, json=True)
    result = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(item["first"], item["second"]) for item in result] == [("A", "B"), ("A", "C"), ("B", "C")]


def compare_runs_of_the_default_folder_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    _two(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    compare(["a", "b"])
    assert "better" in capsys.readouterr().out


def test_no_torch_and_no_harness(tmp_path: Path) -> None:
    run = str(_with_recipe(make_run(tmp_path, "a recipe")))
    code = (
        f"import sys; from dare_bench.cli.compare import compare; compare({_two(tmp_path)!r}); "
        "from dare_bench.cli.report import report; "
        f"report([{run!r}]); report([{run!r}, {run!r}], agreement=True); "
        "print([m for m in ('torch', 'lm_eval', 'opencompass', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_adjusted_p_is_headed_for_what_it_is(tmp_path: Path, width: int) -> None:
    """Among three runs a narrow table has only the adjusted p, and the note says so of its column."""
    c = [1.0, 1.0] * 3 + HALF[6:]
    runs = [
        Run(make_run(tmp_path, name, values={"s": values}, documents="same"))
        for name, values in (("a", HALF), ("b", [1.0] * 12 + HALF[12:]), ("c", c))
    ]
    console = Console(width=width, file=io.StringIO(), force_terminal=False, markup=False, highlight=False)
    comparison = compare_runs(runs)
    show(list(elements(comparison, 0)), console)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert [(item.difference.p, item.adjusted) for item in comparison.items] == [(0.03125, 0.0625), (0.25, 0.25)]
    head = next(line for line in printed.splitlines() if "verdict" in line and "task" in line)
    row = next(line for line in printed.splitlines() if line.startswith("A to B"))
    assert (
        "Holm p" in head and "0.062" in row and "Holm p: p adjusted over all 2 comparisons" in " ".join(printed.split())
    )
    assert (" p " in head.replace("Holm p", "")) == ("0.031" in row) == (width == 200)


RECIPE = {
    "name": "tiny/sudoku",
    "published": {"value": 0.5, "n": 1000, "metric": "accuracy", "measures": "accuracy", "mean_over": "documents"},
    "score": {"task": "dare_sudoku", "metric": "exact_match", "filter": "none"},
    "settings": "recorded",
}


def _with_recipe(run: Path) -> Path:
    (results,) = run.glob("results_*.json")
    whole = json.loads(results.read_text())
    whole["dare_bench"]["recipes"] = [RECIPE]
    results.write_text(json.dumps(whole))
    return run


def test_a_run_with_its_scores_and_the_published_one(tmp_path: Path, capsys: Out) -> None:
    report([str(_with_recipe(make_run(tmp_path, "mine")))])
    out = capsys.readouterr().out
    assert "tiny/sudoku" in out and "50.00 (46.91 to 53.09) of 1000" in out and "90.00 (69.90 to 97.21) of 20" in out
    assert "differs beyond noise" in out
    assert "exact_match" in out and "The same task?" not in out


def test_a_folder_of_runs_tells_which_tasks_changed(tmp_path: Path, capsys: Out) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", fingerprint="new")
    report([str(tmp_path)])
    out = capsys.readouterr().out
    assert "dare_sudoku: a and b" in out and "their scores aren't comparable" in out and "Published" not in out


def test_agreement(tmp_path: Path, capsys: Out) -> None:
    names = [str(make_run(tmp_path, name, n_docs=30, tasks={"t": share})) for name, share in (("a", 1.0), ("b", 0.5))]
    report(names, agreement=True, docs=3)
    out = capsys.readouterr().out
    assert "15 of 30" in out and out.count("extracted from the answer by the second") == 3
    assert "The scores of 12 more documents differ" in out
    report(names, agreement=True, task="t=t", score="exact_match,none", json=True)
    built = json.loads(capsys.readouterr().out)["agreement"]
    assert built["same_scores"] == 15 and len(built["pairs"]) == 30


def test_json_has_all(tmp_path: Path, capsys: Out) -> None:
    a, b = _with_recipe(make_run(tmp_path, "a")), make_run(tmp_path, "b", fingerprint="new")
    report([str(a), str(b)], json=True)
    built = json.loads(capsys.readouterr().out)
    assert [run["run_id"] for run in built["runs"]] == ["a", "b"] and built["runs"][0]["scores"][0]["value"] == 0.9
    assert built["published"][0]["verdict"] == "differs beyond noise"
    assert built["changes"][0]["task"] == "dare_sudoku"


def test_markdown_is_whole_where_the_terminal_is_short(tmp_path: Path, capsys: Out) -> None:
    names = [str(make_run(tmp_path, name, n_docs=30, tasks={"t": share})) for name, share in (("a", 1.0), ("b", 0.5))]
    file = tmp_path / "new" / "report.md"
    report(names, agreement=True, docs=0, markdown=str(file))
    text = file.read_text()
    assert text.startswith("# dare-bench report\n") and text.count("### Document") == 15
    output = capsys.readouterr()
    assert "15 more documents" in output.out and output.err == f"wrote {file}\n"
    with pytest.raises(SaveError, match="cannot write"):
        report(names, markdown=str(file / "below" / "a file.md"))


def test_words_that_do_not_fit(tmp_path: Path) -> None:
    run = str(make_run(tmp_path, "a"))
    with pytest.raises(UsageError, match="--agreement compares two runs, found 1"):
        report([run], agreement=True)
    with pytest.raises(UsageError, match="need --agreement"):
        report([run], task="dare_sudoku")
    with pytest.raises(RunError, match="there is no folder"):
        report([str(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no runs in"):
        report([str(tmp_path / "empty")])


def test_a_mistyped_run_has_the_closest_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("out", "other"):
        make_run(tmp_path / folder, f"tiny-llada-{folder}-0123abcd")
    for name, near in (("tiny-llada-out-0123abce", "out/tiny-llada-out-0123abcd"),
                       ("other/tiny-llada-other-9123abcd", "other/tiny-llada-other-0123abcd")):  # fmt: skip
        with pytest.raises(RunError, match=f"there is no folder {name}; give a run's folder; closest: {near}$"):
            report([name])
    with pytest.raises(RunError, match=r"; dare-bench ls runs DIR lists those in a folder$"):
        report(["zzzzzz"])


def test_a_run_of_the_default_folder_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    make_run(tmp_path / "out", "mine")
    monkeypatch.chdir(tmp_path)
    report(["mine"])
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize("more", [(), (4,)])
def test_runs_are_told_by_the_settings_that_differ(tmp_path: Path, capsys: Out, more: tuple[int, ...]) -> None:
    """Of two runs above their scores, of more in a column."""
    report([str(make_run(tmp_path, f"r{steps}", decoding={"steps": steps})) for steps in (8, 2, *more)])
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "steps 8" in line or "steps 2" in line]
    assert len(lines) == 2 and all(line.startswith("r") for line in lines) == bool(more)
    assert ("settings" in out) == bool(more)


def test_a_run_named_twice_is_one_run(tmp_path: Path, capsys: Out) -> None:
    run = make_run(tmp_path, "a")
    report([str(run), str(tmp_path)], json=True)
    built = json.loads(capsys.readouterr().out)
    assert [item["run_id"] for item in built["runs"]] == ["a"] and built["changes"] == []
