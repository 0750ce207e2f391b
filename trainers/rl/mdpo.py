"""MDPO (arXiv 2508.13148): rewards on the answers that the sampler's forwards predict.

    v_i = log p(token that forward t predicted at mask i | the canvas before forward t),    token PPO with the advantage
    A_t L / number of masks before t,    KL k2, averaged over the masks of a forward, forwards, and completions

A_t is the group advantage of forward t (:func:`step_scores` has the formula), L the length of the canvas. A prompt is
trained on the K forwards with the largest sum of |A_t| over its completions. The targets include tokens that a forward
proposed and did not write. The sampler may mask tokens again: ``--rollout strategy=rcr`` is the paper's running
confidence remasking.

Source: the published code; the defaults are those of its command. It chooses forwards for the completions of a device,
DARE for those of a batch. Both also multiply the loss of a token by the sampler's probability of it
(``confidence_weights``), and then the loss is not a policy gradient. ``prompt_filter=over_denoising`` trains on the
prompts of the published command: those whose answer is right after some forward, and wrong after the last one. Before
an epoch, of which the command makes one, each prompt is answered once with temperature 0 and the other settings of the
rollout. Here the weights before the first step answer them, and the chosen prompts are part of each checkpoint. The
default, all prompts, is that of the code. The command also draws the block length of each prompt from two, which is not
built: a block is the whole canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dare_bench.errors import DecodingError, TrainingError, UsageError
from dare_bench.log import log
from dare_bench.protocols import LoadedModel
from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.rl.algorithm import CAPABILITIES
from dare_bench.trainers.rl.algorithm_options import MDPOOptions
from dare_bench.trainers.rl.completions import Completion, Prediction
from dare_bench.trainers.rl.estimators import Actions, predicted
from dare_bench.trainers.rl.options import Advantage, PublishedRollout
from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.rollout_metrics import numbers
from dare_bench.trainers.rl.surrogate import advantages
from dare_bench.trainers.steps import StepShape
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Event, Generation, ModelSpec, Request, Reward, RewardPrompt


class MDPO(PolicyGradient):
    """MDPO."""

    name = "mdpo"
    estimator = "the canvas before the forwards of the sampler with the largest advantages, all its masks"
    kl = "k2"
    paper, code = "arXiv 2508.13148", "autonomousvision/mdpo"
    Options = MDPOOptions
    options: MDPOOptions
    sums_over_copies = fixed_copies = True
    scores_draws = True
    capabilities: ClassVar = {**CAPABILITIES, "predictions": "record the answer that each forward predicts"}
    allows_rewriting = True
    never_redraws = "it learns from the rewards of all forwards, which differ also where those of the answers do not"
    learning_rate = lora_learning_rate = 7e-7
    # The published configuration leaves the others to transformers.
    training_defaults: ClassVar = {"lr_scheduler_type": "constant", "adam_beta2": 0.999, "weight_decay": 0.0}
    rollouts: ClassVar = {
        "paper": PublishedRollout(1 / 4),
        "dare": PublishedRollout(1 / 2, temperature={"dream": 0.2}),
    }
    variants: ClassVar = {
        "dare": {"temperature": 0.6, "beta": 0.0, "sample_train_steps": 16, "confidence_weights": True}
    }

    def __init__(self, options: MDPOOptions, spec: ModelSpec, canvas: int | None) -> None:
        if options.importance_cap is not None:
            raise UsageError(
                f"importance_cap={options.importance_cap:g}: {self.name} also scores tokens that were predicted and "
                "not written, for which the sampler records no probability; omit it, or use cj_grpo"
            )
        super().__init__(options, spec, canvas)
        self.filters_prompts = options.prompt_filter is not None

    # -- rollout -------------------------------------------------------------------------------------------------

    def check(self, spec: TrainSpec, model: LoadedModel, data: Tokens) -> None:
        super().check(spec, model, data)
        block = getattr(model.resolve(self.request(())), "block_length", None)
        if block is not None and block < self.completion_length:
            raise DecodingError(
                f"rollout block_length={block}: {self.name} scores the whole answer that each forward predicts, and "
                f"the sampler predicts up to the end of a block; omit it, or give {self.completion_length}"
            )

    def check_sizes(self, spec: TrainSpec, data: Tokens, processes: int) -> None:
        super().check_sizes(spec, data, processes)
        if self.filters_prompts and spec.max_steps is None:
            raise UsageError(
                f"prompt_filter={self.options.prompt_filter}: how many prompts it keeps, and so how long an epoch is, "
                "is known in the training only; give --max-steps"
            )

    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> MDPORollouts:
        return MDPORollouts(self, data, shape, seed, process)

    @property
    def rollout_fields(self) -> dict[str, Any]:
        return {"predictions": True}

    def completion(self, prompt: Sequence[int], answer: Generation, key: int, where: str) -> Completion:
        """Without the log-probabilities of the sampler, which has those of written tokens only."""
        return replace(super().completion(prompt, answer, key, where), logprobs=())

    # -- loss ----------------------------------------------------------------------------------------------------

    def learns_from(self, completion: Completion, advantage: float) -> bool:
        return any(forward.advantage for forward in completion.predictions)

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        return predicted(completions, self.spec.mask)

    @property
    def always_needs_values(self) -> bool:
        return super().always_needs_values or self.options.confidence_weights

    def loss_weights(self, weight_A: Tensor, old_A: Tensor) -> Tensor:
        return weight_A * torch.exp(old_A) if self.options.confidence_weights else weight_A


class MDPORollouts(Rollouts):
    """Rollouts whose completions have the predictions of the forwards that are trained on."""

    def __init__(self, method: MDPO, data: Tokens, shape: StepShape, seed: int, process: int) -> None:
        super().__init__(method, data, shape, seed, process)
        self.mdpo = method

    def chosen_prompts(self) -> Sequence[int]:
        return over_denoised_prompts(self) if self.mdpo.filters_prompts else super().chosen_prompts()

    def refined(
        self, completions: list[Completion], answers: Sequence[Generation], prompts: Sequence[RewardPrompt]
    ) -> tuple[list[Completion], Metrics]:
        o, mask, scored = self.mdpo.options, self.mdpo.spec.mask, self.mdpo.scored
        rewards = rewards_of_forwards(answers, prompts, self.scores)

        def choice(every: list[list[float]]) -> list[Chosen]:
            return choose(every, o.num_generations, o.sample_train_steps, o.advantage)

        chosen = self.together([numbers(of_answer) for of_answer in rewards], choice)
        lost = [is_over_denoised(of_answer) for of_answer in rewards]
        metrics = {
            "over_denoising": (float(sum(lost)), float(len(lost))),
            "informative_groups": (float(sum(each.informative for each in chosen)), float(len(chosen))),
        }
        recorded = [predictions(a, each, mask, scored) for a, each in zip(answers, chosen, strict=True)]
        return [replace(c, predictions=of_c) for c, of_c in zip(completions, recorded, strict=True)], metrics


def is_over_denoised(rewards: Sequence[Reward]) -> bool:
    """Is an answer right after some forward, and wrong after the last one? ``rewards``: of the answers that its
    forwards predict, in order."""
    right = [reward.accuracy or 0.0 for reward in rewards]
    return max(right) > right[-1]


def over_denoised_prompts(source: Rollouts) -> list[int]:
    """The indices of the prompts of the data that suffer from over-denoising now. Called by all processes together;
    each answers its part, as many prompts at a time as a step has completions. Raises TrainingError: there are none."""
    count, size, kept = len(source.data.items), source.shape.items_per_step, list[int]()
    for begin in range(0, count, size):
        mine = range(begin, min(begin + size, count))[source.process :: source.shape.processes]
        requests = [(index, _greedy(source.request(0, index, 0, 0, index))) for index in mine]
        answers = [answer for _, answer in source.answered(requests)]
        rewards = rewards_of_forwards(answers, source.reward_prompts(requests), source.scores)
        chosen = [index for index, of_answer in zip(mine, rewards, strict=True) if is_over_denoised(of_answer)]
        kept += [index for part in source.policy.gather(chosen) for index in part]
    if not kept:
        raise TrainingError(
            f"prompt_filter=over_denoising: none of {count:,} prompts has a right answer after some forward and a "
            "wrong one after the last; give more prompts (--rows), or omit it"
        )
    if first_process():
        log.info("prompt_filter=over_denoising: %s of %s prompts", f"{len(kept):,}", f"{count:,}")
    return sorted(kept)


def _greedy(request: Request) -> Request:
    return replace(request, decoding={**request.decoding, "temperature": 0.0})


Scores = Callable[[Sequence[RewardPrompt], Sequence[str]], list[Reward]]
"""The rewards of answers to prompts."""


def distinct_rewards(
    prompts: Sequence[RewardPrompt], texts: Sequence[Sequence[str]], scores: Scores
) -> list[list[Reward]]:
    """The rewards of several answers to each prompt. Equal answers to a prompt are scored once: most forwards predict
    what the one before predicted."""
    places = {(id(prompt), text): prompt for prompt, answers in zip(prompts, texts, strict=True) for text in answers}
    rewards = scores(list(places.values()), [text for _, text in places])
    known = dict(zip(places, rewards, strict=True))
    return [[known[id(prompt), text] for text in answers] for prompt, answers in zip(prompts, texts, strict=True)]


def rewards_of_forwards(
    answers: Sequence[Generation], prompts: Sequence[RewardPrompt], scores: Scores
) -> list[list[Reward]]:
    """The rewards of the answers that the forwards of each completion predict, in order."""
    texts = [answer.prediction_texts or [""] * len(answer.predictions or [[]]) for answer in answers]
    return distinct_rewards(prompts, texts, scores)


def continued(rewards: Sequence[Sequence[float]]) -> Tensor:
    """Rewards as a table, float64 [B, T]: a completion that took fewer forwards than another keeps its last answer."""
    most = max(len(row) for row in rewards)
    return torch.tensor([[*row, *[row[-1]] * (most - len(row))] for row in rewards], dtype=torch.float64)


def step_scores(reward_BT: Tensor) -> Tensor:
    """r_t - r_(t-1) + 1 + mean(r_(t+1), ..., r_T), float64 [B, T]; the first forward has r_1 for the difference, and
    the last one r_T for the mean. The constant 1 is the published one; it cancels in advantages."""
    reward_BT = reward_BT.double()
    change_BT = reward_BT.diff(dim=1, prepend=torch.zeros_like(reward_BT[:, :1]))
    later_BT = reward_BT[:, 1:].flip(1).cumsum(1) / torch.arange(1, reward_BT.shape[1])
    return change_BT + 1 + torch.cat([later_BT.flip(1), reward_BT[:, -1:]], 1)


def step_advantages(score_BT: Tensor, group: int, kind: Advantage = "standardized") -> Tensor:
    """The advantage of each forward within the same forward of the group's completions, float64 [B, T]."""
    score_PTG = score_BT.view(-1, group, score_BT.shape[1]).transpose(1, 2)
    advantage_PTG = advantages(score_PTG.flatten(), group, kind).view(score_PTG.shape)
    return advantage_PTG.transpose(1, 2).reshape(score_BT.shape)


def chosen_steps(advantage_BT: Tensor, group: int, count: int) -> Tensor:
    """The forwards of each prompt with the largest sum of |advantage| over its completions, ascending, int64 [P, K],
    where K = min(count, T). Of equal sums the earlier forward is chosen."""
    size_PT = advantage_BT.abs().view(-1, group, advantage_BT.shape[1]).sum(1)
    return size_PT.argsort(dim=1, descending=True, stable=True)[:, :count].sort(1).values


@dataclass(frozen=True)
class Chosen:
    """The forwards of a completion that are trained on, with their advantages; ``informative``: some completion of the
    prompt has an advantage other than 0."""

    steps: tuple[int, ...]
    advantages: tuple[float, ...]
    informative: bool


def choose(rewards: Sequence[Sequence[float]], group: int, count: int, kind: Advantage) -> list[Chosen]:
    """The forwards that are trained on, from the rewards of the predictions of all completions."""
    advantage_BT = step_advantages(step_scores(continued(rewards)), group, kind)
    step_BK = chosen_steps(advantage_BT, group, count).repeat_interleave(group, 0)
    advantage_BK = advantage_BT.gather(1, step_BK)
    informative_P = (advantage_BK != 0).view(-1, group * step_BK.shape[1]).any(1)
    return [
        Chosen(tuple(steps), tuple(values), informative)
        for steps, values, informative in zip(
            step_BK.tolist(), advantage_BK.tolist(), informative_P.repeat_interleave(group).tolist(), strict=True
        )
    ]


def predictions(
    answer: Generation, chosen: Chosen, mask_id: int, scored: Callable[[Sequence[int]], int]
) -> tuple[Prediction, ...]:
    """What the chosen forwards predicted; nothing of a forward that a shorter answer did not take. ``scored``: the
    number of leading tokens of an answer that count."""
    recorded, trained = answer.predictions or [], []
    for step, advantage in zip(chosen.steps, chosen.advantages, strict=True):
        if step < len(recorded):
            tokens = recorded[step]
            masked = masked_before(answer.trajectory or (), step, len(tokens))
            filled = tuple(place for place in masked if tokens[place] != mask_id)
            trained.append(Prediction(tuple(tokens), filled, scored(tokens), advantage))
    return tuple(trained)


def masked_before(events: Sequence[Event], step: int, length: int) -> list[int]:
    """The positions of a response of ``length`` tokens that were masked before a forward."""
    masked = [True] * length
    for event in events:
        if event.step < step and 0 <= event.position < length:
            masked[event.position] = event.op == "remask"
    return [position for position, is_masked in enumerate(masked) if is_masked]
