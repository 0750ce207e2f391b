"""The supervised loss of masked diffusion: its identities, by enumeration on models small enough to enumerate."""

from __future__ import annotations

from itertools import product
from math import log

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.canvas import pack, response
from dare_bench.diffusion.losses import noisy, weighted_sum, weights
from dare_bench.diffusion.noise import EPS, draw_masks, even_levels, levels
from dare_bench.errors import UsageError

V, MASK, EOS = 7, 6, 5
KEYS = torch.arange(1000, dtype=torch.long)


def table(seed: int = 0):
    """A "network" whose logits at a position depend on every token of the row, [L] -> [L, V]."""
    g = torch.Generator().manual_seed(seed)
    emb = torch.randn(V, V, generator=g, dtype=torch.float64)
    mix = torch.randn(16, 16, generator=g, dtype=torch.float64)

    def logits(tokens: Tensor) -> Tensor:
        n = len(tokens)
        return torch.tanh(mix[:n, :n] @ emb[tokens]) * 2

    return logits


def loss_of(rows, masked_T, t_B, model, batch_rows=None) -> Tensor:
    """The loss of a packed batch under a per-row model."""
    batch = pack(rows)
    tokens_T, at_N, targets_N = noisy(batch, masked_T, MASK)
    logits_TV = torch.cat([model(part) for part in tokens_T.split(list(batch.lengths))])
    nll_N = cross_entropy(logits_TV[at_N], targets_N, reduction="none")
    return weighted_sum(nll_N, weights(batch, masked_T, t_B, batch_rows))


def elbo(prompt, answer, model) -> float:
    """Exact ELBO of the answer by its discrete form: k uniform on 1..L, masks of k tokens equally likely."""
    n, total = len(answer), 0.0
    for bits in product([False, True], repeat=n):
        k = sum(bits)
        if not k:
            continue
        masked = torch.tensor([False] * len(prompt) + list(bits))
        tokens = torch.tensor([*prompt, *answer])
        nll = cross_entropy(model(torch.where(masked, MASK, tokens))[masked], tokens[masked], reduction="sum")
        ways = torch.exp(torch.lgamma(torch.tensor([n + 1.0, k + 1.0, n - k + 1.0], dtype=torch.float64)))
        total -= float(nll) * (n / k) / n / float(ways[0] / ways[1] / ways[2])
    return total


ROWS = [([0, 1], [2, 3, 4]), ([1], [0, 5, 5, 2])]


def test_the_expectation_over_noise_is_the_negative_elbo_per_token():
    model = table()
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000  # midpoints of (0, 1) for the integral over t
    expected = sum(-elbo(p, a, model) / len(a) for p, a in ROWS) / len(ROWS)
    total = 0.0
    for b, (prompt, answer) in enumerate(ROWS):
        n = len(answer)
        for bits in product([False, True], repeat=n):
            chance = (grid ** sum(bits) * (1 - grid) ** (n - sum(bits)) / grid).mean()
            masked = torch.tensor([False] * len(prompt) + list(bits))
            one = loss_of(
                [ROWS[b]], masked, torch.ones(1), model, batch_rows=len(ROWS)
            )  # at t = 1 the weight is 1/(B L)
            total += float(one) * float(chance)
    assert total == pytest.approx(expected, rel=1e-4)


def test_drawn_noise_has_that_expectation():
    model, draws = table(), 4000
    rows = [ROWS[0]] * draws
    batch = pack(rows)
    key_B = torch.arange(draws)
    t_B = levels(key_B, 3)
    got = float(loss_of(rows, draw_masks(batch, t_B, key_B, 3), t_B, model))
    expected = -elbo(*ROWS[0], model) / len(ROWS[0][1])
    assert got == pytest.approx(expected, rel=0.05)


def test_uniform_logits_cost_log_v_whatever_the_answer_length():
    draws = 4000
    rows = [([0], [1] * (1 + i % 9)) for i in range(draws)]
    batch, key_B = pack(rows), torch.arange(draws)
    t_B = even_levels(11, 0, draws)
    masked_T = draw_masks(batch, t_B, key_B, 0)
    nll_N = torch.full((int(masked_T.sum()),), log(V))
    assert float(weighted_sum(nll_N, weights(batch, masked_T, t_B))) == pytest.approx(log(V), rel=0.05)


def test_everything_masked_at_t_1_is_plain_cross_entropy():
    model, batch = table(), pack(ROWS)
    got = float(loss_of(ROWS, batch.response_T, torch.ones(2), model))
    expected = 0.0
    for prompt, answer in ROWS:
        tokens = torch.tensor([*prompt, *[MASK] * len(answer)])
        expected += float(cross_entropy(model(tokens)[len(prompt) :], torch.tensor(answer))) / len(ROWS)
    assert got == pytest.approx(expected, rel=1e-6)


def test_the_loss_does_not_depend_on_the_cut_into_micro_batches():
    model = table()
    rows = [([0] * (i % 3), [j % 5 for j in range(1 + i % 4)]) for i in range(12)]
    key_B, t_B = KEYS[:12], levels(KEYS[:12], 7)
    whole = float(loss_of(rows, draw_masks(pack(rows), t_B, key_B, 7), t_B, model))
    for size in (1, 5):
        parts = 0.0
        for i in range(0, 12, size):
            cut = slice(i, i + size)
            part = pack(rows[cut])
            masked_T = draw_masks(part, t_B[cut], key_B[cut], 7)
            parts += float(loss_of(rows[cut], masked_T, t_B[cut], model, batch_rows=12))
        assert parts == pytest.approx(whole, rel=1e-6)


def test_only_masked_positions_have_a_gradient():
    batch = pack(ROWS)
    masked_T = torch.tensor([False, False, True, False, True, False, False, True, False, True])
    logits_TV = torch.randn(10, V, requires_grad=True)
    tokens_T, at_N, targets_N = noisy(batch, masked_T, MASK)
    nll_N = cross_entropy(logits_TV[at_N], targets_N, reduction="none")
    weighted_sum(nll_N, weights(batch, masked_T, torch.tensor([0.5, 0.25]))).backward()
    touched = logits_TV.grad.abs().sum(-1) > 0
    assert torch.equal(touched, masked_T)
    assert torch.equal(tokens_T == MASK, masked_T)
    assert targets_N.tolist() == [2, 4, 5, 2]


def test_weights_are_one_over_rows_length_and_level():
    batch = pack(ROWS)
    masked_T = batch.response_T
    got = weights(batch, masked_T, torch.tensor([0.5, 0.25]))
    assert got.tolist() == pytest.approx([1 / (2 * 3 * 0.5)] * 3 + [1 / (2 * 4 * 0.25)] * 4)


def test_no_mask_drawn_is_a_zero_loss_with_a_graph():
    batch = pack(ROWS)
    nll_N = torch.zeros(0, requires_grad=True)
    loss = weighted_sum(nll_N, weights(batch, torch.zeros(10, dtype=torch.bool), torch.ones(2)))
    loss.backward()
    assert loss.item() == 0.0
    assert nll_N.grad is not None


def test_prompts_are_never_masked_and_rates_follow_the_level():
    rows = [([1] * 5, [2] * 50)] * 400
    batch, key_B = pack(rows), KEYS[:400]
    for t in (0.1, 0.5, 1.0):
        masked_T = draw_masks(batch, torch.full((400,), t, dtype=torch.float64), key_B, 0)
        assert not (masked_T & ~batch.response_T).any()
        assert float(masked_T[batch.response_T].double().mean()) == pytest.approx(t, abs=0.02)


def test_levels_are_uniform_and_a_row_keeps_its_noise_in_any_batch():
    t_B = levels(torch.arange(20000), 0)
    assert float(t_B.min()) >= EPS
    assert float(t_B.max()) < 1.0 + 1e-12
    assert float(t_B.mean()) == pytest.approx((1 + EPS) / 2, abs=0.01)
    assert torch.equal(levels(torch.tensor([17]), 0), t_B[17:18])
    assert not torch.equal(levels(torch.arange(5), 1), t_B[:5])
    even = even_levels(4, 0, 100)
    assert not torch.equal(even, even.sort().values)
    assert torch.allclose(even.sort().values.diff(), torch.full((99,), (1 - EPS) / 100, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [1, 2, EOS, EOS, EOS]),
        ({"max_pads": 2}, [1, 2, EOS, EOS]),
        ({"max_pads": 0}, [1, 2]),
        ({"padding": "masked_out"}, [1, 2, EOS]),
    ],
)
def test_paddings(arguments, expected):
    assert response([1, 2], 5, EOS, **arguments) == expected


def test_an_answer_that_fills_the_canvas_has_no_eos():
    assert response([1, 2], 2, EOS) == response([1, 2], 2, EOS, "masked_out") == [1, 2]


def test_what_cannot_be_is_said():
    with pytest.raises(UsageError, match="3 tokens does not fit a canvas of 2"):
        response([1, 2, 3], 2, EOS)
    with pytest.raises(UsageError, match="padding='left'"):
        response([1], 2, EOS, "left")
    with pytest.raises(UsageError, match="row 1 has no response"):
        pack([([1], [2]), ([1], [])])


def test_packed_rows_know_their_places():
    batch = pack(ROWS)
    assert batch.tokens_T.tolist() == [0, 1, 2, 3, 4, 1, 0, 5, 5, 2]
    assert batch.row_T.tolist() == [0] * 5 + [1] * 5
    assert batch.column_T.tolist() == [0, 1, 2, 3, 4] * 2
    assert batch.response_T.tolist() == [False] * 2 + [True] * 3 + [False] + [True] * 4
    assert batch.response_lengths_B.tolist() == [3, 4]
