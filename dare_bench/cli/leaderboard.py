"""``dare-bench leaderboard``: build a static site from runs, serve it on this machine, and exchange runs for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dare_bench.cli.guard import echo_problem
from dare_bench.cli.plain import echo, echo_checks, echo_error, echo_json
from dare_bench.cli.runs import RUNS_HELP, open_one
from dare_bench.errors import UsageError
from dare_bench.runs.text import counted

app = typer.Typer(help="Build a leaderboard site from runs, serve it, or exchange runs for it.", no_args_is_help=True)
LINE_EVERY = 10.0
"""Seconds between lines of progress; faster work prints none."""
Count = Callable[[int, int], None]


@app.command()
def build(
    runs: Annotated[list[str], typer.Argument(metavar="RUNS...", help=RUNS_HELP)],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the site.")] = "site",
    board: Annotated[
        list[str] | None,
        typer.Option(help="Name or YAML file of a board; can be repeated (default: the board named default)."),
    ] = None,
    samples: Annotated[bool, typer.Option("--samples/--no-samples", help="Make a page for every document.")] = True,
    url: Annotated[
        str, typer.Option(help="Address at which the site will be, for previews of links and the feed.")
    ] = "",
    docs: Annotated[
        str, typer.Option(help="Page of documentation, as a link of the navigation: an address, or a path from --out.")
    ] = "",
    release: Annotated[
        str, typer.Option(help="Keep the first board under this name; it can be selected on later builds' table.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print a JSON record of the build.")] = False,
) -> None:
    """Build the site as static files: open index.html, no server is needed."""
    from dare_bench.leaderboards.builder import build as build_site

    with counting("runs", "boards and comparisons") as progress:
        boards = board or ["default"]
        report = build_site(
            runs, out, board=boards, samples=samples, url=url, docs=docs, release=release,
            on_problem=echo_problem, on_progress=progress,
        )  # fmt: skip
    if json:
        echo_json(report.record())
        return
    counts = (counted(report.runs, "run"), counted(report.documents, "document"), counted(report.files, "file"))
    echo_error(", ".join(counts))
    echo(report.index)


@app.command()
def serve(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the site.")] = "site",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8000,
) -> None:
    """Serve a site on this machine only (127.0.0.1) until Ctrl-C."""
    from dare_bench.leaderboards.server import SiteServer

    if not (Path(folder) / "index.html").is_file():
        raise UsageError(f"no index.html in {folder}; build it with: dare-bench leaderboard build RUNS -o {folder}")
    try:
        server = SiteServer(folder, port)
    except OSError as error:
        raise UsageError(f"cannot listen on port {port}: {error.strerror}; choose another with --port") from error
    with server:
        echo(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo_error("stopped")


@app.command()
def submit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the board's packs.")] = "submissions",
    traces: Annotated[
        bool, typer.Option("--traces/--no-traces", help="Include the unmasking traces, which have the tokens.")
    ] = True,
) -> None:
    """Pack a run for a public board: results, samples and digests, without folders, addresses and keys.

    Writes OUT/<run id> and prints it; nothing is sent. A pull request adds the folder to the board's repository.

    Example: dare-bench leaderboard submit out/my-run -o board/submissions
    """
    from dare_bench.runs.pack import write_pack

    pack = write_pack(open_one(run), Path(out), traces=traces)
    size = sum(file.stat().st_size for file in pack.path.iterdir())
    echo_error(f"{size:,} bytes; check it as the board does: dare-bench leaderboard verify {pack.path}")
    echo(pack.path)


@app.command()
def verify(
    pack: Annotated[str, typer.Argument(metavar="PACK", help="The folder that submit wrote.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The checkpoint, to answer a few documents again.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device on which they are answered.")] = None,
    docs: Annotated[int, typer.Option(min=1, help="Number of these documents of each task, chosen at random.")] = 3,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data sets (docs/data.md).")] = None,
    include_path: Annotated[
        list[str] | None, typer.Option(help="Folder of task files that you trust; those of the pack are not used.")
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept limited runs and documents that failed.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a pack: files, digests, completeness, data, and its scores from its answers.

    Nothing of the pack is executed, except generated code, in the sandbox. Exit code 1 if a check fails.

    Example: dare-bench leaderboard verify submissions/my-run --model tiny-llada
    """
    from dare_bench.engine.verify import verify as check

    if not Path(pack).exists():
        raise UsageError(f"there is no pack {pack}; give the folder that dare-bench leaderboard submit wrote")
    checks = check(
        pack,
        model=model,
        device=device,
        documents=docs,
        data_dir=data_dir,
        include_path=include_path,
        allow_partial=allow_partial,
    )
    echo_checks(checks, json=json)


@contextmanager
def counting(noun: str, next_phase: str) -> Iterator[Count]:
    """Progress on stderr: a bar on a terminal, otherwise a line from time to time. Yields a function to call with the
    number of ``noun`` that are done and their total; ``next_phase`` names the work that follows."""
    if sys.stderr.isatty():
        with _bar(noun, next_phase) as count:
            yield count
        return
    shown_at = time.monotonic()

    def count_lines(done: int, total: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= LINE_EVERY:
            shown_at = time.monotonic()
            echo_error(f"{done}/{total} {noun}{f'; {next_phase}' if done == total else ''}")

    yield count_lines


@contextmanager
def _bar(noun: str, next_phase: str) -> Iterator[Count]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(noun, total=None)

        def count(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=next_phase if done == total else noun)

        yield count
