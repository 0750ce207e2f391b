"""What likelihoods of block-causal families cost: a prompt once, equal work once, little memory; log-likelihoods of
whole texts in windows as lm-eval's."""

from __future__ import annotations

import math
from dataclasses import replace

import golden
import pytest
import torch
from brute_force import CONTEXT, TARGET, ask, bound, like, scored

from dare_bench.errors import MemoryLimitError, ModelOutputError, PromptError
from dare_bench.model_adapters.native import NativeModel
from dare_bench.model_adapters.scoring import score
from dare_bench.model_adapters.scoring.rolling import rolling_windows, window_requests
from dare_bench.model_adapters.scoring.score import score_pairs
from dare_bench.types import Likelihood, LoopStats, Request

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


TEXT = [13, 14, 46, 74, 99, 7, 96, 98, 5, 105, 31, 8, 77]
WHOLE, ROLLED = ("llada", "dream"), ("sdar", "fast_dllm_v2")


def of_context(family: str, limit: int, **changes: object) -> NativeModel:
    """The family's network with another context limit."""
    loaded = golden.model(family).loaded
    spec = replace(loaded.spec, context_limit=limit, **changes)
    return NativeModel(loaded.family, loaded.network, None, spec, loaded.path)


def rolled(model: NativeModel, *texts: list[int], seed: int = 3, max_rows: int | None = None, **fields: object):
    requests = [Request(str(i), "score", "", t, fields, seed=seed + i, rolling=True) for i, t in enumerate(texts)]
    stats = LoopStats()
    answers = {s.request.key: s for s in model.score(requests, max_rows=max_rows, stats=stats)}
    for request in requests:
        answer = answers[request.key].answer
        assert answer is None or answer.nfe <= model.forwards(request)
    return [answers[request.key] for request in requests]


def score_pairs_of(model: NativeModel, request: Request):
    return score_pairs(model, [request], max_rows=None, stats=LoopStats())


def value_of(sample) -> Likelihood:
    assert isinstance(sample.answer, Likelihood), sample.error
    return sample.answer


@pytest.mark.parametrize("family", [*WHOLE, *ROLLED])
@pytest.mark.parametrize("limit", [5, 6, 32])
def test_a_text_is_the_sum_of_its_windows(family, limit):
    """Every window exactly: those of bidirectional families hold at most 7 tokens, the others blocks of 4."""
    limit = min(limit, 8) if family in WHOLE else limit
    model, block = of_context(family, limit), None if family in WHOLE else 4
    prefix, ending = model.spec.eos_ids[0], [model.spec.eos_ids[0]] if family == "dream" else []
    windows = rolling_windows(TEXT, prefix, limit - 1 - len(ending))
    total = 0.0
    for context, target in windows:
        whole = context + target + ending
        if block is None:
            total += bound(family, whole, list(range(len(context), len(context) + len(target))))
            continue
        for low in range(len(context) // block * block, len(context) + len(target), block):
            columns = range(max(low, len(context)), min(low + block, len(whole)))
            total += bound(family, whole[: low + block], list(columns), block)
    fields = {} if block is None else {"block_length": block}
    (sample,) = rolled(model, TEXT, **fields)
    answer = value_of(sample)
    assert answer.value == pytest.approx(total, abs=1e-4)
    assert (answer.stderr, answer.estimator, answer.tier) == (0.0, "exact", "E1")
    assert (answer.target_tokens, answer.prompt_tokens, answer.is_greedy) == (len(TEXT), 0, None)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_draws_of_windows_are_separate_and_errors_add_up(family):
    model = of_context(family, 10)
    fields = {"estimator": "reference", "mc_num": 32}
    (sample,) = rolled(model, TEXT[:9] * 2, **fields)
    answer = value_of(sample)
    windows = window_requests(model, Request("0", "score", "", TEXT[:9] * 2, fields, seed=3, rolling=True))
    assert len({window.seed for window in windows}) == len(windows) > 1, "windows share their draws"
    limit = 8 if family == "dream" else 9
    assert [(w.prompt, w.target) for w in windows] == rolling_windows(TEXT[:9] * 2, model.spec.eos_ids[0], limit)
    alone = [value_of(sample) for window in windows for sample in score_pairs_of(model, window)]
    assert answer.value == pytest.approx(sum(part.value for part in alone), abs=1e-4)
    assert answer.stderr == pytest.approx(math.sqrt(sum(part.stderr**2 for part in alone)), abs=1e-4)
    assert (answer.estimator, answer.tier, answer.draws) == ("reference", "E2", 32) and answer.stderr > 0
    again = [value_of(s) for s in rolled(model, TEXT, TEXT[:9] * 2, seed=2, max_rows=1, **fields)]
    assert again[1].value == pytest.approx(answer.value, abs=1e-4), "the text depends on its neighbors"
    other = value_of(rolled(model, TEXT[:9] * 2, seed=4, **fields)[0])
    assert other.value != answer.value


def test_texts_without_tokens_and_errors_of_single_texts():
    model = of_context("llada", 8)
    empty, wrong, fine = rolled(model, [], [10**6], TEXT[:3])
    assert (value_of(empty).value, value_of(empty).nfe, value_of(empty).target_tokens) == (0.0, 0, 0)
    assert wrong.answer is None and wrong.error.startswith("token id 1000000 is outside the vocabulary")
    assert value_of(fine).target_tokens == 3
    (short,) = rolled(of_context("llada", 1), TEXT)
    assert "context limit is 1; too short for a window" in short.error
    (nothing,) = rolled(of_context("llada", 8, eos_ids=()), TEXT)
    assert "neither BOS nor EOS to begin a text with; give eos_id=" in nothing.error
    with pytest.raises(PromptError, match="neither BOS nor EOS"):
        of_context("llada", 8, eos_ids=()).prefix_id  # noqa: B018


@pytest.mark.parametrize(
    ("family", "fields", "setting"),
    [
        ("dream", {"estimator": "reference", "log_type": "btf"}, "log_type='btf'"),
        ("fast_dllm_v2", {"estimator": "reference", "nll_type": "first_token"}, "nll_type='first_token'"),
    ],
)
def test_settings_that_score_something_else_are_refused(family, fields, setting):
    requests = [Request("0", "score", "", TEXT, fields, rolling=True)]
    (sample,) = golden.model(family).loaded.score(requests)
    assert sample.error == f"{setting} does not give the log-likelihood of a whole text; leave it out"
