"""An HTTP server that answers prompts: its address, event streams, retries, and errors that name their cause."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx
from pydantic import Field
from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from dare_bench.errors import EngineError, UsageError
from dare_bench.model_adapters.served.model import EngineSettings

API_KEY = "DARE_BENCH_API_KEY"
"""The environment variable with the server's key. It is never recorded."""
_MAX_LINE = 1 << 24
"""Maximum characters of one event: 16 million."""
_MAX_REASON = 300
_ADDRESS = "--engine-url (of a training: --rollout-engine-url)"
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of a server that is busy or restarting."""
_ALIVE_WITHIN = 30.0
"""Seconds in which a server that works says so, however long an answer may take."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
"""Seconds before the first and before later retries, which wait twice as long each."""


class HttpSettings(EngineSettings):
    """How a server is reached. ``timeout``: seconds without any part of an answer before it counts as lost, waiting in
    the server's queue included. ``tokenizer``: a folder or hub id; prompts are then sent as token ids."""

    timeout: float = Field(default=600.0, gt=0)
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
    """What has arrived of an answer that comes in events."""

    @abstractmethod
    def add(self, event: Mapping[str, Any]) -> None:
        """Take the next event; raises RefusedRequest for one that makes no sense."""

    @abstractmethod
    def answer(self) -> Answer:
        """The whole answer; raises RefusedRequest where a part of it is missing or makes no sense."""


class Call(NamedTuple):
    """A request for an answer: its path and body, and what takes the events."""

    path: str
    body: dict[str, Any]
    new: Callable[[], StreamedAnswer]


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
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64),
        }

    def __str__(self) -> str:
        return f"{self.name} at {self.url}"

    def client(self) -> httpx.AsyncClient:
        """A client for event streams, to be closed by the caller."""
        return httpx.AsyncClient(**self._options)

    # -- facts, while nothing else runs --------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any] | None:
        """The JSON object at a path; None if the server has no such path.

        Raises:
            EngineError: it cannot be reached, refuses the key, or answers something else.
        """
        return self._ask("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the server answers to a command: as :meth:`get`."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **body: Any) -> dict[str, Any] | None:
        retrying = Retrying(**self._retry_policy())
        try:
            with httpx.Client(**self._options) as client:
                response = retrying(self._try, client, method, path, **body)
        except LostAnswer as error:
            raise EngineError(f"{self}: {error}; is it running? Start it, or give another {_ADDRESS}") from error
        if response.status_code == 404:
            return None
        if response.is_error:
            raise self._closed(response.status_code) or EngineError(f"{self}{path}: {refusal(response)}")
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise EngineError(
                f"{self}{path}: expected a JSON object, found {shown(response.text)}; is this {self.name}?"
            )
        return value

    def _try(self, client: httpx.Client, method: str, path: str, **body: Any) -> httpx.Response:
        try:
            response = client.request(method, path, **body)
        except httpx.HTTPError as error:
            raise LostAnswer(reason(error)) from error
        if response.status_code in _RETRIED:
            raise LostAnswer(refusal(response))
        return response

    def _retry_policy(self) -> dict[str, Any]:
        return {
            "stop": stop_after_attempt(self.settings.retries + 1),
            "wait": wait_exponential_jitter(initial=_FIRST_WAIT, max=_LONGEST_WAIT),
            "retry": retry_if_exception_type(LostAnswer),
            "reraise": True,
        }

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
        async for attempt in AsyncRetrying(**self._retry_policy()):
            with attempt:
                return await self._stream(client, call)
        raise AssertionError("tenacity raises the last error")

    async def _stream(self, client: httpx.AsyncClient, call: Call) -> Answer:
        arrived, count = call.new(), 0
        try:
            async with client.stream("POST", call.path, json=call.body) as response:
                if response.is_error:
                    await response.aread()
                    raise self._refused(response, call.path)
                async for data in _data(response):
                    if data == "[DONE]":
                        return arrived.answer()
                    arrived.add(_event(data))
                    count += 1
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise LostAnswer(reason(error)) from error
        except UnicodeEncodeError as error:
            raise RefusedRequest(f"the prompt is not valid Unicode text ({error.reason})") from error
        if not count:
            raise RefusedRequest("its answer is not a stream of events")
        raise LostAnswer("the stream ended in the middle of an answer")

    def _refused(self, response: httpx.Response, path: str) -> Exception:
        status = response.status_code
        if status in _RETRIED:
            return LostAnswer(refusal(response))
        if status in (404, 405) and "json" not in response.headers.get("content-type", ""):
            return EngineError(f"{self} has no {path} (status {status}); give another --engine or {_ADDRESS}")
        return self._closed(status) or RefusedRequest(refusal(response))

    async def is_alive(self, client: httpx.AsyncClient, path: str) -> bool:
        """Does the server answer at ``path``?"""
        try:
            response = await client.get(path, timeout=_ALIVE_WITHIN)
        except httpx.HTTPError:
            return False
        return response.is_success


async def _data(response: httpx.Response) -> AsyncIterator[str]:
    """The data of server-sent events (WHATWG HTML, 9.2), one line each as these servers write them."""
    rest = ""
    async for text in response.aiter_text():
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if line.startswith("data:"):
                yield line[5:].strip()
        if len(rest) > _MAX_LINE:
            raise RefusedRequest(f"its answer has an event of more than {_MAX_LINE:,} characters")


def _event(data: str) -> dict[str, Any]:
    """One event; raises RefusedRequest, or LostAnswer for an error that says it may pass."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RefusedRequest(f"it answered {shown(data)} where JSON was expected")
    if value.get("error") is not None:
        error, text = value["error"], said(value)
        code = error.get("code") if isinstance(error, dict) else None
        raise LostAnswer(text) if code in _RETRIED else RefusedRequest(text)
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
        httpx.RemoteProtocolError: "it closed the connection",
    }
    kind = next((text for cls, text in kinds.items() if isinstance(error, cls)), type(error).__name__)
    return f"{kind} ({shown(str(error))})" if str(error) else kind


def refusal(response: httpx.Response) -> str:
    """The status of a response and what it says."""
    try:
        value = response.json()
    except ValueError:
        value = response.text
    return f"status {response.status_code}: {said(value)}"


def said(value: Any) -> str:
    """The message in an error, as these servers write it: ``{"error": {"message": ...}}`` and its relatives."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return shown(value)


def shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
