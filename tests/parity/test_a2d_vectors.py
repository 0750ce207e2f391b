"""A2D against dLLM's own outputs, where the folder of vectors lies beside the checkout: tokens, forwards, draws,
logits, likelihoods, and the table of schedules. Without it, ``tests/unit/model_adapters/a2d`` compares with the
samplers written down over transformers' networks."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import dare_bench
from dare_bench.model_adapters.a2d.linear_quota import linear_schedule

PLACES = (parent / "shared" / "golden" / "public" for parent in Path(__file__).parents)
FOLDER = next((place for place in PLACES if (place / "a2d_qwen3").is_dir()), None)
NAMES = ("a2d_qwen3", "a2d_qwen2", "a2d_llama", "a2d_llama_rope3")
RENAMED = {"max_new_tokens": "gen_length", "block_size": "block_length"}

if FOLDER is None:
    pytest.skip("the vectors (shared/golden/public/a2d_qwen3) are not beside the checkout", allow_module_level=True)


@cache
def read(name: str, file: str) -> dict[str, Any]:
    place = FOLDER / name / file  # type: ignore[operator]
    return json.loads(place.read_text()) if place.is_file() else {}


@cache
def model(name: str, family: str, eos: int | None = None, pad: int | None = None) -> dare_bench.Model:
    meta = read(name, "samplers.json")["meta"]
    ids = {"mask_id": meta["mask_id"], "eos_id": meta["eos_id"] if eos is None else eos}
    ids["pad_id"] = meta["pad_id"] if pad is None else pad
    return dare_bench.load(FOLDER / name / "model", family=family, device="cpu", dtype="float32", **ids)  # type: ignore


CASES = [
    pytest.param(name, family, case, id=f"{name}-{family}-{case['name']}")
    for name in NAMES
    for family, file in (("a2d_mdlm", "samplers.json"), ("a2d_bd3lm", "samplers_bd3lm.json"))
    for case in read(name, file).get("cases", [])
    if not case["name"].endswith("_batched")  # whose rows are cases of their own
]


def test_there_are_vectors_of_every_kind() -> None:
    names = {(param.values[1], param.values[2]["name"]) for param in CASES}
    assert len(CASES) >= 80
    for kind in ("cfg1.0", "T0.6_seed", "random_seed", "suppress_active", "infill_b5", "max_length", "batch_unequal"):
        assert ("a2d_mdlm", kind) in names
    for kind in ("p9_b4_s16", "right_shift_cfg0.5", "eos_stop", "T0.5_seed", "random_seed", "pad_emitted"):
        assert ("a2d_bd3lm", kind) in names


@pytest.mark.parametrize(("name", "family", "case"), CASES)
def test_tokens(name: str, family: str, case: dict[str, Any]) -> None:
    args = {RENAMED.get(key, key): value for key, value in case["args"].items() if value is not None}
    opened = model(name, family, args.pop("eos_id", None), args.pop("pad_id", None))
    infills = case["sampler"].endswith("infill")
    if case["seed"] is not None:
        args |= {"rng": "reference", "seed": case["seed"]}
    several = len(case["prompt_ids"]) > 1
    for prompt, output in zip(case["prompt_ids"], case["output_ids"], strict=True):
        (answer,) = (opened.infill if infills else opened.generate)([prompt], **args)
        wanted = output if infills else output[len(prompt) :]
        if several:  # behind a shorter row of a batch there is padding
            wanted = wanted[: len(prompt) if infills else args["gen_length"]]
        if answer.finish_reason == "eos" and family == "a2d_bd3lm":
            wanted = wanted[: len(answer.tokens)]
        assert answer.tokens == wanted
        assert answer.tier == "E1"
        if not several:
            twice = 2 if args.get("cfg_scale") and family == "a2d_mdlm" else 1
            assert answer.reference_nfe == case["num_forwards"] * twice


@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str) -> None:
    t = load_file(str(FOLDER / name / "forward.safetensors"))  # type: ignore[operator]
    ids = torch.atleast_2d(t["input_ids"])
    got = torch.stack([model(name, "a2d_mdlm").logits(row.tolist()) for row in ids])
    assert (got - t["logits"].reshape(got.shape)).abs().max() < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_likelihoods(name: str) -> None:
    for case in read(name, "likelihood.json").get("likelihood", []):
        pair = (case["prompt_ids"], case["answer_ids"])
        if "log_likelihood" not in case:
            assert (
                model(name, "a2d_mdlm").loglikelihood([pair], mc_num=1, batch_size=1)[0].is_greedy is case["is_greedy"]
            )
            continue
        (answer,) = model(name, "a2d_mdlm").loglikelihood(
            [pair], estimator="reference", seed=case["seed"], mc_num=case["mc_num"], batch_size=case["batch_size"],
            cfg_scale=case["cfg_scale"],
        )  # fmt: skip
        assert abs(answer.value - case["log_likelihood"]) < 1e-3, case["name"]


def test_schedules() -> None:
    table = read("a2d_qwen3", "schedule.json")["cases"]
    assert len(table) == 1280
    for key, due in table.items():
        assert linear_schedule(*map(int, key.split(","))) == due, key
