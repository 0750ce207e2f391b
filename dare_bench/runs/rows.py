"""Which runs belong into one row of a table: those of one checkpoint that were asked alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dare_bench.runs.reader import Run


@dataclass(frozen=True, slots=True)
class RowKey:
    """What places a run. ``fixed`` is the same in all runs of a row: checkpoint, precision, seeds and, where the table
    tells speeds, the machine. ``asked`` is what was asked for beyond that; the parts of one ``suite``, and what
    ``recipes`` ask, have settings of their own for each task, which together are one row all the same."""

    fixed: tuple[Any, ...]
    asked: str = ""
    suite: str | None = None
    recipes: bool = False

    @property
    def alone(self) -> bool:
        """Is the run no part of anything?"""
        return self.suite is None and not self.recipes

    def joins(self, other: RowKey) -> bool:
        """May two runs share a row? It takes this of every two of them."""
        if self.fixed != other.fixed:
            return False
        parts = (self.suite is not None and self.suite == other.suite) or (self.recipes and other.recipes)
        return parts or self.asked == other.asked


def row_key(run: Run, machine: str | None = None) -> RowKey:
    """The key of a run; ``machine`` where runs on two machines are to be two rows."""
    block, results = run.block, run.results
    if block is None:
        return RowKey((run.model, machine))
    model = block.model
    # The template and the instruction are the run's own; how many examples a task has by itself is no setting.
    around = results.get("chat_template_sha") or results.get("chat_template"), results.get("system_instruction")
    settings = sorted((name, str(value)) for name, value in block.decoding_requested.items())
    return RowKey(
        fixed=(model.name, model.content_hash, model.adapter_hash or "", model.dtype, block.seeds, machine),
        asked=str((settings, block.harness.name, block.repeats, around, run.asked.get("num_fewshot"))),
        suite=block.suite,
        recipes=bool(block.recipes),
    )
