"""A model behind an HTTP server. A subclass knows the server's paths and fields."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx
from anyio.from_thread import start_blocking_portal
from pydantic import Field, ValidationError

from dare_bench.errors import DecodingError, EngineError, PromptError
from dare_bench.model_adapters.answer_text import first_stop, response_text, through_eos
from dare_bench.model_adapters.encoding import check_length, encode_prompt, open_tokenizer
from dare_bench.model_adapters.fields import Count, TopP, first_error, without_aliases
from dare_bench.model_adapters.served.in_flight import in_flight
from dare_bench.model_adapters.served.model import (
    FIXED,
    Fixed,
    ServedModel,
    cannot_honor,
    refuse_unknown,
    refuse_unserved,
)
from dare_bench.model_adapters.served.server import Answer, Call, LostAnswer, RefusedRequest, Server, excerpt
from dare_bench.types import Capabilities, Decoding, Generation, LoopStats, ModelSpec, Prompt, Request, Sample

UNSTATED = 2**31 - 1
"""Stands for a limit that a server does not state."""


class HttpDecoding(Decoding):
    """Decoding fields that every server has."""

    gen_length: Count = 128
    temperature: float = Field(default=0.0, ge=0)
    top_p: TopP = 1.0


class HttpModel(ServedModel):
    """Sends token ids where there is a tokenizer here, else text and messages, which the server tokenizes."""

    default_rows = 64  # a server queues those that it has no room for
    decoding: ClassVar[type[HttpDecoding]] = HttpDecoding
    fixed: ClassVar[Fixed] = FIXED
    """Decoding fields that no request can choose, with the values that change nothing."""
    decided: ClassVar[Mapping[str, str]] = {}
    """Fields of our families that the server decides, and where."""
    health: ClassVar[str]
    """The path at which a server that works answers."""

    def __init__(self, server: Server, spec: ModelSpec, tokenizer_folder: Path | None) -> None:
        self.server, self.spec, self._folder = server, spec, tokenizer_folder or Path(spec.engine)
        self.tokenizer = None if tokenizer_folder is None else open_tokenizer(tokenizer_folder, UNSTATED)
        if (end := getattr(self.tokenizer, "eos_token_id", None)) is not None:
            self.spec = replace(spec, eos_ids=(end,))
        self.capabilities = Capabilities(messages=self.tokenizer is None)

    # -- requests ------------------------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        return encode_prompt(prompt, self.tokenizer, self.spec, None, self._folder)

    @classmethod
    def check_fields(cls, decoding: Mapping[str, Any]) -> None:
        cls._resolved(decoding, cls.fixed, {})

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        return self._resolved(decoding, self._fixed(), self._stated())

    @classmethod
    def _resolved(cls, decoding: Mapping[str, Any], fixed: Fixed, stated: Mapping[str, Any]) -> Decoding:
        engine, given = cls.engine, without_aliases(cls.decoding, decoding)
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        for name, value in given.items():
            if name in cls.decided or name in Decoding.id_fields:
                raise cannot_honor(engine, name, value, cls.decided.get(name, "the server has the checkpoint's own"))
        refuse_unknown(engine, given, cls.decoding, {*fixed, *cls.decided, *Decoding.id_fields})
        try:
            resolved = cls.decoding(**{**given, **stated})
        except ValidationError as error:
            raise DecodingError(first_error(error)) from error
        refuse_unserved(engine, resolved, fixed)
        return resolved

    def _fixed(self) -> Fixed:
        """As ``fixed``, of this server."""
        return self.fixed

    def _stated(self) -> Mapping[str, Any]:
        """Decoding values that the server states, for the record."""
        return {}

    @abstractmethod
    def call(self, prompt: Prompt, decoding: Any, seed: int) -> Call:
        """The request for an answer to ``prompt``, token ids where there is a tokenizer here; raises PromptError."""

    # -- answers -------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer generate requests, ``max_rows`` (or 64) at a time.

        Raises:
            EngineError: the server stopped answering, or refuses all requests. Finished samples are returned first.
        """
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(self.server.client()) as client,
        ):
            submit = partial(portal.start_task_soon, self._answer, client)
            yield from in_flight(submit, requests, max_rows or self.default_rows, stats)

    async def _answer(self, client: httpx.AsyncClient, request: Request) -> Sample:
        begin = time.perf_counter()
        try:
            decoding = cast(HttpDecoding, request.resolved or self.resolve(request.decoding))
            prompt = request.prompt
            if self.tokenizer is not None:
                prompt = self.encode(prompt)
                check_length(prompt, decoding.gen_length, self.spec)
            call = self.call(prompt, decoding, request.seed)
        except (PromptError, DecodingError) as error:
            return Sample(request, None, str(error))
        version = self.weights_version
        try:
            answer = await self.server.stream(client, call)
        except RefusedRequest as error:
            return Sample(request, None, f"{self.server.name}: {error}")
        except LostAnswer as error:
            if await self.server.is_alive(client, self.health):
                return Sample(request, None, f"{self.server.name}: {error}")
            raise EngineError(
                f"{self.server}: {error}, and {self.health} does not answer either; finished answers are kept"
            ) from error
        generation = self._generation(answer, decoding)
        generation.seconds, generation.weights_version = time.perf_counter() - begin, version
        return Sample(request, generation)

    def _generation(self, answer: Answer, decoding: HttpDecoding) -> Generation:
        tokens = list(answer.tokens)
        if self.tokenizer is not None and tokens:
            text, cut = response_text(self.tokenizer, tokens, self.spec.eos_ids, decoding.stop, False)
        else:
            at = first_stop(answer.text, decoding.stop)
            text, cut = answer.text if at is None else answer.text[:at], at is not None
        stopped = cut or answer.stopped_by is not None
        end = through_eos(tokens, self.spec.eos_ids) if decoding.early_stop is False else None
        return Generation(
            tokens=tokens,
            text=text,
            nfe=0,
            finish_reason="stop" if stopped else "eos" if answer.finish == "stop" or end is not None else "length",
            prompt_tokens=answer.prompt_tokens,
            tokens_to_eos=answer.token_count if end is None else end,
            tier=None,
        )


def served_spec(engine: str, version: str | None, limit: Any) -> ModelSpec:
    """An autoregressive model of an unknown family, by what its server states: the engine's version and the context
    limit."""
    return ModelSpec(
        family="unknown",
        mask_id=None,
        eos_ids=(),
        eot_id=None,
        pad_id=None,
        vocab_size=UNSTATED,
        context_limit=limit if type(limit) is int and 0 < limit < UNSTATED else UNSTATED,
        attention="causal",
        dtype="unknown",
        device="server",
        engine=engine,
        engine_version=version,
    )


def count(value: Any, name: str) -> int:
    """A number of tokens in an answer; raises RefusedRequest."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < UNSTATED:
        raise RefusedRequest(f"its answer has {name}={excerpt(value)} where a number of tokens was expected")
    return value


def text_of(value: Any, name: str) -> str:
    """A text in an answer; raises RefusedRequest."""
    if not isinstance(value, str):
        raise RefusedRequest(f"its answer has {name}={excerpt(value)} where text was expected")
    return value
