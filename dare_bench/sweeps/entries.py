"""The grids of a sweep spelled out: every training and every evaluation, checked, with its place in the file."""

from __future__ import annotations

import logging
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

from dare_bench import fingerprint
from dare_bench.config import RunSpec, run_spec
from dare_bench.engine.plan import plan
from dare_bench.errors import UsageError, suggestion
from dare_bench.registry import registry
from dare_bench.run_fields import run_fields
from dare_bench.sweeps.grid import Named, bounded, expand
from dare_bench.sweeps.spec import SweepModel, SweepSpec
from dare_bench.training.spec import TrainSpec, train_spec
from dare_bench.types import Decoding

log = logging.getLogger("dare_bench")

_SWEEPS_OWN = ("output_path", "eval", "eval_every", "eval_on_start", "model", "adapter")
"""Training settings that a sweep sets by itself."""
_INSTEAD = dict.fromkeys(("model", "adapter"), "name it in models")
_NOT_OF_EVALS = ("model", "adapter", "output_path", "fresh", "devices", "executor", "ray_address")
_EVAL_WORDS = ("gen_kwargs", "likelihood_args", "seed", "batch_size", "suite")
"""Names of evaluation settings beside RunSpec's own."""
_NESTED = ("gen_kwargs", "decoding", "likelihood_args", "likelihood")
"""Mappings of an evaluation whose values may be axes, too."""


@dataclass(frozen=True)
class PlannedTraining:
    """One point of a training grid. ``settings`` are those that name it, ``where`` its place in the file."""

    base: SweepModel
    spec: TrainSpec
    settings: dict[str, Any]
    where: str


@dataclass(frozen=True)
class PlannedEvaluation:
    """One evaluation: fields for ``engine.plan`` without the model, and the models it is for (empty: all)."""

    fields: dict[str, Any]
    where: str
    name: str | None = None
    models: tuple[str, ...] = field(default=())


def trainings(spec: SweepSpec) -> list[PlannedTraining]:
    """Every training: each model with each point of each grid. Equal ones from two mappings are one.

    Raises:
        UsageError: a setting that nobody knows or a value that cannot be, with its place in the file.
    """
    planned: dict[str, PlannedTraining] = {}
    for number, mapping in enumerate(spec.train):
        where = f"train[{number}]"
        for point in _points(mapping, where):
            for base in _chosen(spec, point.pop("models", None), where):
                training = _training(base, point, where)
                bounded(len(planned) + 1, where, "trainings")
                twin = planned.setdefault(_mark(training), training)
                if twin is not training:
                    log.info("%s and %s name the same training of %s; it is done once", twin.where, where, base.name)
    return list(planned.values())


def _points(mapping: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The points of one training grid. Methods come first: they say which settings are lists by nature."""
    for name in _SWEEPS_OWN:
        if name in mapping:
            raise UsageError(f"{where}.{name}: not here; {_INSTEAD.get(name, 'the sweep sets it')}")
    own = mapping.get("options", {})
    if not isinstance(own, Mapping):
        raise UsageError(f"{where}.options={own!r}: expected a mapping of the method's settings")
    if "method" not in mapping:
        known = ", ".join(registry().names("trainer"))
        raise UsageError(f"{where}: no method named; give method, one of {known}")
    flat = {name: value for name, value in {**mapping, **own}.items() if name != "options"}
    points = []
    for start in expand({"method": flat.pop("method")}, where):
        method = start["method"]
        try:
            settings = registry().get("trainer", str(method)).load().Options.model_fields
        except UsageError as error:
            raise UsageError(f"{where}.method: {error}") from error
        for name in flat:
            if name not in settings and name not in TrainSpec.model_fields and name != "models":
                near = suggestion(name, [*TrainSpec.model_fields, *settings])
                raise UsageError(f"{where}.{name}: neither a training setting nor one of {method}{near}")
        lists = _lists({**TrainSpec.model_fields, **settings}) | {"models"}
        points += [{"method": method, **point} for point in expand(flat, where, lists)]
        bounded(len(points), where)
    return points


def _training(base: SweepModel, point: Mapping[str, Any], where: str) -> PlannedTraining:
    given = {name: value for name, value in point.items() if value is not None}
    common = {name: value for name, value in given.items() if name in TrainSpec.model_fields}
    options = {name: value for name, value in given.items() if name not in common}
    try:
        spec = train_spec(**{**base.opening(), **common}, options=options, output_path="-")
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    defaults = {name: item.default for name, item in TrainSpec.model_fields.items()}
    settings = {name: getattr(spec, name) for name in TrainSpec.model_fields if name in common}
    settings = {k: v for k, v in settings.items() if v != defaults[k] and k not in HOW | _ELSEWHERE}
    return PlannedTraining(base, spec, {**settings, **dict(sorted(options.items())), "seed": spec.seed}, where)


HOW = frozenset({"device", "report_to", "logging_steps", "save_steps", "save_total_limit"})
"""How a training is done and reported: with others of these it is the same training, by the same name."""
_ELSEWHERE = frozenset({"method", "data", "task", "seed"})
"""Settings that a training's name has in another place."""


def _mark(training: PlannedTraining) -> str:
    return fingerprint.digest([training.base.name, training.spec.model_dump(mode="json")], 32)


def evaluations(spec: SweepSpec) -> list[PlannedEvaluation]:
    """Every evaluation; a list where one value belongs (``gen_kwargs: {steps: [16, 32]}``) is a grid axis, too.

    Raises:
        UsageError: no task, a field that nobody knows, a value that cannot be, with its place in the file.
    """
    planned = []
    for number, mapping in enumerate(spec.eval):
        where = f"eval[{number}]" if len(spec.eval) > 1 else "eval"
        lists = _lists(RunSpec.model_fields) | {"models", "suite", "recipe", "samples"}
        nested: Named = dict.fromkeys(_NESTED, _lists(Decoding.model_fields))
        for point in expand(mapping, where, lists, nested):
            _chosen(spec, models := point.pop("models", None), where)
            name = point.pop("name", None)
            fields = _evaluation(point, where)
            names = (models,) if isinstance(models, str) else tuple(models or ())
            planned.append(PlannedEvaluation(fields, where, str(name) if name is not None else None, names))
        bounded(len(planned), where, "evaluations")
    return planned


def _evaluation(point: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in point:
        if name in _NOT_OF_EVALS:
            raise UsageError(f"{where}.{name}: not here; the sweep sets it")
    for word in ("tasks", "suite", "recipe"):
        if isinstance(point.get(word), list):
            point = {**point, word: ",".join(map(str, point[word]))}
    if point.get("tasks") and point.get("suite"):
        raise UsageError(f"{where}: tasks and suite are one setting by two names; give one of them, or two evaluations")
    try:
        fields = {name: value for name, value in run_fields(None, point).items() if value not in (None, {})}
        for name in fields:
            if name not in RunSpec.model_fields:
                near = suggestion(name, [*RunSpec.model_fields, *_EVAL_WORDS])
                raise UsageError(f"unknown setting {name!r}{near} (decoding fields stand in gen_kwargs)")
        if not fields.get("tasks") and not fields.get("recipe"):
            raise UsageError("nothing to evaluate: give tasks, suite or recipe")
        for run in plan({**fields, "model": "-"}):
            run_spec(**run.fields)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return fields


def _chosen(spec: SweepSpec, names: Any, where: str) -> Sequence[SweepModel]:
    """The checkpoints that an entry is for: those it names, or all."""
    if names is None:
        return spec.models
    wanted = [names] if isinstance(names, str) else names
    if not isinstance(wanted, list | tuple) or not all(isinstance(name, str) for name in wanted):
        raise UsageError(f"{where}.models={names!r}: expected names of this sweep's models")
    known = {name: model for model in spec.models for name in (model.model, model.name)}
    for name in wanted:
        if name not in known:
            have = ", ".join(model.name for model in spec.models)
            raise UsageError(f"{where}.models: {name!r} is none of this sweep's models ({have})")
    return list({known[name].name: known[name] for name in wanted}.values())


def _lists(fields: Mapping[str, Any]) -> frozenset[str]:
    """The fields whose value is a list by nature."""

    def many(annotation: Any) -> bool:
        origin = get_origin(annotation)
        if origin in (Union, types.UnionType):
            return any(many(part) for part in get_args(annotation))
        return (origin or annotation) in (tuple, list, set, frozenset, dict)

    return frozenset(name for name, item in fields.items() if many(item.annotation))
