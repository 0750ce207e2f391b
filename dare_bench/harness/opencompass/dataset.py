"""One data set of a config as one task of a run: its documents, its questions, and how often each is asked."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dare_bench.harness.common.answering import harness_errors, sample_numbers
from dare_bench.harness.opencompass.layout import Layout
from dare_bench.harness.opencompass.prompts import Prompter, kind_of, split_shared

_REPEATS = ("n", "num_repeats")
"""Settings by which a data set holds every document several times; here the documents stay and are asked so often."""


@dataclass(frozen=True, slots=True)
class DataSetQuestion:
    """What a request is built from, with the attributes of lm-eval's ``Instance`` that ``RequestBuilder`` reads."""

    task_name: str
    doc_id: int
    idx: int
    request_type: str
    args: tuple[Any, ...]


def config_errors(config: str, name: str, doing: str) -> contextlib.AbstractContextManager[None]:
    """Errors of OpenCompass's code name the config, the data set, and what was being done."""
    return harness_errors(f"OpenCompass config {config}, data set {name!r}, {doing}")


class DataSet:
    """A data set that OpenCompass has built.

    Args:
        config: the name of the config it stands in.
        cfg: its configuration. layout: where its data is.
        wanted: document numbers (``--samples``); ``limit``: how many, or which share, of the first documents.
        repeats: how often each document is asked; 1 takes what the configuration says.
        chat, system: see :class:`~dare_bench.harness.opencompass.prompts.Prompter`.

    Raises:
        DataError: OpenCompass cannot load the data or render a prompt.
        UsageError: a document that is not there.
    """

    def __init__(
        self,
        config: str,
        cfg: Mapping[str, Any],
        layout: Layout,
        *,
        limit: int | float | None = None,
        wanted: Sequence[int] | None = None,
        repeats: int = 1,
        chat: bool = False,
        system: str | None = None,
    ) -> None:
        self.config, self.cfg, self.name = config, cfg, str(cfg["abbr"])
        self.kind = kind_of(cfg)
        own = math.prod(int(cfg.get(name) or 1) for name in _REPEATS)
        self._asked_for = repeats
        self.repeats = 1 if self.kind == "ppl" else repeats if repeats > 1 else own
        plain = {key: value for key, value in cfg.items() if key not in (*_REPEATS, "k")}
        self.built = layout.build(copy.deepcopy(plain))
        self.test = self.built.test
        with config_errors(config, self.name, "preparing prompts"):
            self.prompter = Prompter(cfg, self.built, chat=chat, system=system)
        self.total = len(self.test)
        self.documents = self._chosen(limit, wanted)

    def _chosen(self, limit: int | float | None, wanted: Sequence[int] | None) -> list[int]:
        if wanted is not None:
            return sample_numbers(self.name, wanted, self.total)
        if limit is None:
            return list(range(self.total))
        return list(range(min(self.total, math.ceil(limit * self.total) if limit < 1 else int(limit))))

    @cached_property
    def questions(self) -> dict[int, list[DataSetQuestion]]:
        """The questions of each document asked: one, or one for each label."""
        with config_errors(self.config, self.name, "rendering prompts"):
            return {place: list(self._questions(place)) for place in self.documents}

    def _questions(self, place: int) -> Iterator[DataSetQuestion]:
        if self.kind == "gen":
            args = (self.prompter.prompt(place), self.words)
            yield DataSetQuestion(self.name, place, 0, "generate_until", args)
            return
        context, rests = split_shared(self.prompter.texts(place))
        for idx, rest in enumerate(rests):
            yield DataSetQuestion(self.name, place, idx, "loglikelihood", (context, rest))

    @cached_property
    def words(self) -> dict[str, Any]:
        """The inferencer's settings for an answer, in the words of :mod:`dare_bench.harness.common.requests`."""
        inferencer = self.cfg["infer_cfg"]["inferencer"]
        found: dict[str, Any] = {}
        if inferencer.get("max_out_len") is not None:
            found["max_gen_toks"] = int(inferencer["max_out_len"])
        if inferencer.get("stopping_criteria"):
            found["until"] = list(inferencer["stopping_criteria"])
        return found

    @cached_property
    def labels(self) -> list[Any]:
        """Of a data set that compares texts: the label of each question."""
        return self.prompter.labels

    def row(self, place: int) -> dict[str, Any]:
        """A document as the config's templates see it."""
        return {k: v for k, v in self.test[place].items() if k not in ("subdivision", "idx")}

    @property
    def notes(self) -> list[str]:
        """What the configuration asks for and a run here does otherwise."""
        inferencer, notes = self.cfg["infer_cfg"]["inferencer"], list(self.prompter.notes)
        if self.kind == "ppl":
            notes.append(
                f"data set {self.name!r} compares texts: the label with the lowest -log p(rest | shared beginning) per"
                " token of the rest wins (OpenCompass divides by the tokens of the whole text; docs/opencompass.md)"
            )
        if self.kind == "ppl" and self._asked_for > 1:
            notes.append(
                f"data set {self.name!r} compares texts, which is done once: --repeats {self._asked_for} is left out"
            )
        if shortest := inferencer.get("min_out_len"):
            notes.append(f"data set {self.name!r} sets min_out_len={shortest}, which no sampler here has: left out")
        depths = self.cfg.get("k", 1)
        if self.repeats > 1 and max(depths if isinstance(depths, (list, tuple)) else [depths]) > 1:
            notes.append(f"data set {self.name!r} asks for G-Pass@k (k={depths}): pass@k is given instead")
        return notes
