"""IFEval splits sentences with nltk's ``punkt_tab`` model, which is no part of the nltk package. Without it the task is
refused before a model is opened: a score with another splitter would be another score."""

from __future__ import annotations

from dare_bench.errors import UsageError

INSTALL = "python -m nltk.downloader punkt_tab"
_RESOURCE = "tokenizers/punkt_tab/english"


def check(what: str) -> None:
    """Raises UsageError where ``what`` needs the model and nltk does not find it (``NLTK_DATA`` adds a folder); the
    message has the command that installs it."""
    if not found():
        raise UsageError(
            f"{what} needs nltk's sentence model punkt_tab, which is not installed; install it with: {INSTALL}"
            " (offline: unpack punkt_tab.zip into tokenizers/ of a folder that NLTK_DATA names)"
        )


def found() -> bool:
    try:
        import nltk
    except ImportError:
        return False
    try:
        nltk.data.find(_RESOURCE)
    except LookupError:
        return False
    return True
