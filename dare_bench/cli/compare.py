"""``dare-bench compare``: is one run better than another, or is it noise?"""

from __future__ import annotations

from typing import Annotated

import typer

from dare_bench.cli.plain import echo_error
from dare_bench.cli.runs import RUNS_HELP, open_runs, print_report, write_markdown
from dare_bench.errors import UsageError


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="A B [C...]", help=f"{RUNS_HELP} The others are compared with A.")
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="Tasks or groups, separated by commas (default: all shared tasks)."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="metric,filter to compare (default: each task's headline score).")
    ] = None,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Compare every pair of runs, not only each run with A.")
    ] = False,
    templates: Annotated[
        bool,
        typer.Option("--templates", help="Compare decoders under several prompt templates of the same documents."),
    ] = False,
    docs: Annotated[int, typer.Option(min=0, help="Number of regressed and of improved documents to print.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Compare runs even if their tasks or prompts differ.")] = False,
    markdown: Annotated[str | None, typer.Option(help="Also write the comparison to a Markdown file.")] = None,
    html: Annotated[str | None, typer.Option(help="Also write the comparison to an HTML file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test whether runs differ, paired by document.

    Prints exact tests, intervals of the differences, and the documents that changed. Refuses runs with different tasks
    or prompts; warns about other differences in settings, and about settings that an external result lacks. With
    --templates, prompts differ by design: prints mean and worst case over templates, and rankings that they reverse.

    Example: dare-bench compare out/base out/tuned --docs 5
    """
    tasks = [name.strip() for name in task.split(",") if name.strip()] if task is not None else None
    if templates:
        _compare_templates(
            runs, tasks, score, {"--all-pairs": all_pairs, "--force": force, "--html": html is not None}, markdown, json
        )
        return
    from dare_bench.analysis.comparison import compare as test
    from dare_bench.reports import comparison_report as render

    comparison = test(open_runs(runs), tasks, score, all_pairs=all_pairs, force=force)
    if markdown is not None:
        write_markdown(markdown, render.elements(comparison, docs))
    if html is not None:
        from dare_bench.leaderboards.comparison_page import write_standalone

        echo_error(f"wrote {write_standalone(comparison, html)}")
    print_report(render.elements(comparison, docs), lambda: render.record(comparison, docs), json=json)


def _compare_templates(
    runs: list[str],
    tasks: list[str] | None,
    score: str | None,
    others: dict[str, bool],
    markdown: str | None,
    json: bool,
) -> None:
    from dare_bench.analysis.templates import compare_templates
    from dare_bench.reports import templates_report as render

    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"--templates does not take {', '.join(given)}; omit it, or omit --templates")
    comparisons = compare_templates(open_runs(runs), tasks, score)
    if markdown is not None:
        write_markdown(markdown, render.elements(comparisons))
    print_report(render.elements(comparisons), lambda: render.record(comparisons), json=json)
