"""A policy small enough to enumerate: logits of a row depend on all its tokens, in float64. For tests of losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.forward import Inputs
from dare_bench.trainers.forwards import Forward, StepLoss, divide, settle
from dare_bench.trainers.reference_policy import ReferenceLosses
from dare_bench.trainers.steps import Step
from dare_bench.training.rows import Kind, TokenRow, Tokens
from dare_bench.types import ModelSpec

V, MASK, EOS = 7, 6, 5
SPEC = ModelSpec("toy", MASK, (EOS,), None, None, V, 64)
SHIFTED = ModelSpec("toy", MASK, (EOS,), None, None, V, 64, predicts="next")


class Table(nn.Module):
    """``table(rows [..., L]) -> logits [..., L, V]``, for bidirectional specs."""

    def __init__(self, seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.emb = nn.Parameter(torch.randn(V, V, generator=g, dtype=torch.float64) * scale)
        self.mix = nn.Parameter(torch.randn(16, 16, generator=g, dtype=torch.float64) * scale)
        self.forwards = 0

    def forward(self, rows: Tensor) -> Tensor:
        n = rows.shape[-1]
        return torch.tanh(self.mix[:n, :n] @ self.emb[rows]) * 2

    def losses(self, given: Inputs) -> Tensor:
        """-log p of the targets, float64 [N]."""
        self.forwards += 1
        groups = [(given.tokens_U[g.start : g.stop].view(g.rows, g.length)) for g in given.plan.groups]
        logits = torch.cat([self(rows).view(-1, V) for rows in groups])
        return cross_entropy(logits[given.at_N], given.targets_N, reduction="none")


def loss_of(method: Any, step: Step, losses: Callable[[Inputs], Tensor], reference: Any = None) -> tuple[Tensor, Any]:
    """A method's loss of a step under a policy, with a graph, and its metrics."""
    return method.loss(step, losses(method.inputs(step.copies)).double(), reference)


def accumulated(
    method: Any, step: Step, losses: Callable[[Inputs], Tensor], count: int, reference: Any = None
) -> tuple[float, Any]:
    """Backward of a step's loss divided into ``count`` forwards, as the loop does it; its value and metrics."""
    parts = divide(step.copies, count)
    value_N = torch.zeros(len(step.copies.at_N), dtype=torch.float64)
    with torch.no_grad():
        for copies, index_N in parts:
            value_N[index_N] = losses(method.inputs(copies)).double()
    value_N.requires_grad_()
    loss, metrics = method.loss(step, value_N, reference)
    (weight_N,) = torch.autograd.grad(loss, value_N)
    for copies, index_N in parts:
        torch.dot(losses(method.inputs(copies)).double(), weight_N[index_N]).backward()
    return float(loss.detach()), metrics


def divided(method: Any, table: Table, step: Step, count: int, reference: Any = None) -> tuple[float, Tensor, Any]:
    """The loss of a step in ``count`` forwards, its gradient over all parameters, and its metrics."""
    table.zero_grad()
    loss, metrics = accumulated(method, step, table.losses, count, reference)
    gradient = torch.cat([p.grad.flatten() for p in table.parameters()])  # type: ignore[union-attr]
    return loss, gradient, metrics


def gradient_of(table: Table, value: Tensor) -> Tensor:
    """The gradient of a value over all parameters."""
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, list(table.parameters()))])


def moved(table: Table, by: float = 0.05) -> Table:
    """A copy a little way off, always in the same direction."""
    other, direction = deepcopy(table), Table(9)
    with torch.no_grad():
        for own, theirs in zip(other.parameters(), direction.parameters(), strict=True):
            own += by * theirs
    return other


def masks(length: int) -> Iterator[tuple[Tensor, float]]:
    """Every mask [L] with at least one token, and its chance when the count is uniform on 1..L."""
    for bits in product([False, True], repeat=length):
        if any(bits):
            yield torch.tensor(bits), 1.0 / (length * math.comb(length, sum(bits)))


def elbo(
    table: Callable[[Tensor], Tensor], prompt: Sequence[int], answer: Sequence[int], shift: bool = False
) -> Tensor:
    """The exact ELBO of an answer by its discrete form, with a graph: E_k (L / k) sum over k masked tokens of log p."""
    whole = torch.tensor([*prompt, *answer])
    total = torch.zeros((), dtype=torch.float64)
    for mask, chance in masks(len(answer)):
        masked = torch.cat([torch.zeros(len(prompt), dtype=torch.bool), mask])
        logits = table(torch.where(masked, MASK, whole))
        if shift:
            logits = torch.cat([logits[:1], logits[:-1]])
        nll = cross_entropy(logits[masked], whole[masked], reduction="sum")
        total = total - nll * chance * len(answer) / int(mask.sum())
    return total


def tokens(
    kind: Kind, *items: Sequence[tuple[Sequence[int], Sequence[int]]], canvas: int | None = None, cut: bool = False
) -> Tokens:
    """Items of (prompt, answer) rows; a row's key is its place, and a pair's rows differ by their role. ``cut``: no EOS
    belongs after the answers."""
    rows = tuple(
        tuple(
            TokenRow(tuple(prompt), tuple(answer), f"row {i}", 1000 * i + role, cut)
            for role, (prompt, answer) in enumerate(item)
        )
        for i, item in enumerate(items)
    )
    return Tokens(kind, rows, "hash", "rows", canvas)


def check_divisions(algorithm: Any, policy: Table, step: Step, reference: Any) -> None:
    """Loss and gradient of a step do not depend on the number of forwards that it is divided into."""
    loss, wanted, _ = divided(algorithm, policy, step, 1, reference)
    assert float(wanted.norm()) > 1e-3
    for count in (2, 3, len(step.copies), len(step.copies) + 2):
        other, result, _ = divided(algorithm, policy, step, count, reference)
        assert math.isclose(other, loss, rel_tol=1e-9, abs_tol=1e-12)
        torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-12)
        check_settled(algorithm, policy, step, reference, count)


def check_settled(algorithm: Any, policy: Table, step: Step, reference: Any, count: int) -> None:
    """Where values of the step are needed, they come from a pass before the forwards, or, if the loss is a sum over
    copies, from each forward: weights, loss and metrics are those of the whole step."""
    with torch.no_grad():
        nll_N = policy.losses(algorithm.inputs(step.copies)).float()
    wanted, asked = settle(algorithm, step, nll_N, reference), list[Step]()
    given = None if reference is None else ReferenceLosses(lambda step: asked.append(step) or reference(step))
    passes = list[Step]()
    loss = StepLoss(algorithm, step, given, lambda step: passes.append(step) or nll_N, count)
    for number, (copies, index_M) in enumerate(divide(step.copies, count), 1):
        forward = Forward(step, number, copies, index_M, number == count)
        weight_M = loss.weights(forward, nll_N[index_M])
        torch.testing.assert_close(weight_M, wanted.weight_N[index_M], rtol=1e-12, atol=1e-12)
    assert loss.settled is not None and torch.equal(loss.nll_N, nll_N)
    assert len(asked) == (reference is not None), "the reference is asked once"
    assert len(passes) == (algorithm.needs_values(step) and not algorithm.sums_over_copies)
    if algorithm.needs_values(step):
        assert math.isclose(loss.settled.loss, wanted.loss, rel_tol=1e-12, abs_tol=1e-12)
        assert loss.settled.metrics == wanted.metrics
