"""Rendering of chat templates: Jinja programs from a checkpoint or a run, which somebody else may have written.

transformers renders them in Jinja's sandbox, which has access only to the messages but limits neither time nor memory:
single operations can take any amount of both (``a ** b``, ``'a' * n``, ``{{ a }}`` of nested lists). So a separate
process renders (:mod:`dare_bench.chat_worker`), which the system ends after :data:`SECONDS` and whose memory it limits.
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
"""Maximum length of a template in characters; those of published checkpoints have up to about 20,000."""
SECONDS = 20.0
"""Time limit of one rendering; most take less than a millisecond."""
_REMEDY = "correct the checkpoint's chat_template, or give plain text"


def render(messages: Sequence[Any], tokenizer: Any, **options: Any) -> str:
    """Messages as one string, by the tokenizer's template or the option ``chat_template`` (its name or text).

    A tokenizer that is not from transformers renders in this process, by its installed code.

    Raises:
        PromptError: the template or the prompt is too long, rendering takes too much time or memory or fails, or a
            message is not JSON.
        jinja2.TemplateError: the template refuses the messages, or is invalid.
    """
    template = options.get("chat_template") or getattr(tokenizer, "chat_template", None) or ""
    longest = max(map(len, template.values()), default=0) if isinstance(template, Mapping) else len(template)
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
    answer = _worker.send(raw)
    if "text" in answer:
        return answer["text"]
    if "refused" in answer:
        from jinja2 import TemplateError

        raise TemplateError(answer["refused"])
    raise PromptError(f"the chat template refuses these messages: {answer['failed']}")


class _Worker:
    """The rendering process, started for the first prompt and restarted after it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def send(self, request: bytes) -> dict[str, str]:
        with self._lock:
            if self._process is None or self._pipe is None:
                self._process, self._pipe = _start()
            try:
                self._pipe.send_bytes(request)
                answer: dict[str, str] = json.loads(self._pipe.recv_bytes())
                return answer
            except BaseException as error:
                # The process ended, or was interrupted before its answer, which the next request must not receive.
                process, self._process, self._pipe = self._process, None, None
                if not isinstance(error, (EOFError, ConnectionError)):
                    process.kill()
                    process.wait()
                    raise
                raise _exit_error(process.wait()) from error


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    pipe, worker_end = Pipe()
    with worker_end:
        # The interpreter's file and our search path, as a sandbox shows no virtual environment. -I -S: neither the
        # current folder nor environment variables are searched.
        search_path = json.dumps([str(Path(folder).resolve()) for folder in sys.path if folder])
        script = str(Path(__file__).resolve().with_name("chat_worker.py"))
        command = [executable(), "-I", "-S", script, str(worker_end.fileno()), search_path]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[worker_end.fileno()], start_new_session=True
        )
    return process, pipe


def _exit_error(code: int) -> PromptError:
    """The error for a process that ended before it answered, by its exit code (below 0: a signal)."""
    if code == -signal.SIGALRM:
        return PromptError(f"the chat template was still rendering after {SECONDS:g} seconds; {_REMEDY}")
    if code == NO_MEMORY:
        return PromptError(f"the chat template needs more than {MEMORY >> 20:,} MiB of memory; {_REMEDY}")
    return PromptError(f"the process that renders the chat template ended with exit code {code}; {_REMEDY}")


def _forked() -> None:
    """Give a forked process its own rendering process."""
    global _worker
    _worker = _Worker()


_worker = _Worker()
os.register_at_fork(after_in_child=_forked)
