"""``eval --dry-run``: the settings and cost of a run. The checkpoint of a recipe need not be on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dare_bench.cli.plain import say, say_json, tell
from dare_bench.engine.plan import PlannedRun, plan
from dare_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from dare_bench.costs.recipe import RecipeEstimate
    from dare_bench.engine.preview import Preview


def show(fields: dict[str, Any], json: bool) -> None:
    """Print the preview of one run or of several runs, without evaluating.

    Raises: the errors of the preview of a single run; with several runs, errors are printed instead.
    """
    planned = plan(fields)
    if len(planned) == 1:
        result = _shown(planned[0], json)
        if json:
            say_json(result.plain())
        return
    records: list[dict[str, Any]] = []
    for one in planned:
        if not json:
            say(f"== {one.name}")
        try:
            records.append({"name": one.name, **_shown(one, json).plain()})
        except (UsageError, DataError) as error:
            records.append({"name": one.name, "refused": str(error)})
            if not json:
                say(f"cannot run: {error}")
        if not json:
            say("")
    if json:
        say_json(records)


def _shown(one: PlannedRun, json: bool) -> Preview | RecipeEstimate:
    """The preview of a run with its checkpoint, or an estimate from ``facts`` if the checkpoint is not on this machine.
    Printed as soon as it is known, unless as JSON."""
    if one.recipe is not None and not _is_here(str(one.fields.get("model"))):
        from dare_bench.costs.recipe import estimate

        facts = estimate(one.recipe, one.fields)
        if not json:
            _print_estimate(one, facts)
        return facts
    from dare_bench.cli.summary import print_preview, print_timing
    from dare_bench.engine.preview import TIMING_LIMIT, preview

    def on_preview(seen: Preview) -> None:
        if not json:
            print_preview(seen)
        tell(f"timing a few samples for at most {TIMING_LIMIT:.0f}s")

    result = preview(on_ready=on_preview, **one.fields)
    if not json:
        print_timing(result.timing)
    return result


def _is_here(model: str) -> bool:
    """Can the checkpoint be loaded without downloading it?"""
    from dare_bench.loading import here

    if here(model) is not None:
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, "config.json"), str)


def _print_estimate(one: PlannedRun, found: RecipeEstimate) -> None:
    assert one.recipe is not None
    for name, value in one.fields.items():
        if value not in (None, {}, (), [], ""):
            say(f"{name}: {','.join(value) if isinstance(value, tuple) else value}")
    model, known = one.fields["model"], one.recipe.file.model
    facts = "its dimensions" if model == known else f"the dimensions of {known}"
    say(f"the checkpoint {model} is not on this machine: from {facts} and the given settings,")
    say(found.text())
