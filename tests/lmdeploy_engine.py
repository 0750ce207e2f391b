"""A stand-in for lmdeploy: a package with the signatures in ``data/engines/*.json``, which were read from the released
one; a field that is not among them is refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import types
from pathlib import Path
from typing import Any

LMDEPLOY = json.loads((Path(__file__).parent / "data" / "engines" / "lmdeploy-0.18.0.json").read_text())


class RequestError(RuntimeError):
    """As lmdeploy's: ``code`` has one of the recorded values."""

    def __init__(self, code: str, message: str = "") -> None:
        assert code in LMDEPLOY["ErrorCode"]
        super().__init__(message)
        self.code, self.message = types.SimpleNamespace(value=code), message


class _Engine:
    """The asynchronous engine: an answer takes ``delay`` seconds, and is the prompt's tokens reversed."""

    def __init__(self, package: Any, path: str, config: Any) -> None:
        self.package, self.config = package, config

    async def preprocess(
        self, messages, session_id, gen_config=None, tools=None, reasoning_effort=None, do_preprocess=True,
        adapter_name=None, input_ids=None, enable_thinking=None, chat_template_kwargs=None, media_io_kwargs=None,
        mm_processor_kwargs=None, **kwargs,
    ):  # fmt: skip
        if (messages is not None) ^ (input_ids is None):
            raise RequestError("invalid_request", "exactly one of messages and input_ids")
        if len(input_ids) >= 100:
            raise RequestError("context_length_exceeded", "too long for the session")
        return types.SimpleNamespace(input_ids=input_ids, config=gen_config)

    async def generate(self, request, stream_response=True):
        package = self.package
        package.running += 1
        package.most = max(package.most, package.running)
        package.configs.append((self.config, request.config))
        try:
            await asyncio.sleep(package.delay)
            if request.input_ids[0] in package.fails:
                raise package.fails.pop(request.input_ids[0])
            tokens = request.input_ids[::-1][: request.config.max_new_tokens]
            finish = "stop" if len(tokens) < request.config.max_new_tokens else "length"
            for part, reason in ((tokens[:1], None), (tokens[1:], finish)):
                yield package.GenOut("", len(request.input_ids), len(tokens), finish_reason=reason, token_ids=part)
        finally:
            package.running -= 1


class _Loop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        if not self.loop.is_closed():
            if self.thread.is_alive():
                self.loop.call_soon_threadsafe(self.loop.stop)
                self.thread.join()
            if left := [task for task in asyncio.all_tasks(self.loop) if task.cancel()]:
                # In a thread of its own: another test may have left a loop running in this one.
                ending = threading.Thread(target=self.loop.run_until_complete, args=(asyncio.wait(left),))
                ending.start()
                ending.join()
            self.loop.close()


class _Pipeline:
    def __init__(self, package: Any, path: str, config: Any) -> None:
        self.async_engine, self.internal_thread = _Engine(package, path, config), _Loop()
        self.backend_config = config if package.is_pytorch else types.SimpleNamespace(session_len=None)
        self._package, self._sessions = package, 0
        package.opened.append(self)

    def session(self) -> int:
        self._sessions += 1
        return self._sessions

    def close(self) -> None:
        self.internal_thread.close()
        self._package.opened.remove(self)


def stand_in() -> Any:
    """A package with the recorded names and defaults.

    ``delay``: seconds of an answer; ``fails``: exceptions of the next answers, by first token; ``is_pytorch``: does the
    PyTorch engine open, or TurboMind? ``opened``: pipelines that are open; ``configs``: engine and generation config of
    each answer.
    """
    package: Any = types.SimpleNamespace(__version__="0.18.0", delay=0.0, running=0, most=0, is_pytorch=True)
    package.configs, package.opened, package.fails = [], [], {}
    for name in ("PytorchEngineConfig", "GenerationConfig"):
        fields = [(field, Any, dataclasses.field(default=value)) for field, value in LMDEPLOY[name].items()]
        setattr(package, name, dataclasses.make_dataclass(name, fields))
    fields = [(name, Any, dataclasses.field(default=None)) for name in LMDEPLOY["GenOut"]]
    package.GenOut = dataclasses.make_dataclass("GenOut", fields)

    def pipeline(
        model_path, backend_config=None, chat_template_config=None, log_level="WARNING", max_log_len=None,
        trust_remote_code=False, speculative_config=None, allowed_media_domains=None, **kwargs,
    ):  # fmt: skip
        return _Pipeline(package, model_path, backend_config)

    package.pipeline = pipeline
    return package
