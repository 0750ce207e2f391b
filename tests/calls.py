"""Commands called in this process, with what they print and how they end."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

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


HEAVY = ("torch", "transformers", "lm_eval", "datasets", "scipy", "statsmodels")


def light(commands: Sequence[Sequence[str]], folder: Path) -> list[tuple[int, list[str], str]]:
    """Of commands that run one after another in one fresh process: exit code, which of :data:`HEAVY` are imported after
    it, and stderr."""
    program = (
        "import contextlib, io, json, sys; from dare_bench.cli import main\n"
        f"for words in {[list(words) for words in commands]!r}:\n"
        "    errors, code = io.StringIO(), 0\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors): main(words)\n"
        "    except SystemExit as left: code = left.code\n"
        f"    seen = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    print(json.dumps([code or 0, seen, errors.getvalue()]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=240, cwd=folder, check=False
    )
    assert not done.returncode and not done.stderr, done.stderr
    return [(code, seen, err) for code, seen, err in map(json.loads, done.stdout.splitlines())]


def refused_early(cases: Sequence[tuple[str, str]], folder: Path, code: int = 2) -> None:
    """Each command is refused in one line that says this, before a heavy library is imported."""
    for (words, says), (left, seen, err) in zip(cases, light([shlex.split(w) for w, _ in cases], folder), strict=True):
        assert (left, seen, err.count("\n")) == (code, [], 1) and says in err, (words, left, seen, err)


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
