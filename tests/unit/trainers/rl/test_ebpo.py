"""EBPO: one ratio a completion, from ELBO estimates of all its blocks in one forward."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from completions import completion, rollouts, scored_positions, values
from table_policy import EOS, MASK, SPEC, Table, V, loss_of

from dare_bench.diffusion.masked_copies import MaskedCopies
from dare_bench.diffusion.schedules import NoiseSchedule
from dare_bench.errors import TrainingError
from dare_bench.loading import load
from dare_bench.trainers.rl import estimators
from dare_bench.trainers.rl.completions import check_blocks
from dare_bench.trainers.rl.ebpo import EBPO
from dare_bench.trainers.rl.espo import ESPO
from dare_bench.trainers.rl.surrogate import clipped
from dare_bench.types import Event, Generation, ModelSpec

ANSWER = (2, 4, 1, 3)
BLOCKS = ModelSpec("toy", MASK, (EOS,), None, None, V, 64, attention="block-causal", block_length=2)


def method(kind, spec=SPEC, **options):
    given = {"num_generations": 3, "num_iterations": 2, "max_completion_length": 4, **options}
    return kind(kind.settle(given, spec), spec, 4)


def many(count):
    return [completion(ANSWER, key=i) for i in range(count)]


def test_one_block_and_one_draw_is_an_elbo_that_is_not_divided_by_the_length():
    table, rows = Table(), many(4)
    wanted = estimators.elbo(rows, MASK, 0, NoiseSchedule("counts", 1))
    actions = method(EBPO, num_mc=1).actions(rows, 0, 0)
    v_A, divided_A = values(actions, table.losses).detach(), values(wanted, table.losses).detach()
    torch.testing.assert_close(v_A, 4 * divided_A)
    pair = values(method(ESPO, num_mc=1).actions(many(2000), 0, 0), table.losses).detach()
    many_A = values(method(EBPO, num_mc=2).actions(many(2000), 0, 0), table.losses).detach() / 4
    assert float(pair.mean()) == pytest.approx(float(many_A.mean()), abs=0.05), "both estimate the ELBO"


def test_every_block_of_every_draw_has_a_mask_and_levels_lie_on_one_grid():
    algorithm = method(EBPO, BLOCKS, num_mc=2)
    actions = algorithm.actions(many(50), 0, 0)
    counts = {0: set(), 1: set()}
    for copy, places in enumerate(scored_positions(actions)):
        blocks = [sum(at // 2 == block for at in places) for block in (1, 2)]
        assert min(blocks) >= 1
        counts[copy % 2].add(tuple(blocks))
        coefficient_N = actions.coefficient_N[actions.copies.copy_N == copy]
        assert coefficient_N.tolist() == pytest.approx([1 / blocks[at // 2 - 1] for at in places]), "s / k / draws"
    # Four cells at distance 1/4: over both draws each block has one level below 1/2 and one above, or all are equal.
    assert counts[0] | counts[1] == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert len(actions.sample_A) == 50, "one ratio for a completion"


def test_the_clip_in_the_logarithm_is_the_clip_of_the_ratio_and_its_gradient():
    lr_A = torch.linspace(-2, 2, 41, dtype=torch.float64).requires_grad_()
    for advantage in (1.0, -1.0):
        a_A = torch.full((41,), advantage, dtype=torch.float64)
        low, high = math.log1p(-0.2), math.log1p(0.2)
        logs = torch.minimum(lr_A, torch.tensor(high)) if advantage > 0 else torch.maximum(lr_A, torch.tensor(low))
        ours, theirs = clipped(lr_A, a_A, 0.2, 0.2)[0], -a_A * logs.exp()
        torch.testing.assert_close(ours, theirs)
        (g1,), (g2,) = (torch.autograd.grad(loss.sum(), lr_A, retain_graph=True) for loss in (ours, theirs))
        torch.testing.assert_close(g1, g2)
    huge_A = torch.tensor([1e4, -1e4], dtype=torch.float64, requires_grad=True)
    loss_A, _ = clipped(huge_A, -torch.ones(2, dtype=torch.float64), 0.2, 0.2)
    loss_A.sum().backward()
    assert torch.isfinite(loss_A).all() and torch.isfinite(huge_A.grad).all()


# Blocks


class Learner:
    """The tiny SDAR in float64 as a policy: -log p of what copies score, on two copies of each row."""

    def __init__(self):
        model = load("tiny-sdar-base", device="cpu").loaded
        self.spec, self.network = model.spec, model.network.double()

    def losses(self, given):
        return self.network(**given.arguments()).nll


def exchanged(actions, draws, block_length):
    """The same actions with block b of each masked copy of a completion moved b copies on: other blocks share a
    forward."""
    copies, batch = actions.copies, actions.copies.batch
    begin_R = torch.tensor([0, *batch.lengths[:-1]]).cumsum(0)
    first_T, draw_T = batch.row_T // draws * draws, batch.row_T % draws
    to_T = begin_R[first_T + (draw_T + batch.column_T // block_length) % draws] + batch.column_T
    seen_T = torch.empty_like(copies.seen_T).index_copy_(0, to_T, copies.seen_T)
    at_N, order_N = to_T[copies.at_N].sort()
    moved = MaskedCopies(batch, seen_T, at_N, copies.target_N[order_N])
    return replace(
        actions, copies=moved, coefficient_N=actions.coefficient_N[order_N], action_N=actions.action_N[order_N]
    )


def test_blocks_may_be_shown_in_any_of_a_completion_s_forwards():
    """Loss and gradient are those of a sum over (draw, block): it does not matter which blocks share a forward."""
    learner = Learner()
    algorithm = method(EBPO, learner.spec, num_mc=3, max_completion_length=7)
    answers = (((20, 21, 22, 23, 24, 25, 26), 1.0), ((27,) * 7, 0.0), ((28, 20, 30, 21, 22, 29, 31), 0.2),
               ((20, 21, 22, 23, 24, 25), 0.9), ((30,) * 6, 0.1), ((28, 20, 30, 21, 22, 29), 0.4))  # fmt: skip
    step = rollouts(algorithm, learner, answers).step(0)
    actions = exchanged(step.surrogate.actions, 3, learner.spec.block_length)
    assert (actions.copies.seen_T != step.copies.seen_T).any(), "other blocks share a forward"
    # As in a later step, with ratios inside and outside the clip range.
    old_A = (
        values(actions, learner.losses, learner.spec).detach()
        + torch.linspace(-0.4, 0.4, len(actions.sample_A)).double()
    )
    results = []
    for given in (step.surrogate.actions, actions):
        surrogate = replace(step.surrogate, actions=given, old_A=old_A)
        loss, metrics = loss_of(algorithm, replace(step, copies=given.copies, surrogate=surrogate), learner.losses)
        learner.network.zero_grad()
        loss.backward()
        slopes = [parameter.grad.flatten() for parameter in learner.network.parameters() if parameter.grad is not None]
        results.append((loss.detach(), metrics["clip_fraction"], torch.cat(slopes)))
    (loss, fraction, gradient), other = results
    assert 0 < fraction[0] < fraction[1] and float(gradient.norm()) > 1e-3
    torch.testing.assert_close(loss, other[0], rtol=1e-9, atol=0)
    torch.testing.assert_close(gradient, other[2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("prompt", "set_at"),
    [
        ((0, 0, 0, 0), (1, 0, 3, 2)),
        ((0, 0, 0), (0, 1, 2, 3, 4)),  # the first block holds prompt tokens
        ((0, 0, 0, 0), (0, 0, 1, 1)),
    ],
)
def test_blocks_of_the_learner_are_accepted(prompt, set_at):
    check_blocks(completion((1,) * len(set_at), set_at, prompt), 2)


def test_a_short_last_block_is_accepted_where_the_canvas_ends():
    given = completion((1,) * 3, (0, 1, 2), (0, 0))
    check_blocks(given, 2, canvas=3)
    for canvas in (None, 4):
        with pytest.raises(TrainingError, match="columns 2 to 4 were not sampled in finished blocks"):
            check_blocks(given, 2, canvas)


@pytest.mark.parametrize(
    ("prompt", "set_at"),
    [
        ((0, 0, 0, 0), (0, 2, 1, 3)),  # blocks of 4
        ((0, 0, 0, 0), (0, 0, 0, 0)),  # also when one forward writes all of it
        ((0, 0, 0), (0, 1, 2, 3)),  # counted from the answer's first token: the last one ends elsewhere
        ((0, 0, 0), (1, 0, 3, 2, 4)),  # the same, with another token
        ((0, 0, 0, 0), (0, 1, 2)),  # stopped inside a block
        ((0, 0, 0, 0), (0, 1, 2, -1)),  # a mask was left
    ],
)
def test_blocks_that_are_not_the_learner_s_are_an_error(prompt, set_at):
    algorithm = method(EBPO, BLOCKS)
    events = [Event(at, "set", i, 1, 0.5, -0.7) for i, at in enumerate(set_at) if at >= 0]
    answer = Generation([1] * len(set_at), "", 4, "length", tokens_to_eos=len(set_at), trajectory=events)
    end = len(prompt) + len(set_at) - 1
    with pytest.raises(TrainingError, match=f"row 3: columns {len(prompt)} to {end} were not .* blocks of 2 tokens"):
        algorithm.completion(prompt, answer, 0, "row 3")
    bidirectional = method(EBPO).completion(prompt, answer, 0, "row 3")
    assert bidirectional.set_at == set_at, "which has no blocks"
