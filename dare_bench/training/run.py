"""``dare_bench.train``: open a checkpoint, read data, train with a method, evaluate the result.

The same call resumes: training continues from the last complete checkpoint, finished evaluations are only read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from dare_bench import fingerprint
from dare_bench.engine.evaluate import evaluate_all, resolve_spec
from dare_bench.engine.hints import check
from dare_bench.engine.identity import same_evaluation
from dare_bench.engine.opening import open_checkpoint
from dare_bench.engine.plan import plan
from dare_bench.errors import DataError, RunError, TrainingError, UsageError
from dare_bench.keywords import TrainKeywords
from dare_bench.loading import base_and_adapter, family_of, locate
from dare_bench.protocols import AdapterSettings, LoadedModel
from dare_bench.reading import existing
from dare_bench.registry import registry
from dare_bench.run_fields import run_fields
from dare_bench.runs import lineage
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import held
from dare_bench.training import folder
from dare_bench.training.data import read_data
from dare_bench.training.files import RowTable, open_memory
from dare_bench.training.processes import check_heads, data_parallel_size, first_process
from dare_bench.training.rewards import check_rewards, rewards
from dare_bench.training.rollout_engine import open_rollout_engine, sampled_by
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec, train_spec
from dare_bench.training.tokens import histogram, tokenise
from dare_bench.types import Reward, RewardPrompt

log = logging.getLogger("dare_bench")

_NOT_IDENTITY = frozenset(
    {
        "output_path", "device", "report_to", "run_name", "logging_steps", "save_steps", "save_total_limit", "eval",
        "eval_every", "eval_on_start", "fsdp", "sequence_parallel_size", "per_device_train_batch_size",
        "gradient_accumulation_steps", "looks_per_forward", "model", "adapter", "data", "task", "options",
    }
)  # fmt: skip
"""Settings that do not define a training (place, division into micro-batches, output), or that are recorded
separately."""


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
            ``datasets.Dataset``; the spec then contains its name and a hash of its content.

    Raises:
        UsageError: unknown method, data or settings; an output folder of another training.
        DataError: malformed rows, by file and line.
        TrainingError: a loss that is not finite. CheckpointError, SaveError, MemoryLimitError: see the message.
    """
    memory = None
    if not isinstance(fields.get("data"), str | os.PathLike | None):
        memory = open_memory(fields["data"])
        fields["data"] = memory.name
    spec = settle(spec, fields)
    began, out = time.perf_counter(), Path(spec.output_path)
    kind = registry().get("trainer", spec.method).load()
    spec = spec.with_defaults(kind)
    data_parallel_size(spec.sequence_parallel_size)  # raises before the model is opened
    with contextlib.ExitStack() as stack:
        existed = existing(out) is not None
        if existed:
            stack.enter_context(_held(out))
        training = open_training(spec, kind, memory)
        model, method, data = training.model, training.method, training.data
        settings, services = training.settings, training.services
        _report_lengths(data)
        if not folder.is_trained(out, settings):
            training.open_rollout_engine()
        method.check(spec, model.loaded, data)
        if data.records:
            check_rewards(data.records, method.options.reward)
        _report_padding(method.resolved_options(), data)
        if not existed:  # a training that is refused leaves no folder
            stack.enter_context(_held(out))
        given = {"spec": spec.model_dump(mode="json")}
        status = folder.claim(out, settings, given) if first_process() else folder.status(out, settings)
        trained = status == "complete" or folder.is_trained(out, settings)  # the latter: killed while evaluating
        if trained and folder.was_stripped(out):
            raise TrainingError(
                f"{out} holds this training without its weights, so that nothing can be evaluated or trained "
                "further; choose another --output-path, or remove the folder to train again"
            )
        if spec.eval_on_start and first_process():
            services.evaluate_base()
        if trained:
            log.info("trained already: %s", out)
        else:
            services.check(model.loaded)
            training.add_adapter()
            method.fit(spec, model.loaded, data, out, services)
        del model, training
        seconds = time.perf_counter() - began
        if first_process():
            services.evaluate_final(out, spec.steps(settings["items"], settings["batch"]))
            services.list_earlier()
            folder.finish(out, settings, {**given, "seconds": round(seconds, 1)})
    return Trained(out, tuple(services.runs), tuple(services.refused), time.perf_counter() - began)


@dataclass(frozen=True)
class OpenTraining:
    """A training before its first step: the opened model (without a new adapter), the method and its data."""

    spec: TrainSpec
    model: Any
    method: Any
    data: Tokens
    settings: dict[str, Any]
    """The settings that define it."""
    services: _Services

    def open_rollout_engine(self) -> None:
        """Connect to the engine that samples completions, if the settings name one."""
        self.method.engine = open_rollout_engine(self.method.options, self.model)

    def add_adapter(self) -> None:
        """Make the adapter that is trained, if one is."""
        spec, loaded = self.spec, self.model.loaded
        if spec.adapter:
            _thaw(loaded.network)
        elif spec.peft:
            lora = (spec.lora_r, spec.lora_alpha, spec.lora_dropout, spec.lora_targets)
            loaded.add_adapter(AdapterSettings(*lora, spec.seed))


def open_training(spec: TrainSpec, kind: Any, memory: RowTable | None = None) -> OpenTraining:
    """Open the model and data of a training by the method ``kind``; raises as :func:`train`."""
    model = _open(spec)
    check_heads(model.spec, spec.sequence_parallel_size)
    method = kind(kind.settle(spec.options, model.spec), model.spec, None)  # raises before data is read
    data = tokenise(read_data(spec, kind.reads, memory), model.loaded, spec)
    method = kind(method.options, model.spec, data.canvas)
    settings = _identity(spec, method, data)
    return OpenTraining(spec, model, method, data, settings, _Services(spec, settings, method))


def settle(spec: TrainSpec | None, fields: Mapping[str, Any]) -> TrainSpec:
    """The spec with ``fields`` over it, and the base model of an adapter as the model to start from."""
    merged = combined(spec, fields)
    base, adapter = base_and_adapter(merged.model, merged.adapter)
    if adapter is not None and merged.peft is None:
        raise UsageError(f"{adapter} is an adapter; give --peft lora to train it further, or merge it (export merge)")
    refuse_untrainable(locate(base), merged.family)
    return merged.model_copy(update={"model": base, "adapter": adapter})


def refuse_untrainable(checkpoint: Path, family: str | None) -> None:
    """Raise UsageError for a checkpoint of a family that no method trains."""
    entry = family_of(checkpoint, family)
    if not entry.about.get("trains", True):
        raise UsageError(
            f"{checkpoint} is of the family {entry.name!r}, which no method trains: all methods here train masked "
            "diffusion models; give a checkpoint of such a family (dare-bench ls models)"
        )


def combined(spec: TrainSpec | None, fields: Mapping[str, Any]) -> TrainSpec:
    """The spec with ``fields`` over it; fields it does not have are options of the method."""
    given = spec.model_dump() if spec is not None else {}
    for name, value in fields.items():
        if name in TrainSpec.model_fields:
            given[name] = str(value) if name == "data" and value is not None else value
    options = {name: value for name, value in fields.items() if name not in TrainSpec.model_fields}
    given["options"] = {**given.get("options", {}), **options}
    return train_spec(**given)


def _held(out: Path) -> contextlib.AbstractContextManager[None]:
    """Lock the output folder for one training at a time; the first process holds the lock for all."""
    busy = f"{out} is being trained by another process; wait, or choose another folder"
    return held(out, busy) if first_process() else contextlib.nullcontext()


def _open(spec: TrainSpec) -> Any:
    """The model in the dtype of training: trained weights are float32 by default."""
    dtype = spec.dtype or (None if spec.peft else "float32")
    named = {"adapter": spec.adapter, "device": spec.device, "dtype": dtype, "family": spec.family}
    arguments = {**named, **spec.model_args}
    if arguments.get("quantize") is not None:
        raise UsageError(f"quantize={arguments['quantize']!r}: quantized weights are not trained; leave it out")
    if arguments["device"] == "auto":
        raise UsageError(
            "device='auto' divides a model for evaluations only; a training has one device for each process (torchrun, "
            "--fsdp): give cuda, cpu or nothing"
        )
    return open_checkpoint(spec.model, arguments)


def _thaw(network: Any) -> None:
    """Make the weights of an opened adapter trainable."""
    for name, weight in network.named_parameters():
        weight.requires_grad_("lora_" in name)


def _report_lengths(data: Tokens) -> None:
    """Log the lengths of the rows."""
    if first_process():
        for line in histogram(data).split("\n"):
            log.info("%s", line)


def _report_padding(options: Any, data: Tokens) -> None:
    """Log what follows the answers, as resolved."""
    longest = max(len(row.answer) for item in data.items for row in item)
    if first_process() and longest:
        names = ("padding", "canvas_length", "max_pads")
        values = " ".join(f"{name}={getattr(options, name)}" for name in names)
        end = "" if options.canvas_length or options.padding == "masked_out" else "; rows end with a block"
        log.info("%s (the longest answer has %d tokens%s)", values, longest, end)


def _identity(spec: TrainSpec, method: Any, data: Tokens) -> dict[str, Any]:
    """The settings that define a training. The batch size does, its division into micro-batches and processes not."""
    settings = spec.model_dump(mode="json", exclude=set(_NOT_IDENTITY))
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


class _Services:
    """The engine's services for a trainer (see ``protocols.Services``)."""

    def __init__(self, spec: TrainSpec, settings: dict[str, Any], method: Any) -> None:
        self.spec, self.settings, self.method = spec, settings, method
        self._runs: dict[Path, tuple[int, Run]] = {}
        """The runs of evaluations by folder, with the step of the checkpoint; -1: of the starting checkpoint."""
        self.refused: list[str] = []
        self._parents = lineage.read(locate(spec.adapter or spec.model))

    def check(self, model: LoadedModel) -> None:
        """Raise UsageError or DataError before training if none of the planned evaluations is possible."""
        planned = plan(self._fields({"model": self.spec.model})) if self.spec.eval else []
        refused: list[Exception] = []
        for run in planned:
            try:
                spec = resolve_spec(None, None, {**run.fields, "limit": 1, "samples": None})[0]
                source = registry().get("harness", spec.harness).load()
                check(source, spec)
                source(spec, model).requests()
            except (UsageError, DataError) as error:
                refused.append(error)
        if refused and len(refused) == len(planned):
            raise refused[0]

    def open(self, checkpoint: str | None) -> LoadedModel:
        """Another model, opened with this training's settings; None: the starting checkpoint."""
        other = {} if checkpoint is None else {"model": checkpoint, "adapter": None}
        model: LoadedModel = _open(self.spec.model_copy(update=other)).loaded
        return model

    def rewards(
        self, prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]
    ) -> list[Reward]:
        """The rewards of answers, by the name in each prompt."""
        return rewards(prompts, texts, options)

    @property
    def runs(self) -> list[Run]:
        """The runs of all evaluations, base first, then by step."""
        return [run for _, run in sorted(self._runs.values(), key=lambda pair: pair[0])]

    def evaluate_base(self) -> None:
        """Evaluate the starting checkpoint."""
        self._evaluate({"model": self.spec.model, "adapter": self.spec.adapter}, -1)

    def evaluate_final(self, checkpoint: Path, step: int) -> None:
        """Evaluate the final checkpoint, unless the trainer has."""
        if not any(step == evaluated for evaluated, _ in self._runs.values()):
            self.evaluate(checkpoint, step)

    def evaluate(self, checkpoint: Path, step: int) -> dict[str, float]:
        """Evaluate the saved checkpoint of a step, if the settings include evaluations; returns the scores by
        ``TASK/METRIC``, followed by the filter if there is one."""
        runs = self._evaluate({"model": str(checkpoint)}, step)
        return {
            f"{score.task}/{score.key.removesuffix(',none')}": score.value for run in runs for score in run.scores()
        }

    def _evaluate(self, model: dict[str, Any], step: int) -> list[Run]:
        opened = {"family": self.spec.family, "model_args": self.spec.model_args, **model}
        runs = []
        for outcome in evaluate_all(plan(self._fields(opened))) if self.spec.eval else ():
            if outcome.run is not None:
                runs.append(outcome.run)
                self._runs[outcome.run.path] = (step, outcome.run)
                continue
            reason = ": ".join(part for part in (outcome.planned.name, str(outcome.reason)) if part)
            if reason not in self.refused:
                self.refused.append(reason)
                log.warning("%s", reason)
        return runs

    def list_earlier(self) -> None:
        """Add the evaluations of earlier calls, also those of checkpoints that have been removed since."""
        requested = [run.requested for run in self.runs]
        for path in sorted((Path(self.spec.output_path) / "runs").glob("*/")) if requested else ():
            with contextlib.suppress(RunError):
                run = Run(path)
                origin = (run.block.model.lineage if run.block is not None else None) or {}
                of_this_training = all(origin.get(n) == self.settings[n] for n in ("base_content", "data_hash", "seed"))
                if of_this_training and any(same_evaluation(run.requested, other) for other in requested):
                    self._runs.setdefault(path, (origin["step"], run))

    def _fields(self, model: dict[str, Any]) -> dict[str, Any]:
        """The fields of the evaluation of a model."""
        opened = {"device": self.spec.device, "dtype": self.spec.dtype, **model}
        given = {name: value for name, value in opened.items() if value}
        runs = str(Path(self.spec.output_path) / "runs")
        return {**given, **run_fields(None, self.spec.eval), "output_path": runs}

    def lineage(
        self, folder: Path, step: int, steps: int, counts: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """Write ``lineage.json``; ``counts`` are no settings: trainings are not told apart by them."""
        settings = dict(self.settings)
        own = ("base", "base_content", "base_adapter", "options", "data", "method", "peft", "data_hash", "seed")
        fields = {name: settings.pop(name) for name in own}
        ancestors = [*self._parents.get("parents", ()), self._parents] if self._parents else []
        parents = tuple({k: v for k, v in parent.items() if k != "parents"} for parent in ancestors)
        given: dict[str, Any] = {
            "step": step,
            "steps": steps,
            "sequence_parallel_size": self.spec.sequence_parallel_size,
            **sampled_by(self.method, counts or {}),
            "settings": settings,
            "parents": parents,
        }
        lineage.write(folder, lineage.Lineage(**fields, **given))

    def counts(self, folder: Path) -> dict[str, dict[str, int]] | None:
        """The forwards and tokens by phase in a checkpoint's ``lineage.json``."""
        record = lineage.read(folder)
        return None if record is None else lineage.counts(record)
