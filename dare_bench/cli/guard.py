"""Errors, signals and streams of the command line: one line and an exit code; the traceback only with ``--debug``."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeVar

import typer

from dare_bench.cli.plain import echo_error
from dare_bench.errors import BUG, DareError, PluginWarning, SaveError
from dare_bench.runs.writer import save_error

INTERRUPTED = 130


class State:
    """State of the whole process."""

    debug = False
    resume = ""
    """Printed after "interrupted": how to resume. Set by commands that can be resumed."""


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived. It unwinds the process as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


Verb = TypeVar("Verb", bound=Callable[..., Any])


def guarded(verb: Verb) -> Verb:
    """Wrap a command: an error becomes one line on stderr and the exit code of the error."""

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                with _stoppable():
                    result = verb(*args, **kwargs)
            except typer.Exit:
                sys.stdout.flush()  # an error at interpreter exit would only print a traceback
                raise
            sys.stdout.flush()
            return result
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if State.debug:
                traceback.print_exc()
            text, code = ending(error)
            echo_error(text)
            raise typer.Exit(code) from None

    return run  # type: ignore[return-value]


def echo_problem(text: str) -> None:
    """Print what a command leaves out because of the exception that is being handled, if there is one."""
    if State.debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    echo_error(text)


def ending(error: BaseException) -> tuple[str, int]:
    """The line and the exit code with which this exception ends a command."""
    match error:
        case DareError():
            text, code = f"error: {error}", error.exit_code
        case Stopped():
            text, code = f"interrupted by {error.number.name}{State.resume}", 128 + error.number
        case KeyboardInterrupt():
            text, code = f"interrupted{State.resume}", INTERRUPTED
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            text, code = f"error: {save_error(error.filename or 'a file', error)}", SaveError.exit_code
        case _:
            text, code = f"error: {type(error).__name__}: {error}; {BUG}", 1
    return " ".join(text.split()), code


class _Stream:
    """stdout or stderr whose reader may close it (``| head``, a closed terminal): further output is dropped, and the
    command continues. ``needed``: any other write error, such as a full disk, ends the command. Raises SaveError: the
    stream is needed, and writing fails for another reason than a closed pipe."""

    def __init__(self, stream: TextIO, needed: bool) -> None:
        self._stream, self._needed = stream, needed

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._silence(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._silence(error)

    def _silence(self, error: OSError) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if self._needed and not isinstance(error, BrokenPipeError):
            raise save_error("standard output", error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Make the three standard streams open and tolerant of closed readers; warnings about plugins are one line each."""
    _open_streams()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(_Stream(sys.stdout, needed=True)),
        contextlib.redirect_stderr(_Stream(sys.stderr, needed=False)),
    ):
        warnings.simplefilter("always", PluginWarning)
        warnings.showwarning = functools.partial(_show, warnings.showwarning)
        yield


def _show(others: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Show a warning; ``others`` shows those that are not about plugins."""
    if issubclass(category, PluginWarning):
        echo_error(f"warning: {' '.join(str(message).split())}")
    else:
        others(message, category, *where)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise :class:`Stopped` while a command runs; before that, there is nothing to clean up."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        # Signals that the caller ignores (nohup: SIGHUP) stay ignored.
        handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
        previous = {number: signal.signal(number, _stop_in(os.getpid())) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop_in(process: int) -> Callable[[int, Any], None]:
    """The handler: the first signal unwinds the process, the second ends it at once. A forked child with this handler
    ends at once, like a process without a handler."""

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != process:
            os.kill(os.getpid(), number)
        raise Stopped(number)

    return stop


def _open_streams() -> None:
    """Open ``/dev/null`` for each closed standard stream (``2>&-``). Otherwise the next opened file, such as a journal,
    would get its file descriptor, and with it the output of libraries."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            lowest = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(lowest, "w" if number else "r"))
