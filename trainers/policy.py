"""The model in training, as sources of steps that sample with it see it (``rl.rollout.Rollouts.attach``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from dare_bench.diffusion.lockstep import Lockstep
from dare_bench.trainers.checkpoints import writing_checkpoint
from dare_bench.trainers.steps import Step
from dare_bench.types import LoopStats, Request, Reward, RewardPrompt, Sample

if TYPE_CHECKING:
    from dare_bench.trainers.loop import Loop

Item = TypeVar("Item")
Result = TypeVar("Result")


class PolicyInTraining:
    """The model of a training loop. All processes make the same calls, in the same order."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.reference, self.phases = loop, loop.reference, loop.phases
        self.steps: int = loop.args.max_steps
        """Optimizer steps of the training."""
        self.has_dropout = loop.spec.lora_dropout > 0
        """Do the values of equal copies differ between optimizer steps?"""
        self.gather = loop.gather
        self.forwards = loop.loaded.forwards

    @property
    def version(self) -> int:
        """Optimizer steps before the present weights."""
        return int(self.loop.state.global_step)

    def write_weights(self, name: str) -> Path:
        """Write the weights, or the adapter, to the folder ``name`` of the training's output."""
        folder = Path(self.loop.args.output_dir, name).resolve()
        self.loop.save_model(str(folder))
        return folder

    def write_lines(self, name: str, lines: Sequence[str]) -> None:
        """Write the lines of all processes to the file ``name`` of the training's output, as a whole or not at all."""
        parts = self.gather(list(lines))
        if not self.loop.is_world_process_zero():
            return
        file = Path(self.loop.args.output_dir, name)
        with writing_checkpoint(file):
            file.parent.mkdir(exist_ok=True)
            unfinished = file.with_suffix(".tmp")
            unfinished.write_text("".join(line + "\n" for part in parts for line in part))
            unfinished.replace(file)

    def losses(self, step: Step) -> Tensor:
        """-log p of a step's scored tokens now, float32 [N] on the CPU."""
        self.loop.model_wrapped.train()
        return self.loop.forwards.values(self.loop.model_wrapped, step)

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Answers in the order of the requests."""
        answers: dict[str, Sample] = {}
        with self.phases.measure("rollout") as cost:
            for share, stats in self._divided(requests, self._generate):
                answers |= share
                cost.forwards, cost.tokens = cost.forwards + stats.row_forwards, cost.tokens + stats.tokens_processed
        return [answers[request.key] for request in requests]

    def _generate(self, requests: Sequence[Request]) -> tuple[dict[str, Sample], LoopStats]:
        """Answers by key, by the network in place: in evaluation mode, in the precision of the training, and in step
        with the other processes where weights are sharded."""
        loaded = self.loop.loaded
        network: Any = loaded.network
        steps = Lockstep(network) if self.loop.is_fsdp_enabled else contextlib.nullcontext(network)
        network.eval()
        loaded.weights_version = self.version
        answers, stats, rows = {}, LoopStats(), self.loop.spec.rows_per_forward
        try:
            with self.loop.accelerator.autocast(), steps as loaded.network:
                for sample in loaded.generate(requests, max_rows=rows, stats=stats):
                    answers[sample.request.key] = sample
        finally:
            loaded.network = network
            network.train()
        return answers, stats

    def rewards(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        """The rewards of answers."""
        options = self.loop.objective.options.reward

        def rewards(pairs: Sequence[tuple[RewardPrompt, str]]) -> list[Reward]:
            return self.loop.services.rewards([p for p, _ in pairs], [t for _, t in pairs], options)

        with self.phases.measure("reward"):
            shares = self._divided(list(zip(prompts, texts, strict=True)), rewards)
        return [shares[i % len(shares)][i // len(shares)] for i in range(len(prompts))]

    def _divided(self, items: Sequence[Item], compute: Callable[[Sequence[Item]], Result]) -> list[Result]:
        """The results of all shares of what the processes with the same rows divide: item i belongs to share i modulo
        their number."""
        sequence = self.loop.forwards.sequence
        return [compute(items)] if sequence is None else sequence.divided(items, compute)
