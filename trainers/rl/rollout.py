"""Rollouts: completions of prompts by the model in training, with rewards and advantages, as a source of steps.

A rollout serves ``num_iterations`` optimizer steps (inner iterations). Its completions are those of one optimizer step
in all processes, group by group; each process samples its slice. Sampling is counter-based: the completions of rollout
k are a function of (weights, seed, k). The rollout in use is part of a checkpoint, since the weights that sampled it
are gone within its inner iterations.

Shape letters: S completions of this process, B of all, P prompts, G completions of a prompt.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from pydantic import TypeAdapter
from torch import Tensor

from dare_bench.errors import DareError, TrainingError, UsageError
from dare_bench.protocols import LoadedModel
from dare_bench.reading import parse_json, read_bytes
from dare_bench.seeds import key, sample_key
from dare_bench.trainers.checkpoints import step_of
from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.reference import Reference
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.reference_sync import ReferenceSync
from dare_bench.trainers.rl.served import ServedMethod, ServedSampler, Weights
from dare_bench.trainers.rl.surrogate import advantages
from dare_bench.trainers.steps import Step, StepShape, places
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Tokens
from dare_bench.types import Generation, Request, Reward, RewardPrompt, Sample

FILE = "rollout.json"
PROMPTS = "prompts.json"


class Policy(Weights, Protocol):
    """The model in training, as rollouts use it."""

    @property
    def reference(self) -> Reference | None:
        """The reference policy, if there is one."""
        ...

    def losses(self, step: Step) -> Tensor:
        """-log p of a step's scored tokens now, float32 [N] on the CPU, without a graph."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Answers in the order of the requests. Called by all processes together."""
        ...

    def rewards(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        """The rewards of answers to prompts."""
        ...

    def forwards(self, request: Request) -> int:
        """Upper bound of the forwards of a request."""
        ...

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        ...


@dataclass
class Rollout:
    """The completions of one process in one rollout.

    ``old`` holds, for each inner iteration but the first, the values of the units of each completion under the policy
    that sampled (the first iteration's are the policy's own). ``metrics`` are reported once.
    """

    number: int
    completions: list[Completion]
    texts: list[str]
    rewards: list[float]
    advantage: list[float]
    scored_total: int
    """Scored tokens of all processes."""
    weights_version: int
    """The number of optimizer steps before the weights that sampled it (``LoadedModel.weights_version``)."""
    distilled_total: int = 0
    """Positions of all processes that a self-distillation term learns (``dtreerpo``)."""
    old: list[list[list[float]]] = field(default_factory=list)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)


class RolloutMethod(ServedMethod, Protocol):
    """What a source of rollouts needs of its method."""

    engine: LoadedModel | None
    """What samples; None: the model in training."""
    has_ratio: ClassVar[bool]
    """Does the loss read the values of the policy that sampled?"""
    filters_prompts: bool
    """Does the policy choose the prompts?"""
    reference_sync: ReferenceSync | None

    @property
    def uses_of_item(self) -> int:
        """How often an epoch trains on a prompt."""
        ...

    def request(self, prompt: Sequence[int]) -> dict[str, Any]:
        """The decoding fields of a completion."""
        ...

    def completion(self, prompt: Sequence[int], answer: Generation, key: int, where: str) -> Completion:
        """The record of a sampled answer."""
        ...

    def refined(
        self,
        completions: list[Completion],
        answers: Sequence[Generation],
        prompts: Sequence[RewardPrompt],
        source: Rollouts,
    ) -> tuple[list[Completion], Metrics]:
        """The completions of a new rollout with what the method adds to them, and metrics of it."""
        ...

    def step(self, rollout: Rollout, number: int, iteration: int, completions: int) -> Step:
        """The step of an inner iteration."""
        ...

    def chosen_prompts(self, source: Rollouts) -> Sequence[int]:
        """The indices of the prompts of the data that rollouts are of; called once, by all processes together."""
        ...

    def unit_values(self, rollout: Rollout, step: Step, nll_N: Tensor) -> list[list[float]]:
        """The log-probabilities of the units of each completion of the rollout; none where nothing is scored."""
        ...


class Rollouts:
    """Steps on rollouts (see :class:`dare_bench.trainers.steps.StepSource`).

    Args:
        data: prompts, with their records for the reward.
        shape: its items are completions.

    Raises:
        UsageError: sizes that do not fit together.
    """

    def __init__(self, method: RolloutMethod, data: Tokens, shape: StepShape, seed: int, process: int) -> None:
        self.method, self.data, self.shape, self.seed, self.process = method, data, shape, seed, process
        self.group, self.iterations = method.options.num_generations, method.options.num_iterations
        self.records = self.group
        """Records of a prompt in ``Rollout.completions``: its completions."""
        self.later = self.iterations - 1 if method.has_ratio else 0
        """Inner iterations that read the values of the policy that sampled."""
        self.policy: Policy | None = None
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

    def describe(self) -> str:
        """The arithmetic of a step, for the user."""
        total = self.shape.items_per_step
        prompts = "1 prompt" if total == self.group else f"{total // self.group} prompts"
        return (
            f"each rollout: {self.shape.describe()} completions = {prompts} x {self.group}, "
            f"used for {_steps(self.iterations)}; an epoch of "
            f"{len(self.data.items):,} prompts is {_steps(math.ceil(self.rows / total))}"
        )

    def attach(self, policy: Policy) -> None:
        """Sample with this model."""
        self.policy = policy
        engine = self.method.engine
        self.generate = policy.generate if engine is None else ServedSampler(self.method, engine, policy).generate
        if self.method.reference_sync is not None and policy.reference is not None:
            self.method.reference_sync.attach(policy.reference.network)

    def step(self, number: int) -> Step:
        """This process's part of a step; samples a new rollout where one is due."""
        rollout, iteration = divmod(number, self.iterations)
        if self.rollout is None or self.rollout.number != rollout:
            if iteration:
                raise TrainingError(
                    f"step {number} is inside a rollout that is not in the checkpoint; resume from another checkpoint"
                )
            self.rollout = self.sample(rollout)
        self.next = number + 1
        return self.method.step(self.rollout, number, iteration, self.shape.items_per_step)

    # -- sampling ------------------------------------------------------------------------------------------------

    def requests(self, rollout: int) -> list[tuple[int, Request]]:
        """All requests of a rollout in all processes, each with the index of its prompt."""
        return [(index, self.request(rollout, place, g, epoch, index))
                for place, (epoch, index) in enumerate(self.drawn(rollout)) for g in range(self.group)]  # fmt: skip

    def drawn(self, rollout: int) -> list[tuple[int, int]]:
        """(epoch, index of the prompt) of each group of a rollout in all processes."""
        if self.prompts is None:
            self.prompts = self.method.chosen_prompts(self)
        drawn = places(rollout, self.shape.items_per_step // self.group, len(self.prompts), self.seed)
        return [(epoch, self.prompts[place]) for epoch, place in drawn]

    def request(self, rollout: int, place: int, g: int, epoch: int, index: int) -> Request:
        """The request of completion ``g`` of a group, the one at ``place`` in a rollout; of a prompt by its index."""
        row = self.data.items[index][0]
        repeat = epoch * self.group + g
        return Request(
            key=f"{rollout}.{place}.{g}",
            kind="generate",
            prompt=list(row.prompt),
            decoding=self.method.request(row.prompt),
            seed=sample_key(self.seed, "rollout", row.key, repeat),
            task=self.data.name,
            doc_id=index,
            repeat=repeat,
        )

    def sample(self, number: int) -> Rollout:
        """A new rollout: completions, rewards, advantages, and old values for the later inner iterations."""
        assert self.policy is not None
        mine = self._slice(self.requests(number))
        answered = self.answered(mine)
        completions, answers = [completion for completion, _ in answered], [answer for _, answer in answered]
        texts = [answer.text or "" for answer in answers]
        prompts = self.reward_prompts(mine)
        rewards = self.scores(prompts, texts)
        values = [reward.value for reward in rewards]
        every = [value for part in self.policy.gather(values) for value in part]
        advantage_B = advantages(torch.tensor(every, dtype=torch.float64), self.group, self.method.options.advantage)
        completions, refined = self.method.refined(completions, answers, prompts, self)
        total = sum(self.policy.gather(sum(completion.scored_tokens for completion in completions)))
        rollout = Rollout(
            number, completions, texts, values, self._slice(advantage_B.tolist()), total, weights_version(answers)
        )
        informative = float((advantage_B.view(-1, self.group) != 0).any(1).double().mean()), 1.0
        rollout.metrics = {
            **reward_metrics(rewards, answers, informative),
            "entropy": entropy_metric(completions, answers),
            **refined,
        }
        return self._with_old_values(rollout)

    def reward_prompts(self, requests: Sequence[tuple[int, Request]]) -> list[RewardPrompt]:
        """The prompts of answers for the reward, with the keys of the answers."""
        return [replace(self.data.records[index], key=request.seed) for index, request in requests]

    def answered(self, requests: Sequence[tuple[int, Request]]) -> list[tuple[Completion, Generation]]:
        """The answers to requests, each given with the index of its prompt, and their records."""
        assert self.policy is not None
        samples, result = self.generate([request for _, request in requests]), []
        for (index, request), sample in zip(requests, samples, strict=True):
            row = self.data.items[index][0]
            if not isinstance(sample.answer, Generation):
                raise TrainingError(f"{row.where}: the model could not answer: {sample.error}")
            completion = self.method.completion(row.prompt, sample.answer, key("noise", request.seed), row.where)
            result.append((completion, sample.answer))
        return result

    def _with_old_values(self, rollout: Rollout) -> Rollout:
        """The rollout with the values of its units under the policy that sampled it, for the later iterations."""
        assert self.policy is not None
        for iteration in range(1, 1 + self.later):
            number = rollout.number * self.iterations + iteration
            step = self.method.step(rollout, number, iteration, self.shape.items_per_step)
            rollout.old.append(self.method.unit_values(rollout, step, self.policy.losses(step)))
        return rollout

    def together(self, mine: Sequence[Any], compute: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
        """What ``compute`` makes of a value of each completion in all processes, group by group: its results for the
        completions of this process. Called by all together."""
        assert self.policy is not None
        return list(self._slice(compute([value for part in self.policy.gather(mine) for value in part])))

    def scores(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        """The rewards of answers to prompts. Called by all processes together; an error in one is raised in all, since
        the others would wait for it."""
        assert self.policy is not None
        rewards, problem = [], None
        try:
            rewards = self.policy.rewards(prompts, texts)
        except DareError as error:
            problem = str(error)
        if problems := [text for text in self.policy.gather(problem) if text is not None]:
            raise TrainingError(f"the completions could not be scored: {problems[0]}")
        return rewards

    def _slice(self, every: Sequence[Any]) -> Any:
        """The part of this process."""
        size = len(every) // self.shape.processes
        return every[self.process * size : (self.process + 1) * size]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the rollout of all processes to ``folder``, if the next step is on it too; the reference's weights, if
        they have moved; and the prompts, if they were filtered."""
        assert self.policy is not None
        if (sync := self.method.reference_sync) is not None and first_process() and self.next >= sync.every:
            sync.save(folder)
        if self.method.filters_prompts and first_process():
            (folder / PROMPTS).write_text(json.dumps(self.prompts))
        if self.rollout is None or self.next % self.iterations == 0:
            return
        parts = self.policy.gather(asdict(replace(self.rollout, metrics={})))
        if first_process():
            (folder / FILE).write_text(json.dumps(parts))

    def load(self, folder: Path) -> None:
        """Read the reference's weights, the prompts, and this process's slice of the rollout; the number of processes
        may be another.

        Raises:
            TrainingError: a file is damaged.
        """
        if (sync := self.method.reference_sync) is not None:
            sync.load(folder, step_of(folder))
        self.load_prompts(folder)
        path = folder / FILE
        if not path.exists():
            return
        with _reading(path):
            raw = read_bytes(path, TrainingError, limit=1 << 31)
            self.rollout = self._joined(TypeAdapter(list[Rollout]).validate_python(parse_json(raw)))

    def load_prompts(self, folder: Path) -> None:
        """Read the prompts of a checkpoint, if they were filtered; raises TrainingError if the file is damaged."""
        if not self.method.filters_prompts:
            return
        with _reading(folder / PROMPTS):
            prompts = TypeAdapter(list[int]).validate_python(parse_json(read_bytes(folder / PROMPTS, TrainingError)))
            if not prompts or not 0 <= min(prompts) <= max(prompts) < len(self.data.items):
                raise ValueError(f"it is not a list of numbers of the {len(self.data.items)} prompts")
        self.prompts = prompts

    def _joined(self, parts: Sequence[Rollout]) -> Rollout:
        """This process's slice of a rollout that was saved in parts; raises ValueError if they are inconsistent."""

        def whole(lists: Iterable[Sequence[Any]]) -> Any:
            every = [value for part in lists for value in part]
            count = self.shape.items_per_step // self.group * self.records
            if len(every) != count:
                raise ValueError(f"{len(every)} values for {count} completions")
            return self._slice(every)

        if not parts or any(len(part.old) != self.later for part in parts):
            raise ValueError(f"it has no old values of {self.iterations} inner iterations")
        for number, version in ((part.number, part.weights_version) for part in parts):
            if version != (first := number * self.iterations):
                raise ValueError(f"weights_version is {version}, and rollout {number} is sampled after step {first}")
        lists = ("completions", "texts", "rewards", "advantage")
        old = [whole(part.old[i] for part in parts) for i in range(self.later)]
        return replace(parts[0], old=old, **{name: whole(getattr(part, name) for part in parts) for name in lists})


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn a malformed file of a checkpoint into a TrainingError that names it."""
    try:
        yield
    except ValueError as error:
        # The first line of pydantic's messages is a count; the second and third say where and what.
        reason = ": ".join(line.strip() for line in str(error).splitlines()[1:3]) or str(error)
        raise TrainingError(
            f"{path} is damaged ({reason[:150]}); remove {path.parent} to resume from the previous checkpoint"
        ) from error


def weights_version(answers: Sequence[Generation]) -> int:
    """The version of the weights that sampled."""
    return max((answer.weights_version for answer in answers), default=0)


def reward_metrics(
    rewards: Sequence[Reward], answers: Sequence[Generation], informative: tuple[float, float]
) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of the rewarded answers of this process. ``informative``: of prompts."""
    count = len(rewards)
    lengths = [answer.tokens_to_eos for answer in answers]
    metrics: dict[str, tuple[float, float]] = {
        "reward": (sum(reward.value for reward in rewards), count),
        "reward_square": (sum(reward.value**2 for reward in rewards), count),
        "accuracy": (sum(reward.accuracy for reward in rewards), count),
        "accuracy_square": (sum(reward.accuracy**2 for reward in rewards), count),
        "completion_length": (float(sum(lengths)), count),
        "informative_groups": informative,
    }
    for name in sorted({name for reward in rewards for name in reward.terms}):
        metrics[f"reward/{name}"] = (sum(reward.terms.get(name, 0.0) for reward in rewards), count)
    return metrics


def entropy_metric(completions: Sequence[Completion], answers: Sequence[Generation]) -> tuple[float, float]:
    """Sum and count of -log p of the written tokens that are scored, in the distributions that drew them."""
    drawn = [
        event.logprob
        for completion, answer in zip(completions, answers, strict=True)
        for event in answer.trajectory or ()
        if event.op == "set" and 0 <= event.position < completion.scored and event.logprob is not None
    ]
    return -sum(drawn), len(drawn)


def _steps(count: int) -> str:
    return f"{count:,} optimizer step" + ("" if count == 1 else "s")
