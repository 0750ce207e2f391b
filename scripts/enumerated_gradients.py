"""The expected gradients of algorithms on policies that can be enumerated, and their exact variances.

Everything is a sum over columns: log p of one token of an answer with given tokens hidden, times a coefficient that the
algorithm's copies, actions and weights determine. Answers and their orders are enumerated with their exact
probabilities; noise is drawn by the algorithm's code, with fixed keys. For MDPO all draws of all forwards are
enumerated, since it looks at what each forward predicts; for d-TreeRPO all children of all canvases.

Advantages are against exact expectations, as in an infinite group: of the reward, of the score of a forward (MDPO), or
of the value below a parent (d-TreeRPO).

Shape letters: D draws of the noise, C columns (hidden tokens, position), Y answers, H hidden tokens of the answer, W
sequences of draws, T forwards, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import torch
from enumerated_sampler import (
    ANSWERS,
    CANVASES,
    LENGTH,
    MASK,
    PLACE_L,
    PROMPT,
    SPEC,
    EnumeratedSampler,
    Order,
    SmallNetwork,
    log_probabilities,
    log_probability_gradients,
    tokens_of,
)
from torch import Tensor

from dare_bench.registry import registry
from dare_bench.seeds import key
from dare_bench.trainers.rl.completions import Completion, Prediction
from dare_bench.trainers.rl.estimators import Actions, BoundedActions
from dare_bench.trainers.rl.mdpo import step_scores
from dare_bench.trainers.rl.policy_gradient import PolicyGradient, shared_key_of
from dare_bench.trainers.rl.surrogate import STD_EPS

EOS = 2
HIDDEN = 2**LENGTH
COLUMNS = 2 ** len(PROMPT) * HIDDEN * LENGTH


@cache
def algorithms() -> dict[str, type[PolicyGradient]]:
    """The registered policy-gradient methods by name."""
    known = {name: registry().get("trainer", name).load() for name in registry().names("trainer")}
    return {n: kind for n, kind in known.items() if isinstance(kind, type) and issubclass(kind, PolicyGradient)}


@dataclass(frozen=True)
class CardRow:
    """An algorithm with settings; ``draws``: of its noise. ``replays``: does it look at the order of the answer?
    ``order``: the only one that it samples in. ``summed``: is its value a sum over tokens, not a mean?"""

    algorithm: str
    options: tuple[tuple[str, Any], ...] = ()
    draws: int = 1
    replays: bool = False
    order: Order | None = None
    summed: bool = False

    @property
    def label(self) -> str:
        return " ".join([self.algorithm, *(f"{name}={value}" for name, value in self.options)])


@dataclass(frozen=True)
class NoiseMoments:
    """What an algorithm scores of an answer, over the draws of its noise.

    ``mean_C`` and ``square_CC`` are E[c] and E[c c'] of the coefficients of log p in the value of a completion; column
    ((hidden prompt bits) 16 + hidden answer bits) 4 + position. ``copies``: forwards of the learner for a completion.
    """

    mean_C: Tensor
    square_CC: Tensor
    copies: float


@cache
def method_of(row: CardRow) -> Any:
    """The algorithm of a row."""
    kind = algorithms()[row.algorithm]
    return kind(kind.settle(dict(row.options), SPEC), SPEC, LENGTH)


def columns_of(actions: Actions) -> Tensor:
    """The column of each scored token (see :class:`NoiseMoments`), int64 [N]."""
    hidden_RL = (actions.copies.seen_T == MASK).view(len(actions.copies), -1).long()
    prompt_R = hidden_RL[:, : len(PROMPT)] @ 2 ** torch.arange(len(PROMPT))
    answer_R = hidden_RL[:, len(PROMPT) :] @ 2 ** torch.arange(LENGTH)
    at_N = actions.copies.batch.column_T[actions.copies.at_N] - len(PROMPT)
    return (prompt_R * HIDDEN + answer_R)[actions.copies.copy_N] * LENGTH + at_N


def by_draw(actions: Actions, coefficient_N: Tensor, draws: int) -> Tensor:
    """The coefficients of each draw of the noise, [D, C]."""
    c_DC = torch.zeros(draws, COLUMNS).double()
    c_DC.index_put_((actions.sample_R[actions.copies.copy_N], columns_of(actions)), coefficient_N, accumulate=True)
    return c_DC


def coefficients(row: CardRow, actions: Actions, scored: int, records: int = 1) -> Tensor:
    """The coefficients of scored tokens in the value of their completion, [N], which is one of ``records`` and has
    ``scored`` tokens that count. Means over tokens are multiplied by the length: the policy gradient is a sum."""
    scored_S = torch.full((int(actions.sample_R.max()) + 1,), scored)
    weight_A = method_of(row).step_weights(actions, scored_S, records, scored)
    if actions.advantage_A is not None:
        weight_A = weight_A * actions.advantage_A
    return actions.coefficient_N * weight_A[actions.action_N] * (1 if row.summed else LENGTH)


@cache
def noise(row: CardRow, set_at: tuple[int, ...], scored: int = LENGTH) -> NoiseMoments:
    """The algorithm's copies, actions and weights at an answer with an order, of which ``scored`` tokens count."""
    method, chunk = method_of(row), min(row.draws, 256)
    total_C, square_CC, copies = torch.zeros(COLUMNS).double(), torch.zeros(COLUMNS, COLUMNS).double(), 0
    for rollout in range(row.draws // chunk):
        actions = drawn(method, set_at, scored, rollout, chunk)
        c_DC = by_draw(actions, coefficients(row, actions, scored), chunk)
        total_C += c_DC.sum(0)
        square_CC += c_DC.T @ c_DC
        copies += len(actions.copies)
    return NoiseMoments(total_C / row.draws, square_CC / row.draws, copies / row.draws)


@cache
def all_draws(row: CardRow, scored: int) -> BoundedActions:
    """All draws of an algorithm whose coefficients depend on the answer's probabilities."""
    return drawn(method_of(row), (0,) * LENGTH, scored, 0, row.draws)  # type: ignore[return-value]


def drawn(method: Any, set_at: tuple[int, ...], scored: int, rollout: int, count: int) -> Actions:
    """The actions of an answer, once for each of ``count`` keys."""
    keys = [key("card", rollout, i) for i in range(count)]
    actions: Actions = method.actions(
        [Completion(PROMPT, (0,) * LENGTH, scored, k, set_at) for k in keys], 0, shared_key_of(0, rollout)
    )
    return actions


@cache
def forward_coefficients(row: CardRow, quota: int) -> Tensor:
    """The coefficients of the tokens that forwards predict, with an advantage of 1, [C]. Hidden are the masks before a
    forward; each forward writes ``quota`` of them."""
    method, blank, result_C = method_of(row), (0,) * LENGTH, torch.zeros(COLUMNS).double()
    for order in permutations(range(LENGTH)):
        forwards = [tuple(sorted(order[written:])) for written in range(0, LENGTH, quota)]
        predictions = tuple(Prediction(blank, masked, LENGTH, 1.0) for masked in forwards)
        actions = method.actions([Completion(PROMPT, blank, LENGTH, 0, blank, predictions=predictions)], 0, 0)
        own_C = by_draw(actions, coefficients(row, actions, LENGTH), 1)[0]
        result_C = torch.where(own_C > 0, own_C, result_C)  # a forward has the same ones in all orders
    return result_C


@cache
def node_coefficients(row: CardRow, parent: tuple[bool, ...], child: tuple[bool, ...]) -> Tensor:
    """The coefficients of the tokens of a node in a tree, [C]. Given are the masks of its parent and of the node."""
    method = method_of(row)
    tokens = tuple(MASK if masked else 0 for masked in child)
    set_at = tuple(0 if before and not after else -1 for before, after in zip(parent, child, strict=True))
    actions = method.actions([Completion(PROMPT, tokens, LENGTH, 0, set_at, parent="parent")], 0, 0)
    return by_draw(actions, coefficients(row, actions, LENGTH, method.tree.nodes), 1)[0]


@dataclass(frozen=True)
class Subtree:
    """Moments of a canvas in a tree over what is drawn below it. V is its value, the mean reward of its leaves, and g
    the gradient of all nodes below it: E[V], Var V, E[g], Cov(V, g), E |g|^2."""

    value: float
    variance: float
    mean_P: Tensor
    covariance_P: Tensor
    square: float


@dataclass(frozen=True)
class Figures:
    """The gradient of one algorithm against the exact one (see the page)."""

    cosine: float
    length: float
    bias: float
    variance: float
    copies: float


class Policy:
    """A random network with a random reward: 1 for about a third of the answers. With ``ends`` the last token is EOS,
    and the reward depends on the tokens through the first EOS alone."""

    def __init__(self, seed: int, ends: bool = False) -> None:
        self.network, self.ends = SmallNetwork(seed), ends
        generator = torch.Generator().manual_seed(seed + 1000)
        right_Y = torch.rand(len(ANSWERS), generator=generator) < 1 / 3
        by_answer = dict(zip(ANSWERS, right_Y.double().tolist(), strict=True))
        self.reward = {y: by_answer[y[: self.length(y)] + (EOS,) * (LENGTH - self.length(y))] for y in ANSWERS}
        self.reward_Y = torch.tensor(list(self.reward.values()), dtype=torch.float64)
        gradient = log_probability_gradients(self.network)
        bits_HL = torch.arange(2**LENGTH)[:, None] // 2 ** torch.arange(LENGTH) % 2 == 1
        answer_YL = torch.tensor(ANSWERS)
        canvas_YH = (torch.where(bits_HL, MASK, answer_YL[:, None]) * PLACE_L).sum(-1)
        at_L = torch.arange(LENGTH)
        selected = gradient[:, canvas_YH[..., None], at_L, answer_YL[:, None]]  # [prompt bits, Y, H, L, P]
        self.gradient_YCP = selected.transpose(0, 1).reshape(len(ANSWERS), COLUMNS, -1)
        log_p = torch.stack([log_probabilities(self.network, hidden) for hidden in range(2 ** len(PROMPT))]).detach()
        selected = log_p[:, canvas_YH[..., None], at_L, answer_YL[:, None]]
        self.log_p_YC = selected.transpose(0, 1).reshape(len(ANSWERS), COLUMNS)

    def length(self, answer: tuple[int, ...]) -> int:
        """Tokens through the first EOS, or all."""
        return answer.index(EOS) + 1 if self.ends and EOS in answer else LENGTH

    def expected(self, row: CardRow, sampler: EnumeratedSampler) -> tuple[Tensor, float, float]:
        """The expectation of the gradient of a completion with its exact advantage, reward - expected reward, [P]; of
        its squared length; and of its forwards."""
        if row.algorithm == "mdpo":
            return self._of_forwards(row, sampler)
        if row.algorithm == "dtreerpo":
            return self._of_trees(row, sampler)
        baseline = sum(chance * self.reward[c.tokens] for c, chance in sampler.trajectories)
        alike: dict[tuple[tuple[int, ...], int], Tensor] = {}  # probabilities of the answers with one ``NoiseMoments``
        for c, chance in sampler.trajectories:
            scored = LENGTH if dict(row.options).get("score_after_eos") else self.length(c.tokens)
            place = (c.set_at if row.replays else (0,) * LENGTH), scored
            alike.setdefault(place, torch.zeros(len(ANSWERS)).double())[ANSWERS.index(c.tokens)] += chance
        advantage_Y = self.reward_Y - baseline
        mean_P, square, copies = torch.zeros(self.gradient_YCP.shape[-1]).double(), 0.0, 0.0
        for (order, scored), chance_Y in sorted(alike.items()):
            part = self._linear if algorithms()[row.algorithm].has_ratio else self._bounded
            of = part(row, order, scored, chance_Y, advantage_Y)
            mean_P, square, copies = mean_P + of[0], square + of[1], copies + of[2]
        return mean_P, square, copies

    def _linear(
        self, row: CardRow, order: tuple[int, ...], scored: int, chance_Y: Tensor, advantage_Y: Tensor
    ) -> tuple[Tensor, float, float]:
        """The share of the answers with one order and length in :meth:`expected`."""
        of = noise(row, order, scored)
        mean_P = torch.einsum("y,c,ycp->p", chance_Y * advantage_Y, of.mean_C, self.gradient_YCP)
        used = (of.mean_C != 0).nonzero()[:, 0]
        g_YcP = self.gradient_YCP[:, used]
        norm_Y = torch.einsum("ycp,cd,ydp->y", g_YcP, of.square_CC[used][:, used], g_YcP)
        return mean_P, float((chance_Y * advantage_Y**2 * norm_Y).sum()), float(chance_Y.sum()) * of.copies

    def _bounded(
        self, row: CardRow, order: tuple[int, ...], scored: int, chance_Y: Tensor, advantage_Y: Tensor
    ) -> tuple[Tensor, float, float]:
        """The same for an algorithm whose coefficients depend on the advantage's sign and on the probabilities."""
        method, actions = method_of(row), all_draws(row, scored)
        column_N, mean_P, square = columns_of(actions), torch.zeros(self.gradient_YCP.shape[-1]).double(), 0.0
        for y, (chance, advantage) in enumerate(zip(chance_Y.tolist(), advantage_Y.tolist(), strict=True)):
            if not chance:
                continue
            nll_N = (-self.log_p_YC[y, column_N]).requires_grad_()
            value_A = actions.logprobs(nll_N) if advantage > 0 else method.negative_values(actions, nll_N)
            (slope_N,) = torch.autograd.grad(value_A.sum(), nll_N)
            g_DP = by_draw(actions, -slope_N * LENGTH, row.draws) @ self.gradient_YCP[y]
            mean_P += chance * advantage * g_DP.mean(0)
            square += chance * advantage**2 * float(g_DP.square().sum(1).mean())
        return mean_P, square, float(chance_Y.sum()) * len(actions.copies) / row.draws

    def _of_forwards(self, row: CardRow, sampler: EnumeratedSampler) -> tuple[Tensor, float, float]:
        """The same for MDPO, trained on all forwards. The advantage of a forward is its score minus its expected score,
        divided by its standard deviation if advantages are standardized."""
        paths, method = sampler.paths, method_of(row)
        assert method.options.sample_train_steps >= sampler.turns
        chance_W, score_WT = paths.probability_W, step_scores(self.reward_Y[paths.answer_WT])
        advantage_WT = score_WT - chance_W @ score_WT
        if method.options.advantage == "standardized":
            advantage_WT = advantage_WT / ((chance_W @ advantage_WT.square()).sqrt() + STD_EPS)
        gradient_YHP = self._forward_gradients(row, sampler.quota)
        hidden_WT = (paths.canvas_WT[..., None] // PLACE_L % 4 == MASK).long() @ 2 ** torch.arange(LENGTH)
        g_WP = torch.zeros(len(chance_W), gradient_YHP.shape[-1]).double()
        for t in range(sampler.turns):
            g_WP += advantage_WT[:, t, None] * gradient_YHP[paths.answer_WT[:, t], hidden_WT[:, t]]
        return chance_W @ g_WP, float(chance_W @ g_WP.square().sum(1)), float(sampler.turns)

    def _forward_gradients(self, row: CardRow, quota: int) -> Tensor:
        """The gradient of what a forward predicted, with an advantage of 1, by answer and masks, [Y, H, P]."""
        weight_YC = method_of(row).loss_weights(forward_coefficients(row, quota), self.log_p_YC)
        weighted_YCP = weight_YC.expand_as(self.log_p_YC)[..., None] * self.gradient_YCP
        return weighted_YCP[:, : HIDDEN * LENGTH].unflatten(1, (HIDDEN, LENGTH)).sum(2)

    def _of_trees(self, row: CardRow, sampler: EnumeratedSampler) -> tuple[Tensor, float, float]:
        """The same for d-TreeRPO. A tree stands for as many completions as it has leaves: its variance is multiplied by
        their number."""
        method = method_of(row)
        root, leaves = self._subtree(row, sampler, CANVASES - 1, 0), method.tree.leaves
        length = float(root.mean_P.square().sum())
        return root.mean_P, length + leaves * (root.square - length), method.tree.parents / leaves

    def _subtree(self, row: CardRow, sampler: EnumeratedSampler, canvas: int, level: int) -> Subtree:
        """The moments of a canvas. Its g is the sum over children of A own + g of the child, where own is the gradient
        of its transition, and A its value minus the expected one; an only child has no baseline. Children are
        drawn independently."""
        tree, none_P = method_of(row).tree, torch.zeros(self.gradient_YCP.shape[-1]).double()
        if level == len(tree.branches):
            return Subtree(self.reward[tokens_of(canvas)], 0.0, none_P, none_P, 0.0)
        turns, count = tree.turn(level + 1, sampler.turns) - tree.turn(level, sampler.turns), tree.branches[level]
        children = [
            (chance, self._subtree(row, sampler, child, level + 1), self._node_gradient(row, canvas, child))
            for child, chance in sampler.after(canvas, turns).items()
        ]
        value = sum(chance * below.value for chance, below, _ in children)
        variance, mean_P, covariance_P, square = 0.0, none_P, none_P, 0.0
        for chance, below, own_P in children:
            off, a = below.value - value, below.value - (value if count > 1 else 0.0)
            variance += chance * (below.variance + off**2)
            mean_P = mean_P + chance * (a * own_P + below.mean_P)
            covariance_P = covariance_P + chance * (
                (below.variance + off * a) * own_P + below.covariance_P + off * below.mean_P
            )
            own_square = (below.variance + a**2) * float(own_P.square().sum())
            crossed = float(own_P @ (below.covariance_P + a * below.mean_P))
            square += chance * (own_square + 2 * crossed + below.square)
        pairs = count * (count - 1) * float(mean_P.square().sum())
        return Subtree(value, variance / count, count * mean_P, covariance_P, count * square + pairs)

    def _node_gradient(self, row: CardRow, parent: int, child: int) -> Tensor:
        """The gradient of the log-probabilities of the tokens that a node adds to its parent, as weighted, [P]."""
        masks = [tuple(token == MASK for token in tokens_of(canvas)) for canvas in (parent, child)]
        answer = tuple(0 if token == MASK else token for token in tokens_of(child))
        weight_C = node_coefficients(row, masks[0], masks[1])
        return weight_C @ self.gradient_YCP[ANSWERS.index(answer)]

    def figures(self, row: CardRow, sampler: EnumeratedSampler) -> Figures:
        """The algorithm's expected gradient against the exact one."""
        mean_P, square, copies = self.expected(row, sampler)
        exact_P = sampler.exact_gradient(self.reward)
        size, exact_size = float(mean_P.norm()), float(exact_P.norm())
        return Figures(
            float(mean_P @ exact_P) / (size * exact_size),
            size / exact_size,
            float((mean_P - exact_P).norm()) / exact_size,
            square / size**2 - 1,
            copies,
        )
