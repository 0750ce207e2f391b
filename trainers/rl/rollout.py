"""Rollouts: completions of prompts by the model in training, with rewards and advantages, as a source of steps.

A rollout serves ``num_iterations`` optimizer steps (inner iterations). Its completions are those of one optimizer step
in all processes, group by group; each process samples its slice. The completions of rollout k are a function of
(weights, seed, k). The rollout in use is part of a checkpoint, since the weights that sampled it are gone.

Shape letters: S completions of this process, B of all, P prompts, G completions of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dare_bench.errors import DareError, TrainingError, UsageError
from dare_bench.seeds import key, sample_key
from dare_bench.trainers.checkpoints import step_of
from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.completions_table import is_due, table_lines, table_name
from dare_bench.trainers.rl.rollout_file import (
    Rollout,
    read_prompts,
    read_rollout,
    write_prompts,
    write_rollout,
)
from dare_bench.trainers.rl.rollout_metrics import (
    Groups,
    Scored,
    group_metrics,
    numbers,
    redraw_metrics,
    reward_metrics,
    written_nll,
)
from dare_bench.trainers.rl.served import ServedSampler
from dare_bench.trainers.rl.surrogate import RolloutStep, Update, advantages
from dare_bench.trainers.steps import StepShape, StepSource, places
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Tokens
from dare_bench.types import Generation, Request, Reward, RewardPrompt


class Rollouts(StepSource):
    """Steps on rollouts (see :class:`dare_bench.trainers.steps.StepSource`). ``data``: prompts, with their records for
    the reward; ``shape``: its items are completions. Raises UsageError: sizes that do not fit together."""

    policy: PolicyInTraining
    """The model that samples, given by :meth:`attach`."""

    def __init__(self, method: Algorithm, data: Tokens, shape: StepShape, seed: int, process: int) -> None:
        self.method, self.data, self.shape, self.seed, self.process = method, data, shape, seed, process
        self.group, self.iterations = method.options.num_generations, method.options.num_iterations
        self.records = self.group
        """Records of a prompt in ``Rollout.completions``: its completions."""
        self.later = self.iterations - 1 if method.has_ratio else 0
        """Inner iterations that read the values of the policy that sampled."""
        self.rollout: Rollout | None = None
        self.prompts: Sequence[int] | None = None
        """The indices of the prompts of the data that rollouts are of, chosen before the first one."""
        self.next = 0
        """The number of the next step."""
        total = shape.items_per_step
        if total % self.group:
            others = shape.accumulate * shape.processes
            least = math.lcm(self.group, others)
            near = max(1, round(total / least)) * least
            raise UsageError(
                f"{total} completions of an optimizer step (--per-device-train-batch-size {shape.items} x "
                f"--gradient-accumulation-steps {shape.accumulate} x {shape.division}) are not a multiple "
                f"of --num-generations {self.group}; give --per-device-train-batch-size {near // others} for {near}"
            )

    @property
    def rows(self) -> int:
        """Completions of an epoch, each as often as it is used."""
        return len(self.data.items) * self.method.uses_of_item

    @property
    def count(self) -> int:
        """Records of a rollout in all processes."""
        return self.shape.items_per_step // self.group * self.records

    def describe(self) -> str:
        """The arithmetic of a step, for the user."""
        total = self.shape.items_per_step
        prompts = "1 prompt" if total == self.group else f"{total // self.group} prompts"
        return (
            f"each rollout: {self.shape.describe()} completions = {prompts} x {self.group}, "
            f"used for {_steps(self.iterations)}; an epoch of "
            f"{len(self.data.items):,} prompts is {_steps(math.ceil(self.rows / total))}"
        )

    def attach(self, policy: PolicyInTraining) -> None:
        """Sample with this model."""
        self.policy = policy
        engine = self.method.engine
        self.generate = policy.generate if engine is None else ServedSampler(self.method, engine, policy).generate
        if self.method.reference_sync is not None and policy.reference is not None:
            self.method.reference_sync.attach(policy.reference.network)

    def step(self, number: int) -> RolloutStep:
        """This process's part of a step; samples a new rollout where one is due."""
        rollout, iteration = divmod(number, self.iterations)
        if self.rollout is None or self.rollout.number != rollout:
            if iteration:
                raise TrainingError(
                    f"step {number} is inside a rollout that is not in the checkpoint; resume from another checkpoint"
                )
            self.rollout = self.sample(rollout)
        self.next = number + 1
        return self.step_on(self.rollout, number)

    def step_on(self, rollout: Rollout, number: int) -> RolloutStep:
        """This process's part of a step on a given rollout."""
        update = Update(
            number=number,
            iteration=number % self.iterations,
            completions=self.shape.items_per_step,
            seed=self.seed,
            steps=self.policy.steps,
        )
        return self.method.step(rollout, update)

    # -- sampling ------------------------------------------------------------------------------------------------

    def requests(self, rollout: int) -> list[tuple[int, Request]]:
        """All requests of a rollout in all processes, each with the index of its prompt."""
        return [(index, self.request(rollout, place, g, epoch, index))
                for place, (epoch, index) in enumerate(self.drawn(rollout)) for g in range(self.group)]  # fmt: skip

    def drawn(self, rollout: int, draw: int = 0) -> list[tuple[int, int]]:
        """(epoch, index of the prompt) of each group of a rollout in all processes; a further ``draw`` has another
        order of the data."""
        if self.prompts is None:
            self.prompts = self.chosen_prompts()
        seed = key("redraw", self.seed, draw) if draw else self.seed
        drawn = places(rollout, self.shape.items_per_step // self.group, len(self.prompts), seed)
        return [(epoch, self.prompts[place]) for epoch, place in drawn]

    def request(self, rollout: int, place: int, g: int, epoch: int, index: int, draw: int = 0) -> Request:
        """The request of completion ``g`` of a group, the one at ``place`` in a rollout; of a prompt by its index."""
        row = self.data.items[index][0]
        repeat, kind = epoch * self.group + g, f"redraw {draw}" if draw else "rollout"
        return Request(
            key=f"{rollout}.{place}.{g}",
            kind="generate",
            prompt=list(row.prompt),
            decoding=self.method.request(row.prompt),
            seed=sample_key(self.seed, kind, row.key, repeat),
            task=self.data.name,
            doc_id=index,
            repeat=repeat,
        )

    def sample(self, number: int) -> Rollout:
        """A new rollout: completions, rewards, advantages, and old values for the later inner iterations."""
        first = self._groups(self.scored(self._slice(self.requests(number))), [0] * (self.count // self.records))
        groups, again = self._redrawn(number, first)
        answers, rewards = [each.answer for each in groups.mine], [each.reward for each in groups.mine]
        prompts, drawn = [each.prompt for each in groups.mine], [each.completion for each in groups.mine]
        completions, refined = self.refined(drawn, answers, prompts)
        total = sum(self.policy.gather(sum(completion.scored_tokens for completion in completions)))
        rollout = Rollout(
            number=number,
            completions=completions,
            texts=[answer.text or "" for answer in answers],
            rewards=[reward.value for reward in rewards],
            advantage=self._slice(groups.advantage_B),
            draws=self._slice([draw for draw in groups.draws for _ in range(self.group)]),
            scored_total=total,
            weights_version=weights_version(answers),
        )
        self._write_table(number, prompts, list(zip(completions, answers, rewards, rollout.advantage, strict=True)))
        rollout.metrics = {
            **reward_metrics([each.reward for each in first.mine], [each.answer for each in first.mine]),
            **group_metrics(first.value_B, first.informative()),
            **(redraw_metrics(again, groups.informative()) if self.method.options.dynamic_sampling else {}),
            "written_nll": written_nll([each.completion for each in first.mine], [each.answer for each in first.mine]),
            **refined,
        }
        return self._with_old_values(rollout)

    def _groups(self, mine: list[Scored], draws: Sequence[int]) -> Groups:
        """The groups that this process's completions and those of the others make up. Called by all processes
        together."""
        value_B = [value for part in self.policy.gather(numbers([each.reward for each in mine])) for value in part]
        advantage_B = advantages(torch.tensor(value_B, dtype=torch.float64), self.group, self.method.options.advantage)
        return Groups(mine, value_B, advantage_B.tolist(), [*draws])

    def _redrawn(self, number: int, groups: Groups) -> tuple[Groups, int]:
        """The groups of a rollout, those without an advantage drawn again, and how many groups that
        were in all. Called by all processes together."""
        count, first = 0, self.process * len(groups.mine)
        for draw in range(1, 1 + (self.method.options.dynamic_sampling or 0)):
            dull = [not informative for informative in groups.informative()]
            if not any(dull):
                break
            count += sum(dull)
            own = [i for i in range(len(groups.mine)) if dull[(first + i) // self.group]]
            drawn, requests = self.drawn(number, draw), list[tuple[int, Request]]()
            for place, g in (divmod(first + i, self.group) for i in own):
                epoch, index = drawn[place]
                requests.append((index, self.request(number, place, g, epoch, index, draw)))
            mine = [*groups.mine]
            for i, scored in zip(own, self.scored(requests), strict=True):
                mine[i] = scored
            draws = [draw if again else before for again, before in zip(dull, groups.draws, strict=True)]
            groups = self._groups(mine, draws)
        return groups, count

    def chosen_prompts(self) -> Sequence[int]:
        """The indices of the prompts of the data that are trained on."""
        return range(len(self.data.items))

    def refined(
        self, completions: list[Completion], answers: Sequence[Generation], prompts: Sequence[RewardPrompt]
    ) -> tuple[list[Completion], Metrics]:
        """The completions of a new rollout with what an algorithm adds to them, and metrics of it."""
        return completions, {}

    def scored(self, requests: Sequence[tuple[int, Request]]) -> list[Scored]:
        """The answers to requests, each given with the index of its prompt, and their rewards. Called by all processes
        together."""
        answered, prompts = self.answered(requests), self.reward_prompts(requests)
        rewards = self.scores(prompts, [answer.text or "" for _, answer in answered])
        return [Scored(p, c, a, r) for p, (c, a), r in zip(prompts, answered, rewards, strict=True)]

    def reward_prompts(self, requests: Sequence[tuple[int, Request]]) -> list[RewardPrompt]:
        """The prompts of answers for the reward, with the keys of the answers."""
        return [replace(self.data.records[index], key=request.seed) for index, request in requests]

    def answered(self, requests: Sequence[tuple[int, Request]]) -> list[tuple[Completion, Generation]]:
        """The answers to requests, each given with the index of its prompt, and their records."""
        samples, result = self.generate([request for _, request in requests]), []
        for (index, request), sample in zip(requests, samples, strict=True):
            row = self.data.items[index][0]
            if not isinstance(sample.answer, Generation):
                raise TrainingError(f"{row.where}: the model could not answer: {sample.error}")
            completion = self.method.completion(row.prompt, sample.answer, key("noise", request.seed), row.where)
            result.append((completion, sample.answer))
        return result

    def _with_old_values(self, rollout: Rollout) -> Rollout:
        """The rollout with the values of its actions under the policy that sampled it, for the later iterations."""
        computed = min(self.later, 1) if self.method.fixed_copies and not self.policy.has_dropout else self.later
        for iteration in range(1, 1 + computed):
            step = self.step_on(rollout, rollout.number * self.iterations + iteration)
            rollout.old.append(self.method.action_logprobs(rollout, step, self.policy.losses(step)))
        rollout.old += rollout.old[:1] * (self.later - computed)
        return rollout

    def together(self, mine: Sequence[Any], compute: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
        """What ``compute`` makes of a value of each completion in all processes, group by group: its results for the
        completions of this process. Called by all together."""
        return list(self._slice(compute([value for part in self.policy.gather(mine) for value in part])))

    def scores(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        """The rewards of answers to prompts. Called by all processes together; an error in one is raised in all, since
        the others would wait for it."""
        rewards: list[Reward] = []
        problem: DareError | None = None
        try:
            rewards = self.policy.rewards(prompts, texts)
        except DareError as error:
            problem = error
        every = self.policy.gather(None if problem is None else str(problem))
        if problems := [text for text in every if text is not None]:
            raise TrainingError(f"the completions could not be scored: {problems[0]}") from problem
        return rewards

    def _write_table(
        self,
        number: int,
        prompts: Sequence[RewardPrompt],
        scored: Sequence[tuple[Completion, Generation, Reward, float]],
    ) -> None:
        """Write the completions of a rollout as a table where one is due. Called by all processes together."""
        step = number * self.iterations
        if not is_due(step, self.method.options.log_completions, self.iterations):
            return
        lines = table_lines(step, self.group, self.process * len(scored), prompts, scored)
        self.policy.write_lines(table_name(step), lines)

    def _slice(self, every: Sequence[Any]) -> Any:
        size = len(every) // self.shape.processes
        return every[self.process * size : (self.process + 1) * size]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the rollout of all processes to ``folder``, if the next step is on it too; the reference's weights, if
        they have moved; and the prompts, if the method has chosen them."""
        if (sync := self.method.reference_sync) is not None and first_process() and self.next >= sync.every:
            sync.save(folder)
        if self.method.filters_prompts and self.prompts is not None and first_process():
            write_prompts(self.prompts, folder)
        if self.rollout is None or self.next % self.iterations == 0:
            return
        parts = self.policy.gather(self.rollout.saved())
        if first_process():
            write_rollout(parts, folder)

    def load(self, folder: Path) -> None:
        """Read the reference's weights, the prompts, and this process's slice of the rollout; the number of processes
        may be another. Raises TrainingError: a file is damaged."""
        if (sync := self.method.reference_sync) is not None:
            sync.load(folder, step_of(folder))
        self.load_prompts(folder)
        if (whole := self.read(folder)) is not None:
            self.rollout = whole.part(self._slice)

    def read(self, folder: Path) -> Rollout | None:
        """The rollout of all processes in a checkpoint, if one is in use; raises TrainingError."""
        return read_rollout(folder, count=self.count, iterations=self.iterations, later=self.later, check=self.check)

    def check(self, rollout: Rollout) -> None:
        """Raise ValueError unless a rollout that was read is of the prompts that are drawn for it, by this model."""
        most, last = self.method.options.dynamic_sampling or 0, max(rollout.draws, default=0)
        if last > most:
            raise ValueError(f"it has a group of draw {last}, and groups are drawn again up to {most} times")
        drawn = {draw: self.drawn(rollout.number, draw) for draw in {*rollout.draws}}
        for i, (draw, completion) in enumerate(zip(rollout.draws, rollout.completions, strict=True)):
            _, index = drawn[draw][i // self.records]
            completion.check(self.data.items[index][0].prompt, self.method.spec)

    def load_prompts(self, folder: Path) -> None:
        """Read the prompts, if the method has chosen them; raises TrainingError if the file is damaged."""
        if self.method.filters_prompts:
            self.prompts = read_prompts(folder, len(self.data.items))


def weights_version(answers: Sequence[Generation]) -> int:
    """The version of the weights that sampled."""
    return max((answer.weights_version for answer in answers), default=0)


def _steps(count: int) -> str:
    return f"{count:,} optimizer step" + ("" if count == 1 else "s")
