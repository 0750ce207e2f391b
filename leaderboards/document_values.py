"""The documents' values behind a score, by which rows are ranked in pairs: read once, and again only when a file of the
run is another one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.pairing import score_of, values_of
from dare_bench.errors import DareError
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.site import Site
from dare_bench.runs.results import weights_of
from dare_bench.runs.scores import Score


@dataclass(frozen=True, slots=True)
class Stratum:
    """One task behind a score, which is the mean of its tasks' means by ``weight``. Two runs with the same
    ``documents`` have values of the same documents, in the same order."""

    weight: float
    documents: str
    values: list[float]


def document_values(site: Site, entry: BoardEntry, score: Score) -> list[Stratum]:
    """What a score is the mean of; nothing where it is no mean over documents, or they cannot be read."""
    made_from = (entry.state, entry.files)
    found = site.part(f"values {entry.slug} {score.task} {score.key}", made_from, lambda: _read(entry, score))
    return [
        Stratum(weight, documents, [float(value) for value in values]) for weight, documents, values in found["tasks"]
    ]


def _read(entry: BoardEntry, score: Score) -> Mapping[str, Any]:
    """The facts of a part: values that are all 0 or 1 stand in one text of as many digits."""
    tasks = []
    try:
        run = entry.open()
        rows = {**run.results.get("results", {}), **(run.results.get("groups") or {})}
        for task, weight in (weights_of(run.results, rows, score.task, score.key) or {}).items():
            values = values_of(run, score_of(run, task, score.key), [task])
            if values.problem() is not None:
                return {"tasks": []}
            ids = sorted(values.parts, key=_number)
            numbers = values.of(ids)
            whole = all(number in (0.0, 1.0) for number in numbers)
            documents = hashlib.sha256(repr([(doc, values.targets[doc]) for doc in ids]).encode()).hexdigest()[:16]
            tasks.append([weight, documents, "".join(str(int(number)) for number in numbers) if whole else numbers])
    except DareError:  # what cannot be read is told where the pages of its samples are made
        return {"tasks": []}
    return {"tasks": tasks}


def _number(doc: str) -> tuple[float, str]:
    """Numbers in their order, which is that of the sample lines: a random test then draws the same as ``compare``."""
    return (int(doc), "") if doc.isdecimal() and len(doc) < 16 else (math.inf, doc)
