"""A policy on three tokens whose sampler can be enumerated: the exact distribution of its answers, with their orders,
and the exact gradient of an expected reward.

The sampler is the one loop's at temperature 1: each forward draws a token at every masked position, and writes those
of the ``quota`` best positions by its ``order``. What was drawn elsewhere is discarded, and drawn again in the next
forward. The order ``low_confidence`` ranks a position by the probability of its drawn token, so that the discarded
draws decide which position is written; ``top_two_margin`` ranks by the distribution alone; ``left_to_right`` looks at
neither. Ties go to the first position.

Canvases are numbered: token i (or ``MASK``) times 4**i. Shape letters: K canvases, L positions, V tokens, D draws, P
parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, jacfwd
from torch.nn import Module, Parameter

from dare_bench.trainers.rl.completions import Completion
from dare_bench.types import ModelSpec

TOKENS, MASK, LENGTH = 3, 3, 4
PROMPT = (0, 2)
SPEC = ModelSpec("enumerated", MASK, (), None, None, TOKENS + 1, 64)
Order = Literal["low_confidence", "top_two_margin", "left_to_right"]
PLACE_L = 4 ** torch.arange(LENGTH)
CANVASES = 4**LENGTH
ANSWERS = tuple(product(range(TOKENS), repeat=LENGTH))


class SmallNetwork(Module):
    """``network(rows [..., n]) -> logits [..., n, 4]``: a random mixture of random embeddings; the mask has no
    probability. float64."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        positions = len(PROMPT) + LENGTH
        self.embedding = Parameter(torch.randn(4, TOKENS, generator=generator, dtype=torch.float64) * scale)
        self.mixture = Parameter(torch.randn(positions, positions, generator=generator, dtype=torch.float64) * scale)

    def forward(self, rows: Tensor) -> Tensor:
        logits = 2 * torch.tanh(self.mixture @ self.embedding[rows])
        return torch.nn.functional.pad(logits, (0, 1), value=float("-inf"))


def canvases(hidden_prompt: int = 0) -> Tensor:
    """The prompt with each canvas, int64 [256, prompt + L]; bit i of ``hidden_prompt`` masks token i of the prompt."""
    answer_KL = torch.arange(4**LENGTH)[:, None] // PLACE_L % 4
    prompt = [MASK if hidden_prompt >> i & 1 else token for i, token in enumerate(PROMPT)]
    return torch.cat([torch.tensor(prompt).expand(len(answer_KL), -1), answer_KL], 1)


def tokens_of(canvas: int) -> tuple[int, ...]:
    """The tokens of a canvas."""
    return tuple(canvas // 4**i % 4 for i in range(LENGTH))


def log_probabilities(network: SmallNetwork, hidden_prompt: int = 0) -> Tensor:
    """log p of every token at every position of every canvas, [256, L, V]."""
    logits = network(canvases(hidden_prompt))[:, len(PROMPT) :]
    return logits.log_softmax(-1)[..., :TOKENS]


def log_probability_gradients(network: SmallNetwork) -> Tensor:
    """The gradients of all of them, [4 hidden prompts, 256, L, V, P]."""
    names = [name for name, _ in network.named_parameters()]
    sizes = [parameter.numel() for parameter in network.parameters()]
    shapes = [parameter.shape for parameter in network.parameters()]
    flat_P = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    rows = torch.stack([canvases(hidden) for hidden in range(2 ** len(PROMPT))])

    def values(flat_P: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(flat_P.split(sizes), shapes, strict=True)]
        logits = functional_call(network, dict(zip(names, parts, strict=True)), (rows,))
        return logits[..., len(PROMPT) :, :TOKENS].log_softmax(-1)

    return jacfwd(values)(flat_P)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class EnumeratedDraws:
    """All draws of the forward on a canvas: their probabilities, with a graph, the answer that each of them predicts
    (the place in ``ANSWERS``), and the canvas that follows."""

    probability_D: Tensor
    answer_D: Tensor
    following_D: Tensor


@dataclass(frozen=True)
class ForwardOutcomes:
    """The outcomes of the forward on a canvas: their probabilities, with a graph, and the canvases that follow."""

    probability: Tensor
    following: list[int]


@dataclass(frozen=True)
class Paths:
    """All sequences of draws: their probabilities, the canvas before each forward, and the answer that it predicts."""

    probability_W: Tensor
    canvas_WT: Tensor
    answer_WT: Tensor


@dataclass(frozen=True)
class EnumeratedSampler:
    """All outcomes of sampling an answer with a network."""

    network: SmallNetwork
    order: Order
    quota: int = 1

    @cached_property
    def draws(self) -> dict[int, EnumeratedDraws]:
        """By canvas."""
        log_p_KLV = log_probabilities(self.network)
        rows = canvases()[:, len(PROMPT) :]
        return {k: self._draws(rows[k], log_p_KLV[k]) for k in range(CANVASES - 1, -1, -1) if MASK in rows[k]}

    def _draws(self, canvas_L: Tensor, log_p_LV: Tensor) -> EnumeratedDraws:
        open_n = (canvas_L == MASK).nonzero()[:, 0]
        drawn_Dn = torch.tensor(list(product(range(TOKENS), repeat=len(open_n))))
        log_p_nV = log_p_LV[open_n]
        log_p_Dn = log_p_nV[torch.arange(len(open_n)), drawn_Dn]
        written_Dn = torch.zeros_like(drawn_Dn, dtype=torch.bool)
        best_Dq = self._score(log_p_nV.detach(), log_p_Dn.detach()).sort(dim=1, descending=True, stable=True).indices
        written_Dn.scatter_(1, best_Dq[:, : self.quota], True)
        following_D = int((canvas_L * PLACE_L).sum()) + (written_Dn * (drawn_Dn - MASK) * PLACE_L[open_n]).sum(1)
        predicted_DL = canvas_L.repeat(len(drawn_Dn), 1)
        predicted_DL[:, open_n] = drawn_Dn
        answer_D = (predicted_DL * TOKENS ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
        return EnumeratedDraws(log_p_Dn.sum(1).exp(), answer_D, following_D)

    @cached_property
    def forwards(self) -> dict[int, ForwardOutcomes]:
        """By canvas."""
        forwards = {}
        for canvas, draws in self.draws.items():
            following, outcome_D = draws.following_D.unique(return_inverse=True)
            probability = draws.probability_D.new_zeros(len(following)).index_add(0, outcome_D, draws.probability_D)
            forwards[canvas] = ForwardOutcomes(probability, following.tolist())
        return forwards

    def _score(self, log_p_nV: Tensor, log_p_Dn: Tensor) -> Tensor:
        """Of each open position in each draw, [D, n]."""
        if self.order == "low_confidence":
            return log_p_Dn
        if self.order == "left_to_right":
            return -torch.arange(log_p_Dn.shape[1]).expand_as(log_p_Dn)
        top = log_p_nV.exp().topk(2, -1).values
        return (top[:, 0] - top[:, 1]).expand_as(log_p_Dn)

    def expected_reward(self, reward: dict[tuple[int, ...], float]) -> Tensor:
        """The exact expectation of a function of the answer, with a graph: recursively over canvases."""
        numbers = (sum(token * 4**i for i, token in enumerate(answer)) for answer in reward)
        value = {number: torch.tensor(r).double() for number, r in zip(numbers, reward.values(), strict=True)}
        for canvas in sorted(self.forwards, key=lambda canvas: tokens_of(canvas).count(MASK)):
            forward = self.forwards[canvas]
            value[canvas] = forward.probability @ torch.stack([value[following] for following in forward.following])
        return value[CANVASES - 1]

    def exact_gradient(self, reward: dict[tuple[int, ...], float]) -> Tensor:
        """The exact gradient of the expected reward, [P]."""
        parts = torch.autograd.grad(self.expected_reward(reward), list(self.network.parameters()), retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    @cached_property
    def trajectories(self) -> list[tuple[Completion, float]]:
        """Every answer with the forward of each token, and its probability."""
        return list(self._from(CANVASES - 1, (-1,) * LENGTH, 0, 1.0))

    def _from(
        self, canvas: int, set_at: tuple[int, ...], step: int, chance: float
    ) -> Iterator[tuple[Completion, float]]:
        tokens = tokens_of(canvas)
        if MASK not in tokens:
            yield Completion(PROMPT, tokens, LENGTH, 0, set_at), chance
            return
        forward = self.forwards[canvas]
        for following, probability in zip(forward.following, forward.probability.tolist(), strict=True):
            new = tokens_of(following)
            at = tuple(step if a != b else old for a, b, old in zip(tokens, new, set_at, strict=True))
            yield from self._from(following, at, step + 1, chance * probability)

    @cached_property
    def turns(self) -> int:
        """Forwards of a completion."""
        return -(-LENGTH // self.quota)

    def after(self, canvas: int, turns: int) -> dict[int, float]:
        """The canvases that a canvas may be after some forwards, with their probabilities."""
        reached = {canvas: 1.0}
        for _ in range(turns):
            following: dict[int, float] = {}
            for before, chance in reached.items():
                forward = self.forwards[before]
                for canvas, probability in zip(forward.following, forward.probability.tolist(), strict=True):
                    following[canvas] = following.get(canvas, 0.0) + chance * probability
            reached = following
        return reached

    @cached_property
    def paths(self) -> Paths:
        """All sequences of draws, also of the tokens that were discarded."""
        chance_W, canvas_WT = torch.ones(1).double(), torch.tensor([[CANVASES - 1]])
        answer_WT = torch.zeros(1, 0, dtype=torch.long)
        for _ in range(self.turns):
            canvas_K, at_W = canvas_WT[:, -1].unique(return_inverse=True)
            draws = [self.draws[canvas] for canvas in canvas_K.tolist()]  # as many of each, for they have as many masks
            chance_WD = chance_W[:, None] * torch.stack([d.probability_D.detach() for d in draws])[at_W]
            answer_WD = torch.stack([d.answer_D for d in draws])[at_W]
            following_WD = torch.stack([d.following_D for d in draws])[at_W]
            count = chance_WD.shape[1]
            chance_W = chance_WD.flatten()
            answer_WT = torch.cat([answer_WT.repeat_interleave(count, 0), answer_WD.view(-1, 1)], 1)
            canvas_WT = torch.cat([canvas_WT.repeat_interleave(count, 0), following_WD.view(-1, 1)], 1)
        return Paths(chance_W, canvas_WT[:, :-1], answer_WT)
