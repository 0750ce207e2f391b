"""What a trainer is handed beside model and data: other models, rewards, evaluations, the lineage of checkpoints."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench.engine.evaluate import evaluate_all
from dare_bench.engine.identity import same_evaluation
from dare_bench.engine.opener import open_checkpoint
from dare_bench.engine.plan import plan
from dare_bench.errors import RunError, UsageError
from dare_bench.loading import locate
from dare_bench.protocols import LoadedModel
from dare_bench.runs import lineage
from dare_bench.runs.reader import Run
from dare_bench.training.evaluations import evaluation_fields, opening
from dare_bench.training.rewards import NO_FUNCTIONS, Functions, rewards
from dare_bench.training.rollout_engine import sampled_by
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Reward, RewardPrompt

log = logging.getLogger("dare_bench")


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
        """Write ``lineage.json``; ``counts`` are no settings: trainings are not told apart by them."""
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
