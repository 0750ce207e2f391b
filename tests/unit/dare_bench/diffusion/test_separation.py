"""When the best choice is called known: how often that is wrong at any stop, and exact values."""

from __future__ import annotations

import math

import pytest
import torch

from dare_bench.diffusion.controlled import combine_rounds, controlled_masks
from dare_bench.diffusion.likelihood import enumerate_masks
from dare_bench.diffusion.separation import LEAST_ROUNDS, PRECISION, evidence, is_separated

LEVEL = 0.9
NOISES = {
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "heavy tails": lambda shape, generator: (
        torch.randn(shape, generator=generator) / torch.randn((*shape, 5), generator=generator).square().mean(-1).sqrt()
    ),
    "skewed": lambda shape, generator: torch.randn(shape, generator=generator).mul(0.5).exp() - math.exp(0.125),
}


def stopped(values_CR, level=LEVEL):
    """The choice that is called best at the first stop; None if the rounds end before."""
    nothing, ones = torch.zeros(len(values_CR), dtype=torch.bool), torch.ones(len(values_CR))
    for rounds in range(LEAST_ROUNDS, values_CR.shape[1] + 1):
        if is_separated(values_CR[:, :rounds], nothing, [ones], level):
            return int(values_CR[:, :rounds].mean(1).argmax())
    return None


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("lead", [0.02, 1.0])
def test_a_wrong_choice_is_called_best_at_most_as_often_as_the_level_says(noise, lead):
    """Four choices, of which the first leads by little: looked at after each of 40 rounds, in 200 documents."""
    generator = torch.Generator().manual_seed(0)
    values = NOISES[noise]((200, 4, 40), generator).double()
    values[:, 0] += lead
    ends = [stopped(values_CR) for values_CR in values]
    assert sum(end not in (None, 0) for end in ends) / 200 <= 1 - LEVEL
    assert lead < 1 or sum(end == 0 for end in ends) > 50  # it does decide


def test_the_wealth_is_a_martingale_of_normal_rounds():
    """Its mean stays 1 under the hypothesis, for rounds of any scale."""
    draws = torch.randn((200_000, 6), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for rounds in (1, 2):
        assert evidence(7 * draws[:, :rounds]).exp().mean() == pytest.approx(1, abs=0.02)
    reached = torch.stack([evidence(draws[:, :rounds]) for rounds in range(1, 7)]).amax(0)
    assert (reached > math.log(20)).double().mean() <= 1 / 20
    assert torch.allclose(evidence(draws), evidence(-0.01 * draws))


def test_the_wealth_is_the_mixture_over_effects():
    """Two rounds, against the integral of the density of the ratio of the two, which is free of the scale."""
    x = torch.tensor([1.0, 2.5], dtype=torch.float64)
    effects, scales = torch.linspace(-40, 40, 8001).double(), torch.logspace(-4, 3, 4001).double()

    def marginal(effect):
        """Of the right Haar measure of the scale, up to a constant."""
        residuals = x[:, None] * scales - effect
        return torch.trapezoid((-0.5 * residuals.square().sum(0)).exp() * scales, scales)

    prior = (-0.5 * PRECISION * effects**2).exp() * math.sqrt(PRECISION / (2 * math.pi))
    mixture = torch.trapezoid(torch.stack([marginal(effect) for effect in effects]) * prior, effects)
    assert float(evidence(x[None])) == pytest.approx(math.log(mixture / marginal(torch.zeros(()))), abs=1e-3)


def test_choices_without_noise_are_compared_as_they_are():
    values = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64)
    exact, ones = torch.ones(2, dtype=torch.bool), torch.ones(2)
    assert is_separated(values, exact, [ones], 0.99)
    assert not is_separated(values.expand(2, 1), torch.tensor([True, False]), [ones], 0.99)
    assert not is_separated(torch.tensor([[-1.0], [-1.0]]), exact, [ones], 0.5)  # equal ones are never separated
    assert is_separated(values, exact, [ones, torch.tensor([1.0, 4.0])], 0.99)  # each way has its own best


def test_every_way_of_comparing_must_be_known():
    """Values far apart whose values per token are near each other."""
    noise = torch.randn((2, 20), generator=torch.Generator().manual_seed(0)).double()
    values = torch.tensor([[-100.0], [-200.0]]).double() + noise
    nothing, ones = torch.zeros(2, dtype=torch.bool), torch.ones(2)
    assert is_separated(values, nothing, [ones], 0.95)
    assert not is_separated(values, nothing, [ones, torch.tensor([10.0, 20.0])], 0.95)


@pytest.mark.parametrize("n", [5, 6])
def test_rounds_are_unbiased_and_do_not_depend_on_the_limit(n):
    powers = 2 ** torch.arange(n)
    losses = torch.rand((2**n, n), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    losses *= (torch.arange(2**n)[:, None] >> torch.arange(n)) & 1
    every = enumerate_masks(n)
    truth = -float(every.weights_M @ losses[every.masks_Mn.long() @ powers].sum(1))
    part = controlled_masks(n, 8000, "adaptive", 0)
    value, deviations_R = combine_rounds([part], [losses[part.masks_Mn.long() @ powers]], 4000)
    assert abs(value - truth) < 4 * float(deviations_R.norm())
    short = controlled_masks(n, 20, "adaptive", 0)
    assert torch.equal(short.masks_Mn, part.masks_Mn[:21])
    of_short, _ = combine_rounds([short], [losses[short.masks_Mn.long() @ powers]], 10)
    assert of_short == pytest.approx(combine_rounds([part], [losses[part.masks_Mn.long() @ powers]], 10)[0])
