"""``eval --dry-run``: the settings and cost of a run; ``train --dry-run``: memory and time of an optimizer step. The
checkpoint of a recipe need not be on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dare_bench.cli.plain import echo, echo_error, echo_json
from dare_bench.engine.plan import PlannedRun, plan
from dare_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from dare_bench.costs.recipe import RecipeEstimate
    from dare_bench.engine.preview import Preview


def refuse_json(json: bool) -> None:
    """An estimate is text; raises UsageError."""
    if json:
        raise UsageError("--json: an estimate (--dry-run) is text; omit one of them")


def show(fields: dict[str, Any], json: bool, verbose: bool) -> None:
    """Print the preview of one run or of several runs (``verbose``: with all settings), without evaluating. Raises the
    errors of the preview of a single run; with several runs, errors are printed instead."""
    planned = plan(fields)
    printed = (lambda _: None) if json else echo
    if len(planned) == 1:
        result = _previewed(planned[0], json, verbose)
        if json:
            echo_json(result.plain())
        return
    records: list[dict[str, Any]] = []
    for run in planned:
        printed(f"== {run.name}")
        try:
            records.append({"name": run.name, **_previewed(run, json, verbose).plain()})
        except (UsageError, DataError) as error:
            records.append({"name": run.name, "refused": str(error)})
            printed(f"cannot run: {error}")
        printed("")
    if json:
        echo_json(records)


def show_training(fields: dict[str, Any], processes: int | None = None, gpu: str = "H100") -> None:
    """Print the estimate of a training, without opening its weights; raises as the training."""
    from dare_bench.loading import here
    from dare_bench.training.processes import process_count
    from dare_bench.training.reward_functions import take_functions
    from dare_bench.training.setup import combined, refuse_early, settle

    functions = take_functions(fields)
    spec = combined(None, fields)
    refuse_early(spec)
    if here(spec.model) is not None:
        spec = settle(spec)
    from dare_bench.costs.training import estimate

    echo(estimate(spec, processes or process_count(), gpu, functions).text())


def _previewed(run: PlannedRun, json: bool, verbose: bool) -> Preview | RecipeEstimate:
    """The preview of a run with its checkpoint, or an estimate by its recipe if the checkpoint is not on this machine.
    Printed as soon as it is known, unless as JSON."""
    if run.recipe is not None and not _is_local(str(run.fields.get("model"))):
        from dare_bench.costs.recipe import estimate

        result = estimate(run.recipe, run.fields)
        if not json:
            for name, value in run.fields.items():
                if value not in (None, {}, (), [], ""):
                    echo(f"{name}: {','.join(value) if isinstance(value, tuple) else value}")
            echo(result.text())
        return result
    from dare_bench.cli.summary import print_preview, print_timing
    from dare_bench.engine.preview import TIMING_LIMIT, preview

    def on_ready(untimed: Preview) -> None:
        if not json:
            print_preview(untimed, verbose)
        echo_error(f"timing a few samples for at most {TIMING_LIMIT:.0f}s")

    timed = preview(on_ready=on_ready, **run.fields)
    if not json:
        print_timing(timed.timing)
    return timed


def _is_local(model: str) -> bool:
    """Can the checkpoint be loaded without downloading it?"""
    from dare_bench.loading import here

    if here(model) is not None:
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, "config.json"), str)
