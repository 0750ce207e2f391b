"""Autoregressive models: transformers' own tokens, the same for every batch; log-likelihoods by the chain rule over
lm-eval's tokens; both with their costs counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from causal_models import TEXT, make_gpt2, make_llama, tokenizer
from require import need_package
from transformers import RwkvConfig, RwkvForCausalLM

from dare_bench import load
from dare_bench.errors import MemoryLimitError, ModelOutputError, PromptError
from dare_bench.model import Model
from dare_bench.model_adapters.causal import scoring
from dare_bench.model_adapters.scoring.rolling import rolling_windows
from dare_bench.types import Likelihood, LoopStats, Request

PROMPTS = ["The quick", "Question: what is 12 + 7?", "", "Natalia sold 48 clips in April and half as many in May", "a"]
SAMPLED: dict[str, Any] = {"temperature": 1.1, "top_k": 40, "top_p": 0.95}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    make = {"llama": make_llama, "gpt2": make_gpt2}[request.param]
    return load(make(tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(make_llama(tmp_path_factory.mktemp("llama"), positions=64))


def test_greedy_tokens_are_those_of_generate_with_one_row(model: Model) -> None:
    for text, answer in zip(PROMPTS, model.generate(PROMPTS, gen_length=12), strict=True):
        prompt = model.loaded.encode(text) or [model.loaded.prefix_id]
        ends = list(model.spec.eos_ids)
        reference = model.network.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
        )
        assert answer.tokens == reference[0, len(prompt) :].tolist()
        assert answer.nfe == len(answer.tokens) == answer.reference_nfe and answer.prompt_tokens == len(prompt)
        assert (answer.tier, answer.residual_masks, answer.trajectory) == ("E1", 0, None)


def test_repetition_penalty_is_transformers_own(model: Model) -> None:
    answers = model.generate(PROMPTS, gen_length=16, repetition_penalty=3.0, eos_id=[])
    prompt = model.loaded.encode(PROMPTS[1])
    tokens = torch.tensor([prompt])
    reference = model.network.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=16, repetition_penalty=3.0, pad_token_id=0
    )
    assert answers[1].tokens == reference[0, len(prompt) :].tolist()
    plain = model.generate(PROMPTS, gen_length=16, eos_id=[])
    assert [answer.tokens for answer in answers] != [answer.tokens for answer in plain]


@pytest.mark.parametrize("fields", [{}, SAMPLED, {"temperature": 2.0}], ids=["greedy", "filtered", "hot"])
def test_an_answer_depends_on_no_other_row(model: Model, fields: dict[str, Any]) -> None:
    together = model.generate(PROMPTS, gen_length=12, near_tie=True, **fields)
    ties = {answer.near_tie for answer in together}
    assert ties == {False} or (fields.get("temperature") == 2.0 and ties == {True, False}), "a hot draw may be near one"
    alone = [a for text in PROMPTS for a in model.generate(text, gen_length=12, **fields)]
    turned = model.generate(PROMPTS[::-1], gen_length=12, max_rows=2, **fields)[::-1]
    assert [a.tokens for a in together] == [a.tokens for a in alone] == [a.tokens for a in turned]
    assert {a.tier for a in together} == {"E2" if fields else "E1"}


def test_a_row_is_drawn_by_its_own_seed(llama: Model) -> None:
    def draw(seed: int) -> list[int]:
        request = Request("r", "generate", [5, 6], decoding={"gen_length": 6, "temperature": 1.0}, seed=seed)
        (sample,) = llama.loaded.generate([request])
        return sample.answer.tokens  # type: ignore[union-attr]

    assert draw(3) == draw(3) != draw(4)
    first, again = llama.generate(["a b", "a b"], gen_length=6, temperature=1.0)
    assert first.tokens != again.tokens


def test_draws_have_the_models_distribution(llama: Model) -> None:
    fields = {"gen_length": 1, "temperature": 0.8, "top_k": 4}
    requests = [Request(str(i), "generate", [5, 6, 7], decoding=fields, seed=i * 7919) for i in range(1500)]
    drawn = [s.answer.tokens[0] for s in llama.loaded.generate(requests, max_rows=500)]  # type: ignore[union-attr]
    logits = llama.logits([5, 6, 7, 0])[-1]
    top = logits.topk(4)
    expected = (top.values / 0.8).softmax(-1)
    seen = torch.tensor([drawn.count(int(token)) for token in top.indices]) / 1500
    assert float(seen.sum()) == pytest.approx(1)
    assert (seen - expected).abs().max() < 4 * 0.5 / 1500**0.5


def test_stops_at_the_first_stop_string(model: Model) -> None:
    whole = model.generate(PROMPTS, gen_length=12)
    texts = [answer.text or "" for answer in whole]
    stop = texts[0][3:5]
    cut = model.generate(PROMPTS, gen_length=12, stop=stop)
    for answer, text, before in zip(cut, texts, whole, strict=True):
        assert answer.text == text.partition(stop)[0]
        assert answer.tokens == before.tokens[: len(answer.tokens)]
        assert answer.finish_reason == ("stop" if stop in text else before.finish_reason)
    assert len(cut[0].tokens) < len(whole[0].tokens)


def test_ends_with_the_first_eos(model: Model) -> None:
    whole = model.generate(PROMPTS[0], gen_length=12, eos_id=[])[0]
    assert whole.finish_reason == "length" and len(whole.tokens) == 12
    end = whole.tokens[4]
    short = model.generate(PROMPTS[:2], gen_length=12, eos_id=end)[0]
    first = whole.tokens.index(end) + 1
    assert short.tokens == whole.tokens[:first] and short.finish_reason == "eos" and short.tokens_to_eos == first
    long = model.generate(PROMPTS[0], gen_length=12, eos_id=end, early_stop=False)[0]
    assert (long.tokens, long.nfe, long.tokens_to_eos, long.text) == (whole.tokens, 12, first, short.text)
    kept = model.generate(PROMPTS[0], gen_length=12, eos_id=end, text_after_eos="keep")[0]
    assert kept.tokens == whole.tokens and kept.text == whole.text


def test_lengths_of_one_batch_and_its_cost(model: Model) -> None:
    requests = [
        Request(str(n), "generate", [5] * n, decoding={"gen_length": n, "eos_id": []}, seed=n) for n in (3, 6, 4)
    ]
    stats, seen = LoopStats(watch=lambda rows: seen.append(rows)), list[int]()
    samples = {s.request.key: s.answer for s in model.loaded.generate(requests, stats=stats)}
    assert {key: answer.nfe for key, answer in samples.items()} == {"3": 3, "6": 6, "4": 4}  # type: ignore[union-attr]
    assert (stats.forwards, stats.row_forwards, stats.slot_forwards) == (6, 13, 18) and seen == [3, 3, 3, 2, 1, 1]
    assert stats.tokens_processed == 3 * 6 + 5 * 3
    assert [model.loaded.forwards(request) for request in requests] == [3, 6, 4]


def test_requests_of_several_kinds_share_a_call(model: Model) -> None:
    kinds = [{}, {"temperature": 1.0}, {"repetition_penalty": 1.3}, {"top_k": 1, "temperature": 0.5}]
    requests = [
        Request(f"{i}", "generate", text, decoding={"gen_length": 5, **kinds[i % 4]}, seed=i)
        for i, text in enumerate(PROMPTS * 2)
    ]
    together = {s.request.key: s.answer.tokens for s in model.loaded.generate(requests)}  # type: ignore[union-attr]
    for request in requests:
        (alone,) = model.loaded.generate([request])
        assert together[request.key] == alone.answer.tokens  # type: ignore[union-attr]


def test_prompts_of_one_length_share_a_batch_without_a_mask(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.tokens for answer in model.generate(PROMPTS, gen_length=6)]
    monkeypatch.setattr(model.loaded, "takes_mask", False)
    monkeypatch.setattr(model.loaded, "pad_id", 300)  # in no prompt; else generate would take it for padding
    assert [answer.tokens for answer in model.generate(PROMPTS, gen_length=6)] == expected


def test_half_the_rows_when_memory_runs_out(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.tokens for answer in llama.generate(PROMPTS, gen_length=6, **SAMPLED)]
    original, most = llama.network.generate, 2

    def tight(tokens: torch.Tensor, **kwargs: Any) -> Any:
        if len(tokens) > most:
            original(tokens, **{**kwargs, "generation_config": kwargs["generation_config"]})
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(tokens, **kwargs)

    monkeypatch.setattr(llama.network, "generate", tight)
    assert [answer.tokens for answer in llama.generate(PROMPTS, gen_length=6, **SAMPLED)] == expected
    assert llama.last_stats.halvings == [{"rows": 5, "now": 2}]
    most = 0
    with pytest.raises(MemoryLimitError, match="one row does not fit"):
        llama.generate(PROMPTS, gen_length=6)


def test_a_prompt_beyond_the_context_is_an_error_of_its_own(llama: Model) -> None:
    requests = [Request(k, "generate", [5] * n, decoding={"gen_length": 60}) for k, n in (("fits", 4), ("long", 5))]
    answers = {sample.request.key: sample for sample in llama.loaded.generate(requests)}
    assert (
        answers["fits"].answer is not None and "is 65 tokens; the model's context limit is 64" in answers["long"].error
    )  # type: ignore[operator]
    with pytest.raises(PromptError):
        llama.generate([[5] * 5], gen_length=60)
    (sample,) = llama.loaded.generate([Request("c", "generate", [5], canvas=[1])])
    assert sample.error is not None and sample.error.startswith("canvas: an autoregressive model")


def test_logits_that_are_not_finite_end_it(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        llama.network.lm_head, "weight", torch.nn.Parameter(llama.network.lm_head.weight * float("nan"))
    )
    with pytest.raises(ModelOutputError, match="nan as its largest logit"):
        llama.generate("a", gen_length=3)
    with pytest.raises(ModelOutputError, match="NaN"):
        llama.loglikelihood([("a", "b")])
    with pytest.raises(ModelOutputError, match="NaN"):
        llama.logits([1, 2])


def test_a_network_that_ignores_its_mask_gets_no_padding(llama: Model, tmp_path: Path) -> None:
    tok = tokenizer(bos=True)
    config = RwkvConfig(
        vocab_size=len(tok), context_length=64, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16
    )
    network = RwkvForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    network.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    rwkv = load(tmp_path)
    assert not rwkv.loaded.takes_mask and llama.loaded.takes_mask
    together = rwkv.generate(PROMPTS, gen_length=6, eos_id=[])
    alone = [answer for text in PROMPTS for answer in rwkv.generate(text, gen_length=6, eos_id=[])]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]


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
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    make = {"llama": make_llama, "gpt2": make_gpt2}[request.param]
    return load(make(tmp_path_factory.mktemp(request.param), positions=48))


def by_hand(scorer: Model, context: list[int], target: list[int]) -> tuple[float, bool]:
    logprobs_LV = scorer.logits([*context, *target]).double().log_softmax(-1)[len(context) :]
    value = float(sum(row[token] for row, token in zip(logprobs_LV, target, strict=True)))
    return value, logprobs_LV.argmax(-1).tolist() == target


def test_the_sum_over_the_targets_tokens(scorer: Model) -> None:
    answers = scorer.loglikelihood(PAIRS)
    for (context, target), answer in zip(PAIRS, answers, strict=True):
        if isinstance(context, str):
            whole = scorer.loaded.encode(context + str(target), special_tokens=bool(context))
            tokens = scorer.loaded.encode(context.rstrip()) if context else []
            context, target = tokens, whole[len(tokens) :]
        value, greedy = by_hand(scorer, list(context) or [scorer.loaded.prefix_id], list(target))
        assert answer.value == pytest.approx(value, abs=1e-4) and answer.is_greedy == greedy
        assert (answer.stderr, answer.nfe, answer.tier, answer.estimator) == (0.0, 1, "E1", "chain rule")
        assert answer.target_tokens == len(target)
    assert answers[0].value == answers[1].value


def test_a_greedy_target_is_recognized(scorer: Model) -> None:
    (answer,) = scorer.generate([[5, 6, 7]], gen_length=4, eos_id=[])
    other = [*answer.tokens[:3], answer.tokens[3] + 1]
    (right, wrong) = scorer.loglikelihood([([5, 6, 7], answer.tokens), ([5, 6, 7], other)])
    assert (right.is_greedy, wrong.is_greedy) == (True, False)


def score(scorer: Model, requests: list[Request], **fields: Any) -> dict[str, Any]:
    return {sample.request.key: sample for sample in scorer.loaded.score(requests, **fields)}


def test_batches_change_nothing_and_equal_inputs_are_one_row(scorer: Model) -> None:
    requests = [Request(str(i), "score", context, target) for i, (context, target) in enumerate(PAIRS)]
    stats = LoopStats()
    together = score(scorer, requests, stats=stats)
    alone = score(scorer, requests, max_rows=1)
    for key, sample in together.items():
        assert sample.answer.value == pytest.approx(alone[key].answer.value, abs=1e-5)
    # The first two pairs are one text, and so are the inputs of [8] and [9] after [5, 6, 7].
    assert stats.forwards == 1 and stats.row_forwards == len(PAIRS) - 2


def test_logits_of_a_batch_are_bounded(scorer: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.value for answer in scorer.loglikelihood(PAIRS)]
    monkeypatch.setitem(scoring.LOGITS, "cpu", scorer.spec.vocab_size * 12)
    answers = scorer.loglikelihood(PAIRS)
    assert [answer.value for answer in answers] == pytest.approx(expected, abs=1e-5)
    assert scorer.last_stats.forwards > 2


def test_half_the_targets_when_memory_runs_out(scorer: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.value for answer in scorer.loglikelihood(PAIRS)]
    original, most = scorer.loaded.last_logits, 3

    def tight(tokens: torch.Tensor, kept: int) -> torch.Tensor:
        if len(tokens) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(tokens, kept)

    monkeypatch.setattr(scorer.loaded, "last_logits", tight)
    assert [answer.value for answer in scorer.loglikelihood(PAIRS)] == pytest.approx(expected, abs=1e-5)
    assert scorer.last_stats.halvings == [{"rows": 6, "now": 3}]
    most = 0
    with pytest.raises(MemoryLimitError, match="one row does not fit"):
        scorer.loglikelihood(PAIRS)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 9, 10, 11, 14, 15, 16])
def test_windows_are_lm_evals(count: int) -> None:
    utils = need_package("lm_eval.utils")
    tokens = list(range(100, 100 + count))
    expected = [
        utils.make_disjoint_window(window)
        for window in utils.get_rolling_token_windows(tokens, prefix_token=7, max_seq_len=5, context_len=1)
    ]
    assert rolling_windows(tokens, 7, 5) == expected


def test_a_rolling_text_is_scored_token_by_token(scorer: Model) -> None:
    text = "".join(TEXT * 3)
    requests = [Request("long", "score", "", text, rolling=True), Request("none", "score", "", "", rolling=True)]
    answers = score(scorer, requests)
    tokens = scorer.loaded.encode(text)
    windows = rolling_windows(tokens, scorer.loaded.prefix_id, 48)
    assert len(windows) > 2 and sum(len(target) for _, target in windows) == len(tokens)
    expected = sum(_window(scorer, context, target) for context, target in windows)
    long: Likelihood = answers["long"].answer
    assert long.value == pytest.approx(expected, abs=1e-3)
    assert (
        (long.nfe, long.target_tokens)
        == (len(windows), len(tokens))
        == (scorer.loaded.forwards(requests[0]), len(tokens))
    )
    assert (answers["none"].answer.value, answers["none"].answer.nfe) == (0.0, 0)


def _window(scorer: Model, context: list[int], target: list[int]) -> float:
    """As in ``by_hand``; the last token is not read, so that a window fits into the context."""
    logits_LV = scorer.loaded.last_logits(torch.tensor([[*context, *target[:-1]]]), len(target))[0]
    return float(sum(row[token] for row, token in zip(logits_LV.double().log_softmax(-1), target, strict=True)))


def test_what_cannot_be_scored_is_an_error_of_its_own(scorer: Model) -> None:
    requests = [
        Request("fits", "score", [5] * 40, [6] * 9),
        Request("long", "score", [5] * 40, [6] * 10),
        Request("empty", "score", "a b", ""),
    ]
    samples = score(scorer, requests)
    assert samples["fits"].answer is not None
    assert "49 of them are read; the model's context limit is 48" in samples["long"].error
    assert "adds no tokens" in samples["empty"].error
    with pytest.raises(PromptError):
        scorer.loglikelihood([("a b", "")])
