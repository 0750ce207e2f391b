"""Commands called in this process, with what they print and how they end."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import signal
import traceback
from collections.abc import Iterator

import typer

from dare_bench.cli import app

COMMAND = typer.main.get_command(app)  # made once: it is most of what a call costs
HANG = 60
"""Seconds after which a verb counts as one that never ends; most take a tenth of one."""
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


class Hang(BaseException):
    """Nothing catches it."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def call(words: list[str]) -> tuple[int | str, str, str]:
    """(exit code or what went wrong, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    logging.getLogger("dare_bench").handlers.clear()  # one of them may hold the last call's stderr
    code: int | str = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with within(HANG):
                COMMAND(words, prog_name="dare-bench")
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except Hang:
            code = "hangs: " + "".join(traceback.format_exc(limit=-3))
        except BaseException:
            code = "crashes: " + "".join(traceback.format_exc(limit=-3))
    return code, out.getvalue(), err.getvalue()
