"""What a trainer is handed beside model and data: other models, rewards, evaluations, the lineage of checkpoints. The
evaluations are checked once the model is open and before data is read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.engine.evaluate import evaluate_all, resolve_spec
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.identity import same_evaluation
from dare_bench.engine.opener import open_checkpoint
from dare_bench.engine.plan import plan
from dare_bench.errors import DataError, RunError, UsageError, unknown
from dare_bench.loading import locate
from dare_bench.log import log
from dare_bench.protocols import LoadedModel, TaskSource
from dare_bench.run_fields import run_fields
from dare_bench.runs import lineage
from dare_bench.runs.reader import Run
from dare_bench.training.rewards import NO_FUNCTIONS, Functions, rewards
from dare_bench.training.rollout_engine import sampled_by
from dare_bench.training.spec import TrainSpec
from dare_bench.types import CheckpointSettings, Reward, RewardPrompt


def checked(spec: TrainSpec, kind: Any, model: LoadedModel) -> TrainSpec:
    """The settings with the direction of the best checkpoint's metric, unless the user has given it: as the method
    ``kind`` or the task declares it, else by its name. Raises UsageError, DataError: none of the planned evaluations is
    possible, or none has the metric."""
    planned = evaluations(spec)
    metrics: dict[str, bool | None] = dict(kind.validation_metrics) if spec.validation_data else {}
    refused: list[Exception] = []
    all_known = True
    for settings, source_class in planned:
        try:
            source = source_class(settings, model)
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


def evaluations(spec: TrainSpec) -> list[tuple[RunSpec, type[TaskSource]]]:
    """The settings of the planned evaluations, and their harnesses, without those that are refused without a model;
    raises UsageError or DataError if all are."""
    accepted, refused = [], list[Exception]()
    for run in plan(evaluation_fields(spec, {"model": spec.model})) if spec.eval else ():
        try:
            settings = resolve_spec(None, None, {**run.fields, "limit": 1, "samples": None})[0]
            accepted.append((settings, checked_harness(settings)))
        except (UsageError, DataError) as error:
            refused.append(error)
    if refused and not accepted:
        raise refused[0]
    return accepted


def evaluation_fields(spec: TrainSpec, model: dict[str, Any]) -> dict[str, Any]:
    """The fields of the evaluation of a model."""
    opened = {**opening(spec), "model_args": spec.model_args, "adapter": None, **model}
    given = {name: value for name, value in opened.items() if value}
    return {**given, **run_fields(None, spec.eval), "output_path": str(Path(spec.output_path) / "runs")}


def opening(spec: TrainSpec) -> dict[str, Any]:
    """The settings with which a training opens checkpoints, besides those in ``model_args``."""
    return {name: getattr(spec, name) for name in CheckpointSettings.model_fields if name in TrainSpec.model_fields}


class TrainingServices:
    """The engine's services for a trainer (see ``protocols.Services``)."""

    def __init__(
        self, spec: TrainSpec, settings: dict[str, Any], method: Any, functions: Functions = NO_FUNCTIONS
    ) -> None:
        self.spec, self.settings, self.method, self.functions = spec, settings, method, functions
        self._runs: dict[Path, tuple[int, Run]] = {}
        """The runs of evaluations by folder, with the step of the checkpoint; -1: of the starting checkpoint."""
        self.refused: list[str] = []
        self._parents = lineage.read(locate(spec.adapter or spec.model))

    def open(self, checkpoint: str | None) -> LoadedModel:
        """Another model, opened with this training's settings; None: the starting checkpoint."""
        other = {} if checkpoint is None else {"model": checkpoint, "adapter": None}
        model: LoadedModel = open_model(self.spec.model_copy(update=other)).loaded
        return model

    def rewards(
        self, prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]
    ) -> list[Reward]:
        """The rewards of answers, by the name in each prompt or with the weights of the method's options."""
        own = self.method.options
        given = {"weights": own.reward_weights, "functions": self.functions, "seconds": own.reward_timeout}
        return rewards(prompts, texts, options, **given)

    @property
    def runs(self) -> list[Run]:
        """The runs of all evaluations, base first, then by step."""
        return [run for _, run in sorted(self._runs.values(), key=lambda pair: pair[0])]

    def evaluate_base(self) -> None:
        """Evaluate the starting checkpoint."""
        self._evaluate({"model": self.spec.model, "adapter": self.spec.adapter}, -1)

    def evaluate_final(self, checkpoint: Path) -> None:
        """Evaluate the final checkpoint, unless the trainer has."""
        step = int((lineage.read(checkpoint) or {})["step"])
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
        runs = []
        for outcome in evaluate_all(plan(evaluation_fields(self.spec, model))) if self.spec.eval else ():
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
                step = origin.get("step")
                if (
                    of_this_training
                    and isinstance(step, int)
                    and any(same_evaluation(run.requested, r) for r in requested)
                ):
                    self._runs.setdefault(path, (step, run))

    def lineage(
        self,
        folder: Path,
        step: int,
        steps: int,
        counts: Mapping[str, Mapping[str, int]] | None = None,
        canvas_lengths: tuple[int, int] | None = None,
    ) -> None:
        """Write ``lineage.json``; ``counts`` are not part of the settings, which tell trainings apart."""
        settings = dict(self.settings)
        own = ("base", "base_content", "base_adapter", "options", "data", "method", "peft", "data_hash", "seed")
        fields = {name: settings.pop(name) for name in own}
        ancestors = [*self._parents.get("parents", ()), self._parents] if self._parents else []
        parents = tuple({k: v for k, v in parent.items() if k != "parents"} for parent in ancestors)
        given: dict[str, Any] = {
            "step": step,
            "steps": steps,
            "canvas_lengths": canvas_lengths,
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


def open_model(spec: TrainSpec) -> Any:
    """The model in the dtype of training: trained weights are float32 by default."""
    dtype = spec.dtype or (None if spec.peft else "float32")
    arguments = {
        **opening(spec),
        "dtype": dtype,
        "compile": False,  # neither are steps captured, whose memory trainings need
        **spec.model_args,
        **({} if spec.quantize is None else {"quantize": spec.quantize}),
    }
    if arguments.get("quantize") is not None and (spec.peft is None or spec.fsdp):
        reason = "quantized weights are not trained; give --peft lora" if spec.peft is None else "FSDP cannot shard it"
        raise UsageError(f"quantize={arguments['quantize']!r}: {reason}, or leave it out")
    if arguments["device"] == "auto":
        raise UsageError(
            "device='auto' divides a model for evaluations only; a training has one device for each process (torchrun, "
            "--fsdp): give cuda, cpu or nothing"
        )
    return open_checkpoint(spec.model, arguments)
