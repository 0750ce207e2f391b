"""An HTTP server that answers prompts: its address, event streams, retries, and errors that name their cause.

A server may send anything, for as long as it likes. Every body is read by :func:`_parts`, which counts its bytes; no
compression is asked for or accepted, since a few bytes of it can become gigabytes; and every exchange has a deadline.
httpx bounds headers and trailers, and h11 events, by itself (100 KiB).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
from anyio import fail_after
from anyio.from_thread import start_blocking_portal
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from dare_bench.config import one_line
from dare_bench.errors import EngineError, UsageError
from dare_bench.model_adapters.served.model import EngineSettings
from dare_bench.reading import parse_json

API_KEY = "DARE_BENCH_API_KEY"
"""The environment variable with the server's key. It is never recorded."""
_MAX_FACT, _MAX_ERROR, _MAX_EVENT = 1 << 22, 1 << 16, 1 << 24
"""Maximum bytes of a fact, of an error, and of one event of an answer."""
_ANSWER_BYTES, _TOKEN_BYTES = 1 << 16, 1 << 12
"""Maximum bytes of an answer in events: for each token an event with its text, and something for pings and an end."""
_TOKEN_CHARACTERS, _MAX_CHARACTERS = 256, 1 << 21
"""Maximum characters of a token on average (the longest in use have 128), and of an answer, which the journal holds as
one line."""
_MAX_REASON = 300
_ADDRESS = "--engine-url (of a training: --rollout-engine-url)"
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of a server that is busy or restarting."""
_FACT_WITHIN = 30.0
"""Seconds in which a server that works states a fact, however long an answer may take."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
"""Seconds before the first and before later retries, which wait twice as long each."""


class HttpSettings(EngineSettings):
    """How a server is reached. ``timeout``: seconds without any part of an answer before it counts as lost, waiting in
    the server's queue included. ``deadline``: seconds that a whole answer or fact may take, retries included.
    ``tokenizer``: a folder or hub id; prompts are then sent as token ids."""

    timeout: float = Field(default=600.0, gt=0)
    deadline: float = Field(default=3600.0, gt=0)
    connect_timeout: float = Field(default=10.0, gt=0)
    retries: int = Field(default=5, ge=0, le=100)
    tokenizer: str | None = None


class LostAnswer(Exception):
    """The connection failed, or the server was busy: worth another try."""


class RefusedRequest(Exception):
    """The server refused this request, or its answer makes no sense."""


@dataclass(frozen=True)
class Answer:
    """A complete answer in the server's words. ``finish``: ``length``, or ``stop`` with the text that stopped it, or
    None where that was an EOS or is not stated."""

    text: str
    tokens: Sequence[int]
    token_count: int
    prompt_tokens: int
    finish: Literal["length", "stop"]
    stopped_by: str | None = None


class StreamedAnswer(ABC):
    """What has arrived of an answer that comes in events. ``asked``: the tokens that were asked for."""

    def __init__(self, asked: int) -> None:
        self._asked = asked

    @property
    def most(self) -> int:
        """The most bytes that its events may have together."""
        return _ANSWER_BYTES + self._asked * _TOKEN_BYTES

    @abstractmethod
    def add(self, event: Mapping[str, Any]) -> None:
        """Take the next event; raises RefusedRequest for one that makes no sense, or more than was asked for."""

    def _check_length(self, tokens: int, characters: int) -> None:
        if tokens > self._asked or characters > min(self._asked * _TOKEN_CHARACTERS, _MAX_CHARACTERS):
            size = f"{tokens} tokens" if tokens > self._asked else f"{characters} characters"
            raise RefusedRequest(f"its answer has {size}, more than the requested gen_length={self._asked} allows")

    @abstractmethod
    def answer(self) -> Answer:
        """The whole answer; raises RefusedRequest where a part of it is missing or makes no sense."""


class Call(NamedTuple):
    """A request for an answer: its path and body, and what takes the events."""

    path: str
    body: dict[str, Any]
    new: Callable[[], StreamedAnswer]


Word = Annotated[str, Field(max_length=4096)]
"""A name or version that a server states, which is recorded."""


class Stated(BaseModel):
    """Facts that a server states of itself; others that it states are ignored."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


Fact = TypeVar("Fact", bound=Stated)


class Server:
    """A server at ``url``. ``name``: what it is, for messages."""

    def __init__(self, name: str, url: str, settings: HttpSettings) -> None:
        self.name, self.url, self.settings = name, checked_url(url), settings
        key = os.environ.get(API_KEY, "").strip()
        if not (key.isascii() and key.isprintable()):  # the error of an invalid header would show it
            raise UsageError(f"{API_KEY} has characters that are not allowed in a key; set it again")
        timeout = httpx.Timeout(settings.timeout, connect=settings.connect_timeout, pool=None)
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "timeout": timeout,
            "verify": self.url.startswith("https"),  # without TLS no certificates are read
            "headers": {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64),
        }

    def __str__(self) -> str:
        return f"{self.name} at {self.url}"

    def client(self) -> httpx.AsyncClient:
        """A client for event streams, to be closed by the caller."""
        return httpx.AsyncClient(**self._options)

    # -- facts, while nothing else runs --------------------------------------------------------------------------

    def get(self, path: str, kind: type[Fact]) -> Fact | None:
        """What the server states at a path; None if it has no such path.

        Raises:
            EngineError: it cannot be reached, refuses the key, or states something else.
        """
        return self._ask("GET", path, kind, _FACT_WITHIN)

    def post(self, path: str, body: Mapping[str, Any], kind: type[Fact]) -> Fact | None:
        """What the server answers to a command: as :meth:`get`."""
        return self._ask("POST", path, kind, self.settings.timeout, body)

    def _ask(
        self, method: str, path: str, kind: type[Fact], within: float, body: Mapping[str, Any] | None = None
    ) -> Fact | None:
        try:
            with start_blocking_portal() as portal:
                raw = portal.call(self._fact, method, path, within, body)
        except LostAnswer as error:
            raise EngineError(f"{self}: {error}; is it running? Start it, or give another {_ADDRESS}") from error
        except RefusedRequest as error:
            raise EngineError(f"{self}{path}: {error}") from error
        try:
            return None if raw is None else kind.model_validate_json(raw)
        except ValidationError as error:
            problem = f"{one_line(error, 'its answer')} (it answered {excerpt(raw)})"
            raise EngineError(f"{self}{path}: {problem}; is it the server of another --engine?") from error

    async def _fact(self, method: str, path: str, within: float, body: Any) -> bytes | None:
        with _deadline(RefusedRequest, self.settings.deadline, "deadline="):
            async with self.client() as client:
                async for attempt in self._attempts():
                    with attempt, _deadline(RefusedRequest, within):
                        return await self._attempted_fact(client, method, path, body)
        raise AssertionError("tenacity raises the last error")

    async def _attempted_fact(self, client: httpx.AsyncClient, method: str, path: str, body: Any) -> bytes | None:
        async with self._exchange(client, method, path, body) as response:
            if response.status_code == 404:
                return None
            if response.is_error:
                raise self._closed(response.status_code) or RefusedRequest(await _refusal(response))
            return b"".join([part async for part in _parts(response, _MAX_FACT)])

    @asynccontextmanager
    async def _exchange(
        self, client: httpx.AsyncClient, method: str, path: str, body: Any
    ) -> AsyncIterator[httpx.Response]:
        """A response whose body is still to be read; raises LostAnswer where the connection fails, or the server is
        busy."""
        try:
            async with client.stream(method, path, json=body) as response:
                if response.status_code in _RETRIED:
                    raise LostAnswer(await _refusal(response))
                yield response
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise LostAnswer(reason(error)) from error

    def _attempts(self) -> AsyncRetrying:
        return AsyncRetrying(
            stop=stop_after_attempt(self.settings.retries + 1),
            wait=wait_exponential_jitter(initial=_FIRST_WAIT, max=_LONGEST_WAIT),
            retry=retry_if_exception_type(LostAnswer),
            reraise=True,
        )

    def _closed(self, status: int) -> EngineError | None:
        """The error of a status that concerns all requests."""
        if status in (401, 403):
            return EngineError(
                f"{self}: status {status}, it requires a key, or rejects the one in {API_KEY}; set {API_KEY}"
            )
        return None

    # -- answers, many at a time ---------------------------------------------------------------------------------

    async def stream(self, client: httpx.AsyncClient, call: Call) -> Answer:
        """One answer, complete to its end mark; tried again, from the beginning, where the connection fails.

        Raises:
            LostAnswer: the last of all attempts failed.
            RefusedRequest: the server refused the request, or answered no stream of JSON events.
            EngineError: it refuses the key, or has no such path.
        """
        with _deadline(RefusedRequest, self.settings.deadline, "deadline="):
            async for attempt in self._attempts():
                with attempt:
                    return await self._stream(client, call)
        raise AssertionError("tenacity raises the last error")

    async def _stream(self, client: httpx.AsyncClient, call: Call) -> Answer:
        arrived, begun = call.new(), False
        try:
            async with self._exchange(client, "POST", call.path, call.body) as response:
                if response.is_error:
                    raise await self._refused(response, call.path)
                async for data in _data(response, arrived.most):
                    if data == b"[DONE]":
                        return arrived.answer()
                    arrived.add(_event(data))
                    begun = True
        except UnicodeEncodeError as error:
            raise RefusedRequest(f"the prompt is not valid Unicode text ({error.reason})") from error
        if not begun:
            raise RefusedRequest("its answer is not a stream of events")
        raise LostAnswer("the stream ended in the middle of an answer")

    async def _refused(self, response: httpx.Response, path: str) -> Exception:
        status = response.status_code
        if status in (404, 405) and "json" not in response.headers.get("content-type", ""):
            return EngineError(f"{self} has no {path} (status {status}); give another --engine or {_ADDRESS}")
        return self._closed(status) or RefusedRequest(await _refusal(response))

    async def is_alive(self, client: httpx.AsyncClient, path: str) -> bool:
        """Does the server answer at ``path``?"""
        try:
            with _deadline(LostAnswer, _FACT_WITHIN):
                async with client.stream("GET", path, timeout=_FACT_WITHIN) as response:
                    return response.is_success
        except (httpx.HTTPError, LostAnswer):
            return False


@contextmanager
def _deadline(error: type[Exception], seconds: float, name: str = "") -> Iterator[None]:
    """Raise ``error`` where what is inside takes longer; ``name``: that of the setting, with an equals sign."""
    try:
        with fail_after(seconds):
            yield
    except TimeoutError as cause:
        raise error(f"its answer did not end within {name}{seconds:g} seconds") from cause


async def _parts(response: httpx.Response, most: int) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive; raises RefusedRequest for more than ``most`` bytes, or compressed ones."""
    if (coding := response.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        raise RefusedRequest(f"its answer is compressed ({excerpt(coding)}), which was not requested")
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > most:
            raise RefusedRequest(f"its answer is longer than the limit of {most:,} bytes")
        yield part


async def _refusal(response: httpx.Response) -> str:
    """The status of a response and what it says."""
    try:
        raw = b"".join([part async for part in _parts(response, _MAX_ERROR)])
        said = _said(parse_json(raw))
    except RefusedRequest as error:
        said = str(error)
    except ValueError:
        said = excerpt(raw)
    return f"status {response.status_code}: {said}"


async def _data(response: httpx.Response, most: int) -> AsyncIterator[bytes]:
    """The data of server-sent events (WHATWG HTML, 9.2), one line each as these servers write them."""
    line = bytearray()
    async for part in _parts(response, most):
        begin, *others = part.split(b"\n")
        line += begin
        if len(line) > _MAX_EVENT:
            raise RefusedRequest(f"its answer has an event of more than {_MAX_EVENT:,} bytes")
        for other in others:
            if line.startswith(b"data:"):
                yield bytes(line[5:]).strip()
            line = bytearray(other)


def _event(data: bytes) -> dict[str, Any]:
    """One event; raises RefusedRequest, or LostAnswer for an error that says it may pass."""
    try:
        value = parse_json(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RefusedRequest(f"it answered {excerpt(data)} where JSON was expected")
    if value.get("error") is not None:
        error, text = value["error"], _said(value)
        code = error.get("code") if isinstance(error, dict) else None
        raise LostAnswer(text) if isinstance(code, int) and code in _RETRIED else RefusedRequest(text)
    return value


def checked_url(url: str) -> str:
    """The address without a slash at its end; raises UsageError unless it is plain http or https."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"--engine-url {url!r}: expected http://HOST:PORT or https://HOST")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            f"--engine-url of {parts.hostname}: it is recorded with the run, so it may have no user, password, query or"
            f" fragment; give a key in {API_KEY}"
        )
    return url.rstrip("/")


def reason(error: Exception) -> str:
    """An error of the connection in a few words."""
    kinds = {
        httpx.ConnectTimeout: "it does not accept a connection",
        httpx.ConnectError: "no connection",
        httpx.TimeoutException: "no answer within the timeout",
        httpx.RemoteProtocolError: "its response is incomplete or invalid",
    }
    kind = next((text for cls, text in kinds.items() if isinstance(error, cls)), type(error).__name__)
    return f"{kind} ({excerpt(str(error))})" if str(error) else kind


def _said(value: Any) -> str:
    """The message in an error, as these servers write it: ``{"error": {"message": ...}}`` and its relatives."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return excerpt(value)


def excerpt(value: Any) -> str:
    """A value on one line, cut where it is long."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text.split())
    text = text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
    return text.encode(errors="replace").decode()
