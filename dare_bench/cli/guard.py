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
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO, TypeVar

import typer

from dare_bench.cli.plain import tell
from dare_bench.errors import DareError, SaveError
from dare_bench.runs.writer import save_error

INTERRUPTED = 130


class State:
    """What holds for the whole process."""

    debug = False
    resume = ""
    """Said behind "interrupted": how to go on. Verbs that can be resumed set it."""


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived. It unwinds the program exactly as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


Verb = TypeVar("Verb", bound=Callable[..., Any])


def guarded(verb: Verb) -> Verb:
    """A verb whose errors become one line on stderr and the error's exit code."""

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                with _stoppable():
                    result = verb(*args, **kwargs)
            except typer.Exit:
                sys.stdout.flush()  # at the interpreter's end its errors would be noise
                raise
            sys.stdout.flush()
            return result
        except DareError as error:
            _leave(f"error: {error}", error.exit_code)
        except Stopped as stop:
            _leave(f"interrupted by {stop.number.name}{State.resume}", 128 + stop.number)
        except KeyboardInterrupt:
            _leave(f"interrupted{State.resume}", INTERRUPTED)
        except typer.Exit:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                _leave(f"error: {save_error(error.filename or 'a file', error)}", SaveError.exit_code)
            _leave(
                f"error: {type(error).__name__}: {error}; this is a bug in dare-bench: add --debug for the traceback", 1
            )

    return run  # type: ignore[return-value]


def _leave(text: str, code: int) -> NoReturn:
    """Say in one line why the program ends, and end it. Called while the exception is handled."""
    if State.debug:
        traceback.print_exc()
    tell(" ".join(text.split()))
    raise typer.Exit(code) from None


class _Stream:
    """stdout or stderr whose reader may go away (``| head``, a closed terminal): what nobody reads is dropped, and the
    work goes on to its end and its exit code. ``needed``: any other failure to write, a full disk, ends the work.

    Raises:
        SaveError: the stream is needed, and cannot be written for another reason than a closed pipe.
    """

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
    """The three standard streams as a command needs them: open, and indifferent to readers that go away."""
    _open_streams()
    with (
        contextlib.redirect_stdout(_Stream(sys.stdout, needed=True)),
        contextlib.redirect_stderr(_Stream(sys.stderr, needed=False)),
    ):
        yield


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP as :class:`Stopped`, while a verb works: before it nothing has begun that had to be ended."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        # What the caller ignores (nohup: SIGHUP) stays ignored.
        heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
        before = {number: signal.signal(number, _stop_in(os.getpid())) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_in(process: int) -> Callable[[int, Any], None]:
    """The handler: the first signal unwinds the program, the second ends it at once. A child that was forked with this
    handler is ended at once, as a program without one."""

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != process:
            os.kill(os.getpid(), number)
        raise Stopped(number)

    return stop


def _open_streams() -> None:
    """Open ``/dev/null`` for each standard stream that is closed (``2>&-``): the next file to be opened, a journal
    perhaps, would take its number and whatever a library prints there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            lowest = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(lowest, "w" if number else "r"))
