"""Help and usage errors of the command line: options under headings, errors of one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dare_bench.cli.plain import echo_error
from dare_bench.config import not_valid, reason
from dare_bench.errors import closest, removed
from dare_bench.keywords import DecodingKeywords

_Error: Any = typer.BadParameter.__base__  # UsageError of click, wherever this typer has click from


class Command(TyperCommand):
    """A command whose help groups options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                panels.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(record)
        for title, records in panels.items():
            with formatter.section(typer.style(title, bold=True)):
                formatter.write_dl(records)


class Commands(TyperGroup):
    """The commands under headings, those that belong to none at the end."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        titles = {name: title for title, names in HEADINGS.items() for name in names}
        panels: dict[str, list[tuple[str, str]]] = {title: [] for title in (*HEADINGS, "Commands")}
        for name, command in shown:
            if command is not None and not command.hidden:
                panels[titles.get(name, "Commands")].append((name, command.get_short_help_str(200)))
        for title, records in panels.items():
            if records:
                with formatter.section(typer.style(title, bold=True)):
                    formatter.write_dl(records, col_max=14)


HEADINGS = {
    "Evaluate": ("eval", "generate", "score", "validate"),
    "Read": ("report", "compare", "show", "regress", "leaderboard", "export", "ls"),
    "Train": ("train", "rl", "sweep"),
    "Tools": ("convert", "doctor"),
}
"""The headings of the help, and the commands under each."""


SPELLING = {"token_normalize_func": lambda flag: flag.replace("_", "-")}
"""--output_path and --output-path are one flag, for every flag of every command."""


def run(command: Any, arguments: Sequence[str]) -> None:
    """Run a command and exit with its exit code."""
    sys.exit(parse(command, arguments, "dare-bench") or 0)


def parse(command: Any, arguments: Sequence[str], name: str) -> Any:
    """Run a command that is called ``name`` in messages; a usage error is printed in one line and exits."""
    try:
        return command(args=list(arguments), prog_name=name, standalone_mode=False)
    except _Error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            echo_error(f"error: {_message(error)}")
        sys.exit(error.exit_code)


_WORDING = (
    (r"Input should be", "must be"),
    (r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"unexpected argument \1"),
    (r"^No such command ('family'|'families'|'checkpoints')$", r"unknown command \1; dare-bench ls models lists them"),
    (r"^No such command (.*)\. Did you mean (.*)\?$", r"unknown command \1; closest: \2"),
    (r"^No such command", "unknown command"),
    (r"^Missing", "missing"),
)
"""Messages of pydantic and click, and what replaces them."""


def _message(error: Any) -> str:
    """The message of a usage error, in one line."""
    text = " ".join(str(error.format_message()).split()).removesuffix(".")
    for pattern, wording in _WORDING:
        text = re.sub(pattern, wording, text)
    if error.ctx is None:
        return text
    if error.ctx.command_path.endswith(" train"):
        text = text.replace("unknown command", "unknown method")
    errors = getattr(error.__cause__, "errors", None)  # pydantic parses the values of options; typer omits its reasons
    if errors is not None and getattr(error, "param", None) is not None:
        first = errors()[0]
        text = not_valid(error.param.opts[0], first["input"], reason(first))
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and option is not None:
        flags = {flag[2:].replace("-", "_"): flag for param in error.ctx.command.params for flag in param.opts}
        name = option.lstrip("-").replace("-", "_")
        near = ", ".join(flags[name] for name in closest(name, flags))
        if "gen_kwargs" in flags and name in DecodingKeywords.__annotations__:
            near = f"--gen-kwargs {name}=VALUE" + " (dare-bench ls strategies)" * (name == "strategy")
        text = f"unknown option {option!r}" + (removed(name) or (f"; closest: {near}" if near else ""))
    return f"{text}; see {error.ctx.command_path} --help"
