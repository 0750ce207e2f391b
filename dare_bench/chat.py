"""Chat templates: programs in Jinja that come with a checkpoint or a run, which somebody else may have written.

transformers renders them in Jinja's sandbox, where nothing but the messages can be reached. The sandbox does not keep a
loop inside a loop from running for years, so a rendering also ends after :data:`SECONDS`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dare_bench.errors import PromptError

MAX_LENGTH = 1 << 18
"""Most characters of a template; those of published checkpoints have up to some 20,000."""
SECONDS = 20.0
"""Longest time that one rendering may take; most take a few milliseconds."""


def render(messages: Sequence[Any], tokenizer: Any, **options: Any) -> str:
    """Messages as one string, by the tokenizer's template or that of the option ``chat_template`` (its name or text).

    Raises:
        PromptError: the template is too long, takes too long, or calls itself without end.
        Exception: whatever the template raises, mostly jinja2's TemplateError.
    """
    given = options.get("chat_template") or getattr(tokenizer, "chat_template", None) or ""
    longest = max(map(len, given.values()), default=0) if isinstance(given, Mapping) else len(given)
    if longest > MAX_LENGTH:
        raise PromptError(
            f"the chat template has {longest:,} characters, at most {MAX_LENGTH:,} are taken; correct the checkpoint's"
            " chat_template, or give plain text"
        )
    try:
        with _within(SECONDS):
            return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except RecursionError as error:
        raise PromptError("the chat template calls itself without end; correct it, or give plain text") from error


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Ends a template's code in this thread after so long, at its next line. Unlike a signal that works in any thread;
    what one line does in C (a text repeated a billion times) is not interrupted."""
    end = time.monotonic() + seconds

    def watch(frame: FrameType, *_: Any) -> Any:
        if frame.f_code.co_filename != "<template>":
            return None
        if time.monotonic() > end:
            raise PromptError(
                f"the chat template was still rendering after {seconds:g} seconds; correct the checkpoint's"
                " chat_template, or give plain text"
            )
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)
