"""``dare-bench sweep FILE.yaml``: train, evaluate and show what a file names. The last line is the board's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.guard import State
from dare_bench.cli.plain import say, say_json, tell

if TYPE_CHECKING:
    from rich.tree import Tree

    from dare_bench.costs.sweep import SweepEstimates
    from dare_bench.sweeps.record import Record
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
    executor: Annotated[
        str | None,
        typer.Option("--executor", help="Where nodes run: local, devices or ray.", show_default=False),
    ] = None,
    devices: Annotated[
        int,
        typer.Option(
            "--devices",
            min=1,
            help="Number of nodes that run at the same time, each on its own device (or CPU process).",
        ),
    ] = 1,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...", show_default=False)] = None,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="Ray cluster, host:port (default: RAY_ADDRESS).", show_default=False),
    ] = None,
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
    from dare_bench.leaderboards.builder import build
    from dare_bench.sweeps.run import sweep as work

    State.resume = "; run the same command to resume"
    place = executor or ("devices" if devices > 1 else "local")
    found = work(
        file,
        output_path=output_path,
        only_failed=only_failed,
        executor=place,
        devices=devices,
        device=device,
        ray_address=ray_address,
        build_board=build,
    )
    if json:
        say_json(_record(found))
    else:
        _table(found)
        say(found.site or found.path)
    if not found.complete:
        raise typer.Exit(4)


_WIDE = 10_000
"""Columns of a tree in a file or pipe: a line holds all that is said of a node."""


def _preview(file: str, output_path: str, json: bool) -> None:
    from dare_bench.cli.plain import plain_console
    from dare_bench.costs.sweep import SweepEstimates

    estimates = SweepEstimates.of(file, output_path)
    if json:
        say_json(estimates.plain())
        return
    console = plain_console(_WIDE)
    console.print(_tree(estimates))
    for line in estimates.notes:
        console.print(line, soft_wrap=True)


def _tree(estimates: SweepEstimates) -> Tree:
    """The graph: under each model its evaluations and trainings, under each training its evaluations."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"{estimates.name}: {len(estimates.nodes)} nodes in {estimates.out}"))
    branches: dict[str, Tree] = {}
    for node in estimates.nodes:
        name = node.of or node.about
        if name and name not in branches:
            branches[name] = root.add(Text(name))
        above = branches[name] if name else root
        status = estimates.records[node.id].status
        state = "" if node.id in estimates.done else f"[{'again' if status == 'done' else status}] "
        branches[node.id] = above.add(Text(f"{node.id}\n{state}{estimates.costs[node.id].text}"))
    return root


def _record(found: SweepResult) -> dict[str, Any]:
    nodes = [{**node.model_dump(mode="json"), "seconds": node.seconds} for node in found.nodes]
    site = str(found.site) if found.site is not None else None
    return {"path": str(found.path), "site": site, "nodes": nodes, "unnamed": list(found.unnamed)}


def _table(found: SweepResult) -> None:
    """Every node: what became of it, what it took, its score, where its result is."""
    from rich.table import Table
    from rich.text import Text

    from dare_bench.cli.plain import plain_console
    from dare_bench.engine.progress import duration

    console = plain_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "status", "took", "score"):
        table.add_column(name, justify="right" if name == "took" else "left", overflow="fold")
    for node in found.nodes:
        took = duration(node.seconds) if node.attempts else ""
        table.add_row(*(Text(cell) for cell in (node.id, node.status, took, _scores(node))))
    console.print(table)
    for node in found.failed:
        say(f"{node.status.upper()}: {node.id}: {node.error}")
        if node.status == "failed":
            say(f"  log: {found.path / 'nodes' / node.id / 'log.txt'}")
    for name in found.unnamed:
        tell(f"no longer in the file: {name}")


def _scores(node: Record) -> str:
    """The headline scores of an evaluation, the first three of them."""
    from dare_bench.formatting import score_text
    from dare_bench.runs.scores import are_shares

    scores = [score for run in node.outputs.get("runs", ()) for score in run["scores"]]
    shown = [
        f"{score['task']} {score_text(score['value'], are_shares(score['metric'], score['value']))} (n={score['n']})"
        for score in scores[:3]
    ]
    return ", ".join(shown) + (f" and {len(scores) - 3} more" if len(scores) > 3 else "")
