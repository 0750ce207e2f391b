"""IFEval splits sentences with nltk's ``punkt_tab`` model, which is no part of the nltk package. Without it the task is
refused before a model is opened: a score with another splitter would be another score."""

from __future__ import annotations

INSTALL = "python -m nltk.downloader punkt_tab"
_RESOURCE = "tokenizers/punkt_tab/english"


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
