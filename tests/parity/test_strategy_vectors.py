"""Decoders of other papers, token for token and forward for forward as their published code decodes (greedy)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import pytest
import torch

import dare_bench
from dare_bench.errors import DareError
from dare_bench.types import Request

HERE = Path(__file__).parent
IDS = {"llada": {"mask_id": 126, "eos_id": 122}, "dream": {"mask_id": 157, "eos_id": 152}}
NAMES = {"max_new_tokens": "gen_length", "max_gen_length": "gen_length", "block_size": "block_length"}
FIELDS = {"steps", "gen_length", "block_length", "temperature", "cfg_scale", "remasking", "alg_temp", "eps"}
FORWARDS = {"never_eos_to_max": 42, "batch2": 20}
"""DAEDAL's own code looks once more at a canvas that cannot grow, and makes the forwards of the longest row for all."""


def cases() -> Iterator[Any]:
    for family in IDS:
        every = json.loads(gzip.decompress((HERE / family / "strategies.json.gz").read_bytes()))
        for name, of_name in every.items():
            yield from (pytest.param(family, name, case, id=f"{family}-{name}-{case['name']}") for case in of_name)


def asked(name: str, case: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The decoding fields of a case, and its EOS id if it has its own."""
    args = {NAMES.get(key, key): value for key, value in case["args"].items() if value is not None and key != "alg"}
    eos = args.pop("eos_id", None)
    own = {key: args.pop(key) for key in list(args) if key not in FIELDS}
    return {**args, "strategy": {"name": name, **own}}, eos


@pytest.mark.parametrize(("family", "name", "case"), cases())
def test_published_answers_and_forwards(family: str, name: str, case: dict[str, Any]) -> None:
    fields, eos = asked(name, case)
    ids = IDS[family] | ({} if eos is None else {"eos_id": eos})
    model = dare_bench.load(HERE / family, family=family, device="cpu", dtype="float32", **ids)
    answers = model.generate(case["prompt_ids"], **fields)
    expected = [row[len(prompt) :] for row, prompt in zip(case["output_ids"], case["prompt_ids"], strict=True)]
    assert [answer.tokens for answer in answers] == expected
    passes = 2 if fields.get("cfg_scale") else 1
    assert answers[0].nfe == FORWARDS.get(case["name"], case["num_forwards"]) * passes
    assert {answer.tier for answer in answers} == {"A"}


@pytest.mark.parametrize(("attention", "rows"), [("sdpa", 1), ("sdpa", 5), ("padded", 1), ("padded", 5), ("flex", 5)])
def test_rows_of_all_decoders_share_forwards(attention: str, rows: int) -> None:
    """Each row is as alone, whatever decodes the others, in any batch and with any attention."""
    every = json.loads(gzip.decompress((HERE / "llada" / "strategies.json.gz").read_bytes()))
    model = dare_bench.load(
        HERE / "llada", family="llada", device="cpu", dtype="float32", attention=attention, **IDS["llada"]
    )
    requests, expected = list[Request](), list[list[int]]()
    for name, of_name in every.items():
        for case in of_name[:3] * 2:  # rows of equal settings are decided together
            fields, eos = asked(name, case)
            if eos is None:
                requests.append(Request(str(len(requests)), "generate", case["prompt_ids"][0], decoding=fields))
                expected.append(case["output_ids"][0][len(case["prompt_ids"][0]) :])
    answers = {sample.request.key: sample for sample in model.loaded.generate(requests, max_rows=rows)}
    assert [answers[request.key].answer.tokens for request in requests] == expected


@pytest.mark.parametrize(
    ("family", "fields", "why"),
    [
        ("sdar", {"strategy": "klass"}, "'klass' sees the whole answer, which is decoded block after block here"),
        ("llada", {"strategy": "d3llm", "cache": "prefix"}, "'d3llm' sees the whole answer, .* with a cache here"),
        ("dream", {"strategy": "wino"}, "'wino' needs bidirectional attention without a shift"),
        ("llada", {"strategy": "prophet", "remasking": "random"}, "remasking='random' belongs to llada's own"),
        (
            "llada",
            {"strategy": "credit_decoding", "temperature": 0.5},
            "at temperature 0 alone, not with temperature=0.5",
        ),
        ("llada", {"strategy": "credit_decoding", "draft_steps": 1}, "remembers what it did, which cannot be drafted"),
        (
            "llada",
            {"strategy": {"name": "eoser", "inner": "credit_decoding"}},
            "does not rank masked positions by a probability",
        ),
        ("llada", {"strategy": "klass", "draft_steps": 1}, "remembers what it did, which cannot be drafted"),
    ],
)
def test_what_cannot_decode_so_is_refused_before_a_forward(family: str, fields: dict[str, Any], why: str) -> None:
    model = golden.model(family)
    with pytest.raises(DareError, match=why):
        model.loaded.resolve(fields)


def credited(family: str, prompt: list[int], length: int, block: int, threshold: float) -> tuple[list[int], int]:
    """CreditDecoding's answer and forwards by its published rule (alpha 0.7, gamma 0.2, beta 0.8)."""
    model, mask = golden.model(family), IDS[family]["mask_id"]
    canvas, forwards = prompt + [mask] * length, 0
    for begin in range(len(prompt), len(canvas), block):
        credit_LV: Any = 0.0
        while mask in canvas[begin : begin + block]:
            logits_LV = model.logits(canvas)[begin : begin + block].float()
            masked_L = torch.tensor([token == mask for token in canvas[begin : begin + block]])
            best_L, token_L = logits_LV.softmax(-1).max(-1)
            gained_LV = torch.nn.functional.one_hot(token_L, logits_LV.shape[1]) * (best_L**0.2 * masked_L)[:, None]
            credit_LV, forwards = credit_LV * 0.8 + gained_LV, forwards + 1
            best_L, token_L = (logits_LV + 0.7 * (credit_LV + 1).log()).softmax(-1).max(-1)
            best_L = torch.where(masked_L & (token_L != mask), best_L, -1.0)
            for at in (best_L >= min(threshold, best_L.max().item() - 1e-5)).nonzero()[:, 0].tolist():
                canvas[begin + at] = int(token_L[at])
    return canvas[len(prompt) :], forwards


@pytest.mark.parametrize(
    ("family", "block", "threshold"), [("llada", 8, 0.3), ("llada", 16, 0.1), ("dream", 16, 0.1), ("dream", 16, 0.9)]
)
def test_credit_decoding_is_its_published_rule(family: str, block: int, threshold: float) -> None:
    prompts = [case.values[2]["prompt_ids"][0] for case in cases() if case.values[0] == family][:3]
    fields = {"gen_length": 16, "strategy": {"name": "credit_decoding", "threshold": threshold}}
    fields |= {} if family == "dream" else {"block_length": block}
    answers = golden.model(family).loaded.generate(
        [Request(str(i), "generate", prompt, decoding=fields) for i, prompt in enumerate(prompts)], max_rows=3
    )
    found = {int(sample.request.key): sample.answer for sample in answers}
    for i, prompt in enumerate(prompts):
        expected, forwards = credited(family, prompt, 16, block, threshold)
        assert found[i].tokens == expected and found[i].nfe == forwards
