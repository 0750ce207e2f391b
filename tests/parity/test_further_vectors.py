"""Open-dCoder and iLLaDA against vectors of their published code that are not in the repository (else skipped)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from paths import ROOT
from safetensors.torch import load_file

import dare_bench

VECTORS = ROOT.parent / "shared" / "golden" / "public"
FAMILIES = ("open_dcoder", "illada")
RENAMED = {"max_new_tokens": "gen_length"}
pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason="no vectors beside the repository")


@cache
def samplers(family: str) -> dict[str, Any]:
    path = VECTORS / family / "samplers.json"
    return json.loads(path.read_text()) if path.is_file() else {"meta": {}, "cases": []}


@cache
def model(family: str, eos: int) -> dare_bench.Model:
    mask = samplers(family)["meta"]["mask_id"]
    folder = VECTORS / family / "model"
    return dare_bench.load(folder, family=family, device="cpu", dtype="float32", mask_id=mask, eos_id=eos)


CASES = [
    pytest.param(family, case, row, id=f"{family}-{case['name']}-{row}")
    for family in FAMILIES
    for case in samplers(family)["cases"]
    for row in range(len(case["prompt_ids"]))
]


def answer(case: dict[str, Any], opened: dare_bench.Model, prompt: list[int]) -> Any:
    fields = {RENAMED.get(name, name): value for name, value in case["args"].items() if value is not None}
    fields.pop("eos_id", None)
    if case.get("seed") is not None:
        fields |= {"rng": "reference", "seed": case["seed"]}
    if case["sampler"].endswith("infill"):
        return opened.infill([prompt], **fields)[0]
    return opened.generate([prompt], text_after_eos="cut" if "stop" in case["name"] else "keep", **fields)[0]


@pytest.mark.parametrize(("family", "case", "row"), CASES)
def test_tokens_and_forwards(family: str, case: dict[str, Any], row: int) -> None:
    prompt, want = case["prompt_ids"][row], case["output_ids"][row]
    got = answer(case, model(family, case["args"].get("eos_id", samplers(family)["meta"]["eos_id"])), prompt)
    infill = case["sampler"].endswith("infill")
    want = want if infill else want[len(prompt) :]
    assert got.tokens == (want[: len(got.tokens)] if "stop" in case["name"] else want)
    if not infill:
        assert got.reference_nfe == case["num_forwards"] * (2 if case["args"].get("cfg_scale") else 1)


def likelihoods() -> list[Any]:
    path = VECTORS / "illada" / "likelihood.json"
    return json.loads(path.read_text())["likelihood"] if path.is_file() else []


@pytest.mark.parametrize("case", likelihoods(), ids=lambda case: case["name"])
def test_likelihoods_of_illada(case: dict[str, Any]) -> None:
    drawn = {name: case[name] for name in ("mc_num", "batch_size", "cfg_scale", "seed") if case.get(name) is not None}
    pair = case["prompt_ids"], case["answer_ids"]
    named = {"estimator": "reference", "llh": case["estimator"], "padd_eos": case["padd_eos"], **drawn}
    (got,) = model("illada", samplers("illada")["meta"]["eos_id"]).loglikelihood([pair], **named)
    assert abs(got.value - case["log_likelihood"]) < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str) -> None:
    tensors = load_file(str(VECTORS / family / "forward.safetensors"))
    want = next(tensors[name] for name in ("shifted_logits", "logits") if name in tensors)
    opened = model(family, samplers(family)["meta"]["eos_id"])
    got = torch.stack([opened.logits(ids.tolist()) for ids in torch.atleast_2d(tensors["input_ids"])])
    assert torch.allclose(got.reshape(want.shape), want, atol=1e-4)
