"""The parts of the loop by themselves: random numbers, choice of tokens and positions, text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import open_positions

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.model_adapters.answer_text import first_stop, response_text, stop_is_final, through_eos
from dare_bench.model_adapters.dream.carry import Carry
from dare_bench.model_adapters.fast_dllm_v2.sub_blocks import SubBlocks
from dare_bench.model_adapters.llada2.edit import Edit
from dare_bench.model_adapters.replay.published import topk_choice
from dare_bench.model_adapters.sampling.draws import inverse_cdf
from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.scores import SCORES
from dare_bench.model_adapters.sampling.stopping import StoppingPolicy
from dare_bench.model_adapters.sampling.strategies.bounded import Dynamic, Factor, Threshold
from dare_bench.model_adapters.sampling.strategies.quota import Quota, Sequential, even_schedule
from dare_bench.model_adapters.sampling.strategies.remasking import Rcr
from dare_bench.model_adapters.sampling.tokens import TokenPolicy, propose


def test_uniforms_are_uniform_and_independent():
    key = torch.full((200_000,), 12345)
    position = torch.arange(200_000)
    u = uniform(key, Draw.TOKEN, 0, position)
    assert u.min() > 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003 and abs(u.var() - 1 / 12) < 0.002
    counts = torch.histc(u.float(), 100, 0, 1)
    chi2 = ((counts - 2000) ** 2 / 2000).sum()
    assert chi2 < 160  # 99 degrees of freedom: p < 1e-4 beyond
    for other in (
        uniform(key, Draw.TOKEN, 1, position),
        uniform(key, Draw.ORDER, 0, position),
        uniform(key + 1, Draw.TOKEN, 0, position),
        u.roll(1),
    ):
        assert abs(torch.corrcoef(torch.stack([u, other]))[0, 1]) < 0.01


def test_uniforms_are_these_numbers_for_ever():
    """Stored runs depend on them: a change here is a change of every sampled score."""
    got = uniform(torch.tensor([0, 1, 2**62]), Draw.TOKEN, torch.tensor([0, 5, 9]), torch.tensor([0, -3, 77]))
    assert got.tolist() == PINNED


PINNED = [0.13870941014555432, 0.08773359482175741, 0.22064706940433304]


def test_inverse_cdf_draws_from_softmax():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(100_000, 1)
    u = uniform(torch.arange(100_000), Draw.TOKEN, 0, 0)
    token, _ = inverse_cdf(logits / 0.7, u)
    want = torch.softmax(logits[0].double() / 0.7, -1)
    assert torch.allclose(torch.bincount(token, minlength=4).double() / 1e5, want, atol=0.006)


def test_inverse_cdf_never_draws_a_suppressed_token():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf")]]).repeat(3, 1)
    token, _ = inverse_cdf(logits, torch.tensor([1e-17, 0.5, 1 - 1e-16], dtype=torch.float64))
    assert token.tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_noticed(bad):
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    for rows, finite in (([1, 2], False), ([0, 2], True)):
        built = propose(logits[rows], TokenPolicy(), SCORES["confidence"], open_positions([0] * 2))
        assert bool(built.finite) is finite


def test_confidence_of_uncounted_tokens_is_zero():
    logits = torch.tensor([[5.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    built = propose(logits, TokenPolicy(uncounted=(0,)), SCORES["confidence"], open_positions([0, 0]))
    assert built.token_N.tolist() == [0, 1]
    assert built.confidence_N[0] == built.score_N[0] == 0
    assert built.confidence_N[1] == pytest.approx(torch.softmax(torch.tensor([3.0, 1.0]), -1)[0].item())


@given(st.integers(0, 64), st.integers(1, 64))
def test_schedule_sums_to_the_masks(masks, steps):
    schedule = even_schedule(masks, steps)
    assert len(schedule) == steps and sum(schedule) == masks
    assert max(schedule) - min(schedule) <= 1 and schedule == sorted(schedule, reverse=True)


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.9]), max_size=6), min_size=1, max_size=5), st.data())
def test_selection_of_many_rows_equals_a_loop_over_rows(rows, data):
    quota = [data.draw(st.integers(0, 7)) for _ in rows]
    strategy = data.draw(st.sampled_from(STRATEGIES))
    score = torch.tensor([s for row in rows for s in row], dtype=torch.float64)
    at = open_positions([i for i, row in enumerate(rows) for _ in row], quota)
    ranked = rank(score, at)
    count_R = strategy.count(ranked, at)
    got = (ranked.rank_N < count_R[at.row_N]).tolist()
    want = []
    for row, k in zip(rows, quota, strict=True):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        n = _count([row[i] for i in order], strategy, k)
        want += [i in order[:n] for i in range(len(row))]
    assert got == want


STRATEGIES = [
    Quota(),
    Threshold(threshold=0.25),
    Factor(factor=0.6),
    Dynamic(threshold=0.25),
    Carry(steps=2, threshold=0.25),
]


def _count(best_first, strategy, quota):
    m = len(best_first)
    if m == 0:
        return 0
    if isinstance(strategy, Quota):
        return min(quota, m)
    if isinstance(strategy, Carry):  # at the first of two steps the second's quota is left out
        return max(0, min(max(1, sum(c >= strategy.threshold for c in best_first)), m - quota))
    if isinstance(strategy, Threshold):
        return max(1, sum(c >= strategy.threshold for c in best_first))
    if isinstance(strategy, Dynamic):
        sure = sum(c > strategy.threshold for c in best_first)
        return sure if sure >= quota else min(quota, m)
    limits = [-1.0] + [1 - strategy.factor / (n + 1) for n in range(2, m + 1)]
    n = next((i for i, (c, t) in enumerate(zip(best_first, limits, strict=True)) if c < t), m - 1)
    return n + 1 if n in (0, m - 1) else n


def test_sequential_takes_the_open_ones_among_the_next_columns():
    """Written positions in between count: of columns 3, 4 and 6 a quota of 3 takes those up to column 5."""
    column = torch.tensor([3, 4, 6, 0, 9])
    at = open_positions([0, 0, 0, 1, 1], [3, 1])
    count = Sequential().count(rank(-column.double(), at), at)
    assert count.tolist() == [2, 1]


def test_ties_go_to_the_lowest_index():
    at = open_positions([0] * 4, [2])
    ranked = rank(torch.tensor([0.5, 0.9, 0.5, 0.5]), at)
    assert (ranked.rank_N < Quota().count(ranked, at)).tolist() == [True, True, False, False]


def test_topk_choice_takes_the_right_number_and_the_best():
    score = torch.tensor([0.0, 0.3, 0.0, 0.0])
    taken = topk_choice(score, torch.tensor([5, 6, 8, 11]), 14, 2)
    assert taken.sum() == 2 and taken[1]


class Letters:
    """Token i is the i-th of these pieces; 0 is a special token."""

    pieces = ("<end>", "a", "b", "\n\n", "Q:", "c")
    all_special_tokens = ("<end>",)

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
        return "".join(self.pieces[i] for i in ids if i or not skip_special_tokens)


def test_text_is_cut_at_eos_then_at_stop_strings():
    assert response_text(Letters(), [1, 2, 0, 5], [0], (), False) == ("ab", False)
    assert response_text(Letters(), [1, 2, 0, 5], [0], (), True) == ("abc", False)
    assert response_text(Letters(), [1, 3, 4, 0], [0], ("Q:", "\n\n"), False) == ("a", True)
    assert response_text(Letters(), [1, 2, 0, 5, 4, 1], [0], ("Q:",), True) == ("abc", True)
    assert response_text(Letters(), [0, 1], [0], ("x",), False) == ("", False)


def test_a_row_stops_at_an_eos_only_once_all_before_it_is_written():
    eos, mask = 8, 9
    policy = StoppingPolicy(early_stop=True, eos_ids=(eos,))
    assert policy.is_final([1, eos, mask], mask, None)
    assert not policy.is_final([1, mask, eos], mask, None)
    assert not policy.is_final([1, 2], mask, None)
    assert not StoppingPolicy(early_stop=False, eos_ids=(eos,)).is_final([1, eos], mask, None)


def test_stop_strings():
    assert first_stop("abcabc", ["bc", "c"]) == 1
    assert first_stop("abc", ["", "x"]) is None
    assert stop_is_final("a\nb", ["\n"])
    assert not stop_is_final("ab", ["\n"])
    assert not stop_is_final("xab", ["abcd", "b"])  # "abcd" may still complete and would cut earlier
    assert stop_is_final("xabq", ["abcd", "b"])


def test_through_eos():
    assert through_eos([4, 5, 6], (5, 6)) == 2
    assert through_eos([4], (5,)) is None


def test_a_wrapped_strategy_is_one_whose_tokens_are_final():
    for inner in (Edit(threshold=0.9, edit_threshold=0.9), Rcr()):
        with pytest.raises(ValueError, match="writes over tokens; SubBlocks cannot modify it"):
            SubBlocks(inner=inner, length=4)
