"""The gradient card: what it enumerates is the sampler in use, where an algorithm's gradient is exact, and that the
expectations of MDPO and d-TreeRPO are those of their own losses."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from completions import first_rollout, update
from paths import ROOT
from scipy.stats import chisquare

from dare_bench.model_adapters.sampling.loop import denoise
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.strategies.quota import Quota, Sequential
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.seeds import key
from dare_bench.trainers.rl.completions import Completion, Prediction
from dare_bench.trainers.rl.mdpo import step_scores
from dare_bench.types import LoopStats

STRATEGIES = {
    "low_confidence": lambda steps: Quota(steps=steps),
    "top_two_margin": lambda steps: Quota(steps=steps, rank_by="margin"),
    "left_to_right": lambda steps: Sequential(steps=steps),
}
FREE = ("top_two_margin", "left_to_right")
"""Orders that do not depend on the tokens drawn."""


@pytest.fixture(scope="module")
def card():
    """scripts/gradient_card.py, imported beside its neighbors."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("gradient_card")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def exact(card):
    """scripts/enumerated_gradients.py."""
    return importlib.import_module("enumerated_gradients")


@pytest.fixture(scope="module")
def policies(exact):
    return [exact.Policy(seed) for seed in range(2)]


def sampled(exact, network, order, quota, count):
    """Answers and orders of the real loop."""

    def forward(tokens_T, columns_T, plan, logits_at):
        return SimpleNamespace(logits=network(tokens_T.view(-1, 6)).view(-1, 4)[logits_at])

    sampler = Sampler(4, 4, STRATEGIES[order](4 // quota), TokenPolicy(temperature=1.0), record_trajectory=True)
    rows = (RowState(exact.PROMPT, sampler, key("row", i), exact.MASK) for i in range(count))
    with torch.no_grad():
        done = list(denoise(forward, rows, mask_id=exact.MASK, vocab=4, max_rows=2000, device=torch.device("cpu"),
                            stats=LoopStats()))  # fmt: skip
    result = Counter()
    for row in done:
        at = {event.position: event.step for event in row.events}
        result[tuple(row.response()), tuple(at[i] for i in range(4))] += 1
    return result


@pytest.mark.parametrize("quota", [1, 2])
@pytest.mark.parametrize("order", STRATEGIES)
def test_the_enumerated_distribution_is_that_of_the_sampler(exact, policies, order, quota):
    network, count = policies[1].network, 4000
    expected = {(c.tokens, c.set_at): count * chance for c, chance in
                exact.EnumeratedSampler(network, order, quota).trajectories}  # fmt: skip
    assert sum(expected.values()) == pytest.approx(count)
    found = sampled(exact, network, order, quota, count)
    assert found.keys() <= expected.keys()
    common = [place for place, mean in expected.items() if mean >= 5]
    observed = [found[place] for place in common]
    rest = sum(mean for mean in expected.values() if mean < 5)
    means = [expected[place] for place in common]
    if rest > 5:
        observed, means = [*observed, count - sum(observed)], [*means, rest]
    assert len(means) > 20
    result = chisquare(observed, [mean * sum(observed) / sum(means) for mean in means])
    assert result.pvalue > 1e-4


def test_the_exact_gradient_is_the_slope_of_the_expected_reward(exact, policies):
    policy = policies[0]
    exact_P = exact.EnumeratedSampler(policy.network, "low_confidence").exact_gradient(policy.reward)
    values, step = [], 1e-5
    for sign in (1, -1):
        network, taken = exact.SmallNetwork(0), 0
        with torch.no_grad():
            for parameter in network.parameters():
                part = exact_P[taken : taken + parameter.numel()].view_as(parameter)
                parameter += sign * step * part / exact_P.norm()
                taken += parameter.numel()
        values.append(float(exact.EnumeratedSampler(network, "low_confidence").expected_reward(policy.reward).detach()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(exact_P.norm()), rel=1e-5)


@pytest.mark.parametrize("quota", [1, 2])
@pytest.mark.parametrize("order", FREE)
def test_replay_is_exact_where_the_order_does_not_depend_on_the_drawn_tokens(exact, policies, order, quota):
    """With any number of tokens a forward: the tokens of a forward are drawn independently."""
    for policy in policies:
        sampler = exact.EnumeratedSampler(policy.network, order, quota)
        figures = policy.figures(exact.CardRow("cj_grpo", replays=True), sampler)
        assert figures.bias < 1e-9 and figures.cosine == pytest.approx(1.0)
        assert figures.copies == pytest.approx(4 / quota)
        assert policy.figures(exact.CardRow("d1", (("p_mask_prompt", 0.0),)), sampler).bias > 0.1


def test_replay_is_the_gradient_of_the_written_tokens_alone_in_the_order_of_confidence(exact, policies):
    """Exact is the gradient of log of the product of p(written token | canvas), with the order held fixed; the
    probability of writing a token is smaller, since the other positions must have drawn less probable ones."""
    policy = policies[1]
    sampler = exact.EnumeratedSampler(policy.network, "low_confidence")
    row = exact.CardRow("cj_grpo", replays=True)
    baseline = sum(chance * policy.reward[c.tokens] for c, chance in sampler.trajectories)
    log_p_KLV = exact.log_probabilities(policy.network)
    value = torch.zeros(()).double()
    for c, chance in sampler.trajectories:
        canvas, log_p = 255, torch.zeros(()).double()
        for at in sorted(range(4), key=lambda i, c=c: c.set_at[i]):
            log_p = log_p + log_p_KLV[canvas, at, c.tokens[at]]
            canvas -= (exact.MASK - c.tokens[at]) * 4**at
        assert chance < float(log_p.detach().exp()) + 1e-12
        value = value + chance * (policy.reward[c.tokens] - baseline) * log_p
    by_hand = torch.cat([part.flatten() for part in torch.autograd.grad(value, list(policy.network.parameters()))])
    torch.testing.assert_close(policy.expected(row, sampler)[0], by_hand)
    assert policy.figures(row, sampler).bias > 0.05


def test_more_draws_take_variance_but_not_bias_from_espo(exact, policies):
    sampler = exact.EnumeratedSampler(policies[1].network, "left_to_right")
    one, four = (policies[1].figures(exact.CardRow("espo", (("num_mc", n),), 1 << 12), sampler) for n in (1, 4))
    assert four.bias == pytest.approx(one.bias, abs=0.1) and one.bias > 0.3
    assert four.variance < 0.8 * one.variance
    assert (one.copies, four.copies) == pytest.approx((2, 8))


def test_the_table_of_parts_is_that_of_the_declarations(card, exact):
    text = card.PAGE.read_text(encoding="utf-8")
    assert card.between(text, card.PARTS) == card.parts(), "make it anew: python scripts/gradient_card.py"
    assert {"d1", "coupled_grpo", "cj_grpo", "espo"} <= exact.algorithms().keys()


def test_the_table_of_rollouts_is_that_of_the_declarations(card):
    text = card.PAGE.read_text(encoding="utf-8")
    assert card.between(text, card.ROLLOUTS) == card.rollouts(), "make it anew: python scripts/gradient_card.py"


@pytest.mark.slow
def test_the_card_is_what_the_script_computes(card, monkeypatch):
    """The rows without noise again, each with one of the samplers; all rows are there."""
    lines = card.between(card.PAGE.read_text(encoding="utf-8"), card.CARD).splitlines()
    places = [(row, order) for row in card.ROWS for order, _ in card.SAMPLERS if row.order in (None, order)]
    assert len(lines) == 2 + len(places)
    quick = [row for row in card.ROWS if row.draws == 1]
    count = 0
    for number, sampler in enumerate(samplers := card.SAMPLERS):
        monkeypatch.setattr(card, "SAMPLERS", (sampler,))
        for place, each in card.figures(quick[number :: len(samplers)]).items():
            assert f"| {' | '.join(card.card_row(*place, each))} |" in lines
            count += 1
    assert count == len(quick)
    assert all(any(f"`{row.label}`" in line for line in lines) for row in card.ROWS)


def test_coefficients_by_answer_are_those_by_noise_where_the_estimate_is_linear(exact, policies):
    """SPG's bounds need the first way; its lower bound alone goes both ways."""
    row = exact.CardRow("spg", (("p_mask_prompt", 0.0), ("negative", "elbo")), 64)
    torch.manual_seed(0)
    chance_Y, advantage_Y = torch.rand(len(exact.ANSWERS)).double(), torch.randn(len(exact.ANSWERS)).double()
    chance_Y[10:] = 0
    results = [way(row, (0,) * 4, 4, chance_Y, advantage_Y) for way in (policies[0]._linear, policies[0]._bounded)]
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1:] == pytest.approx(results[1][1:])


def test_left_to_right_replay_of_answers_that_end_is_exact_if_all_tokens_are_scored(card, exact):
    policy = exact.Policy(1, ends=True)
    assert policy.reward[0, exact.EOS, 1, 1] == policy.reward[0, exact.EOS, 0, exact.EOS]
    assert len(set(policy.reward.values())) == 2
    sampler = exact.EnumeratedSampler(policy.network, "left_to_right")
    through_eos, everything = (policy.figures(row, sampler) for row in card.ROWS_WITH_EOS[:2])
    assert everything.bias < 1e-9 and through_eos.bias > 0.1
    assert through_eos.copies < everything.copies == pytest.approx(4)
    lines = card.between(card.PAGE.read_text(encoding="utf-8"), card.ENDS).splitlines()
    assert len(lines) == 2 + len(card.ROWS_WITH_EOS) * len(card.SAMPLERS)


# MDPO and d-TreeRPO


def own_gradient(method, network, completions, advantage, count):
    """What the algorithm's own loss of a step with ``count`` completions makes of the network, times the length."""
    total = sum(completion.scored_tokens for completion in completions)
    step = method.step(first_rollout(completions, advantage, total), update(0, 0, count))
    log_p_TV = network(step.copies.seen_T.view(len(step.copies), -1)).log_softmax(-1).flatten(0, 1)
    loss, _ = method.loss(step, -log_p_TV[step.copies.at_N, step.copies.target_N], None)
    return -4 * torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])


@pytest.mark.parametrize("quota", [1, 2])
@pytest.mark.parametrize("order", ["low_confidence", "left_to_right"])
def test_the_paths_are_those_of_the_sampler(exact, policies, order, quota):
    """The same answers, canvases between, and tokens: those that were predicted, or are still masked."""
    sampler = exact.EnumeratedSampler(policies[0].network, order, quota)
    paths, full = sampler.paths, exact.CANVASES - 1
    assert paths.canvas_WT.shape == paths.answer_WT.shape == ((3**10, 4) if quota == 1 else (3**6, 2))
    ends = torch.zeros(81).double().index_add(0, paths.answer_WT[:, -1], paths.probability_W)
    wanted = Counter()
    for c, chance in sampler.trajectories:
        wanted[exact.ANSWERS.index(c.tokens)] += chance
    assert ends.tolist() == pytest.approx([wanted[i] for i in range(81)])
    for t in range(4 // quota):
        at_K, place_W = paths.canvas_WT[:, t].unique(return_inverse=True)
        chance_K = torch.zeros(len(at_K)).double().index_add(0, place_W, paths.probability_W)
        assert dict(zip(at_K.tolist(), chance_K.tolist(), strict=True)) == pytest.approx(sampler.after(full, t))
    for after, answer in set(zip(paths.canvas_WT[:, 1].tolist(), paths.answer_WT[:, 0].tolist(), strict=True)):
        tokens = exact.tokens_of(after)
        assert tokens.count(exact.MASK) == 4 - quota
        assert all(a in (exact.MASK, b) for a, b in zip(tokens, exact.ANSWERS[answer], strict=True))


@pytest.mark.parametrize(
    "options", [{"advantage": "mean"}, {"advantage": "standardized"}, {"advantage": "mean", "confidence_weights": True}]
)
def test_mdpos_expectation_is_that_of_its_own_loss(exact, policies, options):
    """All sequences of draws as completions, each weighted by its probability."""
    policy, row = policies[1], exact.CardRow("mdpo", tuple(options.items()))
    sampler = exact.EnumeratedSampler(policy.network, "low_confidence", 2)
    paths, completions = sampler.paths, []
    score_WT = step_scores(torch.tensor([[policy.reward[exact.ANSWERS[y]] for y in ys] for ys in paths.answer_WT]))
    centered_WT = score_WT - paths.probability_W @ score_WT
    if options["advantage"] == "standardized":
        centered_WT /= (paths.probability_W @ centered_WT**2).sqrt()
    for w, chance in enumerate(paths.probability_W.tolist()):
        answers = [exact.ANSWERS[y] for y in paths.answer_WT[w].tolist()]
        masked = [
            tuple(i for i, token in enumerate(exact.tokens_of(canvas)) if token == exact.MASK)
            for canvas in paths.canvas_WT[w].tolist()
        ]
        predictions = tuple(
            Prediction(answer, places, 4, chance * advantage)
            for answer, places, advantage in zip(answers, masked, centered_WT[w].tolist(), strict=True)
        )
        completions.append(Completion(exact.PROMPT, answers[-1], 4, w, (0,) * 4, predictions=predictions))
    own = own_gradient(exact.method_of(row), policy.network, completions, [0.0] * len(completions), 1)
    torch.testing.assert_close(policy.expected(row, sampler)[0], own, rtol=1e-5, atol=1e-7)
    assert float(own.norm()) > 0.1


def test_mdpo_with_one_forward_is_d1_on_twice_the_reward(exact, policies):
    """Of one prediction the score is 2 r + 1; all tokens are drawn and written at once, and all is exact."""
    for policy in policies:
        sampler = exact.EnumeratedSampler(policy.network, "low_confidence", 4)
        d1, mdpo = (
            policy.figures(exact.CardRow(name, options), sampler)
            for name, options in (("d1", (("p_mask_prompt", 0.0),)), ("mdpo", (("advantage", "mean"),)))
        )
        assert d1.bias < 1e-9 and mdpo.cosine == pytest.approx(1.0) and mdpo.length == pytest.approx(2.0)
        assert (mdpo.variance, mdpo.copies) == pytest.approx((d1.variance, d1.copies))


def test_a_trees_expectation_is_that_of_its_own_loss(exact, policies):
    """All nodes, each weighted by its probability and the number of its level in a tree."""
    policy, row = policies[0], exact.CardRow("dtreerpo")
    sampler, full = exact.EnumeratedSampler(policy.network, "low_confidence"), exact.CANVASES - 1
    nodes, advantage = [], []
    reward = {c: policy.reward[exact.tokens_of(c)] for c in sampler.after(full, 4)}
    value = {c: sum(p * reward[y] for y, p in sampler.after(c, 2).items()) for c in sampler.after(full, 2)}
    baseline = sum(p * value[c] for c, p in sampler.after(full, 2).items())

    def node(parent, child, weight):
        pairs = list(zip(exact.tokens_of(parent), exact.tokens_of(child), strict=True))
        set_at = tuple(0 if before == exact.MASK != after else -1 for before, after in pairs)
        nodes.append(Completion(exact.PROMPT, exact.tokens_of(child), 4, 0, set_at, parent=str(parent)))
        advantage.append(weight)

    for c, p in sampler.after(full, 2).items():
        node(full, c, 4 * p * (value[c] - baseline))
        for y, q in sampler.after(c, 2).items():
            node(c, y, 16 * p * q * (reward[y] - value[c]))
    own = own_gradient(exact.method_of(row), policy.network, nodes, advantage, 16)
    torch.testing.assert_close(policy.expected(row, sampler)[0], own, rtol=1e-5, atol=1e-7)
    assert float(own.norm()) > 0.1


def test_a_tree_of_one_level_is_d1(exact, policies):
    """In all figures, except that completions share a copy."""
    tree = exact.CardRow("dtreerpo", (("num_generations", 8), ("tree_contraction_factor", 1)))
    for policy, order in product(policies, ("low_confidence", "left_to_right")):
        sampler = exact.EnumeratedSampler(policy.network, order)
        own, d1 = (policy.figures(row, sampler) for row in (tree, exact.CardRow("d1", (("p_mask_prompt", 0.0),))))
        assert (own.cosine, own.length, own.bias, own.variance) == pytest.approx(
            (d1.cosine, d1.length, d1.bias, d1.variance)
        )
        assert (own.copies, d1.copies) == pytest.approx((1 / 8, 1))


@pytest.mark.parametrize("order", FREE)
def test_a_tree_with_a_forward_a_level_is_exact_but_for_the_weights_of_levels(exact, policies, order):
    """A level counts as often as it has nodes: with b branches the sum is 2 (G1 + b G2) / (1 + b) for G1 + G2."""
    for policy in policies:
        sampler = exact.EnumeratedSampler(policy.network, order, 2)
        rows = [exact.CardRow("dtreerpo", (("num_generations", 4 * b), ("tree_branch_factor", b))) for b in (1, 2, 4)]
        one_P, two_P, four_P = (policy.expected(row, sampler)[0] for row in rows)
        wanted_P = sampler.exact_gradient(policy.reward)
        torch.testing.assert_close(one_P, wanted_P)
        second_P = (5 / 2 * four_P - 3 / 2 * two_P) / 2
        torch.testing.assert_close(3 / 2 * two_P - 2 * second_P + second_P, wanted_P)
        assert policy.figures(rows[2], sampler).bias > policy.figures(rows[1], sampler).bias > 0.1


def test_the_variance_of_a_tree_is_that_of_its_nodes_together(exact, policies):
    """Every pair of subtrees of two leaves, one by one."""
    policy, full = policies[0], exact.CANVASES - 1
    row = exact.CardRow("dtreerpo", (("num_generations", 4), ("tree_branch_factor", 2)))
    sampler = exact.EnumeratedSampler(policy.network, "top_two_margin", 2)
    reward = {c: policy.reward[exact.tokens_of(c)] for c in sampler.after(full, 2)}
    value = {c: sum(p * reward[y] for y, p in sampler.after(c, 1).items()) for c in sampler.after(full, 1)}
    baseline = sum(p * value[c] for c, p in sampler.after(full, 1).items())
    chances, parts = [], []
    for c, p in sampler.after(full, 1).items():
        above_P, leaves = policy._node_gradient(row, full, c), sampler.after(c, 1).items()
        own = {y: (reward[y] - value[c]) * policy._node_gradient(row, c, y) for y, _ in leaves}
        for (one, p_one), (two, p_two) in product(leaves, leaves):
            chances.append(p * p_one * p_two)
            parts.append(((reward[one] + reward[two]) / 2 - baseline) * above_P + own[one] + own[two])
    chance_Z, part_ZP = torch.tensor(chances).double(), torch.stack(parts)
    product_ZZ, square_Z = part_ZP @ part_ZP.T, part_ZP.square().sum(1)
    square = float(chance_Z @ (square_Z[:, None] + square_Z + 2 * product_ZZ) @ chance_Z)
    root = policy._subtree(row, sampler, full, 0)
    torch.testing.assert_close(root.mean_P, 2 * chance_Z @ part_ZP)
    assert len(parts) == 9 * 81 and root.square == pytest.approx(square)
    assert policy.figures(row, sampler).variance == pytest.approx(4 * (square / float(root.mean_P.norm()) ** 2 - 1))


def test_a_page_without_markers_is_refused(card):
    with pytest.raises(SystemExit, match="restore these lines"):
        card.replaced("# Algorithms", card.PARTS, "x")
    assert card.between(card.replaced(f"a {card.PARTS[0]} b {card.PARTS[1]} c", card.PARTS, "x"), card.PARTS) == "x"
