"""``dare-bench report``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_factory import make_run

from dare_bench.cli.report import report
from dare_bench.errors import RunError, SaveError, UsageError

Out = pytest.CaptureFixture[str]
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


def test_no_torch_and_no_harness(tmp_path: Path) -> None:
    run = _with_recipe(make_run(tmp_path, "a"))
    code = (
        "import sys; from dare_bench.cli.report import report; "
        f"report([{str(run)!r}]); report([{str(run)!r}, {str(run)!r}], agreement=True); "
        "print([m for m in ('torch', 'lm_eval', 'opencompass', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


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
