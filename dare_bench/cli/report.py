"""``dare-bench report``: scores of runs next to published scores, and whether their tasks are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.runs import RUNS_HELP, open_runs, print_report, write_markdown
from dare_bench.errors import UsageError

if TYPE_CHECKING:
    from dare_bench.analysis.agreement import Agreement
    from dare_bench.reports.elements import Element
    from dare_bench.runs.reader import Run


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUNS_HELP)],
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Compare two runs of one checkpoint: same prompts, tokens, scores?")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(help="With --agreement or --decoders: the task; FIRST=SECOND if the names differ."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="With --agreement: metric,filter to compare; FIRST=SECOND if they differ.")
    ] = None,
    docs: Annotated[int, typer.Option(min=0, help="With --agreement: number of documents to print.")] = 10,
    decoders: Annotated[
        bool, typer.Option("--decoders", help="Compare decoders of one checkpoint: forwards saved, accuracy lost.")
    ] = False,
    baseline: Annotated[str | None, typer.Option(help="With --decoders: the decoder to compare with.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Also write the report to a Markdown file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print scores of runs next to the published scores.

    A run has a published score if it was started with eval --recipe. If two runs have the same task, say whether its
    prompts or scorer changed. To test for a difference, use compare.

    Example: dare-bench report out/my-run --markdown report.md
    """
    from dare_bench.reports.elements import Heading

    opened = open_runs(runs)
    if decoders:
        if agreement or score is not None:
            raise UsageError("--decoders does not take --agreement and --score; omit them")
        _report_decoders(opened, task, baseline, markdown, json)
        return
    if baseline is not None:
        raise UsageError("--baseline needs --decoders; add it, or omit --baseline")
    agreement_of_two = None
    if agreement:
        if len(opened) != 2:
            raise UsageError(f"--agreement compares two runs, found {len(opened)}; give two run directories")
        from dare_bench.analysis.agreement import agreement as compare

        agreement_of_two = compare(opened[0], opened[1], _pair(task), _pair(score))
    elif task is not None or score is not None:
        raise UsageError("--task and --score need --agreement (--task also --decoders); add it, or omit them")
    else:
        opened = list({run.path.resolve(): run for run in opened}.values())  # a run may be named twice
    if markdown is not None:
        write_markdown(markdown, [Heading("dare-bench report", 1), *_elements(opened, agreement_of_two, None)])
    print_report(_elements(opened, agreement_of_two, docs), lambda: _record(opened, agreement_of_two), json=json)


def _report_decoders(runs: list[Run], task: str | None, baseline: str | None, markdown: str | None, json: bool) -> None:
    from dare_bench.analysis.decoders import compare_decoders
    from dare_bench.reports import decoders_report as render

    comparisons = compare_decoders(runs, task, baseline)
    if markdown is not None:
        write_markdown(markdown, list(render.elements(comparisons)))
    print_report(render.elements(comparisons), lambda: {"decoders": [asdict(each) for each in comparisons]}, json=json)


def _pair(text: str | None) -> tuple[str | None, str | None]:
    """FIRST=SECOND, or one name for both runs."""
    first, sign, second = (text or "").partition("=")
    return first or None, (second if sign else first) or None


def _elements(runs: list[Run], compared: Agreement | None, limit: int | None) -> Iterator[Element]:
    from dare_bench.analysis.published import comparisons
    from dare_bench.analysis.task_changes import shared_tasks
    from dare_bench.reports import agreement_report, scores_report

    if compared is not None:
        yield from agreement_report.elements(compared, limit)
        return
    yield from scores_report.published_elements(comparisons(runs))
    yield from scores_report.task_elements(shared_tasks(runs))
    yield from scores_report.elements(runs)


def _record(runs: list[Run], compared: Agreement | None) -> dict[str, Any]:
    from dare_bench.analysis.published import comparisons
    from dare_bench.analysis.task_changes import shared_tasks
    from dare_bench.reports import agreement_report, scores_report

    if compared is not None:
        return {"agreement": agreement_report.record(compared)}
    return {
        "runs": [scores_report.record(run) for run in runs],
        "published": [asdict(comparison) for comparison in comparisons(runs)],
        "changes": [asdict(task) for task in shared_tasks(runs) if task.changes],
    }
