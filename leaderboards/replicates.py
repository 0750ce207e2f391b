"""Which runs are replicates: of one checkpoint, or of seeds of one training recipe, with the same settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from dare_bench.analysis.names import LineageRecord, trainings
from dare_bench.leaderboards.entries import BoardEntry

RECIPE_FACTS = ("method", "peft", "data", "steps", "settings", "options")
"""All facts about a training except its seed, and the rows that the seed draws from the data."""
MOST_APART = 1.5
"""How many times the slowest of replicates the fastest may be, where speeds are still compared."""


def recipe_facts(lineage: LineageRecord) -> str:
    """Equal for two trainings that differ in nothing but their seed and, maybe, their base."""
    return json.dumps([lineage.get(name) for name in RECIPE_FACTS], sort_keys=True, default=str)


def recipe_of(entry: BoardEntry) -> str:
    """Equal for two checkpoints of one training recipe, at one step, from one base; a checkpoint that was not trained
    here is a recipe of its own."""
    chain = trainings(entry.lineage)
    if not chain:
        return repr(tuple(entry.checkpoint))
    base = chain[0].get("base_content"), chain[0].get("base_adapter"), entry.dtype
    return repr((base, [(recipe_facts(training), str(training.get("step"))) for training in chain]))


def farthest_apart(groups: Iterable[Sequence[float]]) -> float:
    """The largest ratio between two speeds of one group of replicates; 1 where there are none."""
    return max((max(speeds) / min(speeds) for speeds in groups if len(speeds) > 1), default=1.0)
