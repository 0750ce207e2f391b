"""SGLang: diffusion models (SDAR, LLaDA2) and autoregressive ones over its HTTP interface.

Paths and fields were read from sglang 0.5.23: srt/entrypoints/http_server.py, srt/managers/io_struct.py,
srt/sampling/sampling_params.py, srt/dllm/config.py. The unmasking algorithm, its threshold and its block length are
fixed when the server is started (``--dllm-algorithm``, ``--dllm-algorithm-config``); a request cannot change them.
Blocks are counted from the prompt's first token, and an answer is cut at the EOS inside its block unless
``ignore_eos`` is given (srt/dllm/mixin/req.py, srt/managers/schedule_batch.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any, ClassVar

from dare_bench.errors import CheckpointError, EngineError, PromptError, UsageError
from dare_bench.model_adapters.fields import NaturalNumber
from dare_bench.model_adapters.served.http_model import UNSTATED, HttpDecoding, HttpModel, count, served_spec, text_of
from dare_bench.model_adapters.served.model import FIXED, Fixed
from dare_bench.model_adapters.served.openai import chat_call, is_messages
from dare_bench.model_adapters.served.server import (
    Answer,
    Call,
    Fact,
    HttpSettings,
    RefusedRequest,
    Server,
    Stated,
    StreamedAnswer,
    Word,
    excerpt,
)
from dare_bench.types import Capabilities, ModelSpec, Prompt

_SERVER_DECIDES = "it is fixed when the server is started: set it there with --dllm-algorithm-config"
_OF_THE_SERVER = (
    *("steps", "denoising_steps", "block_length", "cache", "algorithm", "algorithm_config"),
    *("threshold", "confidence_threshold", "remasking", "remasking_strategy", "strategy", "minimal_topk"),
    *("editing", "editing_threshold", "max_post_steps", "num_to_transfer"),
)
"""Our families' fields that the server has fixed."""
_GREEDY = frozenset({"LowConfidence", "JointThreshold", "JointThresholdInDel"})
"""dLLM algorithms that take the most probable token whatever temperature a request has."""
_REPEATED = 32
"""Every event may repeat the answer so far: for every so many tokens, the bytes of an answer once more."""
_DRAWING = {"temperature": 0, "top_p": 1, "top_k": 0}
"""Fields that have no meaning then, with the values that change nothing."""


class SGLangDecoding(HttpDecoding):
    """``algorithm`` and ``algorithm_config`` are the server's: the name of its dLLM algorithm (None: it serves an
    autoregressive model), and of the file with that algorithm's settings (None: SGLang's defaults)."""

    top_k: NaturalNumber = 0
    algorithm: str | None = None
    algorithm_config: str | None = None


class ModelInfo(Stated):
    """``/model_info``: the model that the server holds."""

    model_path: Word | None = None
    served_model_name: Word | None = None
    weight_version: Word | int | None = None
    architectures: list[Word] | None = None
    is_generation: bool | None = None


class ServerInfo(Stated):
    """``/server_info``: how the server was started."""

    version: Word | None = None
    context_length: Any = None
    dllm_algorithm: Word | None = None
    dllm_algorithm_config: Word | None = None
    incremental_streaming_output: bool | None = None
    enable_deterministic_inference: bool | None = None


class Loaded(Stated):
    """The answer to ``/update_weights_from_disk``."""

    success: bool | None = None
    message: Any = None


class SGLangAnswer(StreamedAnswer):
    """Events of ``/generate``. Each has the whole answer so far, or with ``incremental`` only what is new.
    ``weights``: the version that the server stated when it was opened, or took."""

    def __init__(self, asked: int, incremental: bool, weights: Any) -> None:
        super().__init__(asked)
        self._incremental, self._weights, self._text, self._tokens = incremental, weights, "", list[int]()
        self._facts: Mapping[str, Any] = {}

    @property
    def most(self) -> int:
        return super().most * (1 if self._incremental else 1 + self._asked // _REPEATED)

    def add(self, event: Mapping[str, Any]) -> None:
        text, tokens, facts = text_of(event.get("text"), "text"), event.get("output_ids"), event.get("meta_info")
        if not isinstance(tokens, list):
            raise RefusedRequest(f"its answer has output_ids={excerpt(tokens)} where token ids were expected")
        if not isinstance(facts, dict):
            raise RefusedRequest(f"its answer has meta_info={excerpt(facts)} where an object was expected")
        self._text = self._text + text if self._incremental else text
        self._tokens = [*self._tokens, *tokens] if self._incremental else tokens
        self._facts = facts
        self._check_length(len(self._tokens), len(self._text))

    def answer(self) -> Answer:
        if (weights := self._facts.get("weight_version")) != self._weights:
            raise EngineError(
                f"the server's weights changed from version {excerpt(self._weights)} to {excerpt(weights)} while it"
                " answered: another program replaced them; run the same command again"
            )
        for token in self._tokens:
            if type(token) is not int or not 0 <= token < UNSTATED:
                raise RefusedRequest(f"its answer has {excerpt(token)} in output_ids where a token id was expected")
        finish = self._facts.get("finish_reason")
        kind = finish.get("type") if isinstance(finish, dict) else None
        if kind not in ("stop", "length"):
            why = finish.get("message") or finish if isinstance(finish, dict) else finish
            raise RefusedRequest(f"its answer did not finish: {excerpt(why)}")
        matched = finish.get("matched") if isinstance(finish, dict) else None
        tokens = count(self._facts.get("completion_tokens"), "completion_tokens")
        self._check_length(tokens, len(self._text))
        return Answer(
            text=self._text,
            tokens=self._tokens,
            token_count=tokens,
            prompt_tokens=count(self._facts.get("prompt_tokens"), "prompt_tokens"),
            finish=kind,
            stopped_by=matched if isinstance(matched, str) else None,
        )


class SGLangModel(HttpModel):
    """A model that an SGLang server holds. Its weights can be replaced from a folder that the server can read."""

    decoding: ClassVar[type[HttpDecoding]] = SGLangDecoding
    fixed: ClassVar[Fixed] = {name: rule for name, rule in FIXED.items() if name != "early_stop"}
    decided: ClassVar[Mapping[str, str]] = dict.fromkeys(_OF_THE_SERVER, _SERVER_DECIDES)
    engine = "sglang"
    health = "/health"

    def __init__(self, server: Server, info: ModelInfo, started: ServerInfo, tokenizer: Path | None) -> None:
        self._info, self._started = info, started
        super().__init__(server, _spec(info, started), tokenizer)
        self.capabilities = Capabilities(messages=self.tokenizer is None, weight_update=True)

    @classmethod
    def open(
        cls, checkpoint: str | None, *, url: str, settings: Mapping[str, Any], tokenizer: Path | None = None
    ) -> SGLangModel:
        """The model that the SGLang server at ``url`` holds; ``checkpoint`` is its name there. None: whatever it holds,
        since its weights will be replaced.

        Raises:
            UsageError: unknown settings, or the server holds another model. EngineError: it cannot be reached.
        """
        server = Server("SGLang", url, HttpSettings.read(cls.engine, settings))
        info = _model_info(server)
        names = [name for name in (info.served_model_name, info.model_path) if name]
        known = {*names, *(PurePosixPath(name).name for name in names)}
        if checkpoint is not None and not {checkpoint, PurePosixPath(checkpoint).name} & known:
            held = " or ".join(map(excerpt, names)) or "a model without a name"
            raise UsageError(f"{server} serves {held}, not {checkpoint!r}; give --model that name")
        if info.is_generation is False:
            raise UsageError(f"{server}: its model does not generate text; start the server with another model")
        return cls(server, info, _first(server, ServerInfo, "/server_info", "/get_server_info"), tokenizer)

    @property
    def content_hash(self) -> str:
        """What the server states about its weights; nothing here has seen them."""
        return f"stated:{self._info.model_path}@{self._info.weight_version}"

    def _stated(self) -> Mapping[str, Any]:
        config = self._started.dllm_algorithm_config
        return {
            "algorithm": self._started.dllm_algorithm,
            "algorithm_config": None if config is None else PurePosixPath(config).name,
        }

    def _fixed(self) -> Fixed:
        fixed, algorithm = dict(self.fixed), self._started.dllm_algorithm
        if self.tokenizer is None:  # which cuts the text at the EOS
            fixed["early_stop"] = FIXED["early_stop"]
        if algorithm in _GREEDY:
            why = f"its algorithm {algorithm} always takes the most probable token"
            fixed |= {name: ((off,), why) for name, off in _DRAWING.items()}
        return fixed

    def call(self, prompt: Prompt, decoding: Any, seed: int) -> Call:
        if is_messages(prompt):
            more = {"top_k": decoding.top_k} if decoding.top_k else {}
            return chat_call(str(self._info.served_model_name), prompt, decoding, seed, **more)
        if not prompt:
            raise PromptError("empty prompt; the server needs at least one token")
        params = {
            "max_new_tokens": decoding.gen_length,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": decoding.top_k or -1,
            "stop": list(decoding.stop) or None,
            "no_stop_trim": True,  # the text is cut here, as everywhere
        }
        if decoding.early_stop is False:
            params["ignore_eos"] = True
        if decoding.temperature > 0 and self._started.enable_deterministic_inference:
            params["sampling_seed"] = seed % 2**63  # else the server has no use for it, and some algorithms refuse it
        text = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        body = {**text, "sampling_params": params, "stream": True}
        incremental, weights = bool(self._started.incremental_streaming_output), self._info.weight_version
        return Call("/generate", body, partial(SGLangAnswer, decoding.gen_length, incremental, weights))

    def read_weights(self, path: str | Path) -> None:
        """Have the server load the weights of a folder, by the path under which it sees it; raises CheckpointError."""
        version = self.weights_version + 1
        # The token distinguishes what other clients, and earlier ones, had this folder loaded as: it may have changed.
        stated = f"{version}-{token_hex(4)}"
        body = {"model_path": str(path), "weight_version": stated, "flush_cache": True}
        try:
            done = self.server.post("/update_weights_from_disk", body, Loaded)
        except EngineError as error:
            raise CheckpointError(f"{path}: {error}") from error
        if done is None or not done.success:
            raise CheckpointError(f"{path}: {self.server} did not load it: {excerpt(done and done.message)}")
        self._info = _model_info(self.server)
        if (seen := self._info.weight_version) != stated:
            raise CheckpointError(
                f"{path}: {self.server} states weight version {excerpt(seen)} after it loaded version {stated}; is"
                " another program replacing its weights? Give each program a server of its own"
            )
        self.weights_version = version


def _model_info(server: Server) -> ModelInfo:
    return _first(server, ModelInfo, "/model_info", "/get_model_info")


def _first(server: Server, kind: type[Fact], *paths: str) -> Fact:
    """What the server states at the first of these paths that it has; older servers have the last."""
    for path in paths:
        if (value := server.get(path, kind)) is not None:
            return value
    raise EngineError(f"{server} has no {paths[0]}; is it an SGLang server? --engine openai needs less of it")


def _spec(info: ModelInfo, started: ServerInfo) -> ModelSpec:
    spec = served_spec(SGLangModel.engine, started.version, started.context_length)
    attention: Any = "block-causal" if started.dllm_algorithm else "causal"
    return replace(spec, family=_FAMILIES.get((info.architectures or [""])[0], "unknown"), attention=attention)


_FAMILIES = {"SDARForCausalLM": "sdar", "SDARMoeForCausalLM": "sdar", "LLaDA2MoeModelLM": "llada2"}
"""By the architecture that a server states."""
