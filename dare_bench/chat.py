"""Chat templates: programs in Jinja that come with a checkpoint or a run, which somebody else may have written.

transformers renders them in Jinja's sandbox, where nothing but the messages can be reached. The sandbox bounds neither
time nor memory, and one operation can take any amount of both (``a ** b``, ``'a' * n``, ``{{ a }}`` of nested lists).
So a process of its own renders (:mod:`dare_bench.chat_worker`), which the system ends after :data:`SECONDS` and whose
memory it limits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from dare_bench.chat_worker import MEMORY, NO_MEMORY
from dare_bench.errors import PromptError
from dare_bench.sandbox.view import executable

MAX_LENGTH = 1 << 18
"""Most characters of a template; those of published checkpoints have up to some 20,000."""
SECONDS = 20.0
"""Longest time that one rendering may take; most take less than a millisecond."""
_REMEDY = "correct the checkpoint's chat_template, or give plain text"


def render(messages: Sequence[Any], tokenizer: Any, **options: Any) -> str:
    """Messages as one string, by the tokenizer's template or that of the option ``chat_template`` (its name or text).

    A tokenizer that is not of transformers renders by its own code, which is installed here.

    Raises:
        PromptError: the template or the prompt is too long, rendering takes too much time or memory or fails, or a
            message holds what is no JSON.
        jinja2.TemplateError: the template refuses the messages, or is no template.
    """
    given = options.get("chat_template") or getattr(tokenizer, "chat_template", None) or ""
    longest = max(map(len, given.values()), default=0) if isinstance(given, Mapping) else len(given)
    if longest > MAX_LENGTH:
        raise PromptError(
            f"the chat template has {longest:,} characters, more than the limit of {MAX_LENGTH:,}; {_REMEDY}"
        )
    special = getattr(tokenizer, "special_tokens_map", None)
    if special is None:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    options["chat_template"] = tokenizer.get_chat_template(options.get("chat_template"))
    request = {"messages": list(messages), "special": special, "options": options, "seconds": SECONDS}
    try:
        raw = json.dumps(request).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(
            f"chat messages may contain text, numbers, lists, and mappings with text keys: {error}"
        ) from error
    return _text(_worker.ask(raw))


def _text(answer: Mapping[str, str]) -> str:
    if "text" in answer:
        return answer["text"]
    if "refused" in answer:
        from jinja2 import TemplateError

        raise TemplateError(answer["refused"])
    raise PromptError(f"the chat template refuses these messages: {answer['failed']}")


class _Worker:
    """The process that renders: started for the first prompt, and again after one that it was ended for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def ask(self, request: bytes) -> dict[str, str]:
        with self._lock:
            if self._process is None or self._pipe is None:
                self._process, self._pipe = _start()
            try:
                self._pipe.send_bytes(request)
                answer: dict[str, str] = json.loads(self._pipe.recv_bytes())
                return answer
            except BaseException as error:
                # The process ended, or Ctrl-C came before its answer, which must not be taken for that of the next.
                ended = isinstance(error, (EOFError, ConnectionError))
                code = self._stop(self._process, kill=not ended)
                if ended:
                    raise _why(code) from error
                raise

    def _stop(self, process: subprocess.Popen[bytes], kill: bool) -> int:
        if kill:
            process.kill()
        self._process = self._pipe = None
        return process.wait()


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    with theirs:
        # This Python by its own file and with our search path: a sandbox shows no virtual environment. -I -S: nothing
        # else is searched, neither the current folder nor what the environment names.
        where = json.dumps([str(Path(place).resolve()) for place in sys.path if place])
        program = str(Path(__file__).resolve().with_name("chat_worker.py"))
        command = [executable(), "-I", "-S", program, str(theirs.fileno()), where]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
    return process, ours


def _why(code: int) -> PromptError:
    """Why the process ended before it answered, by its exit code (below 0: the signal that ended it)."""
    if code == -signal.SIGALRM:
        return PromptError(f"the chat template was still rendering after {SECONDS:g} seconds; {_REMEDY}")
    if code == NO_MEMORY:
        return PromptError(f"the chat template needs more than {MEMORY >> 20:,} MiB of memory; {_REMEDY}")
    return PromptError(f"the process that renders the chat template ended with exit code {code}; {_REMEDY}")


def _forked() -> None:
    """In a forked process: start one's own, instead of two asking the same one."""
    global _worker
    _worker = _Worker()


_worker = _Worker()
os.register_at_fork(after_in_child=_forked)
