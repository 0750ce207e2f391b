"""``dare-bench eval``: evaluate a checkpoint. The last line on stdout is the path of the results file.

Its flags are the fields of :class:`RunSpec`, and the decoding fields that have flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dare_bench.cli.flags import of_field, parameter, switch, takes
from dare_bench.cli.guard import State
from dare_bench.cli.plain import echo_error, echo_json, log_to_stderr
from dare_bench.config import RunSpec
from dare_bench.run_fields import DECODING, ESTIMATOR, run_fields
from dare_bench.runs.text import counted
from dare_bench.types import CheckpointSettings

if TYPE_CHECKING:
    from dare_bench.engine.plan import PlannedRun

_PANELS: Mapping[str | None, str] = {
    None: " ".join(dict.fromkeys(["model", "adapter", "config", "model_args", *CheckpointSettings.model_fields])),
    "Engine": "engine engine_url engine_args",
    "Tasks": "tasks recipe harness num_fewshot limit until_halfwidth repeats samples include_path data_dir "
    "apply_chat_template fewshot_as_multiturn system_instruction",
    "Decoding (defaults come from the task and the family)": " ".join(
        ["decoding", *DECODING, "likelihood", "estimator"]
    ),
    "Run": "seeds max_rows devices executor ray_address output_path fresh log_samples unsafe_no_sandbox dry_run "
    "verbose json",
}
"""The settings by the panel of the help, in its order."""
_FLAGS = {
    "model": ("--model", "-m"),
    "model_args": ("--model-args", "-a"),
    "tasks": ("--tasks", "-t"),
    "num_fewshot": ("--num-fewshot", "-f"),
    "limit": ("--limit", "-L"),
    "decoding": ("--gen-kwargs",),
    "likelihood": ("--likelihood-args",),
    "seeds": ("--seed",),
    "max_rows": ("--max-rows", "--batch-size", "-b"),
    "output_path": ("--output-path", "-o"),
    "log_samples": ("--log-samples/--no-log-samples", "-s/ "),
    "unsafe_no_sandbox": ("--unsafe-no-sandbox",),
}
"""Flags of the fields that have another name, or several."""
_TEXT = frozenset({"max_rows", "apply_chat_template"})
"""Fields that also accept text: ``auto``, the name of a template."""
_MORE: Mapping[str, dict[str, Any]] = {
    "repeats": {"min": 1},
    "devices": {"min": 1},
    "data_dir": {"envvar": "DARE_BENCH_DATA"},
    "apply_chat_template": {"metavar": "[NAME]"},
}
"""Further arguments of ``typer.Option``."""


def evaluate(**options: Any) -> None:
    """Evaluate a checkpoint on tasks.

    The same command resumes an interrupted run, a larger --limit extends a run, and a finished run prints its stored
    results; a smaller --limit prints those of the requested documents.
    Exit codes: 0 finished, 1 failed, 2 usage error, 4 incomplete (samples failed, or runs of a suite are missing),
    130 interrupted (143 by SIGTERM, 129 by SIGHUP).

    Example: dare-bench eval --model tiny-llada --tasks dare_sudoku --limit 50
    """
    config, dry_run, verbose, json = (options.pop(name) for name in ("config", "dry_run", "verbose", "json"))
    fields = run_fields(config, options)
    log_to_stderr()
    if dry_run:
        from dare_bench.cli.dry_run import show

        show(fields, json, verbose)
        return
    State.resume = "; run the same command to resume" + (" (without --fresh)" if fields.get("fresh") else "")
    from dare_bench.engine.plan import plan

    planned = plan(fields)
    if len(planned) > 1:
        _evaluate_several(planned, json, verbose)
        return
    from dare_bench.cli.summary import incomplete, print_run, record
    from dare_bench.engine.evaluate import evaluate as evaluate_run

    run = evaluate_run(**planned[0].fields)
    if json:
        echo_json(record(run))
    else:
        print_run(run, verbose)
    if run.status != "complete":
        raise incomplete([run])


def _evaluate_several(planned: Sequence[PlannedRun], json: bool, verbose: bool) -> None:
    """Evaluate a suite or several recipes, one run after another with one model, then print all scores together. Raises
    IncompleteError: a run was refused, or samples failed."""
    from dare_bench.cli.summary import incomplete, print_runs, record
    from dare_bench.engine.evaluate import evaluate_all

    echo_error(f"{counted(len(planned), 'run')}: {', '.join(run.name for run in planned)}")
    outcomes = []
    for number, outcome in enumerate(evaluate_all(planned), start=1):
        outcomes.append(outcome)
        result = outcome.reason if outcome.run is None else outcome.run.results_file
        echo_error(f"[{number}/{len(planned)}] {outcome.planned.name}: {result}")
    runs = [outcome.run for outcome in outcomes if outcome.run is not None]
    reasons = [outcome.reason for outcome in outcomes if outcome.reason is not None]
    if json:
        echo_json(
            [
                {"name": o.planned.name, "run": record(o.run) if o.run is not None else None, "not_run": o.reason}
                for o in outcomes
            ]
        )
    else:
        noted = [
            f"{o.reason} ({o.planned.note})" if o.reason is not None and o.planned.note else o.reason for o in outcomes
        ]
        print_runs([(o.planned.name, o.run, reason) for o, reason in zip(outcomes, noted, strict=True)], verbose)
    if reasons or any(run.status != "complete" for run in runs):
        raise incomplete(runs, reasons)


def _parameters() -> Iterator[inspect.Parameter]:
    """The options of the command, in the order of its help."""
    for panel, names in _PANELS.items():
        for name in names.split():
            if name == "config":
                text = "YAML file with these settings; options override it."
                yield parameter(name, str, text, panel, ("--config", "-C"))
            elif name == "dry_run":
                yield switch(name, "Print settings, estimated cost and one prompt, without evaluating.", panel)
            elif name == "verbose":
                text = (
                    "Print all decoding and likelihood fields, not only those that differ from the family's defaults."
                )
                yield switch(name, text, panel, ("-v",))
            elif name == "json":
                yield switch(name, "Print one JSON object instead of tables.", panel)
            else:
                yield setting(name, panel)


def setting(name: str, panel: str | None) -> inspect.Parameter:
    """The option of a decoding field or of a field of :class:`RunSpec`."""
    flags, more = _FLAGS.get(name, ()), _MORE.get(name, {})
    if name in DECODING:
        kind, text = DECODING[name]
        return parameter(name, kind, text, panel)
    if name == "estimator":
        return parameter(name, str, ESTIMATOR, panel)
    if name in _TEXT:
        return parameter(name, str, RunSpec.model_fields[name].description or "", panel, flags, **more)
    return of_field(name, RunSpec.model_fields[name], panel, flags, **more)


takes(evaluate, _parameters())


def with_template_names(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a value after each ``--apply-chat-template`` that has none; typer has no optional values."""
    result = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        flag = argument.replace("_", "-")
        if flag == "--no-apply-chat-template":
            argument = "--apply-chat-template=false"
        elif flag == "--apply-chat-template" and following.startswith("-"):
            argument = "--apply-chat-template=true"
        result.append(argument)
    return result
