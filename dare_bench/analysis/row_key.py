"""Which runs share a row of a table: those of one checkpoint with the same settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.names import checkpoint_of
from dare_bench.analysis.settings import chat_template, requested
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import opened_with


@dataclass(frozen=True, slots=True)
class RowKey:
    """The row of a run. ``fixed`` is equal in all runs of a row: checkpoint and its loading options, precision, seeds
    and, where the table shows speeds, the machine. ``requested`` are the other requested settings; parts of one
    ``suite``, and runs of ``recipes``, have settings for each task and share a row all the same."""

    fixed: tuple[Any, ...]
    requested: str = ""
    suite: str | None = None
    recipes: bool = False

    @property
    def is_independent(self) -> bool:
        """Is the run neither part of a suite nor of a recipe?"""
        return self.suite is None and not self.recipes

    def joins(self, other: RowKey) -> bool:
        """May two runs share a row? All pairs of runs of a row must."""
        if self.fixed != other.fixed:
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
    # Template and instruction belong to the run; a task's default number of examples is no setting.
    prompt = chat_template(run), results.get("system_instruction")
    settings = sorted((name, str(value)) for name, value in requested(run).items())
    opened = str(sorted(opened_with(results).items()))
    return RowKey(
        fixed=(*checkpoint_of(run), block.model.family, opened, block.seeds, machine),
        requested=str((settings, block.harness.name, prompt, run.requested.get("num_fewshot"))),
        suite=block.suite,
        recipes=bool(block.recipes),
    )
