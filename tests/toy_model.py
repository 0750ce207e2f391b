"""A loaded model without torch: deterministic answers from a request's seed and prompt. For tests of everything but
the networks. Import it as ``from toy_model import ToyModel`` (``tests`` is on pytest's path)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dare_bench import seeds
from dare_bench.config import one_line
from dare_bench.errors import DecodingError, PromptError
from dare_bench.types import (
    Capabilities,
    Decoding,
    Event,
    Generation,
    Likelihood,
    LoopStats,
    ModelSpec,
    Prompt,
    Request,
    Sample,
)

EOS = 256
MASK = 257


class ToyDecoding(Decoding):
    steps: int | None = None
    block_length: int | None = None
    cfg_scale: float = 0.0
    remasking: str = "low_confidence"

    @property
    def deterministic(self) -> bool:
        return super().deterministic and self.remasking != "random"


class ToyTokenizer:
    """Bytes; the chat template writes ``[role]content``."""

    name_or_path = "toy"
    chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    pad_token, pad_token_id = "<pad>", 258
    eos_token, eos_token_id = "<eos>", EOS
    bos_token, bos_token_id = None, None

    def __len__(self) -> int:
        return 259

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(i for i in ids if i < EOS).decode(errors="replace")

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
        return chat_template or self.chat_template

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **_: Any,
    ) -> Any:
        text = "".join(f"[{m['role']}]{m['content']}" for m in messages)
        if add_generation_prompt:
            text += "[assistant]"
        return list(text.encode()) if tokenize else text


class ToyModel:
    """Implements ``dare_bench.protocols.LoadedModel``.

    delay: seconds that each request takes. ``fail_on``: a request for which it returns true (or a text) comes back
    as a sample with an error; it may also raise. ``reply``: the text to answer with, instead of a drawn one.
    ``answered`` lists the keys of all requests that were worked on, in order.
    """

    network = None
    weights_version = 0
    default_rows = 4
    pretrained = staticmethod(lambda: None)

    def __init__(
        self,
        *,
        delay: float = 0.0,
        fail_on: Callable[[Request], bool | str] | None = None,
        reply: Callable[[Request], str] | None = None,
        context_limit: int = 100_000,
        tokenizer: bool = True,
    ) -> None:
        self.delay, self.fail_on, self.reply = delay, fail_on, reply
        self.tokenizer = ToyTokenizer() if tokenizer else None
        self.spec = ModelSpec("toy", MASK, (EOS,), None, 258, 259, context_limit, parameters=1)
        self.capabilities = Capabilities(trajectory=True, near_tie=True, likelihood=True, row_keyed_randomness=True)
        self.answered: list[str] = []

    def encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(prompt.encode())
        if len(prompt) and isinstance(prompt[0], Mapping):
            if self.tokenizer is None:
                raise PromptError("this toy has no tokenizer; give token ids")
            return self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True)  # type: ignore[arg-type]
        return list(prompt)  # type: ignore[arg-type]

    def resolve(self, decoding: Mapping[str, Any]) -> ToyDecoding:
        try:
            result = ToyDecoding(**decoding)
        except ValidationError as error:
            raise DecodingError(one_line(error, "the toy's decoding")) from error
        block = result.block_length or result.gen_length
        steps = result.steps or result.gen_length
        if result.gen_length % block:
            raise DecodingError(f"gen_length={result.gen_length} is not a multiple of block_length={block}")
        if steps % (result.gen_length // block):
            raise DecodingError(f"steps={steps} is not a multiple of the {result.gen_length // block} blocks")
        return result.model_copy(update={"block_length": block, "steps": steps})

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] = {"estimator": "reference", "mc_num": 128}
        for name in fields:
            if name not in known:
                raise DecodingError(f"{name!r} is no likelihood field of the toy; it has {', '.join(known)}")
        return {**known, **fields}

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        yield from self._work(requests, self._generation, max_rows, stats)

    def score(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        yield from self._work(requests, self._likelihood, max_rows, stats)

    def _work(
        self,
        requests: Iterable[Request],
        answer: Callable[[Request], Generation | Likelihood],
        max_rows: int | None,
        stats: LoopStats | None,
    ) -> Iterator[Sample]:
        """Slots are filled as they fall free; within a window the rows with fewer steps come back first."""
        source = iter(requests)
        rows = max_rows or self.default_rows
        while window := list(islice(source, rows)):
            for request in sorted(window, key=lambda r: seeds.key(r.key)):
                if self.delay:
                    time.sleep(self.delay)
                self.answered.append(request.key)
                failed = self.fail_on(request) if self.fail_on else False
                if not failed and len(self.encode(request.prompt)) > self.spec.context_limit:
                    failed = f"the prompt is longer than the context of {self.spec.context_limit} tokens"
                if failed:
                    yield Sample(request, None, failed if isinstance(failed, str) else "the toy was told to fail")
                    continue
                value = answer(request)
                if stats is not None:
                    for _ in range(value.nfe):
                        stats.count(1, len(request.prompt))
                yield Sample(request, value)

    def _generation(self, request: Request) -> Generation:
        fields = self.resolve(request.decoding)
        prompt = self.encode(request.prompt)
        if self.reply is not None:
            text = self.reply(request)
        else:
            text = f"answer {seeds.key(request.seed, prompt) % 1000}"
        raw = list(text.encode())[: fields.gen_length]
        full = len(raw) < fields.gen_length
        tokens = [*raw, EOS] if full else raw
        text = bytes(raw).decode(errors="replace")
        cuts = [text.find(s) for s in fields.stop if s and s in text]
        return Generation(
            tokens=tokens,
            text=text[: min(cuts)] if cuts else text,
            nfe=fields.steps or 0,
            finish_reason="stop" if cuts else ("eos" if full else "length"),
            reference_nfe=fields.steps or 0,
            prompt_tokens=len(prompt),
            tokens_to_eos=len(tokens),
            seconds=self.delay,
            near_tie=False if fields.near_tie else None,
            trajectory=[Event(i, "set", i, t, 1.0) for i, t in enumerate(tokens)] if fields.trajectory else None,
        )

    def _likelihood(self, request: Request) -> Likelihood:
        fields = self.resolve_likelihood(request.decoding)
        target = self.encode(request.target if request.target is not None else "")
        draw = seeds.key(request.seed, self.encode(request.prompt), target) % 1000
        return Likelihood(
            value=-draw / 100,
            stderr=0.01,
            is_greedy=draw < 100 if request.want_greedy else None,
            nfe=fields["mc_num"],
            estimator=fields["estimator"],
            draws=fields["mc_num"],
            target_tokens=len(target),
            prompt_tokens=len(self.encode(request.prompt)),
            seconds=self.delay,
        )

    def logits(self, ids: Sequence[int], block_length: int | None = None) -> Any:
        raise NotImplementedError("the toy has no network")

    def forwards(self, request: Request) -> int:
        if request.kind == "score":
            return int(self.resolve_likelihood(request.decoding)["mc_num"])
        return self.resolve(request.decoding).steps or 0

    def save(self, path: str | Path) -> None:
        raise NotImplementedError("the toy has no weights")
