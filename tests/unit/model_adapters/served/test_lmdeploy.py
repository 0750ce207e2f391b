"""lmdeploy through a package with its recorded signatures: what is sent to it, refused, and reported."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import lmdeploy_engine
import pytest
from lmdeploy_engine import LMDEPLOY, RequestError

from dare_bench.engine.journal import Journal
from dare_bench.engine.queue import Queue
from dare_bench.errors import CheckpointError, DecodingError, EngineError, UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.served import lmdeploy
from dare_bench.types import Generation, Request

FOLDER = golden.PARITY / "sdar"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = lmdeploy_engine.stand_in()
    monkeypatch.setattr(lmdeploy, "MASK_ID", golden.cases("sdar")["meta"]["mask_id"])
    monkeypatch.setattr(lmdeploy, "_package", lambda: made)
    return made


@pytest.fixture
def model(package: Any) -> Iterator[Any]:
    with contextlib.closing(load(FOLDER, engine="lmdeploy", engine_args={"tp": 2}).loaded) as loaded:  # type: ignore[type-var]
        yield loaded


def asked(number: int = 1, prompt: Sequence[int] | None = None, **decoding: Any) -> list[Request]:
    fields = {"gen_length": 4, **decoding}
    prompts = [prompt or [i, 6, 7, 8, 9, 10] for i in range(number)]
    return [Request(f"r{i}", "generate", p, decoding=fields, seed=i) for i, p in enumerate(prompts)]


def answers(model: Any, requests: list[Request]) -> dict[str, Generation]:
    samples = {sample.request.key: sample for sample in model.generate(requests)}
    for sample in samples.values():
        assert isinstance(sample.answer, Generation), sample.error
    return {key: sample.answer for key, sample in samples.items()}


def test_our_decoding_names_reach_the_engine_by_its_own(package: Any, model: Any) -> None:
    fields = {
        "block_length": 8, "denoising_steps": 4, "remasking_strategy": "low_confidence_static",
        "confidence_threshold": 0.9, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "gen_length": 16,
    }  # fmt: skip
    answers(model, asked(**fields))
    engine, request = package.configs[0]
    assert (engine.dllm_block_length, engine.dllm_denoising_steps, engine.dllm_confidence_threshold) == (8, 4, 0.9)
    assert engine.dllm_unmasking_strategy == "low_confidence_static" and (engine.tp, engine.dtype) == (2, "bfloat16")
    assert (request.do_sample, request.temperature, request.top_k, request.top_p) == (True, 0.7, 20, 0.8)
    assert request.max_new_tokens == 16 and request.random_seed == 0 and request.stop_words is None
    assert request.stop_token_ids == sorted(model.spec.eos_ids)


def test_every_field_that_the_engine_needs_is_given(package: Any, model: Any) -> None:
    answers(model, asked())
    engine, request = package.configs[0]
    assert engine.dllm_denoising_steps == engine.dllm_block_length == 4  # its own default divides by None
    assert request.do_sample is False and request.random_seed is None


def test_answers_are_the_tokens_without_the_end(model: Any) -> None:
    short, long = answers(model, asked(gen_length=8))["r0"], answers(model, asked(gen_length=3))["r0"]
    assert (short.tokens, short.finish_reason, short.tokens_to_eos) == ([10, 9, 8, 7, 6, 0], "eos", 7)
    assert (long.tokens, long.finish_reason, long.tokens_to_eos) == ([10, 9, 8], "length", 3)
    assert short.nfe == 0 and short.prompt_tokens == 6


def test_the_session_limits_prompt_and_answer(package: Any) -> None:
    with contextlib.closing(load(FOLDER, engine="lmdeploy", engine_args={"session_len": 9}).loaded) as loaded:  # type: ignore[type-var]
        (sample,) = loaded.generate(asked())
        assert sample.error is not None and "is 10 tokens; the model's context limit is 9: shorten" in sample.error
        assert answers(loaded, asked(gen_length=3))["r0"].tokens


def test_only_equal_settings_share_a_batch(package: Any, model: Any) -> None:
    package.delay = 0.01
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"denoising_steps": 2}, {"temperature": 0.5, "top_k": 3}]
    requests = [replace(r, key=f"{i}") for i, r in enumerate(r for kind in kinds * 2 for r in asked(**kind))]
    assert len(answers(model, requests)) == 8
    seen = [(e.dllm_denoising_steps, g.do_sample, g.temperature, g.top_k) for e, g in package.configs]
    assert len(set(seen)) == 4 and all(a == b for a, b in zip(seen[::2], seen[1::2], strict=True))
    assert package.most == 2 and len(package.opened) == 1  # the engine of the other steps was closed


def test_a_worker_takes_requests_as_the_engine_has_room(package: Any, model: Any, tmp_path: Path) -> None:
    """Of a sharded run, whose other workers take the rest: at most its default at a time."""
    package.delay, taken, most = 0.001, 0, 0

    def pieces() -> Iterator[list[Request]]:
        nonlocal taken, most
        for request in asked(400, [5, 6, 7]):
            taken += 1
            most = max(most, taken - len(journal._places))
            yield [request]

    with Journal(tmp_path) as journal:
        queue = Queue(model, journal)
        queue.drain(pieces(), share=400)
        assert len(journal._places) == taken == 400, queue.failures
    assert 2 <= package.most <= model.default_rows == 256
    assert most < 400, "some are answered before others are taken"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("remasking_strategy", "entropy_bounded", "it has low_confidence_dynamic"),
        ("strategy", "quota", "use --engine native"),
        ("cache", "none", "always caches"),
        ("denoising_steps", 5, "at most block_length=4"),
        ("temperature", 2.5, "it must be from 0 to 2"),
        ("mask_id", 3, "whatever a checkpoint says"),
        ("eos_id", 3, "always stops at the checkpoint's own"),
        ("stopping_criteria_idx", [3], "always stops at the checkpoint's own"),
        ("trajectory", True, "finished tokens only"),
        ("rng", "reference", "its own random numbers"),
        ("text_after_eos", "keep", "stops at an EOS"),
        ("early_stop", False, "stops at an EOS"),
    ],
)
def test_what_it_would_drop_or_change_is_refused(model: Any, field: str, value: Any, named: str) -> None:
    with pytest.raises(DecodingError, match=f"lmdeploy cannot honor {field}=.*{named}"):
        model.resolve({field: value})


def test_a_name_of_no_field_is_answered_with_those_that_the_engine_honors(model: Any) -> None:
    with pytest.raises(DecodingError, match=r"engine lmdeploy has no decoding field 'catch'; it has ") as caught:
        model.resolve({"catch": "none"})
    offered = str(caught.value).partition("; it has ")[2].split(", ")
    assert {"block_length", "denoising_steps", "gen_length", "max_new_tokens", "top_k"} <= {*offered}
    for name in {*offered} - {"stop", "max_new_tokens"}:
        value = getattr(model.resolve({}), name)
        assert getattr(model.resolve({name: value}), name) == value
    refused = {"cache": "none", "strategy": "quota", "near_tie": True, "rng": "reference", "eb_threshold": 0.1}
    for name, value in refused.items():
        assert name not in offered
        with pytest.raises(DecodingError):
            model.resolve({name: value})


def test_another_engine_of_lmdeploy_is_refused(package: Any, model: Any) -> None:
    package.is_pytorch = False
    with pytest.raises(EngineError, match="dllm_block_length=None instead of 4: only its PyTorch engine reads it"):
        list(model.generate(asked()))
    assert not package.opened


def test_a_version_without_a_field_is_refused(package: Any, model: Any) -> None:
    class PytorchEngineConfig:
        def __init__(self, dtype: str = "auto", tp: int = 1) -> None:
            """Of a version before diffusion models."""

    package.PytorchEngineConfig = PytorchEngineConfig
    with pytest.raises(EngineError, match=r"has no field dllm_block_length, .*install lmdeploy>=0.18"):
        list(model.generate(asked()))


def test_a_request_that_fails_is_named_and_an_engine_that_fails_ends_the_pass(package: Any, model: Any) -> None:
    package.fails = {0: RequestError("context_length_exceeded", "too long")}
    samples = list(model.generate(asked(3)))
    assert sorted(sample.error or "" for sample in samples)[-1] == (
        "lmdeploy: context_length_exceeded: RequestError: too long"
    )
    assert sum(sample.answer is not None for sample in samples) == 2
    for failure in (RequestError("engine_unavailable", "it is gone"), MemoryError("CUDA out of memory")):
        package.fails = {0: failure}
        with pytest.raises(EngineError, match=r"lmdeploy stopped: .*(gone|out of memory); finished answers are kept"):
            list(model.generate(asked(3)))


def test_an_engine_that_hangs_or_whose_thread_ends_is_named(package: Any, model: Any) -> None:
    package.delay, model.settings = 5.0, model.settings.model_copy(update={"timeout": 0.05})
    with pytest.raises(EngineError, match=r"within timeout=0.05 seconds"):
        list(model.generate(asked()))
    pipe = model._engine[1]
    model.settings = model.settings.model_copy(update={"timeout": 60.0})
    samples = model.generate(asked())
    pipe.internal_thread.loop.call_soon_threadsafe(
        lambda: asyncio.get_running_loop().call_later(0.05, pipe.internal_thread.loop.stop)
    )
    with pytest.raises(EngineError, match="its thread ended"):
        next(samples)


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({"remasking_strategy": "sequential"}, "E1"),
        ({"remasking_strategy": "sequential", "denoising_steps": 3}, "A"),
        ({"remasking_strategy": "sequential", "temperature": 1.0}, "A"),
        ({"remasking_strategy": "low_confidence_static"}, "A"),
        ({}, "A"),
    ],
)
def test_tiers(model: Any, fields: dict[str, Any], tier: str) -> None:
    assert answers(model, asked(**fields))["r0"].tier == tier


def test_opening_what_it_does_not_serve(package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, settings, error, named in (
        (golden.FOLDER, {}, CheckpointError, "of diffusion models engine lmdeploy has sdar"),
        (FOLDER, {"dtype": "float32"}, UsageError, "float16 or bfloat16"),
        (FOLDER, {"adapter": str(tmp_path)}, UsageError, "merge it into a checkpoint first"),
        (FOLDER, {"attention": "flex"}, UsageError, "attention='flex': engine lmdeploy has its own attention"),
        (FOLDER, {"device": "cuda"}, UsageError, "device='cuda': engine lmdeploy runs on the GPU that PyTorch finds"),
        (FOLDER, {"engine_args": {"tensor_parallel": 2}}, UsageError, "known: tp, session_len"),
        (FOLDER, {"engine_args": {"tp": 0}}, UsageError, "tp=0"),
    ):
        with pytest.raises(error, match=named):  # type: ignore[arg-type]
            load(folder, engine="lmdeploy", **settings)  # type: ignore[arg-type]
    monkeypatch.setattr(lmdeploy, "MASK_ID", 151669)
    with pytest.raises(CheckpointError, match="always masks with 151669"):
        load(FOLDER, engine="lmdeploy")


@pytest.mark.skipif(importlib.util.find_spec("lmdeploy") is not None, reason="lmdeploy is installed")
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdeploy, "MASK_ID", golden.cases("sdar")["meta"]["mask_id"])
    with pytest.raises(UsageError, match=r"needs the package lmdeploy .*\.\[eval,lmdeploy\]"):
        load(FOLDER, engine="lmdeploy")


@pytest.fixture
def real() -> Any:
    return pytest.importorskip("lmdeploy")


def test_the_recorded_names_are_those_of_the_installed_package(real: Any) -> None:
    engine = importlib.import_module("lmdeploy.serve.core.async_engine").AsyncEngine
    for name, function in (
        ("PytorchEngineConfig", real.PytorchEngineConfig),
        ("GenerationConfig", real.GenerationConfig),
        ("pipeline", real.pipeline),
        ("AsyncEngine.preprocess", engine.preprocess),
        ("AsyncEngine.generate", engine.generate),
    ):
        recorded = {field.removeprefix("**") for field in LMDEPLOY[name]}
        assert recorded <= set(inspect.signature(function).parameters), name


@pytest.mark.skipif("DARE_SDAR" not in os.environ, reason="DARE_SDAR names no SDAR checkpoint; it also needs a GPU")
def test_the_real_engine_answers(real: Any) -> None:
    loaded: Any = load(os.environ["DARE_SDAR"], engine="lmdeploy").loaded
    with contextlib.closing(loaded):
        (sample,) = loaded.generate([Request("r", "generate", "2 + 3 =", decoding={"gen_length": 16})])
    assert isinstance(sample.answer, Generation) and sample.answer.text
