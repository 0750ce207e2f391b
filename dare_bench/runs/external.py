"""External results: written by the command-line tool of lm-eval or OpenCompass, read as runs. What they do not record
(the checkpoint's content, the sampler, the cost) is None or "unknown", never a default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dare_bench.errors import RunError
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import CI, UNKNOWN, Block, RunFile, check_harness_part, read_part
from dare_bench.runs.scores import Score, scores_of

Samples = Mapping[str, Iterable[Mapping[str, Any]]]
Intervals = Callable[[Mapping[str, Any], Samples], dict[str, dict[str, CI]]]
"""Computes the confidence intervals of all scores from lm-eval's results and the sample lines by task."""
_NEVER_RECORDED = ("family", "exactness tier", "resolved decoding settings", "cost")


class ExternalRun(Run):
    """One result of another program; raises RunError. ``path`` is lm-eval's results file or OpenCompass's folder of one
    model, ``results`` the results in lm-eval's form."""

    is_external = True

    def __init__(self, path: Path, results: dict[str, Any], block: Mapping[str, Any], intervals: Intervals) -> None:
        self.path, self.results, self.results_file = path, results, path
        self._about, self._intervals = RunFile(), intervals
        self.block = parsed = read_part(Block, block, path)
        check_harness_part(results, parsed, path)
        optional = {
            "checkpoint content": parsed.model.content_hash != UNKNOWN,
            "dtype": parsed.model.dtype != UNKNOWN,
            "seeds": parsed.seeds is not None,
        }
        self.unknown = (*(name for name, is_recorded in optional.items() if not is_recorded), *_NEVER_RECORDED)

    @cached_property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def status(self) -> Literal["external"]:
        return "external"

    @property
    def results_edited(self) -> None:
        """Unknown: no digest is recorded."""

    @cached_property
    def _scores(self) -> list[Score]:
        block = self.require_block()
        block.ci = self._intervals(self.results, {task: self._readable(task) for task in self.tasks})
        scores = scores_of(self.results, block)
        return [replace(score, task_fingerprint=UNKNOWN, fingerprint=UNKNOWN) for score in scores]

    def _readable(self, task: str) -> Iterator[Mapping[str, Any]]:
        """The documents' values, from a task's sample lines up to a damaged one, which is reported by those who need
        the documents."""
        try:
            yield from self.samples(task)
        except RunError:
            return
