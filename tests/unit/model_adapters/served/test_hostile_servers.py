"""Servers that never end, or that answer with more, or with something else, than was asked for."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest
import served_engines
from served_engines import StandIn

from dare_bench.errors import EngineError
from dare_bench.loading import load
from dare_bench.model_adapters.served import server as http
from dare_bench.types import Request, Sample

SERVERS = {"sglang": served_engines.sglang, "openai": served_engines.openai}
NAMES = {"sglang": "JetLM/SDAR-1.7B-Chat", "openai": "qwen"}
ANSWERS = {"sglang": "/generate", "openai": "/v1/completions"}
FACTS = [("sglang", "/model_info"), ("sglang", "/server_info"), ("openai", "/v1/models")]
ENDLESS = 64 << 20
"""Bytes after which an endless response ends, so that a test fails that reads it."""
IN_FLIGHT = 16 << 20
"""Most bytes that are sent before a client stops reading: its limit, and what the sockets hold."""
GEN_LENGTH = 16


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(http, "_LONGEST_WAIT", 0.002)


@pytest.fixture(params=SERVERS)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(engine: str) -> Iterator[StandIn]:
    with SERVERS[engine]() as running:
        yield running


def opened(engine: str, server: StandIn, **args: Any) -> Any:
    settings = {"retries": 0, "timeout": served_engines.PATIENCE, **args}
    return load(NAMES[engine], engine=engine, engine_url=server.url, engine_args=settings).loaded


def failure(model: Any) -> str:
    """Why a request has no answer."""
    sample: Sample
    (sample,) = model.generate([Request("r", "generate", "how many", decoding={"gen_length": GEN_LENGTH})])
    assert sample.error is not None, sample.answer
    return sample.error


def head(status: str = "200 OK", *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: text/event-stream", *more, "", ""]).encode()


def endless(part: bytes, begin: bytes = b"") -> Callable[[], Iterator[bytes]]:
    many = part * (1 + (1 << 16) // len(part))
    return lambda: chain([begin], repeat(many, ENDLESS // len(many)))


def dripping(part: bytes, begin: bytes) -> Callable[[], Iterator[bytes]]:
    def parts() -> Iterator[bytes]:
        yield begin
        for _ in range(3000):
            time.sleep(0.01)
            yield part

    return parts


def event(engine: str, text: str = "", tokens: list[Any] | None = None, **facts: Any) -> bytes:
    """An event of an answer; with ``facts``, its last."""
    value: dict[str, Any] = {"text": text, "output_ids": tokens or [], "meta_info": facts}
    if engine == "openai":
        ended = {"finish_reason": "stop"} if facts else {}
        value = {"choices": [{"index": 0, "text": text, **ended}], "usage": facts or None}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def last(engine: str, text: str = "", tokens: list[Any] | None = None, count: int = 1) -> Callable[[], Iterator[bytes]]:
    """A whole answer of one event."""
    stop = {"finish_reason": {"type": "stop"}, "weight_version": "default"} if engine == "sglang" else {}
    facts = {"prompt_tokens": 1, "completion_tokens": count, **stop}
    return lambda: iter([head() + event(engine, text, tokens, **facts) + b"data: [DONE]\n\n"])


BOMB = gzip.compress(bytes(16 << 20))
GZIP = f"Content-Length: {len(BOMB)}", "Content-Encoding: gzip"


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (endless(b"x", head()), "longer than the limit of 131,072 bytes"),
        (endless(b": ping\n\n", head()), "longer than the limit of 131,072 bytes"),
        (endless(b"data: {}\n\n", head()), "where (text|a list of objects) was expected"),
        (endless(b"x", head("400 Bad Request")), "status 400: .*longer than the limit of 65,536 bytes"),
        (lambda: iter([head("400 Bad Request", *GZIP), BOMB]), r"status 400: its answer is compressed \(gzip\)"),
        (lambda: iter([head("200 OK", *GZIP), BOMB]), r"its answer is compressed \(gzip\)"),
        (endless(b"X-More: yes\r\n", b"HTTP/1.1 200 OK\r\n"), "incomplete or invalid .*too long"),
        (
            endless(b"X-More: yes\r\n", head("200 OK", "Transfer-Encoding: chunked") + b"0\r\n"),
            "incomplete or invalid .*too long",
        ),
        (endless(b"x", head("200 OK", "Transfer-Encoding: chunked") + b"1;"), "incomplete or invalid"),
    ],
    ids=["body", "pings", "events", "error", "error bomb", "bomb", "headers", "trailers", "chunk"],
)
def test_an_answer_without_an_end_is_a_failure_and_is_not_held(
    engine: str, server: StandIn, parts: Callable[[], Iterator[bytes]], named: str
) -> None:
    server.raw[ANSWERS[engine]] = parts
    assert re.search(named, error := failure(opened(engine, server))), error
    assert server.sent < IN_FLIGHT


def test_events_that_never_end_are_read_no_further_than_the_length_that_was_asked_for(
    engine: str, server: StandIn
) -> None:
    """Also where each of them makes sense."""
    server.raw[ANSWERS[engine]] = endless(event(engine, "a" * 256, list(range(GEN_LENGTH + 1))), head())
    assert "more than the requested gen_length=16 allows" in failure(opened(engine, server))
    server.raw[ANSWERS[engine]] = endless(event(engine), head())
    assert "longer than the limit of 131,072 bytes" in failure(opened(engine, server))
    assert server.sent < IN_FLIGHT


@pytest.mark.parametrize("begin", [head(), head("400 Bad Request"), b"HTTP/1.1 200 OK\r\n"])
def test_an_answer_that_drips_ends_with_the_deadline(engine: str, server: StandIn, begin: bytes) -> None:
    """No part of it is later than ``timeout``, and it is not asked for again."""
    server.raw[ANSWERS[engine]] = dripping(b"x", begin)
    assert "did not end within deadline=0.5 seconds" in failure(opened(engine, server, deadline=0.5, retries=3))
    assert len(server.asked) == 1


def test_responses_that_announce_another_end_with_the_deadline(engine: str, server: StandIn) -> None:
    server.raw[ANSWERS[engine]] = dripping(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    assert "did not end within deadline=0.5 seconds" in failure(opened(engine, server, deadline=0.5))


@pytest.mark.parametrize(("engine", "path"), FACTS)
@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (endless(b" ", head()), "longer than the limit of 4,194,304 bytes"),
        (endless(b"x", head("500 Error")), "status 500: .*longer than the limit of 65,536 bytes.*is it running"),
        (lambda: iter([head("200 OK", *GZIP), BOMB]), r"its answer is compressed \(gzip\)"),
        (lambda: iter([head() + b"[" * 200_000]), "Invalid JSON"),
        (lambda: iter([head() + b'{"data": ' + b"[" * 200_000]), "Invalid JSON"),
        (lambda: iter([head("200 OK", "Content-Type: x; charset=undefined") + b"\xff"]), "Invalid JSON"),
        (dripping(b" ", head()), "did not end within 0.5 seconds"),
    ],
    ids=["body", "error", "bomb", "deep", "deep inside", "charset", "drip"],
)
def test_a_fact_without_an_end_or_sense_is_one_line(
    engine: str, server: StandIn, path: str, parts: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "0.5" in named:
        monkeypatch.setattr(http, "_FACT_WITHIN", 0.5)
    server.raw[path] = parts
    with pytest.raises(EngineError, match=named) as refused:
        opened(engine, server)
    assert "\n" not in str(refused.value) and server.url in str(refused.value)
    assert server.sent < IN_FLIGHT


@pytest.mark.parametrize(("engine", "path"), FACTS)
@pytest.mark.parametrize(("within", "deadline"), [(0.2, 100), (100, 0.2)])
def test_a_fact_that_drips_is_not_asked_for_again(
    engine: str, server: StandIn, path: str, within: float, deadline: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_FACT_WITHIN", within)
    asked = []
    server.raw[path] = lambda: asked.append(path) or dripping(b" ", head())()  # type: ignore[func-returns-value]
    with pytest.raises(EngineError, match=r"did not end within (deadline=)?0\.2 seconds"):
        opened(engine, server, retries=3, deadline=deadline)
    assert asked == [path]


def test_attempts_for_a_fact_end_with_the_deadline(
    engine: str, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wait in ("_FIRST_WAIT", "_LONGEST_WAIT"):
        monkeypatch.setattr(http, wait, served_engines.PATIENCE)
    server.dead = True
    with pytest.raises(EngineError, match=r"did not end within deadline=0\.2 seconds"):
        opened(engine, server, retries=1, deadline=0.2)


@pytest.mark.parametrize(
    ("engine", "where", "values", "named"),
    [
        ("sglang", "started", {"dllm_algorithm": ["LowConfidence"]}, "dllm_algorithm=.*must be a text"),
        ("sglang", "started", {"version": "v" * 5000}, "version=.*at most 4096 characters"),
        ("sglang", "facts", {"weight_version": {"a": 1}}, "weight_version"),
        ("sglang", "facts", {"architectures": [5]}, "architectures"),
        (
            "openai",
            "facts",
            {"data": [{"id": "qwen", "owned_by": "\ud800"}]},
            "Invalid JSON: unexpected end of hex escape.*ud800",
        ),
        ("openai", "facts", {"data": [5]}, "data.0"),
    ],
)
def test_a_fact_of_another_type_is_named(
    engine: str, server: StandIn, where: str, values: dict[str, Any], named: str
) -> None:
    getattr(server, where).update(values)
    with pytest.raises(EngineError, match=named) as refused:
        opened(engine, server)
    assert "\n" not in str(refused.value) and server.url in str(refused.value)


@pytest.mark.parametrize("limit", [10**19, -1, "long", None])
def test_a_context_limit_that_makes_no_sense_is_none(engine: str, server: StandIn, limit: Any) -> None:
    (server.started if engine == "sglang" else server.facts["data"][0]).update(
        context_length=limit, max_model_len=limit
    )
    assert opened(engine, server).spec.context_limit == 2**31 - 1


@pytest.mark.parametrize("code", [{"a": 1}, [503], "x"])
def test_an_error_with_another_kind_of_code_is_a_failure(engine: str, server: StandIn, code: Any) -> None:
    said = json.dumps({"error": {"message": "no room", "code": code}}).encode()
    server.raw[ANSWERS[engine]] = lambda: iter([head() + b"data: " + said + b"\n\n"])
    assert failure(opened(engine, server)).endswith(": no room")


def test_deep_json_in_an_answer_or_error_is_a_failure(engine: str, server: StandIn) -> None:
    for begin in (head() + b"data: ", head("400 Bad Request")):
        server.raw[ANSWERS[engine]] = lambda begin=begin: iter([begin + b"[" * 60_000 + b"\n\n"])  # type: ignore[misc]
        assert "[[[[" in failure(opened(engine, server))


def test_a_charset_that_does_not_exist_changes_nothing(engine: str, server: StandIn) -> None:
    server.raw[ANSWERS[engine]] = lambda: iter([head("400 Bad Request", "Content-Type: x; charset=undefined") + b"no"])
    assert failure(opened(engine, server)).endswith("status 400: no")


@pytest.mark.parametrize("engine", ["sglang"])
@pytest.mark.parametrize("token", [10**18, 10**30, 2**31, -1, True, 1.0, "7", None])
def test_tokens_that_no_vocabulary_has_are_a_failure(engine: str, server: StandIn, token: Any) -> None:
    server.raw["/generate"] = last(engine, "x", [token])
    assert "in output_ids where a token id was expected" in failure(opened(engine, server))
    assert "in output_ids where a token id was expected" in failure(opened(engine, server, tokenizer="tiny-sdar"))


def test_an_answer_that_is_longer_than_asked_for_is_a_failure(engine: str, server: StandIn) -> None:
    tokens = list(range(GEN_LENGTH))
    for text, ids, count in (("x", tokens, GEN_LENGTH + 1), ("x" * 5000, tokens, 1), *_too_many_ids(engine, tokens)):
        server.raw[ANSWERS[engine]] = last(engine, text, ids, count)
        assert "more than the requested gen_length=16 allows" in failure(opened(engine, server))


def _too_many_ids(engine: str, tokens: list[int]) -> list[tuple[str, list[int], int]]:
    return [("x", [*tokens, 5], GEN_LENGTH)] if engine == "sglang" else []


def test_no_cookies_are_kept(engine: str, server: StandIn) -> None:
    model = opened(engine, server)
    server.raw[ANSWERS[engine]] = lambda: iter([head("400 Bad Request", "Set-Cookie: a=b")])
    requests = [Request(f"r{i}", "generate", "x", decoding={"gen_length": 4}) for i in range(2)]
    assert all(sample.error for sample in model.generate(requests, max_rows=1))
    assert [headers.get("Cookie") for headers in server.headers] == [None, None]
    assert {headers["Accept-Encoding"] for headers in server.headers} == {"identity"}
