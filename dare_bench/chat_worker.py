"""The process that renders chat templates for :mod:`dare_bench.chat`; run as a script, by its file.

Each request is one JSON object, and so is each answer: ``text``, ``refused`` (the template refuses the messages) or
``failed``. SIGALRM has its default action, which ends the process even within one long operation, and even if the
parent no longer waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY = 1 << 30
"""Memory limit of rendering in bytes (only on Linux)."""
MAX_PROMPT = 1 << 24
"""Maximum length of a rendered prompt in characters."""
NO_MEMORY = 12
"""Exit code of a process that ran out of memory."""


def main(pipe: Connection) -> None:
    """Answer requests until the other side closes the pipe."""
    render = _renderer()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # both may have been inherited from the parent
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    _limit_memory()
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        try:
            answer = json.dumps(_answer(render, request)).encode()
        except MemoryError:
            os._exit(NO_MEMORY)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send_bytes(answer)


def _answer(render: Any, request: dict[str, Any]) -> dict[str, str]:
    from jinja2 import TemplateError

    try:
        text = render(request["messages"], request["special"], request["options"])
    except TemplateError as error:
        return {"refused": str(error)[:1000]}
    except RecursionError:
        return {"failed": "infinite recursion"}
    except MemoryError:
        raise
    except Exception as error:  # a template can raise anything
        return {"failed": f"{type(error).__name__}: {str(error)[:1000]}"}
    if len(text) > MAX_PROMPT:
        return {"failed": f"the prompt has {len(text):,} characters, more than the limit of {MAX_PROMPT:,}"}
    return {"text": text}


def _renderer() -> Any:
    """transformers' rendering, for a template and special tokens instead of a tokenizer."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    class TemplateOnly(PreTrainedTokenizerBase):
        special_tokens_map: Any = None

        def __init__(self, special: dict[str, Any]) -> None:
            self.__dict__["special_tokens_map"] = special

        def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
            return str(chat_template)

    def render(messages: list[Any], special: dict[str, Any], options: dict[str, Any]) -> str:
        return str(TemplateOnly(special).apply_chat_template(messages, tokenize=False, **options))

    return render


def _limit_memory() -> None:
    size = Path("/proc/self/statm")  # missing in the sandbox for harness code, which limits memory itself
    if sys.platform == "linux" and size.exists():
        import resource

        limit = int(size.read_text().split()[0]) * resource.getpagesize() + MEMORY
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[2])
    main(Connection(int(sys.argv[1])))
