"""Training rows on their canvas, packed and hidden; shifted heads and two-copy block diffusion: the identities that
make training agree with decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.forward import inputs, predicted_from, two_copies
from dare_bench.diffusion.masked_copies import masked_copies, pack
from dare_bench.diffusion.masks import Padding, block_mask, clean_mask
from dare_bench.diffusion.schedules import EPS, draw_masks, even_levels, levels
from dare_bench.errors import UsageError
from dare_bench.model_adapters.backbone import Plan
from dare_bench.model_adapters.dream.network import DreamConfig, DreamModel
from dare_bench.model_adapters.sdar.network import SDARConfig, SDARForCausalLM
from dare_bench.types import ModelSpec

V, MASK = 11, 10
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": V,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
ROWS = [([0, 1], [2, 3, 4, 5]), ([6, 7, 8], [9, 0, 1]), ([1], [5, 5, 2, 4, 3, 8, 7])]  # lengths 6, 6, 8
close = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def dream():
    torch.manual_seed(0)
    return DreamModel(DreamConfig(**SIZES)).eval()


@pytest.fixture(scope="module")
def sdar():
    torch.manual_seed(0)
    return SDARForCausalLM(SDARConfig(head_dim=8, block_size=4, **SIZES)).eval()


def masks(batch, t: float = 0.6, step: int = 0) -> Tensor:
    rows = len(batch.lengths)
    return draw_masks(batch, torch.full((rows,), t, dtype=torch.float64), torch.arange(rows), step)


def noisy_logits(network, rows, masked_T: Tensor, size: int) -> list[Tensor]:
    """Logits of each row's noisy copy, [L, V] a row, from one packed two-copy forward."""
    pair = two_copies(masked_copies(pack(rows), masked_T, MASK), size)
    with torch.no_grad():
        logits_UV = network(pair.tokens_U, pair.positions_U, pair.plan).logits
    return [both[: len(both) // 2] for both in logits_UV.split(list(pair.plan.lengths))]


def one_copy(network, tokens: Tensor, size: int | None) -> Tensor:
    """Logits [L, V] of one row alone."""
    with torch.no_grad():
        return network(tokens, None, Plan((len(tokens),), size)).logits


# Shifted head


def test_the_shifted_path_is_the_plain_path_on_rolled_logits(dream):
    batch = pack(ROWS)
    masked_T = masks(batch)
    copies = masked_copies(batch, masked_T, MASK)
    tokens_T, at_N, targets_N = copies.seen_T, copies.at_N, copies.target_N
    with torch.no_grad():
        nll_N = dream(tokens_T, batch.column_T, Plan(batch.lengths), predicted_from(batch, at_N), targets_N).nll
        rolled = [
            torch.cat([logits[:1], logits[:-1]])
            for logits in (one_copy(dream, row, None) for row in tokens_T.split(list(batch.lengths)))
        ]
    torch.testing.assert_close(nll_N, cross_entropy(torch.cat(rolled)[at_N], targets_N, reduction="none"), **close)


def test_no_row_is_predicted_from_another_and_a_first_token_from_itself():
    batch = pack([([], [1, 2]), ([], [3]), ([4], [5, 6])])
    every = torch.arange(6)
    from_T = predicted_from(batch, every)
    assert from_T.tolist() == [0, 0, 2, 3, 3, 4]
    assert torch.equal(batch.row_T[from_T], batch.row_T)


def test_a_row_without_a_prompt_trains_its_first_two_tokens_from_one_state(dream):
    """The only place where one state is asked for twice."""
    batch = pack([([], [3, 4, 5]), ([], [1, 2])])
    copies = masked_copies(batch, batch.response_T, MASK)
    tokens_T, at_N, targets_N = copies.seen_T, copies.at_N, copies.target_N
    with torch.no_grad():
        got = dream(tokens_T, batch.column_T, Plan(batch.lengths), predicted_from(batch, at_N), targets_N).nll
    alone = torch.cat([one_copy(dream, row, None)[[0, *range(len(row) - 1)]] for row in tokens_T.split([3, 2])])
    torch.testing.assert_close(got, cross_entropy(alone, targets_N, reduction="none"), **close)


# Two copies


def test_rows_stand_twice_and_masks_only_in_responses_of_noisy_copies():
    batch = pack(ROWS[:2])
    masked_T = torch.tensor([0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1], dtype=torch.bool)
    pair = two_copies(masked_copies(batch, masked_T, MASK), 2)
    first, second = [0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 0, 1]
    assert pair.tokens_U.tolist() == [0, 1, MASK, 3, MASK, 5, *first, 6, 7, 8, 9, 0, MASK, *second]
    assert pair.at_N.tolist() == [2, 4, 17]
    assert pair.targets_N.tolist() == [2, 4, 1]
    assert pair.plan.lengths == (12, 12)


def test_a_shifted_head_predicts_from_the_noisy_token_before():
    """Also across blocks; a row's first token predicts itself."""
    rows = [([], [3, 1, 4, 1, 5]), ([9, 2], [6, 5])]
    copies = masked_copies(pack(rows), pack(rows).response_T, MASK)
    plain, shifted = two_copies(copies, 2), two_copies(copies, 2, shifted=True)
    assert plain.at_N.tolist() == [0, 1, 2, 3, 4, 12, 13]
    assert shifted.at_N.tolist() == [0, 0, 1, 2, 3, 11, 12]
    assert torch.equal(shifted.targets_N, plain.targets_N)
    spec = ModelSpec("toy", MASK, (9,), None, None, 12, 64, "block-causal", 2, "next")
    assert torch.equal(inputs(copies, spec).at_N, shifted.at_N)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_a_noisy_block_is_what_decoding_sees_there(sdar, size):
    """Noisy block b of a packed two-copy forward equals one copy of [clean blocks < b, noisy block b]."""
    batch = pack(ROWS)
    masked_T = masks(batch)
    got = noisy_logits(sdar, ROWS, masked_T, size)
    clean = batch.tokens_T.split(list(batch.lengths))
    dirty = masked_copies(batch, masked_T, MASK).seen_T.split(list(batch.lengths))
    for logits_LV, clean_L, dirty_L in zip(got, clean, dirty, strict=True):
        for start in range(0, len(clean_L), size):
            stop = min(start + size, len(clean_L))
            canvas = torch.cat([clean_L[:start], dirty_L[start:stop]])
            torch.testing.assert_close(logits_LV[start:stop], one_copy(sdar, canvas, size)[start:], **close)


def test_one_block_is_plain_bidirectional_and_ignores_the_clean_copy(sdar):
    rows = [ROWS[2]]
    batch = pack(rows)
    masked_T = masks(batch)
    (got,) = noisy_logits(sdar, rows, masked_T, 8)
    torch.testing.assert_close(got, one_copy(sdar, masked_copies(batch, masked_T, MASK).seen_T, None), **close)
    pair = two_copies(masked_copies(batch, masked_T, MASK), 8)
    other = torch.cat([pair.tokens_U[:8], torch.full((8,), 9)])
    with torch.no_grad():
        torch.testing.assert_close(sdar(other, pair.positions_U, pair.plan).logits[:8], got, **close)


def test_blocks_of_one_all_masked_are_the_autoregressive_chain(sdar):
    prompt, answer = ROWS[2]
    batch = pack([ROWS[2]])
    pair = two_copies(masked_copies(batch, batch.response_T, MASK), 1)
    with torch.no_grad():
        got = sdar(**pair.arguments()).nll
    for i, token in enumerate(answer):
        canvas = torch.tensor([*prompt, *answer[:i], MASK])
        expected = cross_entropy(one_copy(sdar, canvas, 1)[-1], torch.tensor(token))
        torch.testing.assert_close(got[i], expected, **close)


@pytest.mark.parametrize("at", range(8))
def test_a_clean_token_reaches_only_later_noisy_blocks(sdar, at):
    size, batch = 2, pack([ROWS[2]])
    pair = two_copies(masked_copies(batch, masks(batch), MASK), size)
    plan = pair.plan
    changed = pair.tokens_U.clone()
    changed[8 + at] = (changed[8 + at] + 1) % MASK
    with torch.no_grad():
        before, after = (sdar(tokens, plan.positions(), plan).logits[:8] for tokens in (pair.tokens_U, changed))
    cut = (at // size + 1) * size
    assert torch.equal(before[:cut], after[:cut])
    if cut < 8:
        assert ((before[cut:] - after[cut:]).abs().amax(-1) > 1e-6).all(), "every later noisy token sees it"


def test_packed_rows_do_not_leak(sdar):
    batch = pack(ROWS)
    masked_T = masks(batch)
    packed = noisy_logits(sdar, ROWS, masked_T, 4)
    for row, own, logits in zip(ROWS, masked_T.split(list(batch.lengths)), packed, strict=True):
        torch.testing.assert_close(logits, noisy_logits(sdar, [row], own, 4)[0], **close)


@given(blocks=st.integers(1, 5), size=st.integers(1, 4), left_over=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_how_many_keys_a_token_sees(blocks, size, left_over):
    """A token of block b sees b whole blocks and its own, in either copy; only its copy differs."""
    left_over = min(left_over, size - 1)
    n = blocks * size + left_over
    (view,) = Plan((2 * n,), size, copies=2).views(torch.device("cpu"))
    seen = view.mask[0, 0]
    expected = torch.tensor([min((i // size + 1) * size, n) for i in range(n)])
    assert torch.equal(seen[:n].sum(-1), expected)
    assert torch.equal(seen[n:].sum(-1), expected)
    assert not seen[n:, :n].any(), "a clean token never sees a noisy one"


def test_the_losses_of_hidden_tokens_are_the_cross_entropies_of_the_noisy_copies(sdar):
    batch = pack(ROWS)
    masked_T = masks(batch)
    pair = two_copies(masked_copies(batch, masked_T, MASK), 4)
    with torch.no_grad():
        nll_N = sdar(**pair.arguments()).nll
    logits_TV = torch.cat(noisy_logits(sdar, ROWS, masked_T, 4))
    expected_N = cross_entropy(logits_TV[masked_T], batch.tokens_T[masked_T], reduction="none")
    torch.testing.assert_close(nll_N, expected_N, **close)


EOS = 5
KEYS = torch.arange(1000, dtype=torch.long)
CANVAS_ROWS = [([0, 1], [2, 3, 4]), ([1], [0, 5, 5, 2])]


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


def test_what_cannot_be_is_said():
    with pytest.raises(UsageError, match="row 1 has no response"):
        pack([([1], [2]), ([1], [])])


def test_packed_rows_know_their_places():
    batch = pack(CANVAS_ROWS)
    assert batch.tokens_T.tolist() == [0, 1, 2, 3, 4, 1, 0, 5, 5, 2]
    assert batch.row_T.tolist() == [0] * 5 + [1] * 5
    assert batch.column_T.tolist() == [0, 1, 2, 3, 4] * 2
    assert batch.response_T.tolist() == [False] * 2 + [True] * 3 + [False] + [True] * 4
    assert batch.response_lengths_B.tolist() == [3, 4]


# -- Padding of a pack, and the masks of its rows ----------------------------------------------------------------------


CPU = torch.device("cpu")


def padded(lengths: list[int], longest: int) -> Padding:
    return Padding.of(torch.tensor(lengths), longest, sum(lengths))


def test_every_token_has_one_place_and_padding_repeats_the_first_token():
    padding = padded([3, 1, 0, 2], 4)
    token_T = torch.tensor([10, 11, 12, 20, 40, 41])
    padded_RL = token_T[padding.index_RL]
    assert padded_RL[0].tolist() == [10, 11, 12, 10] and padded_RL[1].tolist() == [20, 20, 20, 20]
    assert padded_RL[3].tolist() == [40, 41, 40, 40]
    assert torch.equal(padded_RL.flatten()[padding.place_T], token_T)
    assert padding.real_RL.sum(1).tolist() == [3, 1, 0, 2]


def test_padded_queries_attend_to_the_first_token_and_nobody_to_padding():
    mask_RLL = padded([2, 3], 3).mask(None)[:, 0]
    assert mask_RLL[0].tolist() == [[True, True, False], [True, True, False], [True, False, False]]
    assert bool(mask_RLL[1].all())
    blocks = padded([2, 3], 3).mask(block_mask(3, 1, 1, CPU))[:, 0]
    assert blocks[0].tolist() == [[True, False, False], [True, True, False], [True, False, False]]


def test_a_noisy_copy_attends_to_its_own_block_and_to_clean_ones_before_it():
    mask_LL = block_mask(8, 2, 2, CPU)[0, 0].int().tolist()
    assert mask_LL[0] == [1, 1, 0, 0, 0, 0, 0, 0] and mask_LL[3] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert mask_LL[4] == [0, 0, 0, 0, 1, 1, 0, 0] and mask_LL[7] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_window_limits_clean_tokens_and_what_a_canvas_sees_of_them():
    column_RE = torch.arange(5)[None]
    mask_LE = clean_mask(torch.tensor([0]), torch.tensor([3]), 5, column_RE, 2)[0, 0].int().tolist()
    assert mask_LE == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]
