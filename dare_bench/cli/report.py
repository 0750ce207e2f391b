"""``dare-bench report``: runs beside published scores, beside each other, and whether they asked the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.plain import plain_console, say_json, tell

if TYPE_CHECKING:
    from dare_bench.reports.agreement import Agreement
    from dare_bench.reports.text import Piece
    from dare_bench.runs.reader import Run


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories, or folders that contain them.")],
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Compare two runs of one checkpoint: same prompts, tokens, scores?")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="With --agreement: the task; FIRST=SECOND if the names differ.", show_default=False
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            "--score",
            help="With --agreement: metric,filter to compare; FIRST=SECOND if they differ.",
            show_default=False,
        ),
    ] = None,
    docs: Annotated[int, typer.Option("--docs", min=0, help="With --agreement: number of documents to print.")] = 10,
    markdown: Annotated[
        str | None, typer.Option("--markdown", help="Also write the report to a Markdown file.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print scores of runs next to the published scores.

    A run has a published score if it was made with eval --recipe. If two runs have the same task, say whether its
    prompts or scorer changed. To test for a difference, use compare.

    Example: dare-bench report out/my-run --markdown report.md
    """
    from dare_bench.errors import UsageError

    opened = [run for word in runs for run in open_runs(word)]
    together = None
    if agreement:
        if len(opened) != 2:
            raise UsageError(f"--agreement compares two runs, found {len(opened)}; give two run directories")
        from dare_bench.reports.agreement import agreement as compare

        together = compare(opened[0], opened[1], _two(task), _two(score))
    elif task is not None or score is not None:
        raise UsageError("--task and --score need --agreement; add it, or omit them")
    else:
        opened = list({run.path.resolve(): run for run in opened}.values())  # one named by itself and in its folder
    if markdown is not None:
        from dare_bench.reports.text import Heading
        from dare_bench.reports.text import markdown as written
        from dare_bench.runs.writer import atomic_write_text

        whole = [Heading("dare-bench report", 1), *_pieces(opened, together, None)]
        atomic_write_text(markdown, written(whole), durable=False)
        tell(f"wrote {markdown}")
    if json:
        say_json(_record(opened, together))
        return
    from dare_bench.reports.text import show

    show(_pieces(opened, together, docs), plain_console())


def place(word: str) -> Path:
    """The path given, or the folder of that name where runs go by default."""
    path = Path(word)
    return Path("out") / word if not path.exists() and (Path("out") / word).is_dir() else path


def open_runs(word: str) -> list[Run]:
    """The run at that path, or of that name in the folder where runs go by default, or all runs below a folder."""
    from dare_bench.errors import RunError
    from dare_bench.runs.files import RUN_FILE
    from dare_bench.runs.reader import Run, find_runs

    path = place(word)
    if not path.is_dir() or (path / RUN_FILE).is_file() or any(path.glob("results_*.json")):
        return [Run(path)]
    found = find_runs(path, tell)
    if not found:
        raise RunError(f"no runs below {path}; make one with: dare-bench eval --model tiny-llada --tasks dare_sudoku")
    return found


def _two(words: str | None) -> tuple[str | None, str | None]:
    """FIRST=SECOND, or one for both."""
    if words is None:
        return None, None
    first, sign, second = words.partition("=")
    return (first or None, second or None) if sign else (words, words)


def _pieces(runs: list[Run], together: Agreement | None, most: int | None) -> Iterator[Piece]:
    from dare_bench.reports import agreement_text, changes, published, scores

    if together is not None:
        yield from agreement_text.pieces(together, most)
        return
    yield from published.pieces(published.comparisons(runs))
    yield from changes.pieces(changes.changes(runs))
    yield from scores.pieces(runs)


def _record(runs: list[Run], together: Agreement | None) -> dict[str, Any]:
    from dataclasses import asdict

    from dare_bench.reports import agreement_text, changes, published, scores

    if together is not None:
        return {"agreement": agreement_text.record(together)}
    return {
        "runs": [scores.record(run) for run in runs],
        "published": [asdict(one) for one in published.comparisons(runs)],
        "changes": [asdict(one) for one in changes.changes(runs) if not one.same],
    }
