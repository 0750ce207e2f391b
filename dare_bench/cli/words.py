"""Help and usage errors of the command line: option names whole at any width, an error in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from dare_bench.cli.plain import tell
from dare_bench.errors import closest

_Error: Any = typer.BadParameter.__base__  # UsageError of click, wherever this typer has click from


class Command(TyperCommand):
    """A verb whose help lists options below the titles of their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                panels.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def run(app: typer.Typer, words: Sequence[str]) -> None:
    """Run the verb that ``words`` name, and exit with its code."""
    try:
        sys.exit(app(args=list(words), prog_name="dare-bench", standalone_mode=False) or 0)
    except _Error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            tell(f"error: {_said(error)}")
        sys.exit(error.exit_code)


def _said(error: Any) -> str:
    """What a usage error says, in one line."""
    text = " ".join(str(error.format_message()).split()).removesuffix(".").replace("Input should be", "must be")
    if error.ctx is None:
        return text
    found = getattr(error.__cause__, "errors", None)  # pydantic reads the values of options, and leaves them unsaid
    if found is not None and getattr(error, "param", None) is not None:
        from dare_bench.config import not_valid, reason

        first = found()[0]
        text = not_valid(error.param.opts[0], first["input"], reason(first))
    named = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and named is not None:
        flags = {flag[2:].replace("-", "_"): flag for param in error.ctx.command.params for flag in param.opts}
        near = ", ".join(flags[name] for name in closest(named.lstrip("-").replace("-", "_"), flags))
        text = f"unknown option {named!r}" + (f"; closest: {near}" if near else "")
    return f"{text}; see {error.ctx.command_path} --help"
