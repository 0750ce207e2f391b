"""Settings that are known to fail are said, and others are not."""

from __future__ import annotations

from typing import Any

import pytest

import dare_bench
from dare_bench.engine import known_failures
from dare_bench.protocols import HarnessResult
from dare_bench.types import Request

FAST = {"strategy": {"name": "klass", "conf_threshold": 0.9, "kl_threshold": 0.01}}


def before(model: str, task: str, **fields: Any) -> list[str]:
    loaded = dare_bench.load(model).loaded
    decoding = {task: loaded.resolve(fields).model_dump(mode="json")}
    return [warning for warning, _ in known_failures.before(loaded.spec, fields, decoding, {})]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("tiny-llada", {"threshold": 0.9}),
        ("tiny-llada2", {}),
        ("tiny-sdar", {}),
        ("tiny-llada", {"strategy": {"name": "klass", "conf_threshold": 0.8}}),
        ("tiny-llada", {"factor": 1.0}),
    ],
)
def test_a_temperature_beside_a_bound_of_confidence(model: str, fields: dict[str, Any]) -> None:
    assert before(model, "gsm8k", **fields) == []
    (warning,) = before(model, "gsm8k", temperature=0.8, **fields)
    assert warning.startswith("temperature=0.8 beside ") and "dLLM-RL issue 5" in warning


def test_a_temperature_alone() -> None:
    assert before("tiny-llada", "gsm8k", temperature=0.8) == []
    assert before("tiny-sdar", "gsm8k", temperature=0.8, remasking_strategy="low_confidence_static") == []


def test_dream_writes_code_with_several_tokens_a_forward() -> None:
    (warning,) = before("tiny-dream", "humaneval_instruct", **FAST)
    assert "conf_threshold=0.9: Dream writes code badly" in warning
    assert before("tiny-llada", "humaneval_instruct", **FAST) == before("tiny-dream", "gsm8k", **FAST) == []


def test_a_threshold_changes_no_log_likelihood() -> None:
    loaded = dare_bench.load("tiny-llada").loaded
    decoding = {"gsm8k": loaded.resolve({"threshold": 0.9}).model_dump(mode="json")}
    found = [*known_failures.before(loaded.spec, {"threshold": 0.9}, decoding, {"arc_easy": {}})]
    assert found == [("threshold=0.9: without effect on log-likelihoods", "arc_easy")]


def after(
    ends: list[str], targets: list[str], model: str = "tiny-sdar", shots: int = 0, chat: bool = True
) -> list[str]:
    loaded = dare_bench.load(model).loaded
    requests = [
        Request(str(i), "generate", "", task="t", doc_id=i, resolved=loaded.resolve({"gen_length": 8}))
        for i in range(len(ends))
    ]
    answers = {request.key: {"finish_reason": end} for request, end in zip(requests, ends, strict=True)}
    journal: Any = type("Answers", (dict,), {"sample": dict.__getitem__})(answers)
    samples = [{"doc_id": i, "target": target} for i, target in enumerate(targets)]
    result = HarnessResult({"n-shot": {"t": shots}}, {"t": samples}, {})
    return [*known_failures.after(loaded, chat, requests, journal, result)]


def test_answers_without_an_end() -> None:
    assert after(["eos"] * 8 + ["length"] * 2, ["1"]) == []
    (note,) = after(["eos"] * 7 + ["length"] * 3, ["1"])
    assert note.startswith("t: 30% of 10 answers reach gen_length without an end")


def test_reference_answers_longer_than_the_canvas() -> None:
    assert after(["eos"] * 3, ["1", "2", "123 456 789"]) == []
    (note,) = after(["eos"] * 3, ["1", "123 456 789", "123 456 789"])
    assert note == "t: reference answers have 11 tokens in the median, more than gen_length=8"


def test_worked_examples_in_a_chat_with_block_diffusion() -> None:
    (note,) = after(["eos"], ["1"], shots=5)
    assert note.startswith("t: 5 worked examples in a chat with a block diffusion model") and "dllm issue 88" in note
    assert after(["eos"], ["1"], shots=5, chat=False) == after(["eos"], ["1"], shots=5, model="tiny-llada") == []
