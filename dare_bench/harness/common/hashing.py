"""Hashes of what makes two evaluations of a task the same task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any


def documents_hash(rows: Iterable[tuple[int, Any, Any]]) -> str:
    """Hash of (document, prompt, target) in order of the documents."""
    return short_hash(json.dumps(sorted((doc, str(prompt), str(target)) for doc, prompt, target in rows)))


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
