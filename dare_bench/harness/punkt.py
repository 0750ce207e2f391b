"""IFEval's sentence splitter, offline.

lm-eval's IFEval asks nltk for its ``punkt_tab`` model, which nltk fetches from the network. Where that fails, a small
model of ours in nltk's own format stands in (``nltk_data`` beside this file: about a hundred English abbreviations and
as many words that often begin a sentence). Counts of sentences then agree with nltk's model on about 99 texts in 100
(IFEval prompts, GSM8K, Alpaca answers); the run notes it, and the task's fingerprint differs.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from dare_bench.harness.task_index import TaskEntry

STAND_IN = Path(__file__).parent / "nltk_data"
NOTE = (
    "nltk's punkt_tab is not installed and could not be fetched: a small stand-in counts sentences, so a few of"
    " IFEval's sentence checks may differ; to install it: python -m nltk.downloader punkt_tab"
)
_RESOURCE = "tokenizers/punkt_tab"
_SECONDS = 10.0


def needs_punkt(entries: Iterable[TaskEntry]) -> bool:
    """Does the code beside one of these task files ask for ``punkt_tab``?"""
    folders = {entry.path.parent for entry in entries if entry.path is not None}
    return any("punkt_tab" in file.read_text(errors="replace") for folder in folders for file in folder.glob("*.py"))


def ensure_punkt() -> str | None:
    """Make ``punkt_tab`` findable, nltk's own if at all possible; returns a note when the stand-in serves."""
    import nltk

    if _found() is None and not _offline():
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(_SECONDS)  # nltk waits for a dead network without end
        try:
            # Its complaint about a missing network goes to the terminal even when quiet; the note says it better.
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(OSError, ValueError):
                nltk.download("punkt_tab", quiet=True)
        finally:
            socket.setdefaulttimeout(before)
    if _found() is None:
        nltk.data.path.append(str(STAND_IN))
    found = _found()
    return NOTE if found is not None and found.startswith(str(STAND_IN)) else None


def _found() -> str | None:
    import nltk

    try:
        return str(nltk.data.find(_RESOURCE))
    except LookupError:
        return None


def _offline() -> bool:
    """The user said so, in the words the Hugging Face libraries know."""
    return any(
        os.environ.get(name, "").lower() in ("1", "true", "yes", "on")
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    )
