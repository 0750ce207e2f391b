"""A worker's ``answer`` with a pause after each sample: it can be killed in the middle of a run that costs little.

Importable, so that worker processes and Ray find it.
"""

from __future__ import annotations

import time
from typing import Any

from dare_bench.engine.journal import Journal
from dare_bench.engine.sharding import Shard, answer

_append = Journal.append


def answer_slowly(shard: Shard) -> dict[str, str]:
    Journal.append = _append_and_pause  # type: ignore[method-assign]
    try:
        return answer(shard)
    finally:
        Journal.append = _append  # type: ignore[method-assign]


def _append_and_pause(journal: Journal, record: dict[str, Any]) -> None:
    _append(journal, record)
    if record["type"] == "sample":
        time.sleep(0.4)
