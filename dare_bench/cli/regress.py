"""``dare-bench regress``: compare a run with a baseline, for continuous integration."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dare_bench.cli.guard import ending
from dare_bench.cli.plain import echo, echo_error
from dare_bench.cli.runs import open_one, print_report, write_markdown
from dare_bench.errors import SaveError, UsageError
from dare_bench.runs.writer import atomic_write_text

if TYPE_CHECKING:
    from dare_bench.runs.reader import Run

_REGRESSION = 3


def replace_reports(arguments: Sequence[str]) -> None:
    """Write an error into the reports that a command line names before it is parsed, so that no earlier report survives
    a check without a verdict. --help checks nothing."""
    if not {"--help", "-h"}.isdisjoint(arguments):
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--junit", "--markdown"):
        parser.add_argument(name, nargs="?")
    given, _ = parser.parse_known_args(arguments)
    reason = "the check did not finish; the output of dare-bench regress has the reason"
    _report_error("", reason, given.junit, given.markdown)


def _report_error(run: str, reason: str, junit: str | None, markdown: str | None) -> None:
    from dare_bench.reports import elements, regression_report

    with contextlib.suppress(SaveError):  # writing the verdict says it
        if junit is not None:
            atomic_write_text(junit, regression_report.junit_error(run, reason), durable=False)
    with contextlib.suppress(SaveError):
        if markdown is not None:
            atomic_write_text(markdown, elements.markdown(regression_report.error_elements(run, reason)), durable=False)


def regress(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or a folder with one run.")],
    baseline: Annotated[str, typer.Option("--baseline", "-b", metavar="FILE", help="The baseline to check against.")],
    smallest_effect: Annotated[
        float, typer.Option(min=0.0, help="Smaller drops are not a regression (0.01: one percentage point).")
    ] = 0.01,
    update: Annotated[
        bool, typer.Option("--update", help="Create or replace the baseline with RUN, after printing the changes.")
    ] = False,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Also write a JUnit XML file.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="Also write a Markdown file.")] = None,
    any_program: Annotated[
        bool, typer.Option("--any-program", help="Also accept answers of a different version of the code.")
    ] = False,
    docs: Annotated[int, typer.Option(min=0, help="Number of differing documents to print.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a run against a baseline.

    Answers must be identical where that is guaranteed; otherwise a paired test decides.

    Exit codes: 0 no regression, 3 regression, 4 the run is incomplete, 2 usage error, no such run, or other settings
    than the baseline, 1 it cannot be judged. The last is returned without samples, and for edited results or
    samples, answers of another program version, or no score that could be judged. Without a verdict, the files of
    --junit and --markdown contain the error.

    Example: dare-bench regress out/my-run --baseline leaderboards/baselines/tiny-llada.json --junit regress.xml
    """
    from dare_bench.analysis.regression import judge
    from dare_bench.reports import regression_report as render

    try:
        if update and (json or junit is not None or markdown is not None):
            raise UsageError(
                "--update only prints the changes and writes the baseline; omit --junit, --markdown and --json"
            )
        opened = open_one(run)
        if update:
            _update(opened, Path(baseline), smallest_effect, docs, any_program)
            return
        verdict = judge(opened, baseline, smallest_effect, any_program=any_program)
        if junit is not None:
            atomic_write_text(junit, render.junit_text(verdict), durable=False)
            echo_error(f"wrote {junit}")
        if markdown is not None:
            write_markdown(markdown, render.elements(verdict))
        print_report(render.elements(verdict, docs), lambda: render.record(verdict), json=json)
    except BaseException as error:
        reason, code = ending(error)
        _report_error(run, f"{reason} (exit code {code})", junit, markdown)
        raise
    if verdict.regressed:
        raise typer.Exit(_REGRESSION)


def _update(run: Run, path: Path, smallest_effect: float, docs: int, any_program: bool) -> None:
    from dare_bench.analysis import baseline as baselines
    from dare_bench.analysis.baseline_conditions import mismatches
    from dare_bench.analysis.regression import compare_baselines, complete_baseline
    from dare_bench.reports import regression_report as render

    new = complete_baseline(run, any_program)
    if not path.exists():
        echo(f"{path} is a new baseline: {', '.join(f'{name} {task.n_docs}' for name, task in new.tasks.items())}")
    else:
        old = baselines.read(path)  # a file of another kind is not overwritten
        if baselines.text(old) == baselines.text(new):
            echo(f"{path} already contains this run; nothing to do")
            return
        differences = mismatches(old, new)
        for difference in differences:
            if not difference.renewable:
                raise UsageError(
                    f"{path} is a baseline of a different {difference.name}: {difference.expected}, the run's is"
                    f" {difference.seen}; choose another name for the file, or delete it first"
                )
        for line in [
            *render.replaced(old, new),
            *(f"{item.name}: {item.expected} -> {item.seen}" for item in differences),
        ]:
            echo(line)
        if not differences:
            verdict = compare_baselines(run.run_id, old, new, smallest_effect)
            print_report(render.elements(verdict, docs), lambda: render.record(verdict), json=False)
    for line in render.sensitivity(new):
        echo(line)
    baselines.write(path, new)
    echo_error(f"wrote {path}")
