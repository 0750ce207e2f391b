"""ASS (2^i positions in step i) and EOSER (the confidence of EOS rises over the steps), in every family."""

from __future__ import annotations

from collections import Counter

import golden
import pytest
import torch
from trajectories import canvas_before, open_positions

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.sampling.records import Offer
from dare_bench.model_adapters.sampling.strategies import strategy_of
from dare_bench.model_adapters.sampling.strategies.bounded import Threshold
from dare_bench.model_adapters.sampling.strategies.quota import Ascending
from dare_bench.model_adapters.sampling.strategies.wrapped import Eoser
from dare_bench.types import Generation

PROMPT = [5, 6, 7, 8, 9, 10, 11]


def answer(family: str, steps: int, **fields: object) -> Generation:
    """An answer of 2^steps - 1 tokens in one block."""
    length = 2**steps - 1
    block = {"block_length": length} if family in golden.BLOCK_CAUSAL else {}
    prompt = (PROMPT * 5)[:length] if block else PROMPT
    fields = {"gen_length": length, "trajectory": True, "early_stop": False, **block, **fields}
    return golden.model(family).generate([prompt], **fields)[0]


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_step_i_writes_two_to_the_i_tokens(family: str, steps: int) -> None:
    result = answer(family, steps, strategy="ascending")
    counts = Counter(event.step for event in result.trajectory)
    assert [counts[i] for i in range(steps)] == [2**i for i in range(steps)]
    assert result.nfe == steps and result.residual_masks == 0 and result.tier == "A"


@pytest.mark.parametrize(
    ("length", "steps", "schedule"),
    [
        (7, None, [1, 2, 4]),
        (8, None, [1, 2, 4, 1]),
        (8, 3, [1, 2, 5]),
        (5, None, [1, 2, 2]),
        (7, 5, [1, 2, 4, 0, 0]),
        (1, None, [1]),
        (128, 7, [1, 2, 4, 8, 16, 32, 65]),
    ],
)
def test_the_schedule_of_ascending_steps(length: int, steps: int | None, schedule: list[int]) -> None:
    strategy = Ascending(steps=steps)
    assert strategy.schedule(length, 0, length) == schedule
    assert strategy.most_forwards(length) == sum(due > 0 for due in schedule)
    for k in range(1, len(schedule)):
        assert strategy.schedule(length - sum(schedule[:k]), 0, length, k) == schedule[k:]


def test_gamma_rises_linearly_to_one() -> None:
    eoser = Eoser(inner=Threshold(steps=4, threshold=0.25)).for_model((7, 9), 8, 8)
    assert eoser.gamma(torch.arange(6)).tolist() == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
    assert Eoser(steps=1).for_model((), 8, 8).gamma(torch.zeros(1)).tolist() == [1.0]
    tokens_N, confidence_N = torch.tensor([7, 8, 9, 7]), torch.tensor([0.5, 0.5, 0.25, 1.0])
    positions = open_positions([0, 0, 0, 1], quota=(1, 1), step_R=torch.tensor([1, 0]))
    decision = eoser.select(Offer(positions, tokens_N, confidence_N, confidence_N, torch.tensor(True)))
    assert decision.score_N.tolist() == pytest.approx([0.3, 0.5, 0.15, 0.4])
    assert decision.written_N.tolist() == [True, True, False, True], "the first two are above the threshold"
    assert torch.equal(decision.confidence_N, confidence_N), "what is recorded is the model's"


def common(family: str, **fields: object) -> int:
    """The token that is written most often; taken as EOS, it is what EOSER holds back."""
    return Counter(answer(family, 4, **fields).tokens).most_common(1)[0][0]


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_without_decay_it_is_the_inner_strategy(family: str) -> None:
    eos = common(family, strategy="quota")
    inner = answer(family, 4, strategy="quota", eos_id=eos)
    same = answer(family, 4, strategy={"name": "eoser", "gamma_min": 1.0}, eos_id=eos)
    assert (same.tokens, same.trajectory, same.nfe) == (inner.tokens, inner.trajectory, inner.nfe)


@pytest.mark.parametrize(("inner", "counts"), [("quota", [1] * 15), ("ascending", [1, 2, 4, 8])])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_the_confidence_of_eos_is_multiplied_by_gamma(family: str, inner: str, counts: list[int]) -> None:
    """Each forward writes the positions with the largest product of the network's confidence and gamma."""
    loaded, eos, steps = golden.model(family).loaded, common(family, strategy=inner), len(counts)
    result = answer(family, 4, strategy={"name": "eoser", "gamma_min": 0.01, "inner": inner}, eos_id=eos)
    written = [[event.position for event in result.trajectory if event.step == step] for step in range(steps)]
    assert [len(places) for places in written] == counts and result.nfe == steps and result.tier == "A"
    causal, mask_id, held_back = family in golden.BLOCK_CAUSAL, loaded.spec.mask_id, 0
    prompt = (PROMPT * 5)[:15] if causal else PROMPT
    for step, places in enumerate(written):
        if family == "fast_dllm_v2" and step == 0:  # writes the block's first token, whatever its score is
            assert places == [0]
            continue
        canvas = canvas_before(result.trajectory, step, 15, mask_id)
        logits_LV = loaded.logits([*prompt, *canvas], 15 if causal else None)
        confidence_L, token_L = logits_LV[len(prompt) :].double().softmax(-1).max(-1)
        gamma = 0.01 + 0.99 * step / (steps - 1)
        score_L = torch.where(token_L == eos, gamma * confidence_L, confidence_L)
        open_L = torch.tensor(canvas) == mask_id
        best = score_L[open_L].topk(len(places)).values
        assert sorted(score_L[places].tolist()) == pytest.approx(sorted(best.tolist()), abs=1e-4)
        plain = confidence_L[open_L].topk(len(places)).values
        held_back += sorted(confidence_L[places].tolist()) != pytest.approx(sorted(plain.tolist()), abs=1e-4)
    if inner == "quota":
        assert held_back, "in some forward the plain confidence would have chosen others"


def test_rows_with_other_steps_or_ids_have_their_own_factor() -> None:
    """Rows are decided together only where gamma is the same function of the step."""
    loaded = golden.model("llada").loaded
    ways = [{"gen_length": 8, "strategy": {"name": "eoser", "steps": steps}} for steps in (2, 4, 8)]
    ways += [{"gen_length": 8, "strategy": "eoser", "eos_id": 3}]
    samplers = [loaded.family.sampler(d := loaded.resolve(way), loaded.family.with_ids(loaded.spec, d)) for way in ways]
    assert len({sampler.decision for sampler in samplers}) == 4
    assert [sampler.strategy._planned for sampler in samplers] == [2, 4, 8, 8]


def test_what_is_recorded_selects_the_same_strategy() -> None:
    loaded = golden.model("llada").loaded
    given = {"name": "eoser", "gamma_min": 0.1, "inner": {"name": "threshold", "threshold": 0.5}}
    recorded = loaded.resolve({"strategy": given}).model_dump(mode="json")["strategy"]
    assert recorded["inner"]["name"] == "threshold" and recorded["inner"]["threshold"] == 0.5
    assert strategy_of(recorded) == strategy_of(given)
    short = strategy_of({"name": "eoser", "steps": 4})
    assert short == strategy_of({"name": "eoser", "steps": 4, "inner": {"name": "quota", "steps": 4}})


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ({"name": "eoser", "inner": "sequential"}, "'sequential' does not rank masked positions by a probability"),
        ({"name": "eoser", "inner": {"name": "quota", "rank_by": "random"}}, "does not rank masked positions"),
        ({"name": "eoser", "inner": {"name": "edit", "threshold": 0.5, "edit_threshold": 0}}, "does not rank masked"),
        ({"name": "eoser", "inner": "eoser"}, "'eoser' does not rank masked positions by a probability"),
        ({"name": "eoser", "gamma_min": 2}, "gamma_min=2 is not valid"),
        ({"name": "eoser", "steps": 3, "inner": {"name": "quota", "steps": 4}}, "steps=3 and the inner strategy's"),
    ],
)
def test_strategies_that_eoser_cannot_hold_back(strategy: dict, says: str) -> None:
    with pytest.raises(DecodingError, match=says) as caught:
        golden.model("llada").loaded.resolve({"strategy": strategy})
    assert "\n" not in str(caught.value)
