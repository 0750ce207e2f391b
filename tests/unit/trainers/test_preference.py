"""Preference optimization on ELBO estimates: the identities that it stands on, and a reference that is asked once."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from table_policy import EOS, MASK, SPEC, Table, V, accumulated, elbo, loss_of, masks, tokens
from torch.nn.functional import logsigmoid

from dare_bench.diffusion.forward import inputs
from dare_bench.diffusion.masked_copies import masked_copies, pack
from dare_bench.diffusion.schedules import CleanCopies, NoiseSchedule, draw, weights
from dare_bench.errors import UsageError
from dare_bench.trainers.preference import DPO, VRPO
from dare_bench.trainers.reference_policy import ReferenceLosses
from dare_bench.trainers.steps import StepShape, redraw

PAIRS = [
    [([0, 1], [2, 3, 4]), ([0, 1], [2, 2])],
    [([1], [4]), ([1], [0, 3, 3, 1])],
    [([3, 3], [1, 0]), ([3, 3], [4, 0])],
    [([], [2, 1, 2]), ([], [1])],
]


def method(kind=VRPO, spec=SPEC, **options):
    return kind(kind.settle(options, spec), spec, None)


def step_of(dpo, pairs=PAIRS, number=0, shape=None, process=0):
    """Without EOS behind answers: rows are what they say."""
    return dpo.source(tokens("pairs", *pairs, cut=True), shape or StepShape(len(pairs)), 0, process).step(number)


def reference_of(table, dpo, keep=False):
    return ReferenceLosses(lambda step: table.losses(dpo.inputs(step.copies)).detach(), keep)


def losses(dpo, policy, reference, count=200, pair=PAIRS[1]):
    """The loss of each of ``count`` pairs, which differ by their draws alone."""
    with torch.no_grad():
        whole, _ = loss_of(dpo, step_of(dpo, [pair] * count), policy.losses, reference_of(reference, dpo))
    own, theirs = scores(dpo, policy, reference, count, pair)
    each = -logsigmoid(dpo.options.beta * (own - theirs))
    assert float(whole) == pytest.approx(float(each.mean()), rel=1e-9)
    return each


def scores(dpo, policy, before, count, pair=PAIRS[1]):
    """B(w) - B(l) of the policy and of the reference, [2, count]: their difference is the score in log sigmoid."""
    step = step_of(dpo, [pair] * count)
    other = step if dpo.options.shared_noise else redraw(step, dpo.schedule, MASK)
    with torch.no_grad():
        own = step.sums(policy.losses(dpo.inputs(step.copies)))
        reference = other.sums(before.losses(dpo.inputs(other.copies)))
    return torch.stack([own[:, 1] - own[:, 0], reference[:, 1] - reference[:, 0]])


def gradient(table, value):
    """Of all of a table's numbers, as one vector."""
    result = torch.autograd.grad(value, list(table.parameters()))
    return torch.cat([part.flatten() for part in result])


def close_to(table, by=0.1):
    """A policy that has moved a little."""
    moved, other = deepcopy(table), Table(9)
    with torch.no_grad():
        for selected, reference in zip(moved.parameters(), other.parameters(), strict=True):
            selected += by * reference
    return moved


# At the reference


@pytest.mark.parametrize("noise", ["uniform", "even", "counts", "coupled"])
def test_at_the_reference_shared_draws_cost_log_2_whatever_is_drawn(noise):
    table = Table()
    each = losses(method(noise=noise, draws=2), table, table)
    assert torch.equal(each, torch.full((200,), math.log(2), dtype=torch.float64))


def test_at_the_reference_draws_of_its_own_cost_more():
    """Jensen: -log sigmoid is convex, and the score is noise with mean zero."""
    table = Table()
    each = losses(method(DPO, draws=1, beta=1.0), table, table, 1000)
    assert float(each.mean()) - math.log(2) > 10 * float(each.std()) / math.sqrt(1000)
    fewer = losses(method(DPO, draws=4, noise="counts", beta=1.0), table, table, 1000)
    assert math.log(2) < float(fewer.mean()) < 0.9 * float(each.mean()), "more draws, less of it"


def test_the_gradient_at_the_reference_is_minus_half_beta_of_the_elbos_difference():
    table, dpo = Table(), method(beta=0.7, draws=3)
    step = step_of(dpo, PAIRS[:1])
    loss, _ = loss_of(dpo, step, table.losses, reference_of(table, dpo))
    won, lost = (gradient(table, -step.sums(table.losses(dpo.inputs(step.copies)))[0, role]) for role in (0, 1))
    torch.testing.assert_close(gradient(table, loss), -0.35 * (won - lost))
    assert float(won.norm()) > 0.1


# Enumerated: DPO on the ELBO itself


def test_full_enumeration_is_dpo_on_the_elbo():
    """As many draws as an answer has masks, each mask once: estimates that are exact, and a loss that is DPO's."""
    policy, before, dpo = Table(1), Table(2), method(beta=0.3, draws=7)
    pair = [([0, 1], [2, 3, 4]), ([0, 1], [4, 2, 0])]
    step = step_of(dpo, [pair])
    masked_T, weight_T = torch.zeros(14, 5, dtype=torch.bool), torch.zeros(14, 5, dtype=torch.float64)
    for role in (0, 1):
        for copy, (mask, chance) in zip((step.role_R == role).nonzero()[:, 0].tolist(), masks(3), strict=True):
            masked_T[copy, 2:] = mask
            weight_T[copy, 2:][mask] = chance * 3 / int(mask.sum())
    copies = masked_copies(step.copies.batch, masked_T.flatten(), MASK)
    step = replace(step, copies=copies, weight_N=weight_T[masked_T])
    loss, sums = loss_of(dpo, step, policy.losses, reference_of(before, dpo))
    figures = {name: total for name, (total, count) in sums.items() if count == 1}
    won, lost = (elbo(policy, *answer) - elbo(before, *answer).detach() for answer in pair)
    torch.testing.assert_close(loss, -logsigmoid(0.3 * (won - lost)))
    torch.testing.assert_close(gradient(policy, loss), gradient(policy, -logsigmoid(0.3 * (won - lost))))
    assert figures["rewards/chosen"] == pytest.approx(0.3 * won.item())
    assert figures["rewards/rejected"] == pytest.approx(0.3 * lost.item())
    assert figures["rewards/margins"] == pytest.approx(0.3 * (won - lost).item())
    assert figures["rewards/accuracies"] == float(won.item() > lost.item())
    assert figures["logps/chosen"] == pytest.approx(elbo(policy, *pair[0]).item())
    assert figures["logps/rejected"] == pytest.approx(elbo(policy, *pair[1]).item())


def test_beta_is_per_nat_of_the_whole_answer():
    """An answer of twice the length has twice the say: nothing is divided by lengths."""
    dpo = method(beta=0.5, draws=2)
    pair = [([0], [1] * 8), ([0], [1] * 4)]

    step = step_of(dpo, [pair] * 50)
    policy_N = torch.full((len(step.copies.at_N),), 2.0, dtype=torch.float64)
    figures = dpo.loss(step, policy_N, ReferenceLosses(lambda step: policy_N + 1))[1]
    total, count = figures["rewards/chosen"]
    assert total / count == pytest.approx(0.5 * 8, rel=1e-9), "k tokens at weight 8 / k, one nat each"
    assert figures["rewards/rejected"][0] / 50 == pytest.approx(0.5 * 4, rel=1e-9)


def test_label_smoothing_is_the_mean_over_wrong_labels():
    policy, before = Table(1), Table(2)
    plain, smooth = (method(label_smoothing=share, draws=2) for share in (0.0, 0.2))
    step = step_of(plain, PAIRS[:1])
    right = dpo_loss(plain, step, policy, before)
    wrong = dpo_loss(plain, swapped(step), policy, before)
    assert dpo_loss(smooth, step, policy, before) == pytest.approx(0.8 * right + 0.2 * wrong)


def dpo_loss(dpo, step, policy, before):
    with torch.no_grad():
        return float(loss_of(dpo, step, policy.losses, reference_of(before, dpo))[0])


def swapped(step):
    """The same copies with the labels changed."""
    return replace(step, items=tuple(item[::-1] for item in step.items), role_R=1 - step.role_R)


def test_swapping_the_answers_turns_the_sign_of_the_logit():
    policy, before, dpo = Table(1), Table(2), method(draws=2)
    step = step_of(dpo, PAIRS[:1])

    def logit(of):
        return -math.log(math.expm1(dpo_loss(dpo, of, policy, before)))

    assert logit(step) == pytest.approx(-logit(swapped(step)))
    assert abs(logit(step)) > 0.01


# Variance


def test_sharing_draws_takes_the_covariance_out_of_the_score():
    before = Table(2)
    policy = close_to(before)
    shared, apart = (
        scores(method(draws=1, noise="uniform", shared_noise=s), policy, before, 2000) for s in (True, False)
    )
    for result in (shared, apart):
        both = torch.cov(result)
        score = float((result[0] - result[1]).var())
        assert score == pytest.approx(float(both[0, 0] + both[1, 1] - 2 * both[0, 1]), rel=1e-9)
    assert abs(float(torch.corrcoef(apart)[0, 1])) < 0.1
    assert float(torch.corrcoef(shared)[0, 1]) > 0.9
    assert float((shared[0] - shared[1]).var()) < 0.2 * float((apart[0] - apart[1]).var())


PROMPT, ANSWER = [0, 1], [2, 3, 4, 1]


def growing(given):
    """A table's losses, and more where more is hidden, as models have it: levels then differ, not masks alone."""
    length = torch.tensor(given.plan.lengths)
    row_T = torch.arange(len(length)).repeat_interleave(length)
    hidden_R = torch.bincount(row_T[given.at_N], minlength=len(length))
    return Table(3, 0.5).losses(given).detach() + 2 * hidden_R[row_T[given.at_N]]


def total_variance():
    """V_t and E V_mask|t of one draw's estimate, k uniform on 1..L, by enumeration."""
    by_count = {k: [] for k in range(1, 5)}
    for mask, _ in masks(4):
        masked_T = torch.cat([torch.zeros(2, dtype=torch.bool), mask])
        given = inputs(masked_copies(pack([(PROMPT, ANSWER)]), masked_T, MASK), SPEC)
        k = int(mask.sum())
        by_count[k].append(float(growing(given).sum()) * 4 / k)
    values = [torch.tensor(v, dtype=torch.float64) for v in by_count.values()]
    means = torch.stack([v.mean() for v in values])
    return float(means.var(correction=0)), float(torch.stack([v.var(correction=0) for v in values]).mean())


def test_n_levels_with_one_mask_each_vary_least():
    """Var = V_t / n_time + E V_mask|t / (n_time n_mask) for every split of four forwards, hence (4, 1) is the best; and
    levels that are spread evenly (``counts`` with four draws) are better than four independent ones."""
    between, within = total_variance()
    assert between > 0.3 * within, "the split matters here"
    count, single, result = 8000, NoiseSchedule("counts", 1), {}
    for n_time, n_mask in ((4, 1), (2, 2), (1, 4)):
        # One draw of many keys is independent levels; the same key under other draw numbers, other masks of its level.
        key_R = torch.arange(count * n_time).repeat_interleave(n_mask) + 77 * n_time
        draw_R = torch.arange(n_mask).repeat(count * n_time)
        noise = draw(single, CleanCopies(pack([(PROMPT, ANSWER)] * len(key_R)), key_R, draw_R, 0))
        weighted_N = (
            growing(inputs(masked_copies(noise.batch, noise.masked_T, MASK), SPEC))
            * weights(noise, "elbo")[noise.masked_T]
        )
        each_R = torch.zeros(len(key_R), dtype=torch.float64)
        each_R.index_add_(0, noise.batch.row_T[noise.masked_T], weighted_N)
        result[n_time] = float(each_R.view(count, 4).mean(-1).var())
        assert result[n_time] == pytest.approx(between / n_time + within / 4, rel=0.1)
    assert result[4] < result[2] < result[1]
    dpo = method(draws=4, noise="counts")
    step = step_of(dpo, [[(PROMPT, ANSWER), (PROMPT, ANSWER)]] * count)
    assert float(step.sums(growing(dpo.inputs(step.copies)))[:, 0].var()) < 0.8 * result[4]


# Noise


def test_the_two_policies_see_the_same_copies_or_their_own():
    seen = []

    class Watched(Table):
        def losses(self, given):
            seen.append(given)
            return super().losses(given)

    for shared in (True, False):
        seen.clear()
        dpo = method(draws=2, noise="uniform", shared_noise=shared)
        loss_of(dpo, step_of(dpo), Watched().losses, reference_of(Watched(), dpo))
        assert len(seen) == 2
        assert (seen[0].tokens_U.tolist() == seen[1].tokens_U.tolist()) is shared


def test_kept_noise_comes_again_and_fresh_noise_does_not():
    for fresh in (True, False):
        dpo = method(draws=2, noise="uniform", fresh_noise=fresh)
        item, other = step_of(dpo), step_of(dpo, number=1)
        assert (set(item.keys) == set(other.keys)) is not fresh


# Cuts


@pytest.mark.parametrize("options", [{}, {"noise": "even"}, {"shared_noise": False, "noise": "uniform"}])
def test_the_loss_and_its_gradients_do_not_depend_on_the_cut(options):
    policy, before = Table(1), Table(2)
    dpo = method(draws=2, **options)
    result = []
    for processes, count in ((1, 1), (1, 3), (1, 16), (2, 2), (4, 5)):
        policy.zero_grad()
        shape, total, figures = StepShape(4 // processes, 1, processes), 0.0, {}
        for process in range(processes):
            step = step_of(dpo, shape=shape, process=process)
            value, metrics = accumulated(dpo, step, policy.losses, count, reference_of(before, dpo))
            total += value
            for name, (summed, number) in metrics.items():
                before_ = figures.get(name, (0.0, 0))
                figures[name] = (before_[0] + summed, before_[1] + number)
        grad = torch.cat([p.grad.flatten() for p in policy.parameters()])
        result.append((total, grad, {name: summed / number for name, (summed, number) in figures.items()}))
    for total, grad, figures in result[1:]:
        assert total == pytest.approx(result[0][0], rel=1e-12)
        torch.testing.assert_close(grad, result[0][1])
        assert figures == pytest.approx(result[0][2])


# The reference


def test_kept_noise_asks_the_reference_once_for_each_pair():
    policy, before, dpo = Table(1), Table(2), method(draws=2, fresh_noise=False)
    source, other = dpo.source(tokens("pairs", *PAIRS), StepShape(2), 0), reference_of(before, dpo, keep=True)
    reported = []
    for n in range(8):
        step = source.step(n)
        reported.append(loss_of(dpo, step, policy.losses, other)[0].item())
        expected = loss_of(dpo, step, policy.losses, reference_of(before, dpo))[0].item()
        assert reported[-1] == pytest.approx(expected)
        before.forwards -= 1  # the line before asked a reference that keeps nothing
        assert before.forwards == min(2 * (n + 1), 4), "four pairs, one at a time, whatever the epoch"
    assert len(set(reported)) > 1


def test_a_kept_value_does_not_depend_on_its_neighbors():
    """Each is computed alone: in one forward with others its last bits could be theirs."""
    before, dpo, seen = Table(2), method(draws=2, fresh_noise=False), []

    def watched(step):
        seen.append(len(step.copies))
        return before.losses(dpo.inputs(step.copies)).detach()

    whole, alone = (ReferenceLosses(watched, keep=True) for _ in range(2))
    step = step_of(dpo)
    together = step.sums(whole(step).double())
    for place in (3, 1, 0, 2):
        item = step.take([place])
        assert torch.equal(item.sums(alone(item).double())[0], together[place])
    both = step.take([2, 0])
    assert torch.equal(both.sums(whole(both).double()), together[[2, 0]])
    assert seen == [2 * 2] * 8, "two answers in two copies"


def test_the_reference_has_no_graph():
    dpo, before = method(draws=2), Table(2)
    policy = Table(1)
    loss, _ = loss_of(dpo, step_of(dpo), policy.losses, reference_of(before, dpo))
    loss.backward()
    assert all(p.grad is None for p in before.parameters())
    assert all(p.grad is not None for p in policy.parameters())


# Options


def test_defaults_are_the_naive_method_and_the_papers():
    naive, vrpo = method(DPO).options, method(VRPO).options
    assert (naive.draws, naive.noise, naive.shared_noise, naive.fresh_noise) == (1, "uniform", False, True)
    assert (vrpo.draws, vrpo.noise, vrpo.shared_noise, vrpo.fresh_noise) == (8, "counts", True, True)
    assert (naive.beta, vrpo.beta) == (0.1, 0.2)
    assert DPO.reads == VRPO.reads == "pairs"


def test_answers_end_as_in_fine_tuning():
    ((won, lost),) = VRPO(VRPO.settle({}, SPEC), SPEC, 5).items(tokens("pairs", PAIRS[0]))
    assert won.answer == (2, 3, 4, EOS, EOS)
    assert lost.answer == (2, 2, EOS, EOS, EOS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "band"}, "'counts'"),
        ({"noise": "blocks"}, "no attention blocks"),
        ({"block_length": 4}, "no attention blocks"),
        ({"noise": "coupled", "draws": 3}, "complementary pairs"),
        ({"noise": "even", "shared_noise": False}, "noise='even'"),
        ({"noise": "even", "fresh_noise": False}, "noise='even'"),
        ({"beta": 0}, "beta"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
        ({"gamma": 1}, "vrpo has no setting 'gamma'"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        method(VRPO, **options)
    assert "\n" not in str(caught.value)


def test_blocks_are_a_schedule_of_models_that_attend_in_blocks():
    spec = replace(SPEC, attention="block-causal", block_length=4, vocab_size=V)
    dpo = method(VRPO, spec, noise="blocks", block_length=2)
    assert dpo.schedule.block_length == 2
    assert dpo.block_length == 2
    assert method(VRPO, spec).schedule.block_length == 4
