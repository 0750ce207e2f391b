"""Drafts against FreeDave's vectors: the tokens of its decoding without drafts, and its forwards with them.

``freedave.json`` has prompts, answers and forwards of cychomatica/FreeDave at 8b48121c, generation/core.py, on the
weights of ``llada``. It keeps keys and values as Fast-dLLM does.
"""

from __future__ import annotations

import json

import golden
import pytest

from dare_bench.model_adapters.sampling import drafts
from dare_bench.types import Request

CASES = json.loads((golden.FOLDER / "freedave.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_drafts_make_the_forwards_of_freedave(case, monkeypatch):
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 10**6)
    threshold = case["confidence_threshold"]
    fields = {
        "gen_length": case["max_gen_length"],
        "block_length": case["block_length"],
        "cache": "dual" if case["dual_cache"] else "prefix",
        "draft_steps": case["draft_steps"] - 1,  # the first of its states is no draft
    }
    if threshold is not None:
        fields["threshold"] = threshold
    request = Request("0", "generate", case["prompt"], decoding=fields)
    (sample,) = golden.model("llada").loaded.generate([request])
    assert sample.error is None
    assert sample.answer.tokens == case["answer"]
    assert sample.answer.nfe <= case["forwards_without"]
    assert sample.answer.nfe == case["forwards"]
