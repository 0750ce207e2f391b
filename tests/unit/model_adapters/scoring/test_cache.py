"""What likelihoods of block-causal families cost: a prompt once, equal work once, less at a time in little memory."""

from __future__ import annotations

import golden
import pytest
import torch
from brute_force import CONTEXT, TARGET, ask, like, scored

from dare_bench.errors import MemoryLimitError, ModelOutputError
from dare_bench.model_adapters.scoring import score
from dare_bench.types import LoopStats

BLOCKED = ("sdar", "sdar_moe", "llada2")


def questions(shots=16, choices=3):
    """Two questions behind the same 16 few-shot tokens, each with choices of one block."""
    shared = [(7 * i + 3) % 90 for i in range(shots)]
    return [
        ask(f"{q}/{c}", shared + [90 + q] * 4, [20 * q + 3 * c + i for i in range(4)])
        for q in range(2)
        for c in range(choices)
    ]


def test_a_prompt_is_computed_once():
    """Clean columns: 16 shared and 4 of each question; masked windows: 15 masks of 4 tokens a choice, of which the one
    that hides everything is the same for all choices of a question. Nothing else goes through the network."""
    result, stats = scored("sdar", questions())
    assert stats.tokens_processed == 16 + 2 * 4 + (6 * 14 + 2) * 4
    assert [f.nfe for f in result] == [15 + 1] * 6
    apart = [golden.model("sdar").loglikelihood([(r.prompt, r.target)])[0].value for r in questions()]
    assert [f.value for f in result] == pytest.approx(apart, abs=1e-4)


def test_later_windows_still_read_the_shared_prefix(monkeypatch):
    """A window a request: the prompt stays in the cache although nobody holds it."""
    monkeypatch.setattr(score, "WINDOW", 1)
    _, stats = scored("sdar", questions())
    assert stats.tokens_processed == 16 + 2 * 4 + 6 * 15 * 4


def test_one_token_choices_share_their_masked_block():
    requests = [ask(t, CONTEXT, [t]) for t in (1, 2, 3, 4)]
    result, stats = scored("sdar", requests)
    assert stats.tokens_processed == 4 + 3
    logp = torch.log_softmax(golden.model("sdar").logits([*CONTEXT, 140], block_length=4)[-1], -1)
    assert [f.value for f in result] == pytest.approx([logp[t].item() for t in (1, 2, 3, 4)], abs=1e-4)


MIXED = [
    ask(i, context, target, **fields)
    for i, (context, target, fields) in enumerate(
        [
            (CONTEXT, TARGET, {}),
            (CONTEXT, TARGET, {"block_length": 3}),
            (CONTEXT, TARGET[:1], {"estimator": "reference", "mc_num": 5}),
            (CONTEXT + TARGET, TARGET, {"estimator": "reference", "mc_num": 5}),
            ([], TARGET, {}),
            (CONTEXT[:4], TARGET[:3], {"block_length": 32}),
            ((CONTEXT + TARGET) * 5, TARGET[:2], {}),
        ]
    )
]


@pytest.mark.parametrize("family", BLOCKED)
def test_values_do_not_depend_on_neighbors_or_order(family):
    alone = [scored(family, [r])[0][0] for r in MIXED]
    for rows in (1, 3, None):
        together, _ = scored(family, MIXED[::-1], max_rows=rows)
        assert [f.value for f in together[::-1]] == pytest.approx([f.value for f in alone], abs=1e-4)
        assert [f.nfe for f in together[::-1]] == [f.nfe for f in alone]


class Short:
    """A network that runs out of memory above so many packed tokens."""

    def __init__(self, network, most, nan=False):
        self.network, self.most, self.nan = network, most, nan
        self.arch, self.config = network.arch, network.config

    def parameters(self):
        return self.network.parameters()

    def __call__(self, tokens, **kwargs):
        if len(tokens) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        out = self.network(tokens, **kwargs)
        if self.nan and out.nll is not None:
            out.nll[:] = float("nan")
        return out


def test_memory_that_runs_out_halves_the_work_and_changes_nothing():
    requests, want = questions(), [f.value for f in scored("sdar", questions())[0]]
    for most, prefixes in ((60, False), (20, True)):  # 20: a clean prompt alone, then five blocks at a time
        stats = LoopStats()
        result = list(like("sdar", Short(golden.model("sdar").network, most)).score(requests, stats=stats))
        assert [s.answer.value for s in result] == pytest.approx(want, abs=1e-4)
        assert stats.halvings
        assert prefixes or stats.halvings[0]["rows"] == 6 * 14 + 2
    with pytest.raises(MemoryLimitError, match="one pair of 24 tokens does not fit"):
        list(like("sdar", Short(golden.model("sdar").network, 19)).score(requests))


def test_a_crowded_cache_is_filled_for_half_of_the_pairs(monkeypatch):
    """Two prompts of 20 tokens do not go through together, one does: the window is cut in two and goes on."""
    requests = [ask(i, [i + j for j in range(20)], [5, 6]) for i in range(4)]
    want = [f.value for f in scored("sdar", requests)[0]]
    stats = LoopStats()
    result = list(like("sdar", Short(golden.model("sdar").network, 25)).score(requests, stats=stats))
    assert [s.answer.value for s in result] == pytest.approx(want, abs=1e-4)
    assert stats.halvings[0] == {"rows": 4, "now": 2}


@pytest.mark.parametrize("family", ["sdar", "dream"])
def test_losses_that_are_no_numbers_are_an_error(family):
    with pytest.raises(ModelOutputError, match="NaN or infinite losses"):
        list(like(family, Short(golden.model(family).network, 9999, nan=True)).score([ask(0, CONTEXT, TARGET[:2])]))
