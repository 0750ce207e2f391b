"""Stand-ins for served engines: HTTP servers on 127.0.0.1 that answer as SGLang and vLLM do.

``data/engines/*.json`` has the names that were read from the released package; a field that is not among them is
refused.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "engines"
SGLANG = json.loads((DATA / "sglang-0.5.23.json").read_text())
CONTEXT = 512
PATIENCE = 120.0
"""Seconds after which a test fails that waits for something that does not happen; no test takes as long."""


def reply(prompt: Any) -> str:
    """The answer to a prompt: text, token ids or messages. It has stop strings and ends."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return f"answer to {len(text)} characters. STOP never shown"


class StandIn(ThreadingHTTPServer):
    """A server. ``faults``: what happens to the next requests for an answer, one entry each, before answers go on:

    ``refuse`` the connection is closed without a byte; ``half`` it is closed within an answer; ``hang`` nothing comes
    until the server ends; ``busy`` status 503; ``nonsense`` no JSON; ``html`` a page with status 200; ``bad`` status
    400; ``key`` status 401; ``wrong`` JSON of other types. ``dead``: nothing is answered any more. ``asked``: the
    bodies of all requests for an answer; ``most``: the most that were answered at one time; ``meeting``: where requests
    wait until as many are there as its number of parties.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, kind: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), kind)
        self.dead, self.key, self.ended, self.meeting = False, "", threading.Event(), threading.Barrier(1)
        self.faults: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most, self._now, self.lock = 0, 0, threading.Lock()
        self.facts: dict[str, Any] = {}
        self.started: dict[str, Any] = {}
        self.loads: Callable[[Mapping[str, Any]], str] = lambda body: ""
        """An error about a folder of weights to load; empty: it loads."""
        self.sample: Callable[[Sequence[int], Mapping[str, Any]], list[int]] | None = None
        """The tokens of an answer to token ids with sampling parameters; None: those of :func:`reply`."""
        self.stale = False
        """Does the server load weights without their version?"""
        self.raw: dict[str, Callable[[], Iterator[bytes]]] = {}
        """What is sent in place of an HTTP response, by path, until it ends or the client has closed the connection."""
        self.sent = 0
        """Bytes of it that were sent."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away are no news."""

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        with self.lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            self.meeting.wait(PATIENCE)
            yield
        finally:
            with self.lock:
                self._now -= 1


class Handler(BaseHTTPRequestHandler):
    """What both kinds share."""

    server: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def json(self, value: Any, status: int = 200) -> None:
        self.whole(json.dumps(value).encode(), "application/json", status)

    def whole(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def events(self, events: Sequence[Mapping[str, Any]], whole: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        for line in lines if whole else lines[: len(lines) // 2]:
            data = line.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def sends_raw(self) -> bool:
        """Send what ``raw`` has for this path, if anything."""
        parts = self.server.raw.get(self.path)
        if parts is not None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                for part in parts():
                    self.wfile.write(part)
                    self.server.sent += len(part)
        return parts is not None

    def do_GET(self) -> None:
        if self.sends_raw():
            return
        if self.server.dead:
            self.close_connection = True
        elif (value := self.fact(self.path)) is None:
            self.json({"detail": "Not Found"}, 404)
        else:
            self.json(value)

    def do_POST(self) -> None:
        server, raw = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(raw)
        server.headers.append(dict(self.headers))
        with server.lock:
            fault = server.faults.pop(0) if server.faults else ""
            server.asked.append(body)
        if self.sends_raw():
            return
        if server.dead or fault == "refuse":
            self.close_connection = True
        elif fault == "hang":
            server.ended.wait(PATIENCE)
            self.close_connection = True
        elif fault == "busy":
            self.json({"error": {"message": "no room", "code": 503}}, 503)
        elif fault == "bad":
            self.json({"error": {"message": "the grammar is \x1b[31mbroken"}}, 400)
        elif fault == "key" or (server.key and self.headers.get("Authorization") != f"Bearer {server.key}"):
            self.json({"error": "Unauthorized"}, 401)
        elif fault == "nonsense":
            self.whole(b"data: 8 < 9\n\n", "text/event-stream")
        elif fault == "html":
            self.whole(b"<html>welcome</html>", "text/html")
        elif fault == "wrong":
            self.whole(b'data: {"text": 5, "choices": "none"}\n\ndata: [DONE]\n\n', "text/event-stream")
        else:
            with server.busy():
                self.answer(body, whole=fault != "half")

    def fact(self, path: str) -> Any:
        raise NotImplementedError

    def answer(self, body: dict[str, Any], whole: bool) -> None:
        raise NotImplementedError

    def refused(self, body: Mapping[str, Any], known: Collection[str]) -> bool:
        """Refuse a field that the real server does not have."""
        strange = sorted(set(body) - set(known))
        if strange:
            self.json({"error": {"message": f"unknown fields {strange}"}}, 400)
        return bool(strange)

    def cut(self, prompt: Any, limit: int, stop: Sequence[str], keep: bool) -> tuple[str, str, str | None]:
        """Text, finish reason, and the stop string."""
        text = reply(prompt)
        found = min((text.find(s) for s in stop if s in text), default=-1)
        matched = next((s for s in stop if s in text), None)
        if found >= 0:
            return text[: found + (len(matched or "") if keep else 0)], "stop", matched
        return (text, "stop", None) if len(text) <= limit else (text[:limit], "length", None)


class SGLangHandler(Handler):
    """Of sglang 0.5.23; a token is a character."""

    def fact(self, path: str) -> Any:
        server = self.server
        return {"/model_info": server.facts, "/server_info": server.started, "/health": {}}.get(path)

    def answer(self, body: dict[str, Any], whole: bool) -> None:
        if self.path == "/update_weights_from_disk":
            self._load(body)
        elif self.path == "/v1/chat/completions":
            if not self.refused(body, SGLANG["ChatCompletionRequest"]):
                openai_answer(self, body, body["messages"], whole, chat=True)
        elif self.path != "/generate":
            self.json({"detail": "Not Found"}, 404)
        elif not self.refused(body, SGLANG["GenerateReqInput"]):
            self._generate(body, whole)

    def _load(self, body: dict[str, Any]) -> None:
        if self.refused(body, SGLANG["UpdateWeightFromDiskReqInput"]):
            return
        reason = self.server.loads(body)
        if not reason:
            path = body["model_path"]
            self.server.facts |= {"model_path": path, "served_model_name": path}
            if not self.server.stale:
                self.server.facts["weight_version"] = body["weight_version"]
        self.json({"success": not reason, "message": reason, "num_paused_requests": 0}, 400 if reason else 200)

    def _generate(self, body: dict[str, Any], whole: bool) -> None:
        params = body["sampling_params"]
        prompt = body.get("text") if body.get("text") is not None else body["input_ids"]
        if self.refused(params, SGLANG["SamplingParams"]):
            return
        if len(prompt) + params["max_new_tokens"] > CONTEXT:
            self.json({"error": {"message": f"The input ({len(prompt)} tokens) is longer than the context"}}, 400)
            return
        if self.server.sample is not None:
            self._sampled(prompt, params)
            return
        text, kind, matched = self.cut(prompt, params["max_new_tokens"], params.get("stop") or (), keep=True)
        finish = (
            {"type": "length", "length": len(text)} if kind == "length" else {"type": "stop", "matched": matched or 2}
        )
        version, delta = self.server.facts["weight_version"], bool(self.server.started["incremental_streaming_output"])
        events, step = [], max(1, len(text) // 3)
        for end in [*range(step, len(text), step), len(text)]:
            part = text[end - step if end - step >= 0 else 0 : end] if delta and end < len(text) else text[:end]
            if delta and end == len(text):
                part = text[((end - 1) // step) * step :]
            events.append({
                "text": part, "output_ids": [ord(c) for c in part],
                "meta_info": {
                    "id": "x", "finish_reason": finish if end == len(text) else None, "prompt_tokens": len(prompt),
                    "completion_tokens": end, "weight_version": version, "cached_tokens": 0,
                },
            })  # fmt: skip
        self.events(events, whole)

    def _sampled(self, prompt: Sequence[int], params: Mapping[str, Any]) -> None:
        """The whole answer of the server's own sampler, as token ids."""
        assert self.server.sample is not None
        version = self.server.facts["weight_version"]
        with self.server.lock:
            tokens = self.server.sample(prompt, params)
        facts = {
            "finish_reason": {"type": "length", "length": len(tokens)}, "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens), "weight_version": version,
        }  # fmt: skip
        self.events([{"text": "", "output_ids": tokens, "meta_info": facts}])


class OpenAIHandler(Handler):
    """vLLM's answers to OpenAI's fields; a token is a character."""

    COMPLETION = frozenset({
        "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
        "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
    })  # fmt: skip
    """The fields of OpenAI's API reference."""

    def fact(self, path: str) -> Any:
        return {"/v1/models": self.server.facts, "/version": self.server.started}.get(path)

    def answer(self, body: dict[str, Any], whole: bool) -> None:
        chat = self.path == "/v1/chat/completions"
        known = [*(name for name in self.COMPLETION if not chat or name != "prompt"), *(["messages"] if chat else [])]
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.json({"detail": "Not Found"}, 404)
        elif body["model"] not in [entry["id"] for entry in self.server.facts["data"]]:
            self.json({"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}, 404)
        elif not self.refused(body, known):
            openai_answer(self, body, body["messages" if chat else "prompt"], whole, chat)


def openai_answer(handler: Handler, body: Mapping[str, Any], prompt: Any, whole: bool, chat: bool) -> None:
    """Stream an answer in OpenAI's words."""
    size = len(json.dumps(prompt)) if chat else len(prompt)
    if size + body["max_tokens"] > CONTEXT:
        handler.json({"error": {"message": f"maximum context length is {CONTEXT} tokens", "code": 400}}, 400)
        return
    text, finish, matched = handler.cut(prompt, body["max_tokens"], body.get("stop") or (), keep=False)
    middle = len(text) // 2
    parts: list[dict[str, Any]] = [
        {"delta": {"content": p}} if chat else {"text": p} for p in (text[:middle], text[middle:])
    ]
    events = [{"choices": [{"index": 0, **part, "finish_reason": None}], "usage": None} for part in parts]
    events[-1]["choices"][0] |= {"finish_reason": finish, "stop_reason": matched}  # type: ignore[index]
    usage = {"prompt_tokens": size, "completion_tokens": len(text), "total_tokens": size + len(text)}
    handler.events([*events, {"choices": [], "usage": usage}], whole)


@contextlib.contextmanager
def running(server: StandIn) -> Iterator[StandIn]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def sglang(**options: Any) -> Iterator[StandIn]:
    """A server of sglang with SDAR and the algorithm LowConfidence."""
    server = StandIn(SGLangHandler, **options)
    server.facts = dict.fromkeys(SGLANG["model_info"]) | {
        "model_path": "/models/SDAR-1.7B-Chat", "served_model_name": "JetLM/SDAR-1.7B-Chat", "is_generation": True,
        "weight_version": "default", "model_type": "sdar", "architectures": ["SDARForCausalLM"],
    }  # fmt: skip
    server.started = {
        "version": "0.5.23", "dllm_algorithm": "LowConfidence", "dllm_algorithm_config": None,
        "context_length": CONTEXT, "incremental_streaming_output": False,
    }  # fmt: skip
    with running(server):
        yield server


@contextlib.contextmanager
def sampling_sglang(checkpoint: str) -> Iterator[StandIn]:
    """A server of sglang that holds a block-causal checkpoint, loads weights, and answers with our own sampler, each
    request by its seed."""
    from dare_bench.loading import load
    from dare_bench.types import Generation, Request

    model = load(checkpoint, device="cpu", dtype="float32").loaded
    with sglang() as server:
        server.facts |= {"model_path": checkpoint, "served_model_name": checkpoint}
        server.started |= {"dllm_algorithm": "Drawn", "enable_deterministic_inference": True}

        def loads(body: Mapping[str, Any]) -> str:
            with server.lock:
                model.read_weights(body["model_path"])
            return ""

        def sample(prompt: Sequence[int], params: Mapping[str, Any]) -> list[int]:
            decoding = {"gen_length": params["max_new_tokens"], "temperature": params["temperature"]}
            decoding["early_stop"] = not params.get("ignore_eos", False)
            request = Request("r", "generate", list(prompt), decoding=decoding, seed=params["sampling_seed"])
            (answer,) = model.generate([request])
            assert isinstance(answer.answer, Generation), answer.error
            return answer.answer.tokens

        server.loads, server.sample = loads, sample
        yield server


@contextlib.contextmanager
def openai(**options: Any) -> Iterator[StandIn]:
    """A server of vLLM with one model."""
    server = StandIn(OpenAIHandler, **options)
    card = {"id": "qwen", "object": "model", "owned_by": "vllm", "root": "Qwen/Qwen2.5-7B", "max_model_len": CONTEXT}
    server.facts, server.started = {"object": "list", "data": [card]}, {"version": "0.11.0"}
    with running(server):
        yield server
