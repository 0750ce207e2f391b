"""A training before its first step: its settings, the model, the method and the data; opened to be run, or again to
replay one of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dare_bench import fingerprint, loading
from dare_bench.engine.hints import refuse_unknown_fields
from dare_bench.errors import TrainingError, UsageError
from dare_bench.loading import base_and_adapter, locate, refuse_untrainable
from dare_bench.log import log
from dare_bench.protocols import AdapterSettings
from dare_bench.registry import registry
from dare_bench.run_fields import run_fields
from dare_bench.training import folder
from dare_bench.training.data import check_columns, read_data
from dare_bench.training.files import RowTable
from dare_bench.training.methods import options_of, valid_options
from dare_bench.training.processes import check_heads, data_parallel_size
from dare_bench.training.reward_functions import identity
from dare_bench.training.rewards import NO_FUNCTIONS, Functions
from dare_bench.training.rollout_engine import open_rollout_engine
from dare_bench.training.rows import Tokens
from dare_bench.training.services import TrainingServices, checked, evaluations, open_model, opening
from dare_bench.training.spec import BEST, DEFAULTS, TrainSpec, check_trackers, train_spec
from dare_bench.training.tokens import tokenize

_NOT_IDENTITY = frozenset(
    {
        "output_path", "device", "report_to", "run_name", "logging_steps", "save_steps", "save_total_limit", "eval",
        "eval_every", "eval_on_start", "fsdp", "sequence_parallel_size", "per_device_train_batch_size",
        "gradient_accumulation_steps", "micro_batch_size", "model", "adapter", "data", "validation_data", "task",
        "options",
    }
)  # fmt: skip
"""Settings that do not define a training (place, division into micro-batches, output), or that are recorded
separately."""

_RESOLVED = frozenset({*DEFAULTS, "learning_rate", "min_lr_rate", "family", "greater_is_better", "rollout"})
"""Settings that method, model or data complete: what was not given is not compared before they are known."""


@dataclass(frozen=True)
class OpenTraining:
    """A training before its first step: the opened model (without a new adapter), the method and its data."""

    spec: TrainSpec
    model: Any
    method: Any
    data: Tokens
    settings: dict[str, Any]
    """The settings that define it."""
    services: TrainingServices

    def open_rollout_engine(self) -> None:
        """Connect to the engine that samples completions, if the settings name one."""
        self.method.engine = open_rollout_engine(self.method.options, self.model)

    def add_adapter(self) -> None:
        """Make the adapter that is trained, if one is."""
        spec, loaded = self.spec, self.model.loaded
        if spec.adapter:
            for name, weight in loaded.network.named_parameters():
                weight.requires_grad_("lora_" in name)
        elif spec.peft:
            loaded.add_adapter(AdapterSettings(*spec.lora, spec.seed))


def open_training(
    spec: TrainSpec,
    kind: Any,
    memory: RowTable | None = None,
    functions: Functions = NO_FUNCTIONS,
    evaluates: bool = False,
) -> OpenTraining:
    """Open the model and data of a training by the method ``kind``, with rewards that are functions, and check its
    evaluations if it ``evaluates``; raises as :func:`train`."""
    model = open_model(spec)
    check_heads(model.spec, spec.sequence_parallel_size)
    method = kind(kind.settle(spec.options, model.spec), model.spec, None)  # raises before data is read
    if evaluates:
        spec = checked(spec, kind, model.loaded)
    data = tokenize(read_data(spec, kind.reads, memory), model.loaded, spec)
    method = kind(method.options, model.spec, data.canvas)
    settings = {**_identity(spec, method, data), **_rewards(method, functions)}
    if spec.validation_data is not None:
        if kind.reads == "prompts":
            raise UsageError(f"validation_data: {spec.method} learns from rewards; give eval_tasks instead")
        rows = spec.model_copy(update={"data": spec.validation_data, "task": None, "split": "validation", "rows": None})
        validation = tokenize(read_data(rows, kind.reads), model.loaded, rows)
        data, settings["validation_hash"] = replace(data, validation=validation), validation.hash
    return OpenTraining(spec, model, method, data, settings, TrainingServices(spec, settings, method, functions))


def refuse_early(spec: TrainSpec, memory: RowTable | None = None) -> None:
    """Refuse what is seen without torch, before a checkpoint is fetched or opened: settings of the method, columns of
    the data, names of tasks, an output folder with something else. Raises as :func:`~dare_bench.training.run.train`."""
    entry = registry().get("trainer", spec.method)
    loading.refuse_unknown_opening({**opening(spec), **spec.model_args})
    check_trackers(spec.report_to)
    options: dict[str, Any] = {}
    if "options" in entry.about:
        valid = valid_options(spec.method, options_of(entry), spec.options)
        try:
            refuse_unknown_fields(getattr(valid, "rollout", {}), recorded=True)
        except UsageError as error:
            raise type(error)(f"the rollout of {spec.method}: {error}") from error
        options = valid.model_dump(mode="json", include=set(spec.options) - _RESOLVED)
    settings = {name: v for name, v in _defining(spec).items() if v is not None or name not in _RESOLVED}
    folder.refuse_other(Path(spec.output_path), settings, options)
    if spec.task is not None:
        registry().get("training_data", spec.task)
    if "reads" in entry.about:
        check_columns(spec, entry.about["reads"], memory)
    evaluations(spec)


def settle(spec: TrainSpec) -> TrainSpec:
    """The settings with the base model of an adapter as the model to start from."""
    base, adapter = base_and_adapter(spec.model, spec.adapter)
    if adapter is not None and spec.peft is None:
        raise UsageError(f"{adapter} is an adapter; give --peft lora to train it further, or merge it (export merge)")
    entry = refuse_untrainable(locate(base), spec.family)
    # Where a name has said which family it is, the folders of the training have other names.
    family = entry.name if "shares" in entry.about else spec.family
    return spec.model_copy(update={"model": base, "adapter": adapter, "family": family})


def combined(spec: TrainSpec | None, fields: Mapping[str, Any]) -> TrainSpec:
    """The spec with ``fields`` over it; fields it does not have are options of the method."""
    given = spec.model_dump() if spec is not None else {}
    for name, value in fields.items():
        if name in TrainSpec.model_fields:
            given[name] = str(value) if name == "data" and value is not None else value
    options = {name: value for name, value in fields.items() if name not in TrainSpec.model_fields}
    given["options"] = {**given.get("options", {}), **options}
    return train_spec(**given)


def _identity(spec: TrainSpec, method: Any, data: Tokens) -> dict[str, Any]:
    """The settings that define a training. The batch size does, its division into micro-batches and processes not."""
    settings = _defining(spec)
    metric = (spec.best_metric or "eval_loss").removeprefix("eval_")
    if metric not in method.validation_metrics:  # checkpoints are compared by the scores of this evaluation
        settings["eval"] = run_fields(None, spec.eval)
    items = len(data.items) * method.uses_of_item
    processes = data_parallel_size(spec.sequence_parallel_size)
    batch = spec.rows_per_forward * spec.gradient_accumulation_steps * processes
    engine: str | None = getattr(method.options, "rollout_engine", None)
    return {
        **settings,
        **({} if engine is None else {"rollout_engine": engine}),
        "base": fingerprint.model_name(spec.model),
        "base_content": fingerprint.content_hash(locate(spec.model)),
        "base_adapter": fingerprint.content_hash(locate(spec.adapter)) if spec.adapter else None,
        "reference_content": fingerprint.content_hash(locate(method.reference)) if method.reference else None,
        "options": method.resolved_options(spec.steps(items, batch)).model_dump(mode="json"),
        "data": data.name,
        "data_hash": data.hash,
        "items": items,
        "batch": batch,
    }


def _defining(spec: TrainSpec) -> dict[str, Any]:
    """The settings that define a training by themselves."""
    unset = {name for name in BEST if getattr(spec, name) == TrainSpec.model_fields[name].default}
    return spec.model_dump(mode="json", exclude={*_NOT_IDENTITY, *unset})


def _rewards(method: Any, functions: Functions) -> dict[str, Any]:
    """What identifies the rewards, where the rows do not name them."""
    weights = getattr(method.options, "reward_weights", None)
    named = {"reward_functions": {name: identity(function) for name, function in functions.items()}}
    return {**({"reward_weights": dict(weights)} if weights else {}), **(named if functions else {})}


_CONTENT = {"base_content": "the starting checkpoint", "base_adapter": "the starting adapter", "data_hash": "the data",
            "reference_content": "the reference"}  # fmt: skip
"""Recorded hashes, and of what they are."""


def replay(out: Path, step: int, model: str | None = None) -> dict[str, Any]:
    """Replay a step (counted from 1) of the training in ``out``.

    Args:
        model: where the starting checkpoint is now, if it was moved.

    Returns:
        See :func:`dare_bench.trainers.rl.replay.replay`.

    Raises:
        UsageError: a method without rollouts, no such step, or one that cannot be replayed.
        TrainingError: the folder has no settings, or its data or starting checkpoint have changed.
    """
    if not (out / folder.FILE).is_file():
        raise UsageError(
            f"{str(out)!r} is not the output folder of a training (it has no {folder.FILE}); give its --output-path"
        )
    record = folder.read(out)
    fields, before = record.spec, record.settings
    if fields is None or before.batch is None:
        raise TrainingError(f"{out / folder.FILE} has no settings to replay from; train again with this version")
    alone = {"report_to": (), "fsdp": False, "sequence_parallel_size": 1, "output_path": str(out)}
    if (steps := folder.steps(record)) is not None and not 1 <= step <= steps:
        raise UsageError(f"step {step}: the training in {out} has the steps 1 to {steps}")
    fields = {name: value for name, value in fields.items() if name not in ("eval", "eval_every", *BEST)}
    spec = train_spec(**{**fields, **alone, **({"model": model} if model else {})})
    entry = registry().get("trainer", spec.method)
    if not (entry.about["reads"] == "prompts" if "reads" in entry.about else hasattr(entry.load(), "replay")):
        raise UsageError(
            f"{out} was trained by {spec.method}, which samples nothing; replay is for methods with rollouts"
        )
    options = {**before.model_dump(), **(before.options or {})}
    if steps is not None and "refuse_replay" in entry.about and isinstance(options.get("num_iterations"), int):
        entry.load("refuse_replay")(out, step, steps, options)
    log.info("opening %s, from which %s was trained", spec.model, out)
    kind = entry.load()
    opened = open_training(spec.with_defaults(kind), kind)
    recorded = before.model_dump()
    for name, what in _CONTENT.items():
        if opened.settings.get(name) != recorded.get(name):
            raise TrainingError(
                f"{what} of {out} is not what it was trained from ({name}); restore it, or give --model"
            )
    opened.add_adapter()
    replayed: dict[str, Any] = opened.method.replay(
        opened.spec, opened.model.loaded, opened.data, out, opened.services, step, before.batch
    )
    return replayed
