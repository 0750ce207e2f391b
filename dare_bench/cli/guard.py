"""Errors at the command line: one line and an exit code; the traceback only with ``--debug``."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from dare_bench.cli.plain import tell
from dare_bench.errors import DareError

INTERRUPTED = 130


class State:
    """What holds for the whole process."""

    debug = False
    resume = "interrupted"
    """Said when the user interrupts; ``eval`` says here how to go on."""


Verb = TypeVar("Verb", bound=Callable[..., Any])


def guarded(verb: Verb) -> Verb:
    """A verb whose errors become one line on stderr and the error's exit code."""

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except DareError as error:
            if State.debug:
                traceback.print_exc()
            tell(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            if State.debug:
                traceback.print_exc()
            tell(State.resume)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output went away (``| head``): nothing is wrong, and there is nobody to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except typer.Exit:
            raise
        except Exception as error:
            if State.debug:
                traceback.print_exc()
            kind = type(error).__name__
            tell(f"error: {kind}: {' '.join(str(error).split())}; this is a defect: add --debug for the traceback")
            raise typer.Exit(1) from None

    return run  # type: ignore[return-value]
