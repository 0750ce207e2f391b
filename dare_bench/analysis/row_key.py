"""Which runs share a row of a table: those of one checkpoint with the same settings, whatever harness asked, and after
however many examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dare_bench.analysis.names import checkpoint_of
from dare_bench.analysis.settings import chat_template, requested
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import opened_with


@dataclass(frozen=True, slots=True)
class RowKey:
    """The row of a run. Equal in all runs of a row are ``model`` (checkpoint, precision, family) and ``fixed`` (options
    of opening, seeds and, where the table shows speeds, the machine). ``requested`` are the other requested settings;
    parts of one ``suite``, and runs of ``recipes``, have settings for each task and share a row all the same."""

    model: tuple[Any, ...]
    fixed: tuple[Any, ...] = ()
    requested: str = ""
    suite: str | None = None
    recipes: bool = False

    @property
    def is_independent(self) -> bool:
        """Is the run neither part of a suite nor of a recipe?"""
        return self.suite is None and not self.recipes

    def joins(self, other: RowKey) -> bool:
        """May two runs share a row? All pairs of runs of a row must."""
        if (self.model, self.fixed) != (other.model, other.fixed):
            return False
        parts = (self.suite is not None and self.suite == other.suite) or (self.recipes and other.recipes)
        return parts or self.requested == other.requested


def row_key(run: Run, machine: str | None = None) -> RowKey:
    """The key of a run; with ``machine``, runs on two machines are two rows. An external result, whose settings are not
    all known, shares its row with no other run."""
    block, results = run.block, run.results
    if block is None:
        return RowKey((run.model, machine))
    if run.is_external:
        return RowKey((run.run_id, str(run.path.resolve())))
    # Template and instruction belong to the run; the number of examples and the harness belong to its tasks.
    prompt = chat_template(run), results.get("system_instruction")
    settings = sorted((name, str(value)) for name, value in requested(run).items())
    opened = str(sorted(opened_with(results).items()))
    return RowKey(
        model=(*checkpoint_of(run), block.model.family),
        fixed=(opened, block.seeds, machine),
        requested=str((settings, prompt)),
        suite=block.suite,
        recipes=bool(block.recipes),
    )


def models_of(runs: Iterable[Run]) -> dict[Run, Run]:
    """For each run one that stands for all that may share a row with it, on any machine. Parts of a suite are grouped
    before a run of the same settings joins one of them. An external result, or a run on a server, joins the one group
    that may be of its model, or is in a group with its like."""
    groups: dict[Run, set[RowKey]] = {}
    model_of: dict[Run, Run] = {}
    keys, elsewhere = [], []
    for run in runs:
        if run.is_external or run.require_block().model.engine is not None:
            elsewhere.append(run)
        else:
            keys.append((run, row_key(run)))
    for run, key in sorted(keys, key=lambda pair: pair[1].is_independent):
        model = next((model for model, group in groups.items() if all(key.joins(other) for other in group)), run)
        groups.setdefault(model, set()).add(key)
        model_of[run] = model
    for run in elsewhere:
        known = [model for model in groups if _may_be_one(run, model)]
        others = [model for model in model_of.values() if model not in groups and _may_be_one(run, model)]
        model_of[run] = known[0] if len(known) == 1 else next(iter(others), run)
    return model_of


def _may_be_one(run: Run, other: Run) -> bool:
    """Are two runs, not both by our own sampler, of one model, as far as both record it? They have its name in common;
    servers and other programs know its family and content by other names, and other programs record no settings."""
    a, b = run.require_block().model, other.require_block().model
    if (a.name, a.adapter) != (b.name, b.adapter):
        return False
    facts = [(a.dtype, b.dtype)]
    if (run.is_external, a.on_server) == (other.is_external, b.on_server):
        facts.append((a.content_hash, b.content_hash))
    if not all(mine == its or UNKNOWN in (mine, its) for mine, its in facts):
        return False
    return (
        run.is_external or other.is_external or replace(row_key(run), model=()).joins(replace(row_key(other), model=()))
    )
