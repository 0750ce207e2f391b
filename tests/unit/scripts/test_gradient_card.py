"""The gradient card: what it enumerates is the sampler in use, and where an algorithm's gradient is exact."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from paths import ROOT
from scipy.stats import chisquare

from dare_bench.model_adapters.sampling.loop import denoise
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.strategies.quota import Quota
from dare_bench.model_adapters.sampling.strategies.sequential import Sequential
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.seeds import key
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
    """scripts/gradient_card.py, imported beside its neighbor."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("gradient_card")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def policies(card):
    return [card.Policy(seed) for seed in range(2)]


def sampled(card, network, order, quota, count):
    """Answers and orders of the real loop."""

    def forward(tokens_T, columns_T, plan, logits_at):
        return SimpleNamespace(logits=network(tokens_T.view(-1, 6)).view(-1, 4)[logits_at])

    sampler = Sampler(4, 4, STRATEGIES[order](4 // quota), TokenPolicy(temperature=1.0), record_trajectory=True)
    rows = (RowState(card.PROMPT, sampler, key("row", i), card.MASK) for i in range(count))
    with torch.no_grad():
        done = list(denoise(forward, rows, mask_id=card.MASK, vocab=4, max_rows=2000, device=torch.device("cpu"),
                            stats=LoopStats()))  # fmt: skip
    result = Counter()
    for row in done:
        at = {event.position: event.step for event in row.events}
        result[tuple(row.response()), tuple(at[i] for i in range(4))] += 1
    return result


@pytest.mark.parametrize("quota", [1, 2])
@pytest.mark.parametrize("order", STRATEGIES)
def test_the_enumerated_distribution_is_that_of_the_sampler(card, policies, order, quota):
    network, count = policies[1].network, 4000
    expected = {(c.tokens, c.set_at): count * chance for c, chance in
                card.EnumeratedSampler(network, order, quota).trajectories}  # fmt: skip
    assert sum(expected.values()) == pytest.approx(count)
    found = sampled(card, network, order, quota, count)
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


def test_the_exact_gradient_is_the_slope_of_the_expected_reward(card, policies):
    policy = policies[0]
    exact_P = card.EnumeratedSampler(policy.network, "low_confidence").exact_gradient(policy.reward)
    values, step = [], 1e-5
    for sign in (1, -1):
        network, taken = card.SmallNetwork(0), 0
        with torch.no_grad():
            for parameter in network.parameters():
                part = exact_P[taken : taken + parameter.numel()].view_as(parameter)
                parameter += sign * step * part / exact_P.norm()
                taken += parameter.numel()
        values.append(float(card.EnumeratedSampler(network, "low_confidence").expected_reward(policy.reward).detach()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(exact_P.norm()), rel=1e-5)


@pytest.mark.parametrize("quota", [1, 2])
@pytest.mark.parametrize("order", FREE)
def test_replay_is_exact_where_the_order_does_not_depend_on_the_drawn_tokens(card, policies, order, quota):
    """With any number of tokens a forward: the tokens of a forward are drawn independently."""
    for policy in policies:
        sampler = card.EnumeratedSampler(policy.network, order, quota)
        figures = policy.figures(card.Row("cj_grpo", replays=True), sampler)
        assert figures.bias < 1e-9 and figures.cosine == pytest.approx(1.0)
        assert figures.looks == pytest.approx(4 / quota)
        assert policy.figures(card.Row("d1", (("p_mask_prompt", 0.0),)), sampler).bias > 0.1


def test_replay_is_the_gradient_of_the_written_tokens_alone_in_the_order_of_confidence(card, policies):
    """Exact is the gradient of log of the product of p(written token | canvas), with the order held fixed; the
    probability of writing a token is smaller, since the other positions must have drawn less probable ones."""
    policy = policies[1]
    sampler = card.EnumeratedSampler(policy.network, "low_confidence")
    row = card.Row("cj_grpo", replays=True)
    baseline = sum(chance * policy.reward[c.tokens] for c, chance in sampler.trajectories)
    log_p_KLV = importlib.import_module("enumerated_sampler").log_probabilities(policy.network)
    value = torch.zeros(()).double()
    for c, chance in sampler.trajectories:
        canvas, log_p = 255, torch.zeros(()).double()
        for at in sorted(range(4), key=lambda i, c=c: c.set_at[i]):
            log_p = log_p + log_p_KLV[canvas, at, c.tokens[at]]
            canvas -= (card.MASK - c.tokens[at]) * 4**at
        assert chance < float(log_p.detach().exp()) + 1e-12
        value = value + chance * (policy.reward[c.tokens] - baseline) * log_p
    by_hand = torch.cat([part.flatten() for part in torch.autograd.grad(value, list(policy.network.parameters()))])
    torch.testing.assert_close(policy.expected(row, sampler)[0], by_hand)
    assert policy.figures(row, sampler).bias > 0.05


def test_more_draws_take_variance_but_not_bias_from_espo(card, policies):
    sampler = card.EnumeratedSampler(policies[1].network, "left_to_right")
    one, four = (policies[1].figures(card.Row("espo", (("num_mc", n),), 1 << 12), sampler) for n in (1, 4))
    assert four.bias == pytest.approx(one.bias, abs=0.1) and one.bias > 0.3
    assert four.variance < 0.8 * one.variance
    assert (one.looks, four.looks) == pytest.approx((2, 8))


def test_the_table_of_parts_is_that_of_the_declarations(card):
    text = card.PAGE.read_text(encoding="utf-8")
    assert card.between(text, card.PARTS) == card.parts(), "make it anew: python scripts/gradient_card.py"
    assert {"d1", "coupled_grpo", "cj_grpo", "espo"} <= card.algorithms().keys()


@pytest.mark.slow
def test_the_card_is_what_the_script_computes(card):
    """The rows without noise again; all rows are there."""
    lines = card.between(card.PAGE.read_text(encoding="utf-8"), card.CARD).splitlines()
    places = [(row, order) for row in card.ROWS for order, _ in card.SAMPLERS if row.order in (None, order)]
    assert len(lines) == 2 + len(places)
    quick = [row for row in card.ROWS if row.draws == 1]
    for place, each in card.figures(quick).items():
        assert f"| {' | '.join(card.card_row(*place, each))} |" in lines
    assert all(any(f"`{row.label}`" in line for line in lines) for row in card.ROWS)


def test_coefficients_by_answer_are_those_by_noise_where_the_estimate_is_linear(card, policies):
    """SPG's bounds need the first way; its lower bound alone goes both ways."""
    row = card.Row("spg", (("p_mask_prompt", 0.0), ("negative", "elbo")), 64)
    torch.manual_seed(0)
    chance_Y, advantage_Y = torch.rand(len(card.ANSWERS)).double(), torch.randn(len(card.ANSWERS)).double()
    chance_Y[10:] = 0
    results = [way(row, (0,) * 4, 4, chance_Y, advantage_Y) for way in (policies[0]._linear, policies[0]._bounded)]
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1:] == pytest.approx(results[1][1:])


def test_left_to_right_replay_of_answers_that_end_is_exact_if_all_tokens_are_scored(card):
    policy = card.Policy(1, ends=True)
    assert policy.reward[0, card.EOS, 1, 1] == policy.reward[0, card.EOS, 0, card.EOS]
    assert len(set(policy.reward.values())) == 2
    sampler = card.EnumeratedSampler(policy.network, "left_to_right")
    through_eos, everything = (policy.figures(row, sampler) for row in card.ROWS_WITH_EOS[:2])
    assert everything.bias < 1e-9 and through_eos.bias > 0.1
    assert through_eos.looks < everything.looks == pytest.approx(4)
    lines = card.between(card.PAGE.read_text(encoding="utf-8"), card.ENDS).splitlines()
    assert len(lines) == 2 + len(card.ROWS_WITH_EOS) * len(card.SAMPLERS)


def test_a_page_without_markers_is_refused(card):
    with pytest.raises(SystemExit, match="restore these lines"):
        card.replaced("# Algorithms", card.PARTS, "x")
    assert card.between(card.replaced(f"a {card.PARTS[0]} b {card.PARTS[1]} c", card.PARTS, "x"), card.PARTS) == "x"
