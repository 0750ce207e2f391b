"""``dare-bench sweep FILE.yaml``: train and evaluate a grid, and build a board. The last line is the board's page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.guard import State
from dare_bench.cli.plain import echo, echo_json, plain_console, plain_table
from dare_bench.errors import UsageError
from dare_bench.formatting import score_text
from dare_bench.runs.text import counted, listed

if TYPE_CHECKING:
    from rich.tree import Tree

    from dare_bench.runs.reader import Run
    from dare_bench.sweeps.costs import Estimates
    from dare_bench.sweeps.run import SweepResult


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE.yaml", help="The sweep (docs/sweeps.md).")],
    output_path: Annotated[
        str, typer.Option("--output-path", "-o", help="Folder of the sweep; the same command resumes in it.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the graph with estimated costs, without running it.")
    ] = False,
    only_failed: Annotated[
        bool, typer.Option("--only-failed", help="Run only failed nodes and the nodes that depend on them.")
    ] = False,
    executor: Annotated[str | None, typer.Option(help="Where nodes run: local, devices or ray.")] = None,
    devices: Annotated[
        int,
        typer.Option(min=1, help="Number of nodes that run at the same time, each on one device (or CPU process)."),
    ] = 1,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Ray cluster, host:port (default: RAY_ADDRESS).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train and evaluate a grid of models and settings.

    Builds one board of all evaluations. The same command resumes: finished nodes are not run again. A node that fails
    blocks only the nodes that depend on it.

    Exit codes: 0 all nodes are done, 1 failed, 2 usage error, 4 some nodes are not done, 130
    interrupted (143 by SIGTERM, 129 by SIGHUP).

    Example: dare-bench sweep sweep.yaml --output-path out/sweep
    """
    if dry_run:
        _preview(file, output_path, json)
        return
    from dare_bench.sweeps.run import sweep as run_sweep

    State.resume = "; run the same command to resume"
    result = run_sweep(
        file,
        output_path=output_path,
        only_failed=only_failed,
        executor=executor or ("devices" if devices > 1 else "local"),
        devices=devices,
        device=device,
        ray_address=ray_address,
    )
    if json:
        echo_json(_record(result))
    else:
        _print(result)
        echo(result.site or result.path)
    if not result.complete:
        raise typer.Exit(4)


def _preview(file: str, output_path: str, json: bool) -> None:
    from dare_bench.cli.dry_run import refuse_json
    from dare_bench.sweeps.costs import estimate, total

    refuse_json(json)
    estimates = estimate(file, output_path)
    plain_console(width=10_000).print(_tree(estimates))  # no line of a node wraps in a file or a pipe
    echo(total(estimates))
    if refused := [(node.id, cost.error) for node, cost in estimates if cost is not None and cost.error]:
        (name, error), *others = refused
        also = f"; so would {counted(len(others), 'other node')}" if others else ""
        raise UsageError(f"{name} would fail: {error}{also}")


def _tree(estimates: Estimates) -> Tree:
    """The graph: under each model its evaluations and trainings, under each training its evaluations."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"{len(estimates)} nodes"))
    branches: dict[str, Tree] = {}
    for node, cost in estimates:
        name = node.training or node.model_name
        if name and name not in branches:
            branches[name] = root.add(Text(name))
        above = branches[name] if name else root
        branches[node.id] = above.add(Text(f"{node.id}\n{'done' if cost is None else f'[to do] {cost.text}'}"))
    return root


def _record(result: SweepResult) -> dict[str, Any]:
    nodes = [node.model_dump(mode="json") for node in result.nodes]
    site = str(result.site) if result.site is not None else None
    return {"path": str(result.path), "site": site, "nodes": nodes}


def _print(result: SweepResult) -> None:
    """Print status, time and score of every node, and the logs of the failed ones."""
    from dare_bench.formatting import duration

    rows = [
        (node.id, node.status, duration(node.seconds) if node.where else "", _scores(result.runs_of(node)))
        for node in result.nodes
    ]
    plain_console().print(plain_table(("node", "status", "took", "score"), rows, right=("took",)))
    for node in result.failed:
        echo(f"{node.status.upper()}: {node.id}: {node.error}")
        if node.status == "failed":
            echo(f"  log: {result.path / 'nodes' / node.id / 'log.txt'}")


def _scores(runs: Iterable[Run]) -> str:
    """The first three headline scores of an evaluation."""
    from dare_bench.runs.scores import are_shares

    heads = [score for run in runs for task in run.top_level() if (score := run.headline(task)) is not None]
    texts = [
        f"{s.task} {score_text(s.value, are_shares(s.key, s.value))} (n={s.n})" for s in heads if s.value is not None
    ]
    return listed(texts, 3)
