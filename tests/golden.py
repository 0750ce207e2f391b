"""The reference vectors kept in the repo: for each family a tiny random checkpoint in the published layout, with what
the published code gave on it.

Sources: ML-GSAI/LLaDA generate.py and get_log_likelihood.py, NVlabs/Fast-dLLM generate.py (LLaDA and Dream), Dream
generation_utils.py and its evaluation, SDAR generate.py with the confidence of its own evaluation, LLaDA2.0 and 2.1
generate, Fast-dLLM v2 modeling.py and eval.py. Cases that document defects of the published code are not among them.
"""

from __future__ import annotations

import atexit
import gzip
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from dare_bench.loading import load
from dare_bench.model import Model
from dare_bench.model_adapters.answer_text import through_eos
from dare_bench.types import Generation, Request

PARITY = Path(__file__).parent / "parity"
FOLDER = PARITY / "llada"
FAMILIES = ("llada", "llada_moe", "dream", "sdar", "sdar_moe", "llada2", "llada21", "fast_dllm_v2")
BLOCK_CAUSAL = ("sdar", "sdar_moe", "llada2", "llada21", "fast_dllm_v2")


@cache
def cases(family: str = "llada") -> dict[str, Any]:
    """``meta`` (special ids), ``samplers``, ``likelihood`` and ``units`` of a family."""
    return json.loads(gzip.decompress((PARITY / family / "cases.json.gz").read_bytes()))


@cache
def tensors(name: str, family: str = "llada") -> dict[str, Tensor]:
    return load_file(str(PARITY / family / f"{name}.safetensors"))


def special_ids(family: str) -> dict[str, int]:
    """The arguments of ``load`` that replace a tokenizer, which these checkpoints lack."""
    meta = cases(family)["meta"]
    return {name: meta[name] for name in ("mask_id", "eos_id", "eot_id") if name in meta}


@cache
def model(family: str = "llada") -> Model:
    """Opened once a process: nothing in the tests changes its weights."""
    ids = special_ids(family)
    if family == "llada22":
        return load(with_weights(family, "llada21"), device="cpu", dtype="float32", family="llada2.2", **ids)
    return load(PARITY / family, device="cpu", dtype="float32", **ids)


@cache
def with_weights(family: str, source: str) -> Path:
    """A folder of this family's configuration and another one's weights, which have the same names and shapes."""
    folder = Path(tempfile.mkdtemp(prefix=f"{family}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(PARITY / family / name, folder / name)
    (folder / "model.safetensors").symlink_to(PARITY / source / "model.safetensors")
    return folder


def unpadded(case: dict[str, Any]) -> list[list[int]]:
    """The prompts of a vector without the left padding that the reference needs."""
    masks = case["attention_mask"] or [[1] * len(p) for p in case["prompt_ids"]]
    return [[t for t, m in zip(p, mask, strict=True) if m] for p, mask in zip(case["prompt_ids"], masks, strict=True)]


def fields(case: dict[str, Any]) -> dict[str, Any]:
    """The decoding fields of a vector: its reference's arguments, with what its function's name says."""
    args = dict(case["args"])
    kind = case["sampler"].rsplit(".", 1)[-1]
    if kind in ("prefix", "dual"):
        args["cache"] = kind
    args.pop("dual_cache", None)
    if case["sampler"].startswith("fast_dllm_v2"):  # its blocks count from column 0, and the answer ends with the last
        args["max_new_tokens"] -= len(case["prompt_ids"][0]) % args.get("block_size", 32)
        args |= {"eos_id": args.get("eos_id", ()), **({"cache": "sub_block"} if args.pop("use_block_cache", 0) else {})}
    if case["name"].startswith("bd3"):  # SDAR's evaluation code names the same strategies otherwise
        del args["remasking"]
        threshold = args.pop("threshold")
        static = threshold == 1.0
        args["remasking_strategy"] = "low_confidence_static" if static else "low_confidence_dynamic"
        args["confidence_threshold"] = threshold
    if draws(case):
        args |= {"rng": "reference", "seed": case["seed"]}
    return args


def wanted(case: dict[str, Any], row: int) -> list[int]:
    """The response in a vector, at most ``gen_length`` long and, where the case stops at some ids, through the first of
    them. LLaDA2's outputs are the response alone, the others begin with the prompt."""
    output, args = case["output_ids"][row], case["args"]
    if not case["sampler"].startswith("llada2"):
        output = output[len(case["prompt_ids"][row]) :]
    output = output[: args.get("gen_length") or fields(case)["max_new_tokens"]]
    end = through_eos(output, args.get("stopping_criteria_idx") or ())
    return output[:end]


def draws(case: dict[str, Any]) -> bool:
    """Does it use random numbers? ``top_k=1`` is how SDAR's users say greedy."""
    args = case["args"]
    if args.get("remasking") == "random" or args.get("alg") == "origin" or args.get("alg_temp"):
        return True
    return args.get("temperature", 0) > 0 and args.get("top_k") != 1


def answers(family: str, requests: list[Request], rows: int = 8) -> dict[str, Generation]:
    """The answers to requests by their keys; fails on a refused one."""
    result = {}
    for sample in model(family).loaded.generate(iter(requests), max_rows=rows):
        assert isinstance(sample.answer, Generation), sample.error
        result[sample.request.key] = sample.answer
    assert len(result) == len(requests)
    return result


def error(family: str, request: Request) -> str:
    """Why a request has no answer."""
    (sample,) = model(family).loaded.generate([request])
    assert sample.answer is None and sample.error is not None
    return sample.error
