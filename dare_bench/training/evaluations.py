"""The evaluations of a training, checked once its model is open and before its data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dare_bench.engine.evaluate import resolve_spec
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.plan import plan
from dare_bench.errors import DataError, UsageError, unknown
from dare_bench.protocols import LoadedModel
from dare_bench.run_fields import run_fields
from dare_bench.training.spec import TrainSpec
from dare_bench.types import CheckpointSettings


def checked(spec: TrainSpec, kind: Any, model: LoadedModel) -> TrainSpec:
    """The settings with the direction of the best checkpoint's metric, unless the user has given it: as the method
    ``kind`` or the task declares it, else by its name.

    Raises:
        UsageError, DataError: none of the planned evaluations is possible, or none has the metric.
    """
    planned = plan(evaluation_fields(spec, {"model": spec.model})) if spec.eval else []
    metrics: dict[str, bool | None] = dict(kind.validation_metrics) if spec.validation_data else {}
    refused: list[Exception] = []
    all_known = True
    for run in planned:
        try:
            settings = resolve_spec(None, None, {**run.fields, "limit": 1, "samples": None})[0]
            source = checked_harness(settings)(settings, model)
            source.requests()
            declared = source.metrics()
            all_known &= declared is not None
            metrics.update(declared or {})
        except (UsageError, DataError) as error:
            refused.append(error)
    if refused and len(refused) == len(planned):
        raise refused[0]
    if spec.best_metric is None:
        return spec
    name = spec.best_metric.removeprefix("eval_")
    if all_known and name not in metrics:
        raise unknown("metric_for_best_model", name, metrics)
    better = metrics.get(name) if spec.greater_is_better is None else spec.greater_is_better
    return spec.model_copy(update={"greater_is_better": spec.is_greater_better if better is None else better})


def evaluation_fields(spec: TrainSpec, model: dict[str, Any]) -> dict[str, Any]:
    """The fields of the evaluation of a model."""
    opened = {**opening(spec), "model_args": spec.model_args, "adapter": None, **model}
    given = {name: value for name, value in opened.items() if value}
    return {**given, **run_fields(None, spec.eval), "output_path": str(Path(spec.output_path) / "runs")}


def opening(spec: TrainSpec) -> dict[str, Any]:
    """The settings with which a training opens checkpoints, besides those in ``model_args``."""
    return {name: getattr(spec, name) for name in CheckpointSettings.model_fields if name in TrainSpec.model_fields}
