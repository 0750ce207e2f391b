"""Write the tables of docs/algorithms.md: the parts of each algorithm, and the gradient card.

    python scripts/gradient_card.py

The card compares the expected gradient of each algorithm's first step on a rollout (ratio 1, no KL penalty) with the
exact gradient of the expected reward, on policies small enough to enumerate (``enumerated_sampler.py``). Answers and
their orders are enumerated with their exact probabilities; noise is drawn by the algorithm's own code, with fixed keys.

Shape letters: D draws of the noise, C columns (hidden tokens, position), Y answers, P parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from enumerated_sampler import (
    ANSWERS,
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
)
from torch import Tensor

from dare_bench.registry import registry
from dare_bench.seeds import key
from dare_bench.trainers.rl.estimators import BoundedUnits, Completion, Units
from dare_bench.trainers.rl.policy_gradient import PolicyGradient

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
PARTS = ("<!-- parts: made by scripts/gradient_card.py -->", "<!-- end of parts -->")
CARD = ("<!-- card: made by scripts/gradient_card.py -->", "<!-- end of card -->")
ENDS = ("<!-- ends: made by scripts/gradient_card.py -->", "<!-- end of ends -->")
EOS = 2
COLUMNS = 2 ** len(PROMPT) * 2**LENGTH * LENGTH
NETWORKS = 12
SAMPLERS: tuple[tuple[Order, int], ...] = (("low_confidence", 1), ("low_confidence", 2), ("left_to_right", 1))


# -- parts -------------------------------------------------------------------------------------------------------


def algorithms() -> dict[str, type[PolicyGradient]]:
    """The registered policy-gradient methods by name."""
    known = {name: registry().get("trainer", name).load() for name in registry().names("trainer")}
    return {n: kind for n, kind in known.items() if isinstance(kind, type) and issubclass(kind, PolicyGradient)}


def parts_row(kind: type[PolicyGradient]) -> list[str]:
    """The cells of an algorithm."""
    o: Any = kind.Options()
    clip, penalty = "no ratio", "none"
    if kind.has_ratio:
        high = o.epsilon if o.epsilon_high is None else o.epsilon_high
        clip = f"{o.epsilon:g}" if high == o.epsilon else f"{o.epsilon:g}, {high:g}"
        clip += f", dual {o.dual_clip:g}" if o.dual_clip else ""
        penalty = f"{o.beta:g} {kind.kl}" if o.beta else "none"
    return [
        f"`{kind.name}`",
        kind.estimator,
        kind.unit,
        o.advantage.replace("_", " "),
        clip,
        penalty,
        getattr(o, "aggregation", "token"),
        f"{o.num_generations} x {o.num_iterations}",
        f"{o.temperature:g}",
        f"{kind.learning_rate:g}",
        kind.families,
        " ".join(f"{name}={value}" for name, value in kind.variants.get("dare", {}).items()) or "none",
        f"{kind.paper}, {kind.code}",
    ]


def parts() -> str:
    """The table of parts."""
    head = ("algorithm", "estimator", "unit", "advantage", "clip", "KL", "mean over", "G x iterations", "temperature",
            "learning rate", "families", "`--variant dare`", "source")  # fmt: skip
    return table([list(head), *(parts_row(kind) for kind in algorithms().values())])


def table(rows: list[list[str]]) -> str:
    """Markdown, the first row as its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


# -- the gradient card -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
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


ROWS = (
    Row("cj_grpo", replays=True),
    Row("d1", (("p_mask_prompt", 0.0),)),
    Row("d1", (("p_mask_prompt", 0.15),), 1 << 15),
    Row("coupled_grpo", (), 1 << 15),
    Row("espo", (("num_mc", 1),), 1 << 15),
    Row("espo", (("num_mc", 2),), 1 << 15),
    Row("just_grpo", replays=True, order="left_to_right"),
    Row("bgpo", (("num_mc", 2),), 1 << 15),
    Row("bgpo", (("num_mc", 4),), 1 << 15),
    Row("ebpo", (("num_mc", 2),), 1 << 15, summed=True),
    Row("spg", (("p_mask_prompt", 0.0),), 1 << 13),
    Row("spg", (("p_mask_prompt", 0.0), ("negative", "elbo")), 1 << 13),
)


ROWS_WITH_EOS = (
    Row("cj_grpo", replays=True),
    Row("cj_grpo", (("score_after_eos", True),), replays=True),
    Row("d1", (("p_mask_prompt", 0.0),)),
    Row("d1", (("p_mask_prompt", 0.0), ("score_after_eos", True))),
)


@dataclass(frozen=True)
class Noise:
    """What an algorithm scores of an answer, over the draws of its noise.

    ``mean_C`` and ``square_CC`` are E[c] and E[c c'] of the coefficients of log p in the value of a completion; column
    ((hidden prompt bits) 16 + hidden answer bits) 4 + position. ``looks``: forwards of the learner for a completion.
    """

    mean_C: Tensor
    square_CC: Tensor
    looks: float


def method_of(row: Row) -> Any:
    """The algorithm of a row."""
    kind = algorithms()[row.algorithm]
    method = kind(kind.settle(dict(row.options), SPEC), SPEC, LENGTH)
    method.seed = 0
    return method


def columns_of(units: Units) -> Tensor:
    """The column of each scored token (see :class:`Noise`), int64 [N]."""
    hidden_RL = (units.looks.seen_T == MASK).view(len(units.looks), -1).long()
    prompt_R = hidden_RL[:, : len(PROMPT)] @ 2 ** torch.arange(len(PROMPT))
    answer_R = hidden_RL[:, len(PROMPT) :] @ 2 ** torch.arange(LENGTH)
    at_N = units.looks.batch.column_T[units.looks.at_N] - len(PROMPT)
    return (prompt_R * 2**LENGTH + answer_R)[units.looks.look_N] * LENGTH + at_N


def by_draw(units: Units, coefficient_N: Tensor, draws: int) -> Tensor:
    """The coefficients of each draw of the noise, [D, C]."""
    c_DC = torch.zeros(draws, COLUMNS).double()
    c_DC.index_put_((units.sample_R[units.looks.look_N], columns_of(units)), coefficient_N, accumulate=True)
    return c_DC


@cache
def noise(row: Row, set_at: tuple[int, ...], scored: int = LENGTH) -> Noise:
    """The algorithm's own looks, units and weights at an answer with the given order, of which ``scored`` tokens count.
    Means over an answer's tokens are multiplied by the length, since the policy gradient is a sum over them.
    """
    method, chunk = method_of(row), min(row.draws, 256)
    total_C, square_CC, looks = torch.zeros(COLUMNS).double(), torch.zeros(COLUMNS, COLUMNS).double(), 0
    for rollout in range(row.draws // chunk):
        units = drawn(method, set_at, scored, rollout, chunk)
        weight_U = method.step_weights(units, torch.full((chunk,), scored), 1, scored)
        value_N = units.coefficient_N * weight_U[units.unit_N] * (1 if row.summed else LENGTH)
        c_DC = by_draw(units, value_N, chunk)
        total_C += c_DC.sum(0)
        square_CC += c_DC.T @ c_DC
        looks += len(units.looks)
    return Noise(total_C / row.draws, square_CC / row.draws, looks / row.draws)


@cache
def all_draws(row: Row, scored: int) -> BoundedUnits:
    """All draws of an algorithm whose coefficients depend on the answer's probabilities."""
    return drawn(method_of(row), (0,) * LENGTH, scored, 0, row.draws)  # type: ignore[return-value]


def drawn(method: Any, set_at: tuple[int, ...], scored: int, rollout: int, count: int) -> Units:
    """The units of an answer, once for each of ``count`` keys."""
    keys = [key("card", rollout, i) for i in range(count)]
    units: Units = method.units([Completion(PROMPT, (0,) * LENGTH, scored, k, set_at) for k in keys], 0, rollout)
    return units


@dataclass(frozen=True)
class Figures:
    """The gradient of one algorithm against the exact one (see the page)."""

    cosine: float
    length: float
    bias: float
    variance: float
    looks: float


class Policy:
    """A random network with a random reward: 1 for about a third of the answers. With ``ends`` the last token is EOS,
    and the reward depends on the tokens through the first EOS alone."""

    def __init__(self, seed: int, ends: bool = False) -> None:
        self.network, self.ends = SmallNetwork(seed), ends
        generator = torch.Generator().manual_seed(seed + 1000)
        right_Y = torch.rand(len(ANSWERS), generator=generator) < 1 / 3
        by_answer = dict(zip(ANSWERS, right_Y.double().tolist(), strict=True))
        self.reward = {y: by_answer[y[: self.length(y)] + (EOS,) * (LENGTH - self.length(y))] for y in ANSWERS}
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

    def expected(self, row: Row, sampler: EnumeratedSampler) -> tuple[Tensor, float, float]:
        """The expectation of the gradient of a completion with its exact advantage, reward - expected reward, [P]; of
        its squared length; and of its forwards."""
        baseline = sum(chance * self.reward[c.tokens] for c, chance in sampler.trajectories)
        alike: dict[tuple[tuple[int, ...], int], Tensor] = {}  # probabilities of the answers with one ``Noise``
        for c, chance in sampler.trajectories:
            scored = LENGTH if dict(row.options).get("score_after_eos") else self.length(c.tokens)
            place = (c.set_at if row.replays else (0,) * LENGTH), scored
            alike.setdefault(place, torch.zeros(len(ANSWERS)).double())[ANSWERS.index(c.tokens)] += chance
        advantage_Y = torch.tensor([self.reward[answer] - baseline for answer in ANSWERS], dtype=torch.float64)
        mean_P, square, looks = torch.zeros(self.gradient_YCP.shape[-1]).double(), 0.0, 0.0
        for (order, scored), chance_Y in sorted(alike.items()):
            part = self._linear if algorithms()[row.algorithm].has_ratio else self._bounded
            of = part(row, order, scored, chance_Y, advantage_Y)
            mean_P, square, looks = mean_P + of[0], square + of[1], looks + of[2]
        return mean_P, square, looks

    def _linear(
        self, row: Row, order: tuple[int, ...], scored: int, chance_Y: Tensor, advantage_Y: Tensor
    ) -> tuple[Tensor, float, float]:
        """The share of the answers with one order and length in :meth:`expected`."""
        of = noise(row, order, scored)
        mean_P = torch.einsum("y,c,ycp->p", chance_Y * advantage_Y, of.mean_C, self.gradient_YCP)
        used = (of.mean_C != 0).nonzero()[:, 0]
        g_YcP = self.gradient_YCP[:, used]
        norm_Y = torch.einsum("ycp,cd,ydp->y", g_YcP, of.square_CC[used][:, used], g_YcP)
        return mean_P, float((chance_Y * advantage_Y**2 * norm_Y).sum()), float(chance_Y.sum()) * of.looks

    def _bounded(
        self, row: Row, order: tuple[int, ...], scored: int, chance_Y: Tensor, advantage_Y: Tensor
    ) -> tuple[Tensor, float, float]:
        """The same for an algorithm whose coefficients depend on the advantage's sign and on the probabilities."""
        method, units = method_of(row), all_draws(row, scored)
        column_N, mean_P, square = columns_of(units), torch.zeros(self.gradient_YCP.shape[-1]).double(), 0.0
        for y, (chance, advantage) in enumerate(zip(chance_Y.tolist(), advantage_Y.tolist(), strict=True)):
            if not chance:
                continue
            nll_N = (-self.log_p_YC[y, column_N]).requires_grad_()
            value_U = units.values(nll_N) if advantage > 0 else method.negative_values(units, nll_N)
            (slope_N,) = torch.autograd.grad(value_U.sum(), nll_N)
            g_DP = by_draw(units, -slope_N * LENGTH, row.draws) @ self.gradient_YCP[y]
            mean_P += chance * advantage * g_DP.mean(0)
            square += chance * advantage**2 * float(g_DP.square().sum(1).mean())
        return mean_P, square, float(chance_Y.sum()) * len(units.looks) / row.draws

    def figures(self, row: Row, sampler: EnumeratedSampler) -> Figures:
        """The algorithm's expected gradient against the exact one."""
        mean_P, square, looks = self.expected(row, sampler)
        exact_P = sampler.exact_gradient(self.reward)
        size, exact_size = float(mean_P.norm()), float(exact_P.norm())
        return Figures(
            float(mean_P @ exact_P) / (size * exact_size),
            size / exact_size,
            float((mean_P - exact_P).norm()) / exact_size,
            square / size**2 - 1,
            looks,
        )


def figures(rows: Sequence[Row] = ROWS, ends: bool = False) -> dict[tuple[Order, int, Row], list[Figures]]:
    """By order, tokens a forward and row: the figures of each network."""
    policies = [Policy(seed, ends) for seed in range(NETWORKS)]
    result: dict[tuple[Order, int, Row], list[Figures]] = {}
    for order, quota in SAMPLERS:
        samplers = [EnumeratedSampler(policy.network, order, quota) for policy in policies]
        for row in (row for row in rows if row.order in (None, order)):
            each = [policy.figures(row, sampler) for policy, sampler in zip(policies, samplers, strict=True)]
            result[order, quota, row] = each
    return result


HEAD = ("order", "tokens a forward", "algorithm", "cosine", "lowest", "length", "bias", "forwards", "variance",
        "variance x forwards")  # fmt: skip


def card_row(order: Order, quota: int, row: Row, each: list[Figures]) -> list[str]:
    """The cells of a row: medians over the networks."""
    middle = {name: median(getattr(f, name) for f in each) for name in Figures.__annotations__}
    noisy = median(f.variance * f.looks for f in each)
    return [
        order.replace("_", " "),
        f"{quota}",
        f"`{row.label}`",
        f"{middle['cosine']:.2f}",
        f"{min(f.cosine for f in each):.2f}",
        f"{middle['length']:.2f}",
        f"{middle['bias']:.2f}",
        f"{middle['looks']:.3g}",
        f"{middle['variance']:.0f}",
        f"{noisy:.0f}",
    ]


def card(rows: Sequence[Row] = ROWS, ends: bool = False) -> str:
    """The gradient card."""
    return table([list(HEAD), *(card_row(*place, each) for place, each in figures(rows, ends).items())])


def between(text: str, markers: tuple[str, str]) -> str:
    """What stands between two markers."""
    return text.partition(markers[0])[2].partition(markers[1])[0].strip()


def replaced(text: str, markers: tuple[str, str], content: str) -> str:
    """The text with other content between two markers."""
    before, _, rest = text.partition(markers[0])
    _, found, after = rest.partition(markers[1])
    if not found:
        raise SystemExit(f"{PAGE} has no {markers[0]} ... {markers[1]}; restore these lines")
    return f"{before}{markers[0]}\n\n{content}\n\n{markers[1]}{after}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables = ((PARTS, parts()), (CARD, card()), (ENDS, card(ROWS_WITH_EOS, ends=True)))
    for markers, content in tables:
        text = replaced(text, markers, content)
    PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
