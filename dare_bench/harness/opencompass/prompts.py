"""Prompts of a data set, by OpenCompass's own templates, retrievers and parsers."""

from __future__ import annotations

import copy
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dare_bench.errors import UsageError

Kind = Literal["gen", "ppl"]
_KINDS: Mapping[str, Kind] = {"GenInferencer": "gen", "PPLInferencer": "ppl"}


def kind_of(cfg: Mapping[str, Any]) -> Kind | None:
    """Does the data set have answers generated, or texts compared? None for OpenCompass's other inferencers."""
    given = cfg["infer_cfg"]["inferencer"]["type"]
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    return _KINDS.get(name.rpartition(".")[2])


class Prompter:
    """Renders the documents of a built data set.

    Args:
        cfg: the data set's configuration.
        dataset: what OpenCompass built from it.
        chat: render messages, as OpenCompass's ``HuggingFacewithChatTemplate`` does (its role SYSTEM speaks as the user
            there); otherwise plain text, as for its base models.
        system: a system message to put in front of the messages.

    Raises:
        UsageError: prompts that plain text, or messages, cannot hold.
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
        # Over the whole data set: a limit must not change which examples stand before a question.
        self._shots: list[Any] = list(self._retriever.retrieve())
        self._examples: dict[tuple[int, ...], Any] = {}
        self._parser = _get_meta_template(None) if chat else LMTemplateParser()
        if not chat and "raw_messages" in (getattr(t, "prompt_type", "") for t in (self._prompt, self._ice)):
            raise UsageError(
                f"data set {self.abbr!r} is written as chat messages, which have no plain text of OpenCompass's own:"
                " give --apply-chat-template"
            )

    @property
    def shots(self) -> int | None:
        """Examples before each question: from the training split, or written into the template as turns of a chat. None
        where there are none of either: a template's text may hold examples that nobody can count."""
        retrieved = len(self._shots[0]) if self._shots else 0
        template = getattr(self._prompt, "template", None)
        turns = template.get("round", ()) if isinstance(template, dict) else ()
        answered = sum(turn.get("role") == "BOT" and bool(turn.get("prompt")) for turn in turns[:-1])
        return retrieved + answered or None

    def prompt(self, place: int) -> str | list[dict[str, str]]:
        """What the model is to continue: text, or messages."""
        raw = self._retriever.generate_prompt_for_generate_task(
            place,
            self._example(place),
            gen_field_replace_token=self._inferencer.get("gen_field_replace_token", ""),
            ice_template=self._ice,
            prompt_template=self._prompt,
        )
        if not self.chat:
            return str(self._parser.parse_template(raw, mode="gen"))
        return self._messages(raw)

    def _messages(self, raw: Any) -> list[dict[str, str]]:
        from opencompass.models.huggingface_above_v4_33 import _convert_chat_messages

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            parsed = self._parser.parse_template(raw, mode="gen")
        for warning in seen:  # text between the turns, which messages have no place for
            self._note(f"data set {self.abbr!r}: {warning.message}")
        found: list[dict[str, str]]
        if isinstance(parsed, list) and parsed and "content" in parsed[0]:
            found = [dict(message) for message in parsed]
        else:
            found = _convert_chat_messages([parsed])[0]
        return [{"role": "system", "content": self.system}, *found] if self.system else found

    @property
    def labels(self) -> list[Any]:
        """The labels of a data set that compares texts, in a fixed order."""
        given = self._inferencer.get("labels")
        if given is not None:
            return list(given)
        found = self._retriever.get_labels(ice_template=self._ice, prompt_template=self._prompt)
        templates = [t.template for t in (self._prompt, self._ice) if t is not None]
        if any(isinstance(template, dict) for template in templates):
            return list(found)
        return sorted(found, key=str)  # OpenCompass collects these in a set, whose order changes from run to run

    def texts(self, place: int) -> list[str]:
        """The whole text of each label."""
        return [str(self._parser.parse_template(self._labeled(place, label), mode="ppl")) for label in self.labels]

    def _labeled(self, place: int, label: Any) -> Any:
        return self._retriever.generate_label_prompt(
            place, self._example(place), label, ice_template=self._ice, prompt_template=self._prompt
        )

    def _example(self, place: int) -> Any:
        chosen = tuple(self._shots[place])
        if chosen not in self._examples:
            if len(self._examples) > 64:  # a retriever that chooses anew for every question
                self._examples.clear()
            self._examples[chosen] = self._retriever.generate_ice(list(chosen), ice_template=self._ice)
        return copy.copy(self._examples[chosen])

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def split_shared(texts: Sequence[str]) -> tuple[str, list[str]]:
    """(what all texts begin with, the rest of each). No word is cut in two, and no rest is blank unless a text is.

    Space at the seam goes to the rests, as in lm-eval's contexts and continuations.
    """
    first, last = min(texts), max(texts)  # what these two share, all others between them share too
    alike = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    cut = _between_words(texts, alike)
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
