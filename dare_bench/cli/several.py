"""``eval`` of a suite or of several recipes: one run after another with one model, then all scores together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare_bench.cli.plain import say_json, tell
from dare_bench.cli.summary import incomplete
from dare_bench.engine.evaluate import Outcome, evaluate_all
from dare_bench.engine.plan import PlannedRun
from dare_bench.runs.text import counted


def make(planned: Sequence[PlannedRun], json: bool) -> None:
    """Make the runs and print them.

    Raises:
        IncompleteError: a run could not be made, or samples failed.
    """
    outcomes: list[Outcome] = []
    for number, outcome in enumerate(evaluate_all(_announced(planned)), start=1):
        outcomes.append(outcome)
        result = outcome.reason if outcome.run is None else outcome.run.results_file
        tell(f"[{number}/{len(planned)}] {outcome.planned.name}: {result}")
    if json:
        say_json([_record(outcome) for outcome in outcomes])
    else:
        from dare_bench.cli.summary import print_runs

        print_runs([(outcome.planned.name, outcome.run, _why(outcome)) for outcome in outcomes])
    made = [outcome.run for outcome in outcomes if outcome.run is not None]
    if len(made) < len(outcomes) or any(run.status != "complete" for run in made):
        raise incomplete(made, [outcome.reason for outcome in outcomes if outcome.reason is not None])


def _announced(planned: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
    names = ", ".join(one.name for one in planned)
    tell(f"{counted(len(planned), 'run')}: {names}")
    return planned


def _why(outcome: Outcome) -> str | None:
    """Why there is no run, with the suite's note on the task."""
    if outcome.reason is None:
        return None
    return f"{outcome.reason} ({outcome.planned.note})" if outcome.planned.note else outcome.reason


def _record(outcome: Outcome) -> dict[str, Any]:
    from dare_bench.cli.summary import record

    run = record(outcome.run) if outcome.run is not None else None
    return {"name": outcome.planned.name, "run": run, "not_run": outcome.reason}
