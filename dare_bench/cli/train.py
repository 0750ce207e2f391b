"""``dare-bench train METHOD``: train a checkpoint, then evaluate it. The last line is the folder of the checkpoint.

The flags are the fields of :class:`TrainSpec` and the settings of the method, so that flag, YAML key and Python
argument always agree.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer
from pydantic.fields import FieldInfo

from dare_bench.cli.flags import of_field, parameter, switch, takes, with_values
from dare_bench.cli.guard import State, guarded
from dare_bench.cli.plain import echo, echo_json, log_to_stderr
from dare_bench.cli.words import Command
from dare_bench.config import parse_pairs, read_yaml
from dare_bench.errors import UsageError, suggestion
from dare_bench.registry import Registration, registry
from dare_bench.training.methods import options_of
from dare_bench.training.reward_functions import names_functions, reward_functions
from dare_bench.training.spec import DEFAULTS, TrainSpec

_DRY_RUN = {
    "processes": ("Number of processes, each with its GPU (default: torchrun's, else 1).", int, 1),
    "gpu": ("A100, H100 or H200 (default: H100).", str, None),
}
"""Settings of ``--dry-run``: help text, type and least value."""

app = typer.Typer(
    help="Train a checkpoint, then evaluate it. dare-bench train METHOD --help lists the settings.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_FLAGS = {"model": ("--model", "-m"), "output_path": ("--output-path", "-o")}
_EVALUATION = {
    "eval_tasks": ("Tasks on which checkpoints are evaluated, separated by commas.", str),
    "eval_suite": ("Suite on which checkpoints are evaluated (dare-bench ls suites).", str),
    "eval_limit": ("First N documents of each task, or a fraction of them.", str),
    "include_path": ("Folders with additional task files for the evaluation, separated by commas.", str),
    "eval_args": ("k=v,k=v: other settings of the evaluation (gen_length=..., repeats=...).", str),
}
"""Flags of the setting ``eval``: help text and type."""
_PANEL = {
    name: panel
    for panel, names in {
        "Data": "data task validation_data split rows max_length overlong",
        "Optimizer": "max_steps num_train_epochs per_device_train_batch_size gradient_accumulation_steps "
        "micro_batch_size learning_rate "
        "lr_scheduler_type min_lr_rate warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm "
        "seed",
        "Memory and processes": "gradient_checkpointing bf16 fsdp sequence_parallel_size",
        "Adapter": "peft adapter quantize lora_r lora_alpha lora_dropout lora_targets",
        "Checkpoints and logs": "save_steps save_total_limit logging_steps report_to run_name",
        "Evaluation": "eval_every eval_on_start metric_for_best_model greater_is_better load_best_model_at_end "
        "early_stopping_patience early_stopping_threshold",
    }.items()
    for name in names.split()
}
"""The panel of the help for a setting, in its order; settings without a panel come first."""


def add_commands(selected: str | None, documented: bool = False) -> None:
    """Add a command for each registered method, in place of those of an earlier call; the selected one gets its
    settings as flags. ``documented``: with the method's defaults in the help, for which it is imported."""
    app.registered_commands.clear()
    for entry in registry().entries("trainer"):
        about = str(entry.about.get("about", "")) or f"Train by {entry.name}."
        about = about[:1].upper() + about[1:]
        example = f"dare-bench train {entry.name} --model tiny-llada-base --task dare_sudoku --max-steps 100 -o out"
        app.command(entry.name, cls=Command, help=f"{about}.\n\nExample: {example}", short_help=about)(
            guarded(_command(entry, entry.name == selected, documented))
        )


def _command(entry: Registration, selected: bool, documented: bool) -> Callable[..., None]:
    """The function that typer reads: its parameters are the settings, those of the method only if it is selected."""
    options = dict(options_of(entry).model_fields) if selected else {}
    clash = sorted(options.keys() & {*TrainSpec.model_fields, *_EVALUATION, *_DRY_RUN, "dry_run"})
    if clash:
        raise UsageError(f"trainer {entry.name!r} has a setting {clash[0]!r}, which every training has; rename it")

    def command(**arguments: Any) -> None:
        json, dry_run = arguments.pop("json"), arguments.pop("dry_run")
        given = {name: value for name, value in arguments.items() if value is not None}
        hardware = {name: given.pop(name) for name in _DRY_RUN if name in given}
        if dry_run:
            _estimate(entry.name, options, given, hardware, json)
            return
        if hardware:
            raise UsageError(
                f"--{next(iter(hardware)).replace('_', '-')} belongs to --dry-run; give it too, or omit it"
            )
        _train(entry.name, options, given, json)

    order = ["model", "output_path", *[n for n in TrainSpec.model_fields if n not in _PANEL], *_PANEL]
    common = {n: TrainSpec.model_fields[n] for n in dict.fromkeys(order) if n not in ("method", "options", "eval")}
    if selected and documented:
        trainer = entry.load()
        options |= _with_variants(options, trainer)
        common = {name: _with_default(name, field, trainer) for name, field in common.items()}
    parameters = [
        parameter("config", str, "YAML file with these settings; options override it.", None, ("--config", "-C")),
        *[_of_field(name, field, _PANEL.get(name)) for name, field in common.items()],
        *[parameter(name, kind, text, "Evaluation") for name, (text, kind) in _EVALUATION.items()],
        *[_of_field(name, field, f"Settings of {entry.name}") for name, field in options.items()],
        switch("dry_run", "Print memory and time of a step on given GPUs, without training.", "Estimate"),
        *[parameter(name, kind, text, "Estimate", min=least) for name, (text, kind, least) in _DRY_RUN.items()],
        switch("json", "Print one JSON object instead of tables."),
    ]
    takes(command, parameters)
    command.__doc__ = None
    return command


def _with_variants(options: Mapping[str, FieldInfo], trainer: Any) -> dict[str, FieldInfo]:
    """The setting ``variant``, if a method has variants, with what each changes."""
    if not trainer.variants:
        return {}
    field = copy.copy(options["variant"])
    changes = [
        f"{name}: {' '.join(f'{option}={value}' for option, value in values.items())}."
        for name, values in trainer.variants.items()
    ]
    field.description = " ".join([field.description or "", *changes])
    return {"variant": field}


def _with_default(name: str, field: FieldInfo, trainer: Any) -> FieldInfo:
    """The field with the method's default in its help, if it has one."""
    default = {**DEFAULTS, **trainer.training_defaults}.get(name)
    text = None if default is None else f"default: {default}"
    if name == "learning_rate":
        text = f"default: {trainer.learning_rate:g}, with LoRA {trainer.lora_learning_rate:g}"
    if text is None:
        return field
    field = copy.copy(field)
    field.description = f"{(field.description or '').partition(' (default')[0].rstrip('.')} ({text})."
    return field


def _of_field(name: str, field: FieldInfo, panel: str | None) -> inspect.Parameter:
    field = copy.copy(field)
    field.description = with_values(field)
    return of_field(name, field, panel, _FLAGS.get(name, ()))


def _train(method: str, options: Mapping[str, FieldInfo], flags: dict[str, Any], json: bool) -> None:
    from dare_bench.cli.summary import incomplete, print_runs, record
    from dare_bench.training.processes import first_process
    from dare_bench.training.run import train

    fields = settings(method, options, flags)
    log_to_stderr()
    State.resume = "; run the same command to resume"
    trained = train(**fields)
    if not first_process():
        return
    if json:
        runs = [record(run) for run in trained.runs]
        echo_json({"path": str(trained.path), "runs": runs, "not_run": list(trained.not_run)})
    else:
        if trained.runs:
            print_runs([(run.path.name, run, None) for run in trained.runs], names="run")
        echo(trained.path)
    if trained.not_run or any(run.status != "complete" for run in trained.runs):
        raise incomplete(trained.runs, trained.not_run)


def _estimate(
    method: str, options: Mapping[str, FieldInfo], flags: dict[str, Any], hardware: Mapping[str, Any], json: bool
) -> None:
    from dare_bench.cli.dry_run import refuse_json, show_training
    from dare_bench.training.processes import first_process

    refuse_json(json)
    fields = settings(method, options, {**flags, "output_path": "-"})
    if first_process():
        show_training(fields, **hardware)


def settings(method: str, options: Mapping[str, FieldInfo], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``dare_bench.train``, from flags and the YAML file of ``--config``. ``options``: the method's
    settings. Raises UsageError: an unknown key, another method in the file, a setting given twice, a missing setting.
    """
    explicit = dict(flags)
    config = explicit.pop("config", None)
    from_file = _read_config(config, method, options) if config is not None else {}
    if {"data", "task"} & explicit.keys():
        from_file = {name: value for name, value in from_file.items() if name not in ("data", "task")}
    fields = {"method": method, **from_file, **explicit}
    evaluation = dict(fields.pop("eval", None) or {})
    for name in _EVALUATION:
        value = fields.pop(name, None)
        if value is not None:
            evaluation |= parse_pairs(value) if name == "eval_args" else {name.removeprefix("eval_"): value}
    fields["eval"] = evaluation
    if "model_args" in fields:
        fields["model_args"] = parse_pairs(fields["model_args"])
    if names_functions(fields.get("reward")):
        if "reward" not in explicit:
            raise UsageError(
                f"{config}: reward={fields['reward']!r:.80} is code, which a file of settings does not run; give it as "
                "--reward FILE.py:FUNCTION"
            )
        fields["reward"] = reward_functions(fields["reward"])
    for name in ("model", "output_path"):
        if name not in fields:
            about = (TrainSpec.model_fields[name].description or "").rstrip(".")
            raise UsageError(f"no {name.replace('_', ' ')}; give --{name.replace('_', '-')} ({about})")
    return fields


def _read_config(config: str, method: str, options: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The settings of a YAML file, without the method. Raises UsageError."""
    fields = read_yaml(config)
    if (other := fields.pop("method", method)) != method:
        raise UsageError(f"{config}: method={other!r}, but the command is train {method}; keep one of them")
    known = [*TrainSpec.model_fields, *options, *_EVALUATION]
    for name in fields:
        if name not in known:
            raise UsageError(f"{config}: unknown setting {name!r}{suggestion(name, known)}")
    for name, prefix in (("options", ""), ("eval", "eval_")):
        inner = fields.get(name)
        if inner is not None and not isinstance(inner, dict):
            raise UsageError(f"{config}: {name}={inner!r} is not a mapping; write {name}: {{setting: value}}")
        for key in inner or ():
            same = key if key in _EVALUATION else f"{prefix}{key}"
            if same in fields:
                raise UsageError(f"{config}: {same} and {key} within {name} are the same setting; keep one")
    return fields
