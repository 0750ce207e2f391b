"""The verbs that only read: show, ls runs, leaderboard build and serve."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from calls import call
from hostile_external import DATA
from run_factory import make_run

from dare_bench.analysis.document_view import document_view
from dare_bench.analysis.run_finder import open_run
from dare_bench.cli.leaderboard import build, serve
from dare_bench.cli.ls import runs as list_runs
from dare_bench.cli.show import colored, show
from dare_bench.errors import RunError, UnknownNameError, UsageError
from dare_bench.runs.reader import Run

Out = pytest.CaptureFixture[str]


def test_show_says_it_all_and_ends_with_the_exact_prompt(tmp_path: Path, capsys: Out) -> None:
    long = "word " * 100 + "\nlast line [bold]not markup[/bold] :smile:"
    show(str(make_run(tmp_path, prompt=long)), doc="3")
    out = capsys.readouterr().out
    assert out.endswith(f"prompt\n{long}\n")
    document = Run(tmp_path / "tiny-llada-dare_sudoku-0123abcd").index("dare_sudoku")
    assert document is not None
    row = document.document(3).rows[0]
    for words in ("document 3", "answer", row["target"], "filtered answer", "exact_match = 1.0", "12 forward passes"):
        assert words in out, words


def test_show_without_a_document_begins_with_the_scores(tmp_path: Path, capsys: Out) -> None:
    show(str(make_run(tmp_path, tasks={"dare_sudoku": 0.9, "choice_x": 0.5}, limit=20)))
    out = capsys.readouterr().out
    assert (
        "complete, limited" in out
        and "90.00%" in out
        and "69.90% to 97.21%" in out
        and "dare_sudoku · document 0" in out
    )


def test_show_colors_the_order_and_numbers_it(tmp_path: Path) -> None:
    view = document_view(next(Run(make_run(tmp_path)).documents("dare_sudoku")))
    order = view.answers[0].order
    assert order is not None
    text = colored(order)
    assert "¹" in text.plain or "²" in text.plain
    colors = {str(span.style) for span in text.spans if "on color" in str(span.style)}
    assert len(colors) > 3


def test_show_choices(tmp_path: Path, capsys: Out) -> None:
    show(str(make_run(tmp_path, tasks={"choice_x": 1.0})), doc="1")
    out = capsys.readouterr().out
    assert "likeliest right" in out and "-1.500" in out and "128 draws" in out
    assert "log-likelihood" in out and "per token" not in out


def test_show_says_that_opencompass_logs_likelihoods_per_token(capsys: Out) -> None:
    run = next(DATA.glob("opencompass/*/results/tiny-llada"))
    written = json.loads((run.parents[1] / "predictions" / run.name / "ARC-c.json").read_text())["0"]
    show(str(run), task="ARC-c", doc="0")
    out = capsys.readouterr().out
    assert "log-likelihood per token" in out and f"{-written['label: A']['PPL']:.3f}" in out
    show(str(run), task="ARC-c", doc="0", json=True)
    assert json.loads(capsys.readouterr().out)["value_is"] == "log-likelihood per token"


def test_show_json(tmp_path: Path, capsys: Out) -> None:
    show(str(make_run(tmp_path)), doc="2", json=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["doc_id"], result["task"], result["kind"]) == (2, "dare_sudoku", "generate")
    assert result["prompts"] == ["Question 2: which digits?\nAnswer:"] and len(result["traces"][0]["events"]) == 16


def test_show_never_obeys_a_terminal_sequence(tmp_path: Path, capsys: Out) -> None:
    show(str(make_run(tmp_path, answer="\x1b]0;gotcha\x07", prompt="\x1b[2J", n_docs=1)))
    assert "\x1b]" not in (out := capsys.readouterr().out) and "\x1b[2J" not in out and "␛[2J" in out
    assert "gotcha␇" in out, "what is not obeyed is shown"


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"doc": "99"}, UsageError, "ids go from 0 to 18"),
        ({"doc": "19"}, RunError, "has no answer: the prompt is too long"),
        ({"task": "dare_sudokku"}, UnknownNameError, "closest: dare_sudoku"),
    ],
)
def test_show_names_what_is_wrong(tmp_path: Path, asked: dict[str, str], error: type[Exception], words: str) -> None:
    folder = make_run(tmp_path, failures=1, status="incomplete")
    with pytest.raises(error, match=words):
        show(str(folder), **asked)


def test_show_of_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    for name in "abcd":
        make_run(tmp_path, name)
    with pytest.raises(UsageError, match=r"contains 4 runs; give one of them: .*/a, .*/b, .*/c and 1 more"):
        show(str(tmp_path))


def test_show_takes_the_folder_of_one_run_and_names_a_result_by_its_path(tmp_path: Path, capsys: Out) -> None:
    make_run(tmp_path / "own")
    show(str(tmp_path / "own"))
    assert "dare_sudoku · document 0" in capsys.readouterr().out
    shutil.copytree(DATA / "lm-eval" / "tiny-llada", tmp_path / "hf" / "tiny-llada")
    with pytest.raises(UnknownNameError, match=r"in .*/hf/tiny-llada/results_.*json"):
        show(str(tmp_path / "hf"), task="nope")


def test_show_without_samples(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    next(folder.glob("samples_*")).unlink()
    with pytest.raises(RunError, match="--no-log-samples"):
        show(str(folder))


def test_ls_runs(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "one", limit=20)
    broken = make_run(tmp_path, "two")
    (broken / "run.json").write_text("{")
    list_runs(str(tmp_path))
    result = capsys.readouterr()
    assert str(tmp_path / "one") in result.out and "complete, limited" in result.out and "90.00% (n=20)" in result.out
    assert "two" not in result.out and "two" in result.err
    list_runs(str(tmp_path), json=True)
    (record,) = json.loads(capsys.readouterr().out)
    assert record["run_id"] == "one" and record["scores"][0]["value"] == 0.9
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    list_runs(".")
    head, line = capsys.readouterr().out.splitlines()
    assert line.startswith("one  ") and line.endswith("90.00% (n=20)") and max(len(head), len(line)) <= 80
    monkeypatch.setenv("COLUMNS", "28")
    list_runs(".")
    assert capsys.readouterr().out.splitlines() == ["one", "  dare_sudoku 90.00% (n=20)"]
    (tmp_path / "none").mkdir()
    list_runs(str(tmp_path / "none"))
    assert "no runs in" in capsys.readouterr().out


def test_ls_runs_tells_runs_by_the_settings_that_differ(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, decoding in (("a", {"temperature": 0.0}), ("b", {"temperature": 0.0, "steps": 8})):
        make_run(tmp_path, f"tiny-llada-dare_sudoku-{name}", decoding=decoding)
    list_runs(".")
    head, *rows = capsys.readouterr().out.splitlines()
    assert "settings" in head and ["steps 16" in row for row in rows] == [True, False]
    assert "steps 8" in rows[1] and not any("temperature" in row for row in rows), "what all have is not repeated"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    list_runs(".")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["  steps 16", "  dare_sudoku 90.00% (n=20)"] and lines[4] == "  steps 8"


@pytest.mark.parametrize("layout", ["lm-eval/tiny-llada/results_*.json", "opencompass/*/results/tiny-llada"])
def test_an_external_result_has_one_name_that_every_command_accepts(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    for name in ("first", "second"):
        shutil.copytree(DATA, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    path, other = (str(next(Path(name).glob(layout))) for name in ("first", "second"))
    run = open_run(path)
    shown = {
        "show": [path], "report": [path], "compare": [path, other], "export table": [path], "ls runs": ["first"],
        "score": [path], "regress": [path, "--baseline", "b.json", "--update"],
        "leaderboard build": [path, "-o", str(tmp_path / "site")],
    }  # fmt: skip
    for verb, names in shown.items():
        _, out, err = call([*verb.split(), *names])
        assert run.run_id not in out + err, verb
        assert path in "".join((out + err).split("\n")) or verb in ("export table", "leaderboard build"), verb


def test_build_prints_the_index_last(tmp_path: Path, capsys: Out) -> None:
    make_run(tmp_path / "runs", "r", n_docs=2)
    build([str(tmp_path / "runs")], out=str(tmp_path / "site"))
    result = capsys.readouterr()
    assert result.out.splitlines()[-1] == str(tmp_path / "site" / "index.html") and "1 run, 2 documents" in result.err
    build([str(tmp_path / "runs")], out=str(tmp_path / "site"), json=True)
    assert json.loads(capsys.readouterr().out)["documents"] == 2


def test_serve_serves_this_machine_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    # A test run started in the background hands on a SIGINT that is ignored; a terminal's is not.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from dare_bench.cli.leaderboard import serve; serve(sys.argv[1], 0)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert opener.open(address, timeout=10).read() == b"hello"
        os.kill(server.pid, signal.SIGINT)
        try:
            assert server.wait(10) == 0
        finally:
            server.kill()


def test_serve_needs_a_site(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leaderboard build"):
        serve(str(tmp_path))
