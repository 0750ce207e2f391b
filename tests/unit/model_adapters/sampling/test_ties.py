"""A near tie is a decision that a small move of the logits turns: held against moves of that size and of others."""

from __future__ import annotations

from types import SimpleNamespace

import golden
import pytest
import torch
from trajectories import open_positions

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.sampling import ties
from dare_bench.model_adapters.sampling.decide import DecisionGroup
from dare_bench.model_adapters.sampling.draws import COUNTER
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies.bounded import Dynamic, EntropyBound, Threshold
from dare_bench.model_adapters.sampling.strategies.quota import Quota
from dare_bench.model_adapters.sampling.strategies.wrapped import Eoser
from dare_bench.model_adapters.sampling.tokens import TokenPolicy, propose
from dare_bench.types import TIE

FLOAT64 = TokenPolicy(confidence_float64=True)


def group(logits_NV, strategy, quota=1, policy=FLOAT64, **at):
    sampler = Sampler(len(logits_NV), len(logits_NV), strategy, tokens=policy, record_near_tie=True)
    return DecisionGroup(sampler, logits_NV, open_positions([0] * len(logits_NV), [quota], **at), COUNTER)


def decide(*args, **fields):
    made = group(*args, **fields)
    return made.select(made.propose())


def near(*args, **fields):
    made = group(*args, **fields)
    offer = made.propose()
    return ties.near_ties(made, offer, made.select(offer)).item()


def table(*tops, vocab=5):
    """Logits that are 0 but for the first token of each position."""
    logits_NV = torch.zeros(len(tops), vocab)
    logits_NV[torch.arange(len(tops)), torch.arange(len(tops)) % vocab] = torch.tensor(tops)
    return logits_NV


@pytest.mark.parametrize(("ahead", "is_near"), [(0.0, True), (1.5e-4, True), (3e-4, False)])
def test_two_tokens_of_a_position_that_is_written(ahead, is_near):
    logits = table(4.0, 1.0)
    logits[0, 3] = 4.0 - ahead
    assert near(logits, Quota()) is is_near
    assert near(logits.flip(0), Quota(), 2) is is_near


@pytest.mark.parametrize("rank_by", ["confidence", "entropy", "margin"])
@pytest.mark.parametrize(("ahead", "is_near"), [(0.0, True), (1e-4, True), (5e-4, False)])
def test_the_last_written_position_and_the_first_that_is_not(rank_by, ahead, is_near):
    logits = table(2.0 + ahead, 2.0, 0.5)
    assert near(logits, Quota(rank_by=rank_by)) is is_near
    assert near(logits, Quota(rank_by=rank_by), 2) is False
    assert near(logits, Quota(rank_by="random")) is False


@pytest.mark.parametrize("over", [-1, 1])
@pytest.mark.parametrize(("away", "is_near"), [(1e-5, True), (1e-4, False)])
@pytest.mark.parametrize("strategy", [Threshold, Dynamic])
def test_a_threshold(over, away, is_near, strategy):
    """Of the second position: the first is far above, the third far below."""
    logits = table(9.0, 2.77, 1.0)
    confidence = float(logits[1].double().softmax(-1).max())
    assert near(logits, strategy(threshold=confidence - over * away)) is is_near


@pytest.mark.parametrize("over", [-1, 1])
@pytest.mark.parametrize(("away", "is_near"), [(1e-5, True), (1e-3, False)])
def test_a_sum_of_entropies(over, away, is_near):
    logits = table(6.0, 5.0, 1.0)
    p = logits.double().softmax(-1)[:1]
    spent = float(-(p * p.log()).sum())
    assert near(logits, EntropyBound(bound=spent + over * away)) is is_near


@pytest.mark.parametrize("quota", [1, 2])
def test_which_of_two_certain_positions_goes_first_is_no_choice(quota):
    logits = table(18.0, 18.0, 1.0)
    assert near(logits, Quota(), quota) is False
    assert near(table(3.0, 3.0, 1.0), Quota(), quota) is (quota == 1)


def test_another_token_than_eos_ranks_higher():
    """The second position is behind because it proposes EOS (0); with another token it would be first."""
    strategy = Eoser(inner=Quota(), gamma_min=0.4).for_model((0,), 4, 4)
    for ahead, is_near in ((1e-4, True), (1e-3, False)):
        logits = torch.tensor([[0.0, 0.5, 0.0, 0.0], [5.0, 5.0 - ahead, 0.0, 0.0]])
        assert decide(logits, strategy).written_N.tolist() == [True, False]
        assert near(logits, strategy) is is_near


def test_a_drawn_token_whose_place_is_at_the_edge_of_another():
    """Held against the move of every single edge between tokens, by half and by twice the size."""
    rows, policy = 25_000, TokenPolicy(temperature=0.7, confidence_float64=True)
    logits = torch.randn(rows, 6, generator=torch.Generator().manual_seed(2))
    key_N = torch.arange(rows)
    at = open_positions(key_N.tolist(), [1] * rows, key_R=key_N, position_N=key_N * 0)
    sampler = Sampler(1, 1, Quota(), tokens=policy, record_near_tie=True)
    made = DecisionGroup(sampler, logits, at, COUNTER)
    offer = made.propose()
    near_R = ties.near_ties(made, offer, made.select(offer))

    def turned(size):
        signs = [torch.where(torch.arange(6) <= edge, sign, -sign) for edge in range(5) for sign in (1.0, -1.0)]
        moved = (propose(logits + size * sign, policy, Quota().score, at).token_N for sign in signs)
        return torch.stack([token_N != offer.token_N for token_N in moved]).any(0)

    surely, possibly = turned(TIE / 2), turned(2 * TIE)
    assert surely.sum() >= 3 and near_R[surely].all()
    assert not near_R[~possibly].any()


def test_a_count_with_a_margin_is_one_line():
    class Old(Quota):
        def count(self, ranked, positions):
            return positions.quota_R, positions.quota_R

    with pytest.raises(DecodingError, match=r"strategy 'quota': count returned a tuple; expected the counts alone"):
        decide(table(1.0, 2.0), Old())


class Scripted:
    """A network whose logits are the same whatever it reads: one table of the response's positions."""

    def __init__(self, network, table_LV, prompt):
        self.network, self.table_LV, self.prompt = network, table_LV, prompt

    def __getattr__(self, name):
        return getattr(self.network, name)

    def __call__(self, tokens_T, column_T, plan, *, logits_at):
        return SimpleNamespace(logits=self.table_LV[column_T[logits_at] - self.prompt])


@pytest.mark.parametrize(
    ("early_stop", "first", "is_near"), [(True, 30.0, False), (False, 30.0, True), (True, 1.0, True)]
)
def test_choices_behind_an_answers_end_do_not_count(monkeypatch, early_stop, first, is_near):
    """Position 0 is EOS, and comes first or last; the other positions are even with each other."""
    model = golden.model()
    logits = torch.zeros(8, model.network.arch.vocab)
    logits[:, 5] = 4.0
    logits[0, 5], logits[0, 79] = 0.0, first
    monkeypatch.setattr(model.loaded, "network", Scripted(model.network, logits, 2))
    result = model.generate([[1, 2]], gen_length=8, steps=8, near_tie=True, early_stop=early_stop, eos_id=79)[0]
    assert result.near_tie is is_near


@pytest.mark.parametrize("family", ["llada22", "diffusion_gemma"])
def test_deciding_again_leaves_what_a_strategy_remembers(family, monkeypatch):
    model = golden.model(family)
    monkeypatch.setattr("dare_bench.model_adapters.sampling.logits.TIE", 0.05)
    prompts, fields = [[5, 6, 7], [8, 9, 10, 11]], {"gen_length": 8}
    plain, measured = (model.generate(prompts, near_tie=near, **fields) for near in (False, True))
    assert [(a.tokens, a.nfe) for a in plain] == [(a.tokens, a.nfe) for a in measured]
    assert all(a.near_tie is not None for a in measured)
