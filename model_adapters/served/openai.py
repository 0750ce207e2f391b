"""vLLM, or any server with OpenAI's interface: ``/v1/completions`` for text, ``/v1/chat/completions`` for messages.

Sources: OpenAI's API reference; vLLM adds ``max_model_len`` to ``/v1/models``, and ``/version``. Only fields that
OpenAI defines are sent: another one may be ignored by a server without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dare_bench.errors import EngineError, PromptError, UsageError, suggestion
from dare_bench.model_adapters.served.http_model import HttpDecoding, HttpModel, count, served_spec, text_of
from dare_bench.model_adapters.served.server import (
    Answer,
    Call,
    HttpSettings,
    RefusedRequest,
    Server,
    Stated,
    StreamedAnswer,
    Word,
    excerpt,
)
from dare_bench.types import Prompt

_MAX_STOP = 4
"""Stop strings that OpenAI's interface allows; more are applied here, to the finished text."""


class ModelCard(Stated):
    """A model of ``/v1/models``."""

    id: Word
    owned_by: Word | None = None
    max_model_len: Any = None


class ModelList(Stated):
    """``/v1/models``."""

    data: list[ModelCard] | None = None


class Version(Stated):
    """``/version``."""

    version: Word | None = None


class TextAnswer(StreamedAnswer):
    """Events of ``/v1/completions``."""

    def __init__(self, asked: int) -> None:
        super().__init__(asked)
        self._parts: list[str] = []
        self._characters = 0
        self._finish: Any = None
        self._stopped_by: Any = None
        self._usage: Mapping[str, Any] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        if isinstance(usage := event.get("usage"), dict):
            self._usage = usage
        choices = event.get("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise RefusedRequest(f"its answer has choices={excerpt(choices)} where a list of objects was expected")
        for choice in choices[:1]:
            self._parts.append(self._text(choice))
            self._characters += len(self._parts[-1])
            self._check_length(0, self._characters)
            if choice.get("finish_reason") is not None:
                self._finish = choice["finish_reason"]
                self._stopped_by = choice.get("stop_reason", choice.get("matched_stop"))

    def _text(self, choice: Mapping[str, Any]) -> str:
        return text_of(choice.get("text"), "text")

    def answer(self) -> Answer:
        if self._finish not in ("stop", "length"):
            raise RefusedRequest(f"its answer ended with finish_reason={excerpt(self._finish)}; allowed: stop, length")
        tokens = count(self._usage.get("completion_tokens"), "usage.completion_tokens")
        self._check_length(tokens, self._characters)
        return Answer(
            text="".join(self._parts),
            tokens=(),
            token_count=tokens,
            prompt_tokens=count(self._usage.get("prompt_tokens"), "usage.prompt_tokens"),
            finish=self._finish,
            stopped_by=self._stopped_by if isinstance(self._stopped_by, str) else None,
        )


class ChatAnswer(TextAnswer):
    """Events of ``/v1/chat/completions``."""

    def _text(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise RefusedRequest(f"its answer has delta={excerpt(delta)} where an object was expected")
        return text_of(delta.get("content") or "", "delta.content")


def is_messages(prompt: Prompt) -> bool:
    """Is a prompt a list of chat messages?"""
    return not isinstance(prompt, str) and bool(len(prompt)) and isinstance(prompt[0], Mapping)


def chat_call(model: str, prompt: Prompt, decoding: HttpDecoding, seed: int, **more: Any) -> Call:
    """The request for an answer to messages."""
    body = {**_common(model, decoding, seed), "messages": list(prompt), **more}
    return Call("/v1/chat/completions", body, partial(ChatAnswer, decoding.gen_length))


def _common(model: str, decoding: HttpDecoding, seed: int) -> dict[str, Any]:
    stop = [text for text in decoding.stop if text]
    return {
        "model": model,
        "max_tokens": decoding.gen_length,
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"stop": stop} if 0 < len(stop) <= _MAX_STOP else {}),
        **({"seed": seed % 2**31} if decoding.temperature > 0 else {}),
    }


class OpenAIModel(HttpModel):
    """A model that a server with OpenAI's interface holds."""

    engine = "openai"
    health = "/v1/models"

    def __init__(self, server: Server, card: ModelCard, version: str | None, tokenizer: Path | None) -> None:
        self._name = card.id
        self.content_hash = f"stated:{card.id}"
        """All that the server states about its weights; nothing here has seen them."""
        super().__init__(server, served_spec(self.engine, version, card.max_model_len), tokenizer)

    @classmethod
    def open(
        cls, checkpoint: str, *, url: str, settings: Mapping[str, Any], tokenizer: Path | None = None
    ) -> OpenAIModel:
        """The model ``checkpoint`` of the server at ``url``.

        Raises:
            UsageError: unknown settings, or the server has no such model. EngineError: it cannot be reached.
        """
        address = url.rstrip("/").removesuffix("/v1")  # the base address of OpenAI's client ends with it
        server = Server("the server", address, HttpSettings.read(cls.engine, settings))
        listed = server.get("/v1/models", ModelList)
        if listed is None or listed.data is None:
            raise EngineError(f"{server}: /v1/models lists no models; does it have OpenAI's interface?")
        cards = {card.id: card for card in listed.data}
        if checkpoint not in cards:
            near = suggestion(checkpoint, map(excerpt, cards))
            raise UsageError(f"{server} has no model {checkpoint!r}{near}; give --model the name it serves")
        return cls(server, cards[checkpoint], _version(server, cards[checkpoint]), tokenizer)

    def call(self, prompt: Prompt, decoding: Any, seed: int) -> Call:
        if is_messages(prompt):
            return chat_call(self._name, prompt, decoding, seed)
        if not prompt:
            raise PromptError("empty prompt; the server needs at least one character")
        text = prompt if isinstance(prompt, str) else list(prompt)
        body = {**_common(self._name, decoding, seed), "prompt": text}
        return Call("/v1/completions", body, partial(TextAnswer, decoding.gen_length))


def _version(server: Server, card: ModelCard) -> str | None:
    """The program behind the interface and its version, as far as it states them."""
    try:
        stated = server.get("/version", Version)
    except EngineError:
        stated = None
    words = (card.owned_by, None if stated is None else stated.version)
    return excerpt(" ".join(filter(None, words)))[:100] or None
