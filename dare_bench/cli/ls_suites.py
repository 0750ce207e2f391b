"""``dare-bench ls suites``: many benchmarks under one name. No model is loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from dare_bench.cli.plain import say, say_json


def suites(
    name: Annotated[str | None, typer.Argument(help="Name of one suite (dare).", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List suites and what each of their benchmarks runs."""
    from dare_bench.registry import registry
    from dare_bench.suites import load

    listed = [load(one) for one in (registry().names("suite") if name is None else [name])]
    if json:
        say_json([suite.model_dump(mode="json") for suite in listed])
        return
    for number, suite in enumerate(listed):
        say(f"{chr(10) if number else ''}{suite.name}: {suite.about.strip()}")
        rows = [
            (entry.name, f"{entry.harness}:{','.join(entry.tasks)}", str(entry.documents or ""), ", ".join(entry.needs))
            for entry in suite.entries
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            say("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
