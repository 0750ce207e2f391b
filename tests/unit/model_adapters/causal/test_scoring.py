"""Log-likelihoods: the chain rule over lm-eval's tokens, one forward for all targets with the same beginning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from causal_models import TEXT, make_gpt2, make_llama
from require import need_package

from dare_bench import load
from dare_bench.errors import MemoryLimitError, PromptError
from dare_bench.model import Model
from dare_bench.model_adapters.causal import scoring
from dare_bench.model_adapters.scoring.rolling import rolling_windows
from dare_bench.types import Likelihood, LoopStats, Request

PAIRS = [
    ("The quick brown", " fox jumps"),
    ("The quick brown ", "fox jumps"),
    ("", "The quick"),
    ("Question:", " what is 12 + 7? Answer: 19"),
    ([5, 6, 7], [8]),
    ([5, 6, 7], [9]),
    ([5, 6, 7, 8], [9]),
    ([], [9, 4]),
]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    make = {"llama": make_llama, "gpt2": make_gpt2}[request.param]
    return load(make(tmp_path_factory.mktemp(request.param), positions=48))


def by_hand(model: Model, context: list[int], target: list[int]) -> tuple[float, bool]:
    logprobs_LV = model.logits([*context, *target]).double().log_softmax(-1)[len(context) :]
    value = float(sum(row[token] for row, token in zip(logprobs_LV, target, strict=True)))
    return value, logprobs_LV.argmax(-1).tolist() == target


def test_the_sum_over_the_targets_tokens(model: Model) -> None:
    answers = model.loglikelihood(PAIRS)
    for (context, target), answer in zip(PAIRS, answers, strict=True):
        if isinstance(context, str):
            whole = model.loaded.encode(context + str(target), special_tokens=bool(context))
            tokens = model.loaded.encode(context.rstrip()) if context else []
            context, target = tokens, whole[len(tokens) :]
        value, greedy = by_hand(model, list(context) or [model.loaded.prefix_id], list(target))
        assert answer.value == pytest.approx(value, abs=1e-4) and answer.is_greedy == greedy
        assert (answer.stderr, answer.nfe, answer.tier, answer.estimator) == (0.0, 1, "E1", "chain rule")
        assert answer.target_tokens == len(target)
    assert answers[0].value == answers[1].value


def test_a_greedy_target_is_recognized(model: Model) -> None:
    (answer,) = model.generate([[5, 6, 7]], gen_length=4, eos_id=[])
    other = [*answer.tokens[:3], answer.tokens[3] + 1]
    (right, wrong) = model.loglikelihood([([5, 6, 7], answer.tokens), ([5, 6, 7], other)])
    assert (right.is_greedy, wrong.is_greedy) == (True, False)


def score(model: Model, requests: list[Request], **fields: Any) -> dict[str, Any]:
    return {sample.request.key: sample for sample in model.loaded.score(requests, **fields)}


def test_batches_change_nothing_and_equal_inputs_are_one_row(model: Model) -> None:
    requests = [Request(str(i), "score", context, target) for i, (context, target) in enumerate(PAIRS)]
    stats = LoopStats()
    together = score(model, requests, stats=stats)
    alone = score(model, requests, max_rows=1)
    for key, sample in together.items():
        assert sample.answer.value == pytest.approx(alone[key].answer.value, abs=1e-5)
    # The first two pairs are one text, and so are the inputs of [8] and [9] after [5, 6, 7].
    assert stats.forwards == 1 and stats.row_forwards == len(PAIRS) - 2


def test_logits_of_a_batch_are_bounded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.value for answer in model.loglikelihood(PAIRS)]
    monkeypatch.setitem(scoring.LOGITS, "cpu", model.spec.vocab_size * 12)
    answers = model.loglikelihood(PAIRS)
    assert [answer.value for answer in answers] == pytest.approx(expected, abs=1e-5)
    assert model.last_stats.forwards > 2


def test_half_the_rows_when_memory_runs_out(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.value for answer in model.loglikelihood(PAIRS)]
    original, most = model.loaded.last_logits, 3

    def tight(tokens: torch.Tensor, kept: int) -> torch.Tensor:
        if len(tokens) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(tokens, kept)

    monkeypatch.setattr(model.loaded, "last_logits", tight)
    assert [answer.value for answer in model.loglikelihood(PAIRS)] == pytest.approx(expected, abs=1e-5)
    assert model.last_stats.halvings == [{"rows": 6, "now": 3}]
    most = 0
    with pytest.raises(MemoryLimitError, match="one row does not fit"):
        model.loglikelihood(PAIRS)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 9, 10, 11, 14, 15, 16])
def test_windows_are_lm_evals(count: int) -> None:
    utils = need_package("lm_eval.utils")
    tokens = list(range(100, 100 + count))
    expected = [
        utils.make_disjoint_window(window)
        for window in utils.get_rolling_token_windows(tokens, prefix_token=7, max_seq_len=5, context_len=1)
    ]
    assert rolling_windows(tokens, 7, 5) == expected


def test_a_rolling_text_is_scored_token_by_token(model: Model) -> None:
    text = "".join(TEXT * 3)
    requests = [Request("long", "score", "", text, rolling=True), Request("none", "score", "", "", rolling=True)]
    answers = score(model, requests)
    tokens = model.loaded.encode(text)
    windows = rolling_windows(tokens, model.loaded.prefix_id, 48)
    assert len(windows) > 2 and sum(len(target) for _, target in windows) == len(tokens)
    expected = sum(_window(model, context, target) for context, target in windows)
    long: Likelihood = answers["long"].answer
    assert long.value == pytest.approx(expected, abs=1e-3)
    assert (
        (long.nfe, long.target_tokens)
        == (len(windows), len(tokens))
        == (model.loaded.forwards(requests[0]), len(tokens))
    )
    assert (answers["none"].answer.value, answers["none"].answer.nfe) == (0.0, 0)


def _window(model: Model, context: list[int], target: list[int]) -> float:
    """As in ``by_hand``; the last token is not read, so that a window fits into the context."""
    logits_LV = model.loaded.last_logits(torch.tensor([[*context, *target[:-1]]]), len(target))[0]
    return float(sum(row[token] for row, token in zip(logits_LV.double().log_softmax(-1), target, strict=True)))


def test_what_cannot_be_scored_is_an_error_of_its_own(model: Model) -> None:
    requests = [
        Request("fits", "score", [5] * 40, [6] * 9),
        Request("long", "score", [5] * 40, [6] * 10),
        Request("empty", "score", "a b", ""),
    ]
    samples = score(model, requests)
    assert samples["fits"].answer is not None
    assert "49 of them are read; the model's context limit is 48" in samples["long"].error
    assert "adds no tokens" in samples["empty"].error
    with pytest.raises(PromptError):
        model.loglikelihood([("a b", "")])
