"""Models of dare-bench in OpenCompass.

An ordinary config file of OpenCompass takes the model class :class:`DareBenchModel`, which importing this module
registers, and OpenCompass's command runs it (``opencompass config.py``)::

    from mmengine.config import read_base

    from dare_bench.opencompass import DareBenchModel

    with read_base():
        from opencompass.configs.datasets.gsm8k.gsm8k_gen import gsm8k_datasets as datasets

    models = [dict(type=DareBenchModel, abbr="tiny-llada", path="tiny-llada", apply_chat_template=True,
                   decoding=dict(gen_length=64, steps=32), max_out_len=64, batch_size=8, run_cfg=dict(num_gpus=0))]

A run of ``dare-bench eval --harness opencompass`` does more: it loads the model once for all data sets, resumes, lays
out local data, runs generated code in a sandbox, and leaves failed documents out of the scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from opencompass.models.base import BaseModel, LMTemplateParser
from opencompass.models.huggingface_above_v4_33 import _get_meta_template
from opencompass.registry import MODELS

from dare_bench import seeds
from dare_bench.errors import DareError
from dare_bench.harness.common.requests import RequestBuilder
from dare_bench.harness.opencompass.prompts import chat_messages
from dare_bench.harness.opencompass.scorer import perplexities
from dare_bench.loading import load
from dare_bench.types import Request

__all__ = ["DareBenchModel"]


@MODELS.register_module()
class DareBenchModel(BaseModel):
    """``models = [dict(type=DareBenchModel, path="tiny-llada", decoding=dict(steps=32), ...)]``

    Args:
        path: a checkpoint folder, hub id or bundled name.
        decoding: decoding fields; they win over a data set's ``max_out_len`` and ``stopping_criteria``.
        likelihood: likelihood fields, for data sets that compare perplexities.
        apply_chat_template: prompts as messages through the checkpoint's chat template; otherwise plain text.
        system_instruction: a system message in front of the messages.
        max_rows: rows at a time; None lets the model choose. Results do not depend on it.
        seed: of the sampler's randomness. A text depends on seed and prompt alone; a repeated prompt gets other random
            numbers.
        max_seq_len: reported to data sets; the model's limit by default.
        meta_template: OpenCompass's text around the turns of a prompt.
        opening: further fields of :func:`dare_bench.load` (``family``, ``dtype``, ``device``, ``mask_id``, ...).

    Raises:
        UsageError: an unknown field. CheckpointError: as ``load``.
    """

    def __init__(
        self,
        path: str,
        *,
        decoding: Mapping[str, Any] | None = None,
        likelihood: Mapping[str, Any] | None = None,
        apply_chat_template: bool = False,
        system_instruction: str | None = None,
        max_rows: int | None = None,
        seed: int = 1234,
        max_seq_len: int | None = None,
        meta_template: Mapping[str, Any] | None = None,
        tokenizer_only: bool = False,
        generation_kwargs: Mapping[str, Any] | None = None,
        **opening: Any,
    ) -> None:
        self.loaded = load(path, **opening).loaded
        limit = max_seq_len or self.loaded.spec.context_limit
        super().__init__(path, limit, tokenizer_only, meta_template if not apply_chat_template else None)
        self.template_parser = (_get_meta_template if apply_chat_template else LMTemplateParser)(meta_template)
        fields = {**(generation_kwargs or {}), **(decoding or {})}
        self._builder = RequestBuilder(self.loaded, fields, likelihood or {}, seed, stop_early=True)
        self._chat, self._system, self._rows, self._seed = apply_chat_template, system_instruction, max_rows, seed
        self._repeats: Counter[tuple[int, ...]] = Counter()

    def generate(
        self,
        inputs: Sequence[Any],
        max_out_len: int | None = None,
        min_out_len: int | None = None,
        stopping_criteria: Sequence[str] = (),
        **_: Any,
    ) -> list[str]:
        """One text for each input, in order. ``min_out_len`` is ignored: no sampler here has it.

        Raises:
            DareError: an input has no answer (a prompt beyond the model's context), which OpenCompass cannot represent.
        """
        kwargs = {"max_gen_toks": max_out_len, "until": list(stopping_criteria)}
        decoding = self._builder.decoding("opencompass", {name: value for name, value in kwargs.items() if value})
        requests = []
        for i, parsed in enumerate(inputs):
            prompt = self._prompt(parsed)
            tokens = tuple(self.loaded.encode(prompt))
            key = seeds.prompt_key(self._seed, tokens, self._repeats[tokens])
            self._repeats[tokens] += 1
            requests.append(Request(str(i), "generate", prompt, None, decoding, key, "opencompass", i))
        return [answer.text or "" for answer in self._answer(requests)]

    def _prompt(self, parsed: Any) -> Any:
        """Text or messages, from the output of OpenCompass's parser."""
        return chat_messages(parsed, self._system) if self._chat else str(parsed)

    def get_ppl(self, inputs: Sequence[Any], mask_length: Sequence[int] | None = None) -> Any:
        """The mean negative log-likelihood of a token, in nats, of each text; with ``mask_length``, of the tokens after
        the first ``mask_length[i]``. Texts of one length share their random masks.

        A masked diffusion model bounds the likelihood of a text rather than giving it, and a whole text more loosely
        than a short end of one: ``dare-bench eval --harness opencompass`` compares ends only.
        """
        settings = self._builder.likelihood
        key = seeds.key("ppl", self._seed)
        requests = []
        for i, text in enumerate(inputs):
            tokens = self.loaded.encode(str(text))
            start = mask_length[i] if mask_length is not None else 0
            requests.append(Request(str(i), "score", tokens[:start], tokens[start:], settings, key, "opencompass", i))
        return numpy.array(perplexities(self._answer(requests)))

    def get_token_len(self, prompt: str) -> int:
        """Tokens of a text."""
        return len(self.loaded.encode(str(prompt)))

    def _answer(self, requests: Sequence[Request]) -> list[Any]:
        if not requests:
            return []
        compute = self.loaded.generate if requests[0].kind == "generate" else self.loaded.score
        answers: dict[str, Any] = {}
        for sample in compute(requests, max_rows=self._rows):
            if sample.answer is None:
                raise DareError(f"prompt {sample.request.key} of a batch of {len(requests)}: {sample.error}")
            answers[sample.request.key] = sample.answer
        return [answers[request.key] for request in requests]
