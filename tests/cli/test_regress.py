"""``dare-bench regress``: exit codes and files; the bundled checkpoints against the committed baselines, with noise and
with deliberate bugs in the sampler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import command
import pytest
import torch
import yaml
from run_factory import changed, make_run

import dare_bench
from dare_bench.analysis import baseline as baselines
from dare_bench.analysis.regression import compare_baselines, judge
from dare_bench.cli import main
from dare_bench.cli.guard import Stopped
from dare_bench.loading import locate
from dare_bench.model_adapters.sampling import device, state, strategies
from dare_bench.model_adapters.sampling.strategies.bounded import Dynamic
from dare_bench.model_adapters.sampling.strategies.quota import Quota
from dare_bench.runs.reader import Run

ROOT = Path(__file__).parents[2]
BASELINES = ROOT / "leaderboards" / "baselines"
FAMILIES = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2")
Out = pytest.CaptureFixture[str]


def verb(*words: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["regress", *map(str, words)])
    return int(stop.value.code or 0)


# -- the verb ----------------------------------------------------------------------------------------------------------


def test_a_baseline_is_made_held_against_and_renewed(tmp_path: Path, capsys: Out) -> None:
    file, run = tmp_path / "deep" / "x.json", make_run(tmp_path / "a", n_docs=30)
    assert verb(run, "--baseline", file) == 2
    assert "no baseline at" in capsys.readouterr().err
    assert verb(run, "--baseline", file, "--update") == 0
    updated = capsys.readouterr().out
    assert "is a new baseline: dare_sudoku 30" in updated
    assert "may miss small drops; if no document gets better, it detects in 80% of cases:" in " ".join(updated.split())
    assert verb(run, "--baseline", file) == 0
    assert "No regression" in capsys.readouterr().out
    before = file.read_bytes()
    assert verb(run, "--baseline", file, "--update") == 0
    assert "nothing to do" in capsys.readouterr().out and file.read_bytes() == before

    other = make_run(tmp_path / "b", n_docs=30, answer="42")
    reports = ("--junit", tmp_path / "x.xml", "--markdown", tmp_path / "x.md")
    assert verb(other, "--baseline", file, *reports) == 3
    assert "different answers, values or numbers of forward passes" in capsys.readouterr().out
    assert int(ElementTree.parse(tmp_path / "x.xml").getroot().get("failures", "0")) > 0
    assert (tmp_path / "x.md").read_text().startswith("## Regression")
    assert verb(other, "--baseline", file, "--json") == 3
    reported = json.loads(capsys.readouterr().out)
    assert reported["red"] and len(reported["flips"]) == 30
    assert verb(other, "--baseline", file, "--update") == 0
    assert "dare_sudoku/0: a different answer" in capsys.readouterr().out and file.read_bytes() != before
    assert verb(other, "--baseline", file) == 0


def test_update_shows_what_else_was_asked(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "x.json"
    assert verb(make_run(tmp_path / "a"), "-b", file, "--update") == 0
    other = make_run(tmp_path / "b", decoding={"steps": 8})
    assert verb(other, "-b", file) == 2
    assert verb(other, "-b", file, "--update") == 0
    assert "steps of dare_sudoku: 16 -> 8" in capsys.readouterr().out
    assert verb(other, "-b", file) == 0


def test_update_says_what_is_replaced(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "x.json"
    verb(make_run(tmp_path / "a", tasks={"dare_sudoku": 0.9}), "-b", file, "--update")
    other = make_run(tmp_path / "b", model="mine", content="cd" * 32, tasks={"dare_sudoku": 0.7})
    capsys.readouterr()
    assert verb(other, "-b", file, "--update") == 0
    output = capsys.readouterr().out
    assert "checkpoint: tiny-llada of llada -> mine of llada" in output and "dtype: float32 (unchanged)" in output
    assert "content: abababababab -> cdcdcdcdcdcd" in output
    assert "dare_sudoku exact_match,none: 90.00% -> 70.00%" in output


@pytest.mark.parametrize(("place", "name"), [("checkpoint", "family"), (None, "harness")])
def test_update_replaces_no_baseline_of_another_family_or_harness(
    place: str | None, name: str, tmp_path: Path, capsys: Out
) -> None:
    file, run = tmp_path / "x.json", make_run(tmp_path / "a")
    verb(run, "-b", file, "--update")
    record = json.loads(file.read_text())
    (record[place] if place else record)[name] = "dream"
    file.write_text(json.dumps(record))
    before = file.read_bytes()
    assert verb(run, "-b", file, "--update") == 2
    output = capsys.readouterr().err
    assert f"a different {name}: dream, the run's is " in output and "delete it first" in output
    assert file.read_bytes() == before


def test_update_overwrites_baselines_only_and_with_whole_runs_only(tmp_path: Path, capsys: Out) -> None:
    file, run = tmp_path / "x.json", make_run(tmp_path / "a")
    file.write_text('{"mine": 1}')
    assert verb(run, "-b", file, "--update") == 2
    assert file.read_text() == '{"mine": 1}'
    part = make_run(tmp_path / "b", status="incomplete", failures=2)
    assert verb(part, "-b", tmp_path / "new.json", "--update") == 4
    assert "2 documents failed" in capsys.readouterr().err and not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("words", [("--json",), ("--junit", "x.xml"), ("--markdown", "x.md")], ids=str)
def test_update_writes_no_reports(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb(make_run(tmp_path), "-b", tmp_path / "x.json", "--update", *words) == 2
    assert "omit --junit, --markdown and --json" in capsys.readouterr().err and not (tmp_path / "x.json").exists()


def test_incomplete_runs_and_runs_that_are_none(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "x.json"
    verb(make_run(tmp_path / "a"), "-b", file, "--update")
    assert verb(make_run(tmp_path / "b", status="incomplete", failures=1), "-b", file) == 4
    assert verb(make_run(tmp_path / "c", limit=20), "-b", file) == 4
    assert verb(tmp_path / "nothing", "-b", file) == 2
    assert "there is no folder" in capsys.readouterr().err


class Reports:
    """The reports of a check, green before it."""

    def __init__(self, folder: Path) -> None:
        self.junit, self.markdown = folder / "x.xml", folder / "x.md"
        self.options = ("--junit", self.junit, "--markdown", self.markdown)
        for file in (self.junit, self.markdown):
            file.write_text("green")

    def error(self) -> str:
        """The error that both report."""
        suite = ElementTree.parse(self.junit).getroot()
        assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("1", "1", "0")
        (error,) = suite.iter("error")
        assert self.markdown.read_text().startswith("## Not judged\n")
        return str(error.get("message"))


def test_every_exit_without_a_verdict_is_an_error_in_the_reports(tmp_path: Path) -> None:
    file, run = tmp_path / "x.json", make_run(tmp_path / "a")
    verb(run, "-b", file, "--update")
    for words, code, reason in (
        ((make_run(tmp_path / "b", status="incomplete", failures=1), "-b", file), 4, "1 document failed"),
        ((tmp_path / "nothing", "-b", file), 2, "there is no folder"),
        ((run, "-b", tmp_path / "none.json"), 2, "no baseline at"),
        ((make_run(tmp_path / "c", decoding={"steps": 8}), "-b", file), 2, "does not match the baseline"),
        ((run, "-b", file, "--update"), 2, "--update only prints"),
        ((run, "-b", file, "--docs", "-1"), 2, "the check did not finish"),
        ((run, "-b", file, "--bogus"), 2, "the check did not finish"),
        ((run, "--bogus=1", "-b"), 2, "the check did not finish"),
        ((run,), 2, "the check did not finish"),
    ):
        reports = Reports(tmp_path)
        assert verb(*words, *reports.options) == code
        assert reason in reports.error()
        assert f"(exit code {code})" in reports.error() or "did not finish" in reason


def test_an_option_without_its_value_leaves_no_earlier_report(tmp_path: Path) -> None:
    for last in ("--baseline", "--junit"):
        reports = Reports(tmp_path)
        assert verb(tmp_path, *reports.options, last) == 2
        assert reports.markdown.read_text().startswith("## Not judged\n")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_leaves_the_reports_alone(tmp_path: Path, flag: str) -> None:
    reports = Reports(tmp_path)
    assert verb(*reports.options, flag) == 0
    assert reports.junit.read_text() == reports.markdown.read_text() == "green"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (KeyboardInterrupt(), 130, "interrupted (exit code 130)"),
        (Stopped(signal.SIGTERM), 143, "interrupted by SIGTERM (exit code 143)"),
        (ValueError("nobody expects"), 1, "error: ValueError: nobody expects; this is a bug in dare-bench"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_interrupted_check_is_an_error_in_the_reports(
    error: BaseException, code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("dare_bench.analysis.regression.judge", interrupted)
    reports = Reports(tmp_path)
    assert verb(make_run(tmp_path / "a"), "-b", tmp_path / "x.json", *reports.options) == code
    assert reason in reports.error()


def test_a_killed_check_leaves_an_error_in_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        os._exit(9)

    reports, run = Reports(tmp_path), make_run(tmp_path / "a")
    monkeypatch.setattr("dare_bench.analysis.regression.judge", killed)
    if (child := os.fork()) == 0:
        main(["regress", str(run), "-b", "x.json", *map(str, reports.options)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert "the check did not finish" in reports.error()


def test_a_folder_with_one_run_is_that_run(tmp_path: Path, capsys: Out) -> None:
    file, run = tmp_path / "x.json", make_run(tmp_path / "runs", "a")
    assert verb(run, "-b", file, "--update") == verb(tmp_path / "runs", "-b", file) == 0
    make_run(tmp_path / "runs", "b")
    assert verb(tmp_path / "runs", "-b", file) == 2
    assert "runs contains 2 runs; give one of them: " in capsys.readouterr().err


def test_update_says_which_drops_are_detected(tmp_path: Path, capsys: Out) -> None:
    """The numbers are those of the check: two tasks of 60 documents, of which one changes for the worse."""
    run = make_run(tmp_path / "a", tasks={"dare_sudoku": 0.9, "dare_arithmetic": 0.9}, n_docs=60)
    verb(run, "-b", tmp_path / "x.json", "--update")
    out = capsys.readouterr().out
    assert "dare_sudoku exact_match,none: a drop of 13 points or more (60 documents)" in out
    known = baselines.read(tmp_path / "x.json")
    other = changed(known, lambda record: record["checkpoint"].update(content_hash="cd" * 32))
    assert {round(float(score.detectable or 0), 4) for score in compare_baselines("x", known, other).scores} == {0.1286}

    values = {"one": [1.0], "few": [1.0, 0.0, 1.0], "mean": [0.25, 0.5] * 4}
    few = make_run(tmp_path / "b", values=values)
    verb(few, "-b", tmp_path / "y.json", "--update")
    out = capsys.readouterr().out
    assert "one exact_match,none: no drop (1 document)\n" in out
    assert "few exact_match,none: no drop (3 documents)\n" in out
    assert "mean exact_match,none: depends on how much documents change" in out


@pytest.mark.slow
def test_the_recipe_for_github_runs_as_printed(tmp_path: Path, capsys: Out) -> None:
    """A green check, a regression, and an evaluation that fails, one after another in one folder: each job fails where
    it must, and publishes its own report."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "regress.md").read_text(), re.DOTALL | re.MULTILINE)
    steps, checkpoint = yaml.safe_load(block), tmp_path / "my-checkpoint"
    summary = tmp_path / "summary.md"

    def job(number: str) -> list[int]:
        """The exit codes of the steps; GitHub runs a step after a failed one only if it says always()."""
        summary.write_text("")
        env = {**os.environ, "GITHUB_RUN_ID": number, "GITHUB_STEP_SUMMARY": str(summary)}
        codes: list[int] = []
        for step in steps:
            if any(codes) and step.get("if") != "always()":
                continue
            if step["run"].startswith("dare-bench"):  # by a server of processes that have imported it
                printed = subprocess.run(["bash", "-c", f"printf '%s\\n' {step['run']}"], env=env, capture_output=True)
                codes.append(command.run(*printed.stdout.decode().splitlines()[1:], env=env, cwd=tmp_path).returncode)
            else:
                codes.append(subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=env).returncode)
        return codes

    def use(name: str) -> None:
        checkpoint.unlink(missing_ok=True)
        checkpoint.symlink_to(locate(name), target_is_directory=True)

    use("tiny-sdar")
    assert job("1") == [0, 2, 0] and "no baseline at baseline.json" in summary.read_text()
    assert verb(tmp_path / "runs" / "1", "-b", tmp_path / "baseline.json", "--update") == 0
    assert job("1") == [0, 0, 0] and summary.read_text().startswith("## No regression")
    use("tiny-sdar-base")
    assert job("2") == [0, 3, 0] and summary.read_text().startswith("## Regression")
    checkpoint.unlink()
    assert job("3") == [2, 2, 0] and summary.read_text().startswith("## Not judged")
    assert ElementTree.parse(tmp_path / "regress.xml").getroot().get("errors") == "1"


# -- the bundled checkpoints -------------------------------------------------------------------------------------------


def test_a_committed_baseline_holds(tmp_path: Path) -> None:
    """The script of ``make regress`` on one checkpoint. CI runs it on all; the next test judges all in this process."""
    script = ROOT / "scripts" / "baselines.py"
    done = command.run("tiny-sdar", "--output-path", str(tmp_path), script=script, cwd=tmp_path, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    suite = ElementTree.parse(tmp_path / "tiny-sdar.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "0") and int(suite.get("tests", "0")) == 7
    assert (tmp_path / "tiny-sdar.md").read_text().startswith("## No regression")


def evaluated(name: str, folder: Path, **options: Any) -> Run:
    known = baselines.read(BASELINES / f"{name}.json")
    return dare_bench.evaluate(
        model=name, tasks=tuple(known.tasks), limit=known.limit, output_path=str(folder), progress=False, **options
    )


def test_another_batch_size_and_another_number_of_threads_stay_green(tmp_path: Path) -> None:
    """Of each family: ``make regress``, and test_families_invariance.py."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = evaluated("tiny-sdar", tmp_path, max_rows=7)
    finally:
        torch.set_num_threads(before)
    verdict = judge(run, BASELINES / "tiny-sdar.json")
    assert {score.mode for score in verdict.scores} == {"exact"}
    assert not verdict.regressed and not verdict.flips


def test_float_noise_put_into_every_logit_stays_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as much as another CPU makes, and more than batch sizes and threads do here."""
    forward, rng = device.DeviceState.forward, torch.Generator().manual_seed(0)

    def noisy(*given: Any) -> Any:
        built, positions = forward(*given)
        return built + (2 * torch.rand(built.shape, generator=rng) - 1) * 1e-5, positions

    monkeypatch.setattr(device.DeviceState, "forward", noisy)
    assert not judge(evaluated("tiny-sdar", tmp_path), BASELINES / "tiny-sdar.json").regressed


Patch = Callable[[pytest.MonkeyPatch], None]


def surest_last(patch: pytest.MonkeyPatch) -> None:
    rank = strategies.rank
    patch.setattr(strategies, "rank", lambda score_N, *rest: rank(-score_N, *rest))


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    for kind in (Quota, Dynamic):
        count = kind.count

        def more(self: Any, ranked: Any, at: Any, count: Any = count) -> Any:
            return torch.minimum(count(self, ranked, at) + 1, ranked.count_R)

        patch.setattr(kind, "count", more)


def prompts_without_their_first_token(patch: pytest.MonkeyPatch) -> None:
    begin = state.RowState.__post_init__

    def cut(row: Any) -> None:
        row.prompt = list(row.prompt)[1:]
        begin(row)

    patch.setattr(state.RowState, "__post_init__", cut)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("tiny-sdar", surest_last),
        ("tiny-llada", one_too_many),
        ("tiny-sdar", prompts_without_their_first_token),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_bug_in_the_sampler_is_red(name: str, bug: Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        bug(patch)
        run = evaluated(name, tmp_path)
    verdict = judge(run, BASELINES / f"{name}.json")
    assert verdict.regressed
    assert verb(run.path, "-b", BASELINES / f"{name}.json") == 3


def test_an_early_stopped_checkpoint_is_judged_and_red(tmp_path: Path, capsys: Out) -> None:
    """The use of a baseline: another checkpoint of the family, paired."""
    file = BASELINES / "tiny-sdar.json"
    known = baselines.read(file)
    base = dare_bench.evaluate(
        model="tiny-sdar-base", tasks=tuple(known.tasks), limit=known.limit, output_path=str(tmp_path), progress=False
    )
    assert verb(base.path, "-b", file) == 3
    out = capsys.readouterr().out
    assert "different checkpoints: tiny-sdar" in out and "REGRESSION" in out and "dropped by " in out
    better = compare_baselines("run", baselines.of_run(base), known)
    assert not better.regressed and {score.gain > 0 for score in better.scores} == {True}
