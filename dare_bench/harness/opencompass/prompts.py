"""Prompts of a data set, by OpenCompass's templates, retrievers and parsers."""

from __future__ import annotations

import copy
import os
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from dare_bench.errors import UsageError
from dare_bench.harness.opencompass.components import short_name

Kind = Literal["gen", "ppl"]
_KINDS: Mapping[str, Kind] = {"GenInferencer": "gen", "PPLInferencer": "ppl"}


def kind_of(cfg: Mapping[str, Any]) -> Kind | None:
    """Does the data set generate answers ("gen") or compare texts ("ppl")? None for OpenCompass's other inferencers."""
    return _KINDS.get(short_name(cfg["infer_cfg"]["inferencer"]["type"]))


class Prompter:
    """Renders the documents of a built data set; raises UsageError.

    ``chat``: render messages, as OpenCompass's ``HuggingFacewithChatTemplate`` does (its role SYSTEM becomes the user
    there), after a ``system`` message; otherwise plain text, as for its base models.
    """

    def __init__(self, cfg: Mapping[str, Any], dataset: Any, *, chat: bool, system: str | None = None) -> None:
        from opencompass.models.base import LMTemplateParser
        from opencompass.models.huggingface_above_v4_33 import _get_meta_template
        from opencompass.registry import ICL_PROMPT_TEMPLATES, ICL_RETRIEVERS

        infer = copy.deepcopy(dict(cfg["infer_cfg"]))
        self.abbr, self.chat, self.system = str(cfg.get("abbr")), chat, system
        self.notes: list[str] = []
        self._inferencer = infer["inferencer"]
        self._prompt = ICL_PROMPT_TEMPLATES.build(infer["prompt_template"]) if "prompt_template" in infer else None
        self._ice = ICL_PROMPT_TEMPLATES.build(infer["ice_template"]) if "ice_template" in infer else None
        self._retriever = ICL_RETRIEVERS.build({**infer["retriever"], "dataset": dataset})
        # Over the whole data set: a limit must not change the examples before a question.
        self._shots: list[Any] = list(self._retriever.retrieve())
        self._examples: dict[tuple[int, ...], Any] = {}
        self._parser = _get_meta_template(None) if chat else LMTemplateParser()
        if not chat and "raw_messages" in (getattr(t, "prompt_type", "") for t in (self._prompt, self._ice)):
            raise UsageError(
                f"data set {self.abbr!r} is written as chat messages, for which OpenCompass defines no plain text:"
                " give --apply-chat-template"
            )

    @property
    def shots(self) -> int | None:
        """Examples before each question: from the training split, or written into the template as turns of a chat. None
        if there are neither: examples inside a template's text cannot be counted."""
        retrieved = len(self._shots[0]) if self._shots else 0
        template = getattr(self._prompt, "template", None)
        turns = template.get("round", ()) if isinstance(template, dict) else ()
        answered = sum(turn.get("role") == "BOT" and bool(turn.get("prompt")) for turn in turns[:-1])
        return retrieved + answered or None

    def prompt(self, document: int) -> str | list[dict[str, str]]:
        """The prompt: text, or messages."""
        raw = self._retriever.generate_prompt_for_generate_task(
            document,
            self._example(document),
            gen_field_replace_token=self._inferencer.get("gen_field_replace_token", ""),
            ice_template=self._ice,
            prompt_template=self._prompt,
        )
        if not self.chat:
            return str(self._parser.parse_template(raw, mode="gen"))
        return self._messages(raw)

    def _messages(self, raw: Any) -> list[dict[str, str]]:
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            parsed = self._parser.parse_template(raw, mode="gen")
        for warning in recorded:  # text between the turns, which messages cannot hold
            note = f"data set {self.abbr!r}: {warning.message}"
            self.notes += [note] if note not in self.notes else []
        return chat_messages(parsed, self.system)

    @cached_property
    def labels(self) -> list[Any]:
        """The labels of a data set that compares texts, in a fixed order."""
        if (labels := self._inferencer.get("labels")) is not None:
            return list(labels)
        labels = self._retriever.get_labels(ice_template=self._ice, prompt_template=self._prompt)
        templates = [t.template for t in (self._prompt, self._ice) if t is not None]
        if any(isinstance(template, dict) for template in templates):
            return list(labels)
        return sorted(labels, key=str)  # OpenCompass collects these in a set, whose order changes from run to run

    def texts(self, document: int) -> list[str]:
        """The whole text of each label."""
        templates = {"ice_template": self._ice, "prompt_template": self._prompt}
        prompts = (
            self._retriever.generate_label_prompt(document, self._example(document), label, **templates)
            for label in self.labels
        )
        return [str(self._parser.parse_template(prompt, mode="ppl")) for prompt in prompts]

    def _example(self, document: int) -> Any:
        shots = tuple(self._shots[document])
        if shots not in self._examples:
            if len(self._examples) > 64:  # a retriever that selects other examples for every question
                self._examples.clear()
            self._examples[shots] = self._retriever.generate_ice(list(shots), ice_template=self._ice)
        return copy.copy(self._examples[shots])


def chat_messages(parsed: Any, system: str | None) -> list[dict[str, str]]:
    """The messages behind an optional system message, from the output of OpenCompass's chat parser: in its terms or
    in OpenAI's."""
    from opencompass.models.huggingface_above_v4_33 import _convert_chat_messages

    is_openai = isinstance(parsed, list) and bool(parsed) and "content" in parsed[0]
    messages = [dict(message) for message in parsed] if is_openai else _convert_chat_messages([parsed])[0]
    return [{"role": "system", "content": system}, *messages] if system else messages


def split_shared(texts: Sequence[str]) -> tuple[str, list[str]]:
    """(common prefix, rest of each text). No word is cut, and no rest is blank unless a text is.

    Space at the boundary goes to the rests, as in lm-eval's contexts and continuations.
    """
    cut = _between_words(texts, len(os.path.commonprefix(list(texts))))  # noqa: RUF071  (of characters)
    while cut > 0 and any(not text[cut:].strip() for text in texts):
        cut = _between_words(texts, len(texts[0][:cut].rstrip()) - 1)
    context = texts[0][:cut].rstrip()
    return context, [text[len(context) :] for text in texts]


def _between_words(texts: Sequence[str], cut: int) -> int:
    cut = max(cut, 0)
    while cut > 0 and any(cut < len(t) and _in_word(t[cut - 1]) and _in_word(t[cut]) for t in texts):
        cut -= 1
    return cut


def _in_word(letter: str) -> bool:
    """A letter or digit of a script that puts spaces between words (Chinese and Japanese do not)."""
    return (letter.isalnum() or letter == "_") and unicodedata.east_asian_width(letter) not in "WF"
