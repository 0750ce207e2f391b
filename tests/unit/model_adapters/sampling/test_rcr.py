"""Running confidence remasking (RCR): tokens of low confidence become masks again, in every family."""

from __future__ import annotations

from typing import Any

import golden
import pytest
import torch
from trajectories import MASK, canvas_before, open_positions

from dare_bench.errors import DareError, DecodingError
from dare_bench.model_adapters.sampling.records import Offer, Positions
from dare_bench.model_adapters.sampling.strategies.remasking import Rcr
from dare_bench.types import Generation, Request

PROMPT = [5, 6, 7, 8, 9, 10, 11]
INF = float("inf")


def answer(family: str, length: int = 16, prompt: list[int] = PROMPT, **fields: Any) -> Generation:
    """An answer in one block, also where blocks are counted from the first token."""
    block = {"block_length": length} if family in golden.BLOCK_CAUSAL else {}
    prompt = (prompt * 5)[:length] if block else prompt
    fields = {"gen_length": length, "trajectory": True, "early_stop": False, "strategy": "rcr", **block, **fields}
    return golden.model(family).generate([prompt], **fields)[0]


def offer(positions: Positions, confidence: list[float]) -> Offer:
    score_N = torch.tensor(confidence)
    return Offer(positions, torch.arange(len(confidence)), score_N, score_N, torch.tensor(True))


def test_masks_are_left_where_the_running_confidence_is_lowest() -> None:
    """Row 0: three masks, one due; the written tokens have 0.2 and 0.9. Row 1: two masks, both due."""
    masked_N = torch.tensor([True, False, True, False, True, True, True])
    positions = open_positions(
        [0, 0, 0, 0, 0, 1, 1],
        (1, 2),
        masked_N=masked_N,
        carried={"score": torch.tensor([INF, 0.2, INF, 0.9, INF, INF, INF], dtype=torch.float64)},
    )
    decision = Rcr().select(offer(positions, [0.5, 1.0, 0.1, 1.0, 0.6, 0.3, 0.0]))
    assert decision.written_N.tolist() == [True, True, False, False, True, True, True]
    assert decision.token_N.tolist() == [0, MASK, 2, 3, 4, 5, 6]
    assert decision.confidence_N.tolist() == pytest.approx([0.5, 0.2, 0.1, 1.0, 0.6, 0.3, 0.0])


def test_given_tokens_stay_and_ties_keep_the_first() -> None:
    masked_N = torch.tensor([False, True, True, True])
    score_N = torch.tensor([INF, INF, INF, INF], dtype=torch.float64)
    positions = open_positions([0] * 4, (1,), masked_N=masked_N, carried={"score": score_N})
    decision = Rcr().select(offer(positions, [0.0, 0.5, 0.5, 0.5]))
    assert decision.written_N.tolist() == [False, True, False, False]
    assert MASK not in decision.token_N.tolist()


FAMILIES = [family for family in golden.FAMILIES if family != "fast_dllm_v2"]
"""Fast-dLLM v2 predicts a block's first token before the block, and not again."""


def published(family: str, prompt: list[int], length: int, steps: int) -> tuple[list[int], list[list[int]]]:
    """A block of one row by the rule of the paper's code, written down apart from our loop: fill all masks, remember
    their confidences, and mask as many of the least confident tokens as later steps are to write."""
    loaded = golden.model(family).loaded
    mask_id, causal = loaded.spec.mask_id, family in golden.BLOCK_CAUSAL
    canvas, running, seen = [mask_id] * length, [0.0] * length, []
    due = [length // steps + (i < length % steps) for i in range(steps)]
    for step in range(steps):
        seen.append(list(canvas))
        logits_LV = loaded.logits([*prompt, *canvas], length if causal else None)[len(prompt) :]
        confidence_L, token_L = logits_LV.softmax(-1).max(-1)
        for i in range(length):
            if canvas[i] == mask_id:
                canvas[i], running[i] = int(token_L[i]), float(confidence_L[i])
        worst = sorted(range(length), key=lambda i: running[i])[: sum(due[step + 1 :])]
        for i in worst:
            canvas[i] = mask_id
    return canvas, seen


@pytest.mark.parametrize("steps", [1, 4, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_follows_the_published_rule(family: str, steps: int) -> None:
    """Same answer and same canvas before every forward; a remask is an event, and some happen."""
    result = answer(family, temperature=0.0, strategy={"name": "rcr", "steps": steps})
    prompt = (PROMPT * 5)[:16] if family in golden.BLOCK_CAUSAL else PROMPT
    tokens, seen = published(family, prompt, 16, steps)
    mask_id = golden.model(family).spec.mask_id
    assert result.trajectory is not None
    assert [canvas_before(result.trajectory, step, 16, mask_id) for step in range(steps)] == seen
    assert (result.tokens, result.nfe, result.residual_masks, result.tier) == (tokens, steps, 0, "A")


def remasks(result: Generation) -> list[Any]:
    return [event for event in result.trajectory or () if event.op == "remask"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_masked_again_and_the_event_says_so(family: str) -> None:
    mask_id, found = golden.model(family).spec.mask_id, []
    for first in range(3):
        found += (events := remasks(result := answer(family, prompt=[first + 5, 6, 7, 8])))
        written = {(e.position, e.confidence) for e in result.trajectory or () if e.op == "set"}
        assert all((e.position, e.confidence) in written and e.token == mask_id for e in events)
        assert all(e.logprob == 0.0 for e in events)
    assert found


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_do_not_depend_on_their_neighbors(family: str) -> None:
    """Blocks, draws, other strategies beside them, and room for fewer rows than there are."""
    loaded = golden.model(family).loaded
    ways: list[dict[str, Any]] = [
        {"strategy": "rcr", "temperature": 1.0},
        {"strategy": {"name": "rcr", "steps": 3}},
        {"strategy": {"name": "rcr", "rank_by": "margin"}, "temperature": 0.5},
        {"strategy": "quota"},
    ]
    block = {} if family == "dream" else {"block_length": 8}
    requests = [
        Request(f"{i}.{j}", "generate", PROMPT[: 3 + j], seed=j,
                decoding={"gen_length": 16, "trajectory": True, **block, **way})
        for i, way in enumerate(ways) for j in range(2)
    ]  # fmt: skip

    def answers(rows: int) -> dict[str, Any]:
        samples = list(loaded.generate(iter(requests), max_rows=rows))
        return {s.request.key: (s.answer.tokens, s.answer.trajectory) for s in samples}  # type: ignore[union-attr]

    alone, together = answers(1), answers(8)
    assert {key: tokens for key, (tokens, _) in alone.items()} == {key: t for key, (t, _) in together.items()}
    shape = {key: [event[:4] for event in events] for key, (_, events) in alone.items()}
    assert shape == {key: [event[:4] for event in events] for key, (_, events) in together.items()}
    assert any(event[1] == "remask" for events in shape.values() for event in events)


def test_predictions_are_the_whole_answer_at_every_forward() -> None:
    """What a forward predicts is the canvas before it with every mask filled; a remask does not hide it."""
    result = answer("llada", predictions=True, temperature=1.0)
    mask_id = golden.model("llada").spec.mask_id
    assert result.predictions is not None and result.trajectory is not None and remasks(result)
    for step, predicted in enumerate(result.predictions):
        before = canvas_before(result.trajectory, step, 16, mask_id)
        assert mask_id not in predicted
        assert all(p == b for p, b in zip(predicted, before, strict=True) if b != mask_id)
    assert result.predictions[-1] == result.tokens


def test_a_row_cannot_go_on_inside_a_block() -> None:
    loaded = golden.model("llada").loaded
    decoding = {"gen_length": 8, "strategy": "rcr"}
    inside = Request("0", "generate", PROMPT, decoding=decoding, canvas=[9, 9], start_step=2)
    (sample,) = loaded.generate([inside])
    assert sample.error is not None and "which a canvas does not hold; use start_step=0" in sample.error
    (sample,) = loaded.generate([Request("0", "generate", PROMPT, decoding=decoding, canvas=[9, 9])])
    assert isinstance(sample.answer, Generation) and sample.answer.tokens[:2] == [9, 9]


def test_it_does_not_go_where_tokens_are_final() -> None:
    with pytest.raises(DareError, match="cannot do so with a cache"):
        golden.model("dream").generate([PROMPT], gen_length=8, block_length=4, cache="prefix", strategy="rcr")
    with pytest.raises(DecodingError, match="does not rank masked positions"):
        golden.model("llada").loaded.resolve({"strategy": {"name": "eoser", "inner": "rcr"}})
