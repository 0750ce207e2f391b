"""Which runs share a row of a table: those of one model with the same settings, whatever harness asked, and after
however many examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.names import Checkpoint, checkpoint_of
from dare_bench.analysis.settings import chat_template, requested
from dare_bench.registry import registry
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import opened_with

_ONE_PLACE = re.compile(r"/.+|[^/.~][^/]*/[^/]+")
"""An absolute path or a hub id. Other paths name another checkpoint in another folder."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """The row of a run. Two runs of a row have one of ``model`` in common (content, or what the model was named). Their
    ``facts`` are equal (content, precision, family, options of opening, seeds and, where the table shows speeds,
    machine and engine) as far as both record them. ``requested`` are the other requested settings (None: not recorded);
    parts of one ``suite``, and runs of ``recipes``, have settings for each task and share a row all the same."""

    model: frozenset[Checkpoint | tuple[str, str | None]]
    facts: Mapping[str, Any]
    requested: str | None = None
    suite: str | None = None
    recipes: bool = False

    @property
    def is_independent(self) -> bool:
        """Is the run neither part of a suite nor of a recipe?"""
        return self.suite is None and not self.recipes

    def joins(self, other: RowKey) -> bool:
        """May two runs share a row? All pairs of runs of a row must."""
        common = self.facts.keys() & other.facts.keys()
        if self.model.isdisjoint(other.model) or any(self.facts[name] != other.facts[name] for name in common):
            return False
        parts = (self.suite is not None and self.suite == other.suite) or (self.recipes and other.recipes)
        return parts or self.requested == other.requested or None in (self.requested, other.requested)


def row_key(run: Run, machine: str | None = None) -> RowKey:
    """The key of a run; with ``machine``, runs on two machines or engines are two rows, and each external result has a
    separate row."""
    block, results = run.block, run.results
    if block is None:
        return RowKey(frozenset(), {})
    model = block.model
    kind = re.split("[: ]", model.content_hash)[0]  # hashed here, stated by a server, or the revision of a hub
    facts: dict[str, Any] = {f"content {kind}": model.content_hash, "dtype": model.dtype, "family": model.family}
    facts["seeds"] = block.seeds
    if not run.is_external:
        facts |= {"adapter": model.adapter_hash or "", "opened": str(sorted(opened_with(results).items()))}
    if machine is not None:
        facts["machine"] = machine, run.path.resolve() if run.is_external else model.engine and model.engine.label
    recorded = not run.is_external or "chat_template" in results
    # Template and instruction belong to the run; the number of examples and the harness belong to its tasks.
    prompt = chat_template(run), results.get("system_instruction")
    settings = sorted((name, str(value)) for name, value in requested(run).items())
    content = None if model.content_hash == UNKNOWN else checkpoint_of(run)._replace(dtype="")
    return RowKey(
        model=frozenset(filter(None, (named_model(run), content))),
        facts={name: fact for name, fact in facts.items() if fact not in (UNKNOWN, None)},
        requested=str((settings, prompt)) if recorded else None,
        suite=block.suite,
        recipes=bool(block.recipes),
    )


def named_model(run: Run) -> tuple[str, str | None] | None:
    """What the model of a run was named, and its adapter, where this is one checkpoint whoever reads it: a bundled
    name, a hub id or an absolute path."""
    model = run.require_block().model
    named = str(run.requested.get("model") or model.path or "")
    certain = _ONE_PLACE.fullmatch(named) or named in registry().names("checkpoint")
    return (named, model.adapter) if certain else None


def models_of(runs: Iterable[Run]) -> dict[Run, Run]:
    """For each run one that stands for all that may share a row with it, on any machine. Runs that record more come
    first, and parts of a suite before a run of the same settings joins one of them. A run that could join several
    groups, since it does not record what distinguishes them, is in a group with its like."""
    keys = {run: row_key(run) for run in runs}
    groups: dict[Run, list[RowKey]] = {}
    model_of: dict[Run, Run] = {}
    for run in sorted(keys, key=lambda run: (-len(keys[run].facts), keys[run].is_independent)):
        found = [model for model, group in groups.items() if all(map(keys[run].joins, group))]
        alike = [model for model in found if keys[run] in groups[model]]
        model_of[run] = alike[0] if alike else found[0] if len(found) == 1 else run
        groups.setdefault(model_of[run], []).append(keys[run])
    return model_of
