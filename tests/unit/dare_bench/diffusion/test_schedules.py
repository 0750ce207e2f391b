"""Noise schedules: whom they may hide, how often, with which weight, and what a draw depends on."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from table_policy import masks

from dare_bench.diffusion.masked_copies import pack
from dare_bench.diffusion.schedules import EPS, CleanCopies, NoiseSchedule, cart, draw, weights
from dare_bench.errors import UsageError

SCHEDULES = [
    NoiseSchedule("uniform", 4),
    NoiseSchedule("even", 4),
    NoiseSchedule("counts", 4),
    NoiseSchedule("coupled", 4),
    NoiseSchedule("blocks", 4, block_length=3),
    NoiseSchedule("band", 4),
]
OF_A_KEY = [schedule for schedule in SCHEDULES if schedule.name != "even"]
"""Laws whose draws are a row's own."""
ROWS = [([7, 8], [1, 2, 3, 4, 5]), ([9], [6, 5, 4]), ([], [1, 1, 2, 3, 5, 8, 13]), ([3] * 5, [4])]


def by_name(schedule):
    return schedule.name


def copies(rows, draws, keys=None, batch_key=0):
    key_B = torch.arange(len(rows)) + 100 if keys is None else torch.tensor(keys)
    return CleanCopies(
        pack([row for row in rows for _ in range(draws)]),
        key_B.repeat_interleave(draws),
        torch.arange(draws).repeat(len(rows)),
        batch_key,
    )


def patterns(schedule, prompt, length, rows):
    """Masks of ``rows`` equal rows with keys of their own: bool [rows, draws, L]; and the noise they are of."""
    noise = draw(schedule, copies([([0] * prompt, [1] * length)] * rows, schedule.draws))
    return noise.masked_T.view(rows, schedule.draws, prompt + length)[..., prompt:], noise


@pytest.mark.parametrize("schedule", SCHEDULES, ids=by_name)
def test_prompts_are_never_hidden_and_only_hidden_tokens_weigh(schedule):
    noise = draw(schedule, copies(ROWS * 30, schedule.draws))
    assert not (noise.masked_T & ~noise.batch.response_T).any()
    assert noise.masked_T.any()
    assert bool(((noise.probability_T > 0) & (noise.probability_T <= 1)).all())
    weight_T = weights(noise, "elbo")
    assert torch.equal(weight_T > 0, noise.masked_T)
    torch.testing.assert_close(weight_T[noise.masked_T] * schedule.draws, 1 / noise.probability_T[noise.masked_T])


# The expectation is the ELBO


@pytest.mark.parametrize(
    "schedule",
    [NoiseSchedule("uniform", 2), NoiseSchedule("even", 2), NoiseSchedule("counts", 3), NoiseSchedule("coupled", 2)],
    ids=by_name,
)
def test_the_weighted_losses_of_a_random_table_have_its_elbo_as_their_mean(schedule):
    """By simulation: within four standard errors, which are below 1 % of the value (eps itself is 0.1 %)."""
    length, rows = 4, 20000
    loss = torch.rand(2**length, length, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    masked, noise = patterns(schedule, 2, length, rows)
    weight = weights(noise, "elbo").view(rows, schedule.draws, -1)[..., 2:]
    number = (masked.long() * 2 ** torch.arange(length)).sum(-1)
    each = (weight * loss[number]).sum((1, 2))
    exact = sum(
        chance * length / int(mask.sum()) * float(loss[(mask.long() * 2 ** torch.arange(length)).sum()][mask].sum())
        for mask, chance in masks(length)
    )
    error = float(each.std()) / math.sqrt(rows)
    assert error < 0.01 * exact
    assert abs(float(each.mean()) - exact) < 4 * error


@pytest.mark.parametrize("schedule", [NoiseSchedule("counts", 3), NoiseSchedule("coupled", 2)], ids=by_name)
def test_every_mask_has_the_chance_and_the_weight_that_make_it_exact(schedule):
    """The ELBO gives mask M the factor chance(k uniform on 1..L, M uniform) L / k: each draw by itself does so."""
    length, rows = 4, 20000
    masked, noise = patterns(schedule, 1, length, rows)
    weight = weights(noise, "elbo").view(rows, schedule.draws, -1)[..., 1:] * schedule.draws
    for j in range(schedule.draws):
        for mask, chance in masks(length):
            hit = (masked[:, j] == mask).all(-1)
            factor = weight[hit, j][:, mask]
            assert factor.unique().numel() == 1, "a mask has one weight"
            wanted = chance * length / int(mask.sum()) / float(factor[0, 0])
            assert float(hit.double().mean()) == pytest.approx(wanted, abs=4 * math.sqrt(wanted / rows))


def test_blocks_have_the_elbo_of_each_block():
    """A prompt of one token and five to learn on a grid of three: blocks of two and of three response tokens."""
    rows, schedule = 20000, NoiseSchedule("blocks", 2, block_length=3)
    masked, noise = patterns(schedule, 1, 5, rows)
    weight = weights(noise, "elbo").view(rows, 2, -1)[..., 1:] * 2
    for block in (slice(0, 2), slice(2, 5)):
        size = block.stop - block.start
        for j in range(2):
            for mask, chance in masks(size):
                hit = (masked[:, j, block] == mask).all(-1)
                assert float(hit.double().mean()) == pytest.approx(chance, abs=4 * math.sqrt(chance / rows))
                assert torch.allclose(weight[hit, j, block][:, mask], torch.tensor(size / mask.sum().item()).double())


# Each schedule's own shape


@pytest.mark.parametrize(("length", "draws"), [(2, 4), (5, 3), (3, 2), (1, 2), (7, 7)])
def test_every_count_is_uniform_in_every_draw(length, draws):
    counts = patterns(NoiseSchedule("counts", draws), 1, length, 6000)[0].sum(-1)
    for j in range(draws):
        seen = torch.bincount(counts[:, j], minlength=length + 1).double() / 6000
        assert seen[0] == 0
        assert torch.allclose(seen[1:], torch.tensor(1 / length).double(), atol=4 * math.sqrt(1 / length / 6000))


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_as_many_draws_as_tokens_cover_every_count_once(length):
    counts = patterns(NoiseSchedule("counts", length), 2, length, 50)[0].sum(-1)
    assert torch.equal(counts.sort(-1).values, torch.arange(1, length + 1).expand(50, length))


@pytest.mark.parametrize("length", [1, 2, 6])
def test_coupled_draws_partition_the_response(length):
    masked, noise = patterns(NoiseSchedule("coupled", 4), 1, length, 500)
    assert torch.equal(masked[:, 0] ^ masked[:, 1], torch.ones(500, length, dtype=torch.bool))
    assert torch.equal(masked[:, 2] ^ masked[:, 3], torch.ones(500, length, dtype=torch.bool))
    assert not torch.equal(masked[:, 0], masked[:, 2]), "pairs are drawn on their own"
    assert set(masked[:, 0].sum(-1).tolist()) == set(range(length + 1)), "from none to all"
    assert bool(weights(noise, "elbo").isfinite().all())


def test_every_block_hides_a_token_and_every_count_is_equally_likely():
    schedule, rows = NoiseSchedule("blocks", 4, block_length=3), 300
    masked, _ = patterns(schedule, 3, 9, rows)
    counts = masked.view(rows, 4, 3, 3).sum(-1)
    assert int(counts.min()) == 1
    for row in counts.view(rows, -1):  # twelve cells on one grid, which the size of a block divides
        assert Counter(row.tolist()) == {1: 4, 2: 4, 3: 4}
    assert len({tuple(row) for row in counts.view(rows, -1).tolist()}) > 1, "the offset is drawn"


def test_even_levels_of_a_batch_are_one_grid_in_random_order():
    noise = draw(NoiseSchedule("even", 2), copies([([1], [2] * 4000)] * 10, 2, batch_key=5))
    level = noise.probability_T.view(20, -1).amin(-1)
    assert torch.allclose(level.sort().values.diff(), torch.tensor((1 - EPS) / 20).double())
    assert not torch.equal(level, level.sort().values)
    rate = noise.masked_T.view(20, -1)[:, 1:].double().mean(-1)
    assert torch.allclose(rate, level, atol=0.04)
    other = draw(NoiseSchedule("even", 2), copies([([1], [2] * 4000)] * 10, 2, batch_key=6))
    assert not torch.equal(other.probability_T, noise.probability_T)


@pytest.mark.parametrize(
    ("schedule", "low", "high"),
    [(NoiseSchedule("band", band=(0.3, 0.8)), 0.3, 0.8), (NoiseSchedule("uniform"), EPS, 1)],
)
def test_levels_cover_their_range_evenly_and_are_the_chance_of_a_mask(schedule, low, high):
    noise = draw(schedule, copies([([], [1] * 60)] * 4000, 1))
    level = noise.probability_T.view(4000, -1).amin(-1)
    rate = noise.masked_T.view(4000, -1).double().mean(-1)
    some = rate > 0  # the level shows on hidden tokens alone
    assert some.double().mean() > 0.95
    assert low <= float(level[some].min())
    assert float(level[some].max()) <= high
    wanted = torch.quantile(level[some], torch.tensor([0.25, 0.5, 0.75]).double())
    quarters = torch.tensor([low + (high - low) * q for q in (0.25, 0.5, 0.75)]).double()
    assert torch.allclose(wanted, quarters, atol=0.03)
    assert float((rate - level)[some].abs().mean()) < 0.06


def test_spread_levels_and_complements_vary_less_than_draws_on_their_own():
    """The estimate of a loss that grows with the level, as a model's does; four draws each."""
    spread = {}
    for schedule in (NoiseSchedule("uniform", 4), NoiseSchedule("counts", 4), NoiseSchedule("coupled", 4)):
        masked, noise = patterns(schedule, 0, 8, 4000)
        weight = weights(noise, "elbo").view(4000, 4, 8)
        loss = 0.5 + 2 * masked.double().mean(-1, keepdim=True)
        spread[schedule.name] = float((weight * loss).sum((1, 2)).var())
    assert spread["counts"] < 0.5 * spread["uniform"]
    assert spread["coupled"] < spread["uniform"]


# What a draw depends on


@pytest.mark.parametrize("schedule", OF_A_KEY, ids=by_name)
def test_a_row_is_hidden_by_its_key_alone_whatever_stands_beside_it(schedule):
    def by_copy(rows, keys):
        noise = draw(schedule, copies(rows, schedule.draws, keys, batch_key=len(rows)))
        parts = [part.tolist() for part in noise.masked_T.split(list(noise.batch.lengths))]
        chances = [part.tolist() for part in noise.probability_T.split(list(noise.batch.lengths))]
        names = [(key, j) for key in keys for j in range(schedule.draws)]
        return dict(zip(names, zip(parts, chances, strict=True), strict=True))

    together = by_copy(ROWS, [11, 12, 13, 14])
    turned = by_copy(ROWS[::-1], [14, 13, 12, 11])
    alone = by_copy([ROWS[2]], [13])
    assert together == turned
    assert alone == {name: reported for name, reported in together.items() if name[0] == 13}
    assert by_copy([ROWS[2]], [15])[15, 0] != alone[13, 0]
    assert len({str(reported) for reported in alone.values()}) > 1, "draws differ"


# CART


def hidden(length, at):
    """One row without a prompt, masked at ``at``."""
    masked = torch.zeros(length, dtype=torch.bool)
    masked[list(at)] = True
    return pack([([], [1] * length)]), masked


@pytest.mark.parametrize("q", [0.3, 0.1, 0.001, 0.999])
def test_cart_is_its_formula(q):
    """w_i = 1/2 sum over visible j of q (1 - q)^(|i - j| - 1) (arXiv 2508.15487, section 4.2)."""
    for length, at in ((12, {0, 3, 4, 5, 11}), (600, {0, 7, 300})):
        got = cart(*hidden(length, at), q)
        for i in at:
            wanted = sum(0.5 * q * (1 - q) ** (abs(i - j) - 1) for j in range(length) if j not in at)
            assert float(got[i]) == pytest.approx(wanted, rel=1e-12)


def test_carts_rate_is_dreams_unless_one_is_given():
    noise = draw(NoiseSchedule("uniform", 1), copies(ROWS, 1))
    assert torch.equal(weights(noise, "cart"), weights(noise, "cart", 0.3))
    changed = weights(noise, "cart", 0.1)[noise.masked_T]
    torch.testing.assert_close(changed, cart(noise.batch, noise.masked_T, 0.1)[noise.masked_T])
    assert not torch.equal(changed, weights(noise, "cart")[noise.masked_T])


def test_cart_is_one_in_a_long_clean_context_and_nothing_without_any():
    assert float(cart(*hidden(401, {200}))[200]) == pytest.approx(1, abs=1e-12)
    assert float(cart(*hidden(401, {0}))[0]) == pytest.approx(0.5, abs=1e-12)
    assert cart(*hidden(9, range(9))).tolist() == [0.0] * 9


def test_cart_is_at_most_one_and_symmetric_and_stays_in_its_row():
    g = torch.Generator().manual_seed(0)
    rows = [torch.rand(n, generator=g) < 0.6 for n in (300, 5, 41)]
    batch = pack([([], [1] * len(row)) for row in rows])
    got = cart(batch, torch.cat(rows))
    assert float(got.max()) <= 1 + 1e-12
    assert float(got.min()) >= 0
    flipped = cart(pack([([], [1] * len(row)) for row in rows[::-1]]), torch.cat(rows).flip(0))
    torch.testing.assert_close(flipped.flip(0), got)
    alone = torch.cat([cart(pack([([], [1] * len(row))]), row) for row in rows])
    torch.testing.assert_close(got, alone)


def test_the_prompt_is_context_of_cart():
    batch = pack([([1, 1], [2])])
    masked = torch.tensor([False, False, True])
    assert float(cart(batch, masked)[2]) == pytest.approx(0.15 * (1 + 0.7))


def test_weightings_share_out_among_draws():
    noise = draw(NoiseSchedule("uniform", 4), copies(ROWS, 4))
    plain, context = weights(noise, "plain"), weights(noise, "cart")
    assert torch.equal(plain, noise.masked_T.double() / 4)
    assert torch.equal(context, torch.where(noise.masked_T, cart(noise.batch, noise.masked_T), 0.0) / 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cosine"}, "noise='cosine' is not a noise schedule; .* uniform, even"),
        ({"draws": 0}, "draws=0"),
        ({"name": "coupled", "draws": 3}, "complementary pairs"),
        ({"band": (0.8, 0.3)}, "band=0.8,0.3"),
        ({"eps": 0.0}, "eps=0.0 must be above 0"),
        ({"name": "blocks"}, "needs block_length"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        NoiseSchedule(**arguments)
