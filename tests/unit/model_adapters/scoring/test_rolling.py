"""Log-likelihoods of whole texts: windows as lm-eval's, each against brute force; errors, empty texts, cost."""

from __future__ import annotations

import math
from dataclasses import replace

import golden
import pytest
from brute_force import bound

from dare_bench.errors import PromptError
from dare_bench.model_adapters.native import NativeModel
from dare_bench.model_adapters.scoring.rolling import rolling_windows, window_requests
from dare_bench.model_adapters.scoring.score import score_pairs
from dare_bench.types import Likelihood, LoopStats, Request

TEXT = [13, 14, 46, 74, 99, 7, 96, 98, 5, 105, 31, 8, 77]
WHOLE, BLOCKED = ("llada", "dream"), ("sdar", "fast_dllm_v2")


def of_context(family: str, limit: int, **changes: object) -> NativeModel:
    """The family's network with another context limit."""
    loaded = golden.model(family).loaded
    spec = replace(loaded.spec, context_limit=limit, **changes)
    return NativeModel(loaded.family, loaded.network, None, spec, loaded.path)


def scored(model: NativeModel, *texts: list[int], seed: int = 3, max_rows: int | None = None, **fields: object):
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


@pytest.mark.parametrize("family", [*WHOLE, *BLOCKED])
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
    (sample,) = scored(model, TEXT, **fields)
    answer = value_of(sample)
    assert answer.value == pytest.approx(total, abs=1e-4)
    assert (answer.stderr, answer.estimator, answer.tier) == (0.0, "exact", "E1")
    assert (answer.target_tokens, answer.prompt_tokens, answer.is_greedy) == (len(TEXT), 0, None)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_draws_of_windows_are_separate_and_errors_add_up(family):
    model = of_context(family, 10)
    fields = {"estimator": "reference", "mc_num": 32}
    (sample,) = scored(model, TEXT[:9] * 2, **fields)
    answer = value_of(sample)
    windows = window_requests(model, Request("0", "score", "", TEXT[:9] * 2, fields, seed=3, rolling=True))
    assert len({window.seed for window in windows}) == len(windows) > 1, "windows share their draws"
    limit = 8 if family == "dream" else 9
    assert [(w.prompt, w.target) for w in windows] == rolling_windows(TEXT[:9] * 2, model.spec.eos_ids[0], limit)
    alone = [value_of(sample) for window in windows for sample in score_pairs_of(model, window)]
    assert answer.value == pytest.approx(sum(part.value for part in alone), abs=1e-4)
    assert answer.stderr == pytest.approx(math.sqrt(sum(part.stderr**2 for part in alone)), abs=1e-4)
    assert (answer.estimator, answer.tier, answer.draws) == ("reference", "E2", 32) and answer.stderr > 0
    again = [value_of(s) for s in scored(model, TEXT, TEXT[:9] * 2, seed=2, max_rows=1, **fields)]
    assert again[1].value == pytest.approx(answer.value, abs=1e-4), "the text depends on its neighbors"
    other = value_of(scored(model, TEXT[:9] * 2, seed=4, **fields)[0])
    assert other.value != answer.value


def test_texts_without_tokens_and_errors_of_single_texts():
    model = of_context("llada", 8)
    empty, wrong, fine = scored(model, [], [10**6], TEXT[:3])
    assert (value_of(empty).value, value_of(empty).nfe, value_of(empty).target_tokens) == (0.0, 0, 0)
    assert wrong.answer is None and wrong.error.startswith("token id 1000000 is outside the vocabulary")
    assert value_of(fine).target_tokens == 3
    (short,) = scored(of_context("llada", 1), TEXT)
    assert "context limit is 1; too short for a window" in short.error
    (nothing,) = scored(of_context("llada", 8, eos_ids=()), TEXT)
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
