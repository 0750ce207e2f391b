"""One data set of a config as one task of a run: its documents, its questions, and their repeats."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.harness.common.answering import harness_errors, sample_numbers
from dare_bench.harness.common.scope import Scope
from dare_bench.harness.opencompass.layout import Layout
from dare_bench.harness.opencompass.prompts import Prompter, kind_of, split_shared

_REPEATS = ("n", "num_repeats")
"""Settings with which a data set contains each document several times; here each document is requested that often."""


@dataclass(frozen=True, slots=True)
class DataSetQuestion:
    """The content of a request, with the attributes of lm-eval's ``Instance`` that ``RequestBuilder`` reads."""

    task_name: str
    doc_id: int
    idx: int
    request_type: str
    args: tuple[Any, ...]


def config_errors(config: str, name: str, doing: str) -> contextlib.AbstractContextManager[None]:
    """Errors of OpenCompass's code name the config, the data set, and the operation."""
    return harness_errors(f"OpenCompass config {config}, data set {name!r}, {doing}")


class DataSet:
    """A data set that OpenCompass has built; raises DataError or UsageError. ``config`` is the name of its config,
    ``cfg`` its configuration, ``layout`` where its data is. Repeats are the configuration's if ``spec`` has 1."""

    def __init__(self, config: str, cfg: Mapping[str, Any], layout: Layout, spec: RunSpec) -> None:
        self.config, self.cfg, self.name = config, cfg, str(cfg["abbr"])
        self.kind = kind_of(cfg)
        of_config = math.prod(int(cfg.get(name) or 1) for name in _REPEATS)
        self._requested_repeats = spec.repeats
        self.repeats = 1 if self.kind == "ppl" else spec.repeats if spec.repeats > 1 else of_config
        plain = {key: value for key, value in cfg.items() if key not in (*_REPEATS, "k")}
        self.built = layout.build(copy.deepcopy(plain))
        self.test = self.built.test
        with config_errors(config, self.name, "preparing prompts"):
            self.prompter = Prompter(
                cfg, self.built, chat=bool(spec.apply_chat_template), system=spec.system_instruction
            )
        self.total = len(self.test)
        if (samples := (spec.samples or {}).get(self.name)) is not None:
            self.documents = sample_numbers(self.name, samples, self.total)
        else:
            first = Scope(spec.limit).first(self.total)
            self.documents = list(range(self.total if first is None else first))

    @cached_property
    def questions(self) -> dict[int, list[DataSetQuestion]]:
        """The questions of each requested document: one, or one for each label."""
        with config_errors(self.config, self.name, "rendering prompts"):
            return {document: list(self._questions(document)) for document in self.documents}

    def _questions(self, document: int) -> Iterator[DataSetQuestion]:
        if self.kind == "gen":
            args = (self.prompter.prompt(document), self.generation_kwargs)
            yield DataSetQuestion(self.name, document, 0, "generate_until", args)
            return
        context, rests = split_shared(self.prompter.texts(document))
        for idx, rest in enumerate(rests):
            yield DataSetQuestion(self.name, document, idx, "loglikelihood", (context, rest))

    @cached_property
    def generation_kwargs(self) -> dict[str, Any]:
        """The inferencer's settings for an answer, by lm-eval's names."""
        inferencer = self.cfg["infer_cfg"]["inferencer"]
        kwargs: dict[str, Any] = {}
        if inferencer.get("max_out_len") is not None:
            kwargs["max_gen_toks"] = int(inferencer["max_out_len"])
        if inferencer.get("stopping_criteria"):
            kwargs["until"] = list(inferencer["stopping_criteria"])
        return kwargs

    def row(self, document: int) -> dict[str, Any]:
        """A document as the config's templates see it."""
        return {k: v for k, v in self.test[document].items() if k not in ("subdivision", "idx")}

    @property
    def notes(self) -> list[str]:
        """Differences between the configuration and a run here."""
        inferencer, notes = self.cfg["infer_cfg"]["inferencer"], list(self.prompter.notes)
        if self.kind == "ppl":
            notes.append(
                f"data set {self.name!r} compares texts: the label with the lowest -log p(rest | shared beginning) per"
                " token of the rest wins (OpenCompass divides by the tokens of the whole text; docs/opencompass.md)"
            )
        if self.kind == "ppl" and self._requested_repeats > 1:
            ignored = f"--repeats {self._requested_repeats} is ignored"
            notes.append(f"data set {self.name!r} compares texts, which is done once: {ignored}")
        if shortest := inferencer.get("min_out_len"):
            notes.append(f"data set {self.name!r} sets min_out_len={shortest}, which no sampler here supports: ignored")
        depths = self.cfg.get("k", 1)
        if self.repeats > 1 and max(depths if isinstance(depths, (list, tuple)) else [depths]) > 1:
            notes.append(f"data set {self.name!r} requests G-Pass@k (k={depths}): pass@k is reported instead")
        return notes
