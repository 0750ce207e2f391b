"""``dare-bench compare``: is one run better than another, or is it noise?"""

from __future__ import annotations

from typing import Annotated

import typer

from dare_bench.cli.plain import plain_console, say_json, tell
from dare_bench.cli.report import open_runs


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="A B [C...]", help="Run directories; A is the reference.")],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", "-t", help="Tasks or groups, separated by commas; else all in common.", show_default=False
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", help="metric,filter to compare; else each task's headline.", show_default=False),
    ] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Each run with each, not only with A.")] = False,
    docs: Annotated[int, typer.Option("--docs", min=0, help="Documents to show that got worse, and better.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Compare runs that were asked different things.")] = False,
    markdown: Annotated[
        str | None, typer.Option("--markdown", help="Write the comparison as markdown, too.", show_default=False)
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", help="Write the comparison as a page, too.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs document by document: exact tests, intervals of the difference, the documents that changed.

    Refuses to compare runs that were asked different things; warns where settings differ.

    Example: dare-bench compare out/base out/tuned --docs 5
    """
    from dare_bench.analysis.comparison import compare as compared
    from dare_bench.reports import compare as told

    opened = [run for word in runs for run in open_runs(word)]
    tasks = [name.strip() for name in task.split(",") if name.strip()] if task is not None else None
    made = compared(opened, tasks, score, all_pairs=all_pairs, force=force)
    forced = [told.FORCED] if made.forced else []
    for text in [*forced, *told.told(made), *made.left_out]:
        tell(f"warning: {text}")
    if markdown is not None:
        from dare_bench.reports.text import markdown as written
        from dare_bench.runs.writer import atomic_write_text

        atomic_write_text(markdown, written(told.pieces(made, docs)), durable=False)
        tell(f"wrote {markdown}")
    if html is not None:
        from dare_bench.leaderboards.compare_page import write_standalone

        tell(f"wrote {write_standalone(made, html)}")
    if json:
        say_json(told.record(made, docs))
        return
    from dare_bench.reports.text import show

    show(told.pieces(made, docs), plain_console())
