"""The log probability of an event is that of the distribution that its token was drawn from."""

from __future__ import annotations

import math

import golden
import pytest
import torch
from trajectories import canvas_before

from dare_bench.types import Capabilities, Generation, Request

PROMPT = [5, 6, 7]
LENGTH = 5
"""With the prompt two blocks of four, so that no token lies behind the response."""
BLOCKS = {"block_length": 4}
WAYS = {
    "llada": {"temperature": 0.7},
    "llada without EOS": {"temperature": 0.7, "logits_eos_inf": True, "eos_id": [1, 2, 3]},
    "llada_moe": {"temperature": 1.3, "steps": 2},
    "dream": {"temperature": 0.6, "top_p": 0.8, "top_k": 9},
    "dream origin": {"temperature": 0.6, "top_p": 0.9, "alg": "origin"},
    "sdar": {"temperature": 2.0, "top_p": 0.95, "top_k": 12, **BLOCKS},
    "sdar entropy_bounded": {"temperature": 0.7, "remasking_strategy": "entropy_bounded", **BLOCKS},
    "sdar_moe": {"temperature": 0.8, "cache": "none", **BLOCKS},
    "llada2": {"temperature": 2.0, "top_p": 0.95, **BLOCKS},
    "llada21": {"temperature": 0.9, "editing_threshold": 0.1, "threshold": 0.3, **BLOCKS},
}


def answer(family: str, seed: int = 3, **fields: object) -> Generation:
    decoding = {"gen_length": LENGTH, "trajectory": True, **fields}
    (sample,) = golden.model(family).loaded.generate([Request("0", "generate", PROMPT, decoding=decoding, seed=seed)])
    assert isinstance(sample.answer, Generation), sample.error
    return sample.answer


def log_probs(logits_V: torch.Tensor, decoding: dict, p_first: bool, suppressed: list[int]) -> torch.Tensor:
    """The log probabilities of a draw, filtered token by token."""
    scores = {token: float(x) / decoding["temperature"] for token, x in enumerate(logits_V) if token not in suppressed}

    def top_k() -> None:
        k = decoding.get("top_k") or len(scores)
        for token in sorted(scores, key=lambda token: -scores[token])[k:]:
            del scores[token]

    def top_p() -> None:
        p = decoding.get("top_p") or 1.0
        total, before = sum(map(math.exp, scores.values())), 0.0
        for token in sorted(scores, key=lambda token: -scores[token]):
            share = math.exp(scores[token]) / total
            if before > p:
                del scores[token]
            before += share

    for keep in (top_p, top_k) if p_first else (top_k, top_p):
        keep()
    total = math.log(sum(map(math.exp, scores.values())))
    result = torch.full((len(logits_V),), float("-inf"), dtype=torch.float64)
    for token, score in scores.items():
        result[token] = score - total
    return result


@pytest.mark.parametrize("rng", ["ours", "reference"])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_probability_that_the_token_was_drawn_with(way: str, rng: str) -> None:
    family, fields = way.split()[0], WAYS[way]
    loaded = golden.model(family).loaded
    result, mask_id = answer(family, rng=rng, **fields), loaded.spec.mask_id
    suppressed = fields["eos_id"] if "logits_eos_inf" in fields else [mask_id] if "entropy" in way else []
    for event in result.trajectory:
        canvas = canvas_before(result.trajectory, event.step, LENGTH, mask_id)
        logits_LV = loaded.logits([*PROMPT, *canvas], fields.get("block_length"))
        logp_V = log_probs(logits_LV[len(PROMPT) + event.position], fields, family == "dream", suppressed)
        assert event.logprob == pytest.approx(float(logp_V[event.token]), abs=2e-4)
    assert min(event.logprob for event in result.trajectory) < -0.01, "some token was uncertain"
    assert any(event.logprob != round(event.logprob, 6) for event in result.trajectory), "it is not rounded"


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_greedy_choice_has_probability_one(family: str) -> None:
    result = answer(family, temperature=0.0)
    assert result.trajectory and {event.logprob for event in result.trajectory} == {0.0}
    if family in ("dream", "sdar", "llada2"):
        assert {event.logprob for event in answer(family, temperature=1.0, top_k=1).trajectory} == {0.0}


def test_the_confidence_is_another_number() -> None:
    """LLaDA ranks by the probability at temperature 1, whatever the temperature of the draw."""
    events = answer("llada", temperature=0.5).trajectory
    assert max(abs(math.log(event.confidence) - event.logprob) for event in events) > 0.1
    assert all(event.confidence == round(event.confidence, 6) for event in events)


def test_rows_that_decide_apart_keep_their_log_probabilities() -> None:
    """Different temperatures in one batch are decided in groups."""
    decoding = [{"gen_length": LENGTH, "trajectory": True, "temperature": t} for t in (0.0, 0.6, 1.5)]
    requests = [Request(str(i), "generate", PROMPT, decoding=d, seed=3) for i, d in enumerate(decoding)]
    together = {s.request.key: s.answer for s in golden.model("llada").loaded.generate(requests)}
    for i, d in enumerate(decoding):
        alone = answer("llada", temperature=d["temperature"])
        assert [e.token for e in together[str(i)].trajectory] == [e.token for e in alone.trajectory]
        values, wanted = ([event.logprob for event in a.trajectory] for a in (together[str(i)], alone))
        assert values == pytest.approx(wanted, abs=1e-4)


LEFT_TO_RIGHT = [
    *((family, {"top_p": 1.0} if family == "fast_dllm_v2" else {}) for family in golden.FAMILIES),
    ("fast_dllm_v2", {"block_length": 4, "top_p": 1.0}),
    *((family, {"block_length": 4, "cache": cache}) for family in ("sdar", "llada2") for cache in ("exact", "none")),
    ("llada", {"block_length": 2, "gen_length": 6}),
]


@pytest.mark.parametrize(("family", "fields"), LEFT_TO_RIGHT)
def test_left_to_right_is_the_chain_rule(family: str, fields: dict) -> None:
    """One token a forward, in order, and the log probabilities add up to log p of the answer given the prompt."""
    loaded = golden.model(family).loaded
    length = fields.get("gen_length", LENGTH)
    result = answer(family, strategy="sequential", temperature=1.0, **fields)
    events = [event for event in result.trajectory if event.position < length]
    assert [event.position for event in events] == list(range(length)), "in order"
    assert [event.step for event in events] == list(range(length)), "one token a forward"
    assert [event.token for event in events] == result.tokens
    # A block of a block-causal family is visible as a whole, with its masks.
    block = fields.get("block_length", loaded.spec.block_length or 1) if loaded.spec.block_length else length
    end = length if not loaded.spec.block_length else -(-(len(PROMPT) + length) // block) * block - len(PROMPT)
    chain = 0.0
    for i, token in enumerate(result.tokens):
        canvas = [*result.tokens[:i], *[loaded.spec.mask_id] * (end - i)]
        logits_LV = loaded.logits([*PROMPT, *canvas], block if loaded.spec.block_length else None)
        chain += float(logits_LV[len(PROMPT) + i].double().log_softmax(-1)[token])
    assert sum(event.logprob for event in events) == pytest.approx(chain, abs=1e-3)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_left_to_right_with_an_approximate_cache_is_in_order(family: str, cache: str) -> None:
    fields = {"strategy": "sequential", "cache": cache, "gen_length": 8, "block_length": 4}
    events = answer(family, temperature=1.0, **fields).trajectory
    assert [(event.step, event.position) for event in events] == [(i, i) for i in range(8)]


def test_a_method_can_ask_for_what_it_needs() -> None:
    offered = golden.model("llada").loaded.capabilities
    assert offered.trajectory and offered.logprobs and offered.predictions and offered.canvas
    assert not any((Capabilities().logprobs, Capabilities().predictions, Capabilities().canvas))


def test_the_weights_version_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = golden.model("llada").loaded
    assert answer("llada").weights_version == 0
    monkeypatch.setattr(loaded, "weights_version", 7)
    assert answer("llada").weights_version == 7
    (scored,) = loaded.score([Request("0", "score", PROMPT, [8, 9])])
    assert scored.answer.weights_version == 7


def test_a_row_records_the_weights_that_it_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = golden.model("llada").loaded
    requests = [Request(str(n), "generate", PROMPT, decoding={"gen_length": n}) for n in (1, 4)]
    versions = {}
    for sample in loaded.generate(requests):
        versions[sample.request.key] = sample.answer.weights_version
        monkeypatch.setattr(loaded, "weights_version", 1)
    assert versions == {"1": 0, "4": 0}
