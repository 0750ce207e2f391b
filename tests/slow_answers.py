"""A worker's ``answer`` with a pause before each sample is journaled: it can be killed in the middle of a cheap run.

Importable, so that worker processes and Ray find it.
"""

from __future__ import annotations

import time
from typing import Any

from dare_bench.engine.journal import Journal
from dare_bench.engine.sharding import Shard, answer

_append = Journal.append


def answer_slowly(shard: Shard) -> dict[str, str]:
    Journal.append = _pause_and_append  # type: ignore[method-assign]
    try:
        return answer(shard)
    finally:
        Journal.append = _append  # type: ignore[method-assign]


def _pause_and_append(journal: Journal, record: dict[str, Any]) -> None:
    if record["type"] == "sample":
        time.sleep(0.4)
    _append(journal, record)
