"""``dare_bench.train``: open a checkpoint, read data, train with a method, evaluate the result.

The same call resumes: training continues from the last complete checkpoint, finished evaluations are only read.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

from dare_bench.keywords import TrainKeywords
from dare_bench.log import log
from dare_bench.reading import existing
from dare_bench.registry import registry
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import held
from dare_bench.training import folder
from dare_bench.training.processes import data_parallel_size, first_process
from dare_bench.training.reward_functions import take_functions
from dare_bench.training.rewards import check_rewards
from dare_bench.training.rows import Tokens
from dare_bench.training.setup import combined, open_training, refuse_early, settle
from dare_bench.training.sources import open_memory
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import histogram


@dataclass(frozen=True)
class Trained:
    """A finished training: the folder of its checkpoint, and the runs of all evaluations with the requested settings,
    base first, then by step, those of earlier calls included."""

    path: Path
    runs: tuple[Run, ...]
    not_run: tuple[str, ...] = ()
    """Evaluations that were refused, with the reason."""
    seconds: float = 0.0


def train(spec: TrainSpec | None = None, **fields: Unpack[TrainKeywords]) -> Trained:
    """Train a checkpoint and evaluate the result.

    Args:
        spec: the settings; or give its fields by name: ``train(method="sft", model="tiny-llada-base",
            task="dare_sudoku", output_path="out/sft", max_steps=100, eval={"tasks": "dare_sudoku"})``. Fields that
            :class:`TrainSpec` does not have are options of the method. ``data`` may also be a list of dicts or a
            ``datasets.Dataset``; the spec then contains its name and a hash of its content. ``reward`` may also be a
            function, a list of functions and names, or a mapping of names to functions (docs/rewards.md).

    Raises:
        UsageError: unknown method, data or settings; an output folder of another training.
        DataError: malformed rows, by file and line.
        TrainingError: a loss that is not finite. CheckpointError, SaveError, MemoryLimitError: see the message.
    """
    memory, functions = None, take_functions(cast("dict[str, Any]", fields))
    if not isinstance(fields.get("data"), str | os.PathLike | None):
        memory = open_memory(fields["data"])
        fields["data"] = memory.name
    spec = combined(spec, fields)
    refuse_early(spec, memory)
    if first_process():  # before torch is imported, which takes seconds
        log.info("opening %s for %s in %s", spec.model, spec.method, spec.output_path)
    spec = settle(spec)
    began, out = time.perf_counter(), Path(spec.output_path)
    kind = registry().get("trainer", spec.method).load()
    spec = spec.with_defaults(kind)
    data_parallel_size(spec.sequence_parallel_size)  # raises before the model is opened
    with contextlib.ExitStack() as stack:
        existed = existing(out) is not None
        if existed:
            stack.enter_context(_held(out))
        training = open_training(spec, kind, memory, functions, evaluates=True)
        spec, model, method, data = training.spec, training.model, training.method, training.data
        settings, services = training.settings, training.services
        _report_lengths(data)
        missing = folder.missing(out)
        if missing or not folder.is_trained(out, settings):
            training.open_rollout_engine()
        method.check(spec, model.loaded, data)
        if data.records:
            weights = method.options.reward_weights
            check_rewards(data.records, method.options.reward, weights=weights, functions=functions)
        _report_padding(method.resolved_options(), data)
        if not existed:  # a training that is refused leaves no folder
            stack.enter_context(_held(out))
        given = {"spec": spec.model_dump(mode="json")}
        status = folder.claim(out, settings, given) if first_process() else folder.status(out, settings)
        trained = status == "complete" or folder.is_trained(out, settings)  # the latter: killed while evaluating
        if trained and missing:
            folder.check_resumable(out, missing)
        if spec.eval_on_start and first_process():
            services.evaluate_base()
        if trained and not missing:
            log.info("trained already: %s", out)
        else:
            training.add_adapter()
            method.fit(spec, model.loaded, data, out, services)
        del model, training
        seconds = time.perf_counter() - began
        if first_process():
            services.evaluate_final(out)
            services.list_earlier()
            folder.finish(out, settings, {**given, "seconds": round(seconds, 1)})
    return Trained(out, tuple(services.runs), tuple(services.refused), time.perf_counter() - began)


def _held(out: Path) -> contextlib.AbstractContextManager[None]:
    """Lock the output folder for one training at a time; the first process holds the lock for all."""
    busy = f"{out} is being trained by another process; wait, or choose another folder"
    return held(out, busy) if first_process() else contextlib.nullcontext()


def _report_lengths(data: Tokens) -> None:
    if first_process():
        for line in histogram(data).split("\n"):
            log.info("%s", line)


def _report_padding(options: Any, data: Tokens) -> None:
    longest = max(len(row.answer) for item in data.items for row in item)
    if first_process() and longest:
        end = {"drawn": "; the canvas of a row is drawn in each epoch", "eos_supervised": "; rows end with a block"}
        length = f" canvas_length={options.canvas_length}" if options.canvas_length else ""
        then = "" if options.canvas_length and options.padding != "drawn" else end.get(options.padding, "")
        log.info("padding=%s%s (the longest answer has %d tokens%s)", options.padding, length, longest, then)
