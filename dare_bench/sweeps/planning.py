"""The trainings and evaluations of a sweep: its grids expanded and validated, each with its place in the file."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from dare_bench.config import RunSpec, run_spec
from dare_bench.engine.plan import plan
from dare_bench.errors import UsageError, suggestion
from dare_bench.registry import registry
from dare_bench.run_fields import run_fields
from dare_bench.sweeps.grid import Named, bounded, expand
from dare_bench.sweeps.sweep_spec import SweepModel, SweepSpec
from dare_bench.training.methods import options_of, valid_options
from dare_bench.training.spec import TrainSpec, train_spec
from dare_bench.types import Decoding

_NO_TRAIN_SETTINGS = ("output_path", "eval", "eval_every", "eval_on_start", "model", "adapter")
"""Training settings that ``train`` must not contain."""
_NO_EVAL_SETTINGS = ("model", "adapter", "output_path", "fresh", "devices", "executor", "ray_address")
"""Evaluation settings that ``eval`` must not contain."""
_NESTED = ("gen_kwargs", "decoding", "likelihood_args", "likelihood")
"""Mappings of an evaluation whose values may be axes, too."""
EXECUTION = frozenset({"device", "report_to", "run_name", "logging_steps", "save_steps", "save_total_limit"})
"""Settings of a training that change neither its result nor its name."""
_NAMED_ELSEWHERE = frozenset({"method", "data", "task", "seed"})
"""Settings that have a fixed position in the name of a training."""


@dataclass(frozen=True)
class PlannedTraining:
    """One point of a training grid. ``settings`` are those in its name."""

    base: SweepModel
    spec: TrainSpec
    settings: dict[str, Any]


@dataclass(frozen=True)
class PlannedEvaluation:
    """One evaluation: fields for ``engine.plan`` without the model, its name in the file, and its models."""

    fields: dict[str, Any]
    name: str | None
    models: Sequence[SweepModel]


def trainings(spec: SweepSpec) -> list[PlannedTraining]:
    """Every training: each model with each point of each grid.

    Raises:
        UsageError: an unknown setting or an invalid value, with its place in the file.
    """
    planned: list[PlannedTraining] = []
    for number, mapping in enumerate(spec.train):
        where = f"train[{number}]"
        for point in _points(mapping, where):
            for base in _chosen(spec, point.pop("models", None), where):
                planned.append(_training(base, point, where))
                bounded(len(planned), where, "trainings")
    return planned


def _points(mapping: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The points of one training grid. The method is expanded first: it determines which settings are lists."""
    for name in _NO_TRAIN_SETTINGS:
        if name in mapping:
            raise UsageError(f"{where}.{name}: not allowed here; the sweep sets it (name checkpoints in models)")
    if "method" not in mapping:
        raise UsageError(f"{where}: no method named; give method, one of {', '.join(registry().names('trainer'))}")
    flat = {name: value for name, value in mapping.items() if name != "method"}
    points = []
    for method in (point["method"] for point in expand({"method": mapping["method"]}, where)):
        try:
            settings = options_of(registry().get("trainer", str(method))).model_fields
        except UsageError as error:
            raise UsageError(f"{where}.method: {error}") from error
        for name in flat:
            if name not in {**TrainSpec.model_fields, **settings, "models": None} or name == "options":
                near = suggestion(name, [*TrainSpec.model_fields, *settings])
                raise UsageError(f"{where}.{name}: neither a training setting nor one of {method}{near}")
        lists = _lists({**TrainSpec.model_fields, **settings}) | {"models"}
        points += [{"method": method, **point} for point in expand(flat, where, lists)]
        bounded(len(points), where)
    return points


def _training(base: SweepModel, point: Mapping[str, Any], where: str) -> PlannedTraining:
    explicit = {name: value for name, value in point.items() if value is not None}
    common = {name: value for name, value in explicit.items() if name in TrainSpec.model_fields}
    options = {name: value for name, value in explicit.items() if name not in common}
    try:
        spec = train_spec(**{**base.opening(), **common}, options=options, output_path="-")
        valid_options(spec.method, options_of(registry().get("trainer", spec.method)), options)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    settings = {
        name: value
        for name, field in TrainSpec.model_fields.items()
        if name in common and name not in EXECUTION | _NAMED_ELSEWHERE
        and (value := getattr(spec, name)) != field.default
    }  # fmt: skip
    return PlannedTraining(base, spec, {**settings, **dict(sorted(options.items())), "seed": spec.seed})


def evaluations(spec: SweepSpec) -> list[PlannedEvaluation]:
    """Every evaluation; a list where one value belongs (``gen_kwargs: {steps: [16, 32]}``) is a grid axis, too.

    Raises:
        UsageError: no task, an unknown field or an invalid value, with its place in the file.
    """
    planned = []
    for number, mapping in enumerate(spec.eval):
        where = f"eval[{number}]" if len(spec.eval) > 1 else "eval"
        lists = _lists(RunSpec.model_fields) | {"models", "suite", "recipe", "samples"}
        nested: Named = dict.fromkeys(_NESTED, _lists(Decoding.model_fields))
        for point in expand(mapping, where, lists, nested):
            models, name = _chosen(spec, point.pop("models", None), where), point.pop("name", None)
            planned.append(PlannedEvaluation(_evaluation(point, where), None if name is None else str(name), models))
        bounded(len(planned), where, "evaluations")
    return planned


def _evaluation(point: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in point:
        if name in _NO_EVAL_SETTINGS:
            raise UsageError(f"{where}.{name}: not allowed here; the sweep sets it")
    for name in ("tasks", "suite", "recipe"):
        if isinstance(point.get(name), list):
            point = {**point, name: ",".join(map(str, point[name]))}
    try:
        fields = {name: value for name, value in run_fields(None, point).items() if value not in (None, {})}
        for name in fields:
            if name not in RunSpec.model_fields:
                near = suggestion(name, RunSpec.model_fields)
                raise UsageError(f"unknown setting {name!r}{near} (decoding fields belong in gen_kwargs)")
        if not fields.get("tasks") and not fields.get("recipe"):
            raise UsageError("nothing to evaluate: give tasks, suite or recipe")
        for run in plan({**fields, "model": "-"}):
            run_spec(**run.fields)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return fields


def _chosen(spec: SweepSpec, names: Any, where: str) -> Sequence[SweepModel]:
    """The models that an entry names, or all."""
    if names is None:
        return spec.models
    requested = [names] if isinstance(names, str) else names
    if not isinstance(requested, list | tuple) or not all(isinstance(name, str) for name in requested):
        raise UsageError(f"{where}.models={names!r}: expected names of this sweep's models")
    models = {name: model for model in spec.models for name in (model.model, model.name)}
    for name in requested:
        if name not in models:
            valid = ", ".join(model.name for model in spec.models)
            raise UsageError(f"{where}.models: {name!r} is not one of this sweep's models ({valid})")
    return list({models[name].name: models[name] for name in requested}.values())


def _lists(fields: Mapping[str, Any]) -> frozenset[str]:
    """The fields whose type is a collection, so that a list is one value."""

    def is_collection(annotation: Any) -> bool:
        origin = get_origin(annotation)
        if origin in (Union, types.UnionType):
            return any(map(is_collection, get_args(annotation)))
        return (origin or annotation) in (tuple, list, set, frozenset, dict)

    return frozenset(name for name, field in fields.items() if is_collection(field.annotation))
