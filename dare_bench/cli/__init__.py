"""The ``dare-bench`` command. There is one file per command; slow imports are inside the command's function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dare_bench.cli import (
    compare,
    convert,
    doctor,
    eval,
    export,
    generate,
    leaderboard,
    ls,
    regress,
    report,
    rl,
    score,
    show,
    sweep,
    train,
    validate,
    words,
)
from dare_bench.cli.guard import State, guarded, streams
from dare_bench.cli.plain import echo
from dare_bench.safe_path import safe_path
from dare_bench.version import __version__

app = typer.Typer(
    name="dare-bench",
    cls=words.Commands,
    epilog="Example: dare-bench eval --model tiny-llada --tasks dare_sudoku --limit 20",
    help="Evaluate and train diffusion language models: exact samplers, explicit settings, resumable runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={**words.SPELLING, "help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        echo(f"dare-bench {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works with every command.")
    ] = False,
) -> None:
    State.debug = State.debug or debug


VERBS = (
    generate.generate, eval.evaluate, show.show, report.report, compare.compare, score.score, regress.regress,
    validate.validate, sweep.sweep, convert.convert, doctor.doctor,
)  # fmt: skip
"""The function of each command, in the order of the help. A command is named by its module, its docstring is the help,
and its parameters are the options."""
for verb in VERBS:
    app.command(verb.__module__.rpartition(".")[2], cls=words.Command)(guarded(verb))
for group, name in ((ls.app, "ls"), (leaderboard.app, "leaderboard"), (export.app, "export"), (rl.app, "rl")):
    for registered in group.registered_commands:
        if registered.callback is not None:
            registered.callback = guarded(registered.callback)
            registered.cls = words.Command
    app.add_typer(group, name=name, cls=words.Commands)
app.add_typer(train.app, name="train", cls=words.Commands)


@functools.cache
def _command() -> Any:
    """The click command of all verbs. Below ``train``, methods are added by :func:`main`."""
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point: leaves with 0 fine, 1 failed, 2 usage, 3 changed scores, 4 incomplete, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    State.debug, State.resume = "--debug" in arguments, ""
    arguments = [argument for argument in arguments if argument != "--debug"]
    with streams(), safe_path():
        if arguments[:1] == ["train"]:
            try:
                documented = not {"-h", "--help"}.isdisjoint(arguments)
                guarded(train.add_commands)(arguments[1] if len(arguments) > 1 else None, documented)
            except typer.Exit as stop:
                sys.exit(stop.exit_code)
            _command().commands["train"] = typer.main.get_command(train.app)
        if arguments[:1] == ["regress"]:
            regress.replace_reports(arguments)
        words.run(_command(), eval.with_template_names(arguments) if arguments[:1] == ["eval"] else arguments)
