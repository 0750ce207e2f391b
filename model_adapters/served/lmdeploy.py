"""lmdeploy's PyTorch engine, in this process: SDAR and SDAR-MoE by our decoding names.

Read from lmdeploy 0.18.0: messages.py, pipeline.py, serve/core/async_engine.py, pytorch/strategies/dllm. What that
reading found, and what follows from it here:

- TurboMind, lmdeploy's other engine, ignores ``dllm_*``: the PyTorch engine is named, and checked after it was opened.
- Block length, steps, unmasking and threshold belong to an engine, not to a request: requests that differ in them are
  answered one group after another, each by a separate engine.
- The sampling parameters of a batch are repeated in an order that mixes its rows (``DLLMSamplingStrategy``): only
  requests with equal parameters share a batch. Seeds are mixed as well, so a seed does not determine a row's tokens.
- A stop string stops at any token that contains it: stop strings are applied here, to the finished text.
- Without ``dllm_denoising_steps`` unmasking divides by None: it is always given. The mask id is fixed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field

from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, DareError, EngineError, UsageError
from dare_bench.model_adapters.answer_text import response_text
from dare_bench.model_adapters.encoding import check_length
from dare_bench.model_adapters.native import NativeModel, drain
from dare_bench.model_adapters.open_native import open_native
from dare_bench.model_adapters.sdar import FAMILY
from dare_bench.model_adapters.sdar.family import SDARDecoding
from dare_bench.model_adapters.served.in_flight import in_flight
from dare_bench.model_adapters.served.model import (
    FIXED,
    EngineSettings,
    ServedModel,
    cannot_honor,
    refuse_unknown,
    refuse_unserved,
)
from dare_bench.types import Decoding, Generation, LoopStats, OpeningSettings, Prompt, Request, Sample, Tier

MASK_ID = 151669
"""The mask id of ``pytorch/configurations/sdar.py``; the engine does not read the checkpoint's."""
STRATEGIES = ("low_confidence_dynamic", "low_confidence_static", "sequential")
DTYPES = ("float16", "bfloat16")


class LmdeploySettings(EngineSettings):
    """Fields of ``PytorchEngineConfig``, and ``timeout``: seconds that one answer may take."""

    tp: int = Field(default=1, ge=1)
    session_len: int | None = Field(default=None, ge=1)
    max_batch_size: int | None = Field(default=None, ge=1)
    cache_max_entry_count: float = Field(default=0.8, gt=0, lt=1)
    eager_mode: bool = False
    timeout: float = Field(default=3600.0, gt=0)


class EngineConfig(NamedTuple):
    """What an engine is opened with."""

    dllm_block_length: int
    dllm_denoising_steps: int
    dllm_unmasking_strategy: str
    dllm_confidence_threshold: float


class Sampling(NamedTuple):
    """The parameters that all requests of a batch share."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float


class LmdeployModel(ServedModel):
    """An SDAR checkpoint that lmdeploy serves. The engine starts with the first request.

    Args:
        native: the checkpoint opened without weights: its tokenizer, special ids and decoding fields.
        package: lmdeploy.
    """

    engine = "lmdeploy"
    default_rows = 256  # which the engine batches itself

    def __init__(self, native: NativeModel, package: Any, settings: LmdeploySettings, dtype: str) -> None:
        self.native, self.tokenizer, self._package, self.settings = native, native.tokenizer, package, settings
        device = "cuda" if torch.cuda.is_available() else "cpu"
        stated = str(getattr(package, "__version__", "")) or None
        limit = min(settings.session_len or native.spec.context_limit, native.spec.context_limit)
        self.spec = replace(
            native.spec,
            context_limit=limit,
            dtype=dtype,
            device=device,
            attention_backend=None,
            engine="lmdeploy",
            engine_version=stated,
        )
        self._engine: tuple[EngineConfig, Any] | None = None

    @classmethod
    def open(cls, path: Path, settings: OpeningSettings, engine_args: Mapping[str, Any]) -> LmdeployModel:
        """The SDAR checkpoint in ``path``, with lmdeploy's engine. It uses only dtype and special ids of ``settings``.

        Raises:
            UsageError: lmdeploy or a GPU is missing, or an invalid setting. CheckpointError: no SDAR checkpoint.
        """
        read = LmdeploySettings.read(cls.engine, engine_args)
        raw = read_config(path)
        if raw.get("model_type") not in ("sdar", "sdar_moe"):
            raise CheckpointError(
                f"{path}: model_type={raw.get('model_type')!r}; of diffusion models engine lmdeploy has sdar and"
                " sdar_moe: use --engine native, or --engine sglang for LLaDA2"
            )
        stored = raw.get("torch_dtype") or raw.get("dtype")
        chosen = settings.dtype or (stored if stored in DTYPES else "bfloat16")
        if chosen not in DTYPES:
            raise UsageError(f"dtype={settings.dtype!r}: engine lmdeploy computes in {' or '.join(DTYPES)}")
        native = open_native(FAMILY, path, settings.model_copy(update={"device": "cpu", "dtype": None}), weights=False)
        if native.spec.mask_id != MASK_ID:
            raise CheckpointError(
                f"{path}: mask id {native.spec.mask_id}; engine lmdeploy always masks with {MASK_ID}: use --engine"
                " native"
            )
        return cls(native, _package(), read, chosen)

    def encode(self, prompt: Prompt) -> list[int]:
        return self.native.encode(prompt)

    @classmethod
    def check_fields(cls, decoding: Mapping[str, Any]) -> None:
        refuse_unknown(cls.engine, decoding, SDARDecoding, {*FIXED, "strategy", "cache", "mask_id", "eb_threshold"})

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        self.check_fields(decoding)
        resolved = self.native.resolve(decoding)
        assert isinstance(resolved, SDARDecoding)
        refuse_unserved("lmdeploy", resolved, FIXED)
        for name, value, why in _refused(resolved, self.native):
            raise cannot_honor("lmdeploy", name, value, why)
        return resolved

    # -- answers -------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer generate requests. Those with equal settings are answered together: the others that come between them
        wait until there are no more.

        Raises:
            EngineError: the engine does not start, stopped, or did not answer in time. Finished samples come first.
        """
        source, refused = iter(requests), list[Sample]()
        waiting: dict[tuple[EngineConfig, Sampling], list[Request]] = {}

        def take() -> tuple[EngineConfig, Sampling] | None:
            """Put the next request that can be answered among those that wait; its settings, None at the end."""
            for request in source:
                try:
                    decoding = request.resolved or self.resolve(request.decoding)
                    assert isinstance(decoding, SDARDecoding)
                    check_length(self.encode(request.prompt), decoding.gen_length, self.spec)
                except DareError as error:
                    refused.append(Sample(request, None, str(error)))
                    continue
                settings = engine_config(decoding), sampling(decoding)
                waiting.setdefault(settings, []).append(replace(request, resolved=decoding))
                return settings
            return None

        def alike(settings: tuple[EngineConfig, Sampling]) -> Iterator[Request]:
            while waiting.get(settings) or take() is not None:
                if waiting.get(settings):
                    yield waiting[settings].pop(0)

        while take() is not None or any(waiting.values()):
            opened = None if self._engine is None else self._engine[0]
            settings = min((key for key, group in waiting.items() if group), key=lambda key: (key[0] != opened, key))
            engine = self._open(settings[0])
            submit, rows = partial(self._submit, engine, settings[1]), max_rows or self.default_rows
            for sample in in_flight(submit, alike(settings), rows, stats, partial(_check_alive, engine)):
                yield from drain(refused)
                yield sample
        yield from refused

    def _open(self, config: EngineConfig) -> Any:
        """The pipeline with these settings; the one before it is closed first."""
        if self._engine is not None and self._engine[0] == config:
            return self._engine[1]
        self.close()
        given = {**config._asdict(), **self.settings.model_dump(exclude={"timeout"}), "dtype": self.spec.dtype}
        backend = _checked_call(self._package.PytorchEngineConfig, given)
        try:
            pipe = self._package.pipeline(str(self.native.path), backend_config=backend)
        except Exception as error:
            raise EngineError(f"lmdeploy does not start with {self.native.path}: {_line(error)}") from error
        for name, value in config._asdict().items():
            if (seen := getattr(pipe.backend_config, name, None)) != value:
                pipe.close()
                raise EngineError(
                    f"lmdeploy opened with {name}={seen!r} instead of {value!r}: only its PyTorch engine reads it;"
                    f" install lmdeploy>=0.18 (found {self.spec.engine_version})"
                )
        self._engine = config, pipe
        return pipe

    def close(self) -> None:
        """Stop the engine and free its memory; the next request starts it again."""
        if self._engine is not None:
            self._engine[1].close()
            self._engine = None

    def _submit(self, pipe: Any, shared: Sampling, request: Request) -> Any:
        return asyncio.run_coroutine_threadsafe(self._answer(pipe, shared, request), pipe.internal_thread.loop)

    async def _answer(self, pipe: Any, shared: Sampling, request: Request) -> Sample:
        begin, decoding = time.perf_counter(), request.resolved
        assert isinstance(decoding, SDARDecoding)
        ends = {*self.spec.eos_ids, *(decoding.stopping_criteria_idx or decoding.eos_id or ())}
        fields = {"max_new_tokens": decoding.gen_length, "stop_token_ids": sorted(ends), **shared._asdict()}
        seed = {"random_seed": request.seed % 2**32} if shared.do_sample else {}
        config = _checked_call(self._package.GenerationConfig, {**fields, **seed})
        prompt = self.encode(request.prompt)
        try:
            async with asyncio.timeout(self.settings.timeout):
                tokens, finish = await _complete(pipe, prompt, config)
        except TimeoutError as error:
            raise EngineError(
                f"lmdeploy did not answer within timeout={self.settings.timeout:g} seconds; finished answers are kept"
            ) from error
        except Exception as error:
            code = str(getattr(getattr(error, "code", None), "value", ""))
            if code and code not in ("engine_unavailable", "internal_error"):
                return Sample(request, None, f"lmdeploy: {code}: {_line(error)}")
            raise EngineError(f"lmdeploy stopped: {_line(error)}; finished answers are kept") from error
        if finish not in ("stop", "length"):
            return Sample(request, None, f"lmdeploy: the answer ended with finish_reason={finish!r}")
        return Sample(request, self._generation(tokens, finish, len(prompt), decoding, time.perf_counter() - begin))

    def _generation(
        self, tokens: list[int], finish: str, prompt: int, decoding: SDARDecoding, seconds: float
    ) -> Generation:
        tokens, ended = tokens[: decoding.gen_length], finish == "stop" and len(tokens) < decoding.gen_length
        text, cut = None, False
        if self.tokenizer is not None:
            text, cut = response_text(self.tokenizer, tokens, self.spec.eos_ids, decoding.stop, False)
        return Generation(
            tokens=tokens,
            text=text,
            nfe=0,
            finish_reason="stop" if cut else "eos" if ended else "length",
            prompt_tokens=prompt,
            tokens_to_eos=len(tokens) + ended,  # the engine leaves the EOS itself out
            tier=tier(decoding),
            seconds=seconds,
        )


def _check_alive(pipe: Any) -> None:
    """Raise EngineError if the thread that answers has ended, as no answer would ever come."""
    if not pipe.internal_thread.thread.is_alive():
        raise EngineError("lmdeploy stopped: its thread ended; finished answers are kept")


async def _complete(pipe: Any, prompt: list[int], config: Any) -> tuple[list[int], str | None]:
    """The tokens of one answer, and why it ended."""
    engine, tokens, finish = pipe.async_engine, list[int](), None
    request = await engine.preprocess(messages=None, session_id=pipe.session(), gen_config=config, input_ids=prompt)
    async for part in engine.generate(request, stream_response=False):
        tokens += part.token_ids or []
        finish = part.finish_reason or finish
    return tokens, finish


def engine_config(decoding: SDARDecoding) -> EngineConfig:
    """The engine that these decoding values need."""
    d = decoding
    return EngineConfig(d.block_length, d.denoising_steps, d.remasking_strategy, d.confidence_threshold)


def sampling(decoding: SDARDecoding) -> Sampling:
    """How tokens are drawn. Greedy answers share one value of each: the engine does not read them."""
    if decoding.temperature == 0:
        return Sampling(False, 1.0, 1, 1.0)
    return Sampling(True, decoding.temperature, decoding.top_k, decoding.top_p)


def tier(decoding: SDARDecoding) -> Tier:
    """E1 where lmdeploy's code is the published sampler: greedy, left to right, equal steps. Elsewhere A. It compares
    confidences in the weights' half precision, with >= where SDAR has >. It falls back to one token where SDAR takes a
    step's quota, and draws all positions of a block from one random number."""
    equal_steps = decoding.block_length % decoding.denoising_steps == 0
    return "E1" if decoding.temperature == 0 and decoding.remasking_strategy == "sequential" and equal_steps else "A"


def _refused(decoding: SDARDecoding, native: NativeModel) -> Iterator[tuple[str, Any, str]]:
    """The decoding values that the engine would drop or change, and why."""
    d, native_only = decoding, "use --engine native for it"
    if d.strategy is not None:
        yield "strategy", d.strategy.name, f"it has {', '.join(STRATEGIES)} as remasking_strategy; {native_only}"
    if d.remasking_strategy not in STRATEGIES:
        yield "remasking_strategy", d.remasking_strategy, f"it has {', '.join(STRATEGIES)}; {native_only}"
    if d.cache != "exact":
        yield "cache", d.cache, "it always caches finished blocks; leave it out"
    if d.denoising_steps > d.block_length:
        yield "denoising_steps", d.denoising_steps, f"at most block_length={d.block_length}, it writes one token a step"
    if d.temperature > 2:
        yield "temperature", d.temperature, "it must be from 0 to 2"
    if d.mask_id != MASK_ID:
        yield "mask_id", d.mask_id, f"its own is {MASK_ID}, whatever a checkpoint says; {native_only}"
    if not {*native.spec.eos_ids} <= {*(d.stopping_criteria_idx or d.eos_id or ())}:
        name = "stopping_criteria_idx" if d.stopping_criteria_idx else "eos_id"
        kept = ", ".join(map(str, native.spec.eos_ids))
        yield name, getattr(d, name), f"it always stops at the checkpoint's own ({kept}); name these too"


def _checked_call(function: Any, given: Mapping[str, Any]) -> Any:
    """Call a constructor of lmdeploy; raises EngineError for a field that this version does not have."""
    missing = [name for name in given if name not in inspect.signature(function).parameters]
    if missing:
        raise EngineError(
            f"this lmdeploy's {function.__name__} has no field {', '.join(missing)}, which dare-bench sets; install"
            " lmdeploy>=0.18"
        )
    try:
        return function(**given)
    except (AssertionError, TypeError, ValueError) as error:
        raise EngineError(f"lmdeploy refuses these settings: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _package() -> Any:
    try:
        version("lmdeploy")
        package = importlib.import_module("lmdeploy")
    except (PackageNotFoundError, ImportError) as error:
        raise UsageError(
            f"engine lmdeploy needs the package lmdeploy ({_line(error)}), in an environment of its own, for it needs"
            " another torch: pip install '.[eval,lmdeploy]' in the clone (docs/engines.md)"
        ) from error
    if not torch.cuda.is_available():
        raise UsageError("engine lmdeploy needs a GPU, and PyTorch finds none; use --engine native")
    return package
