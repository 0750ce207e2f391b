"""OpenCompass's own scoring of a data set: postprocessors and evaluator, in the order of its evaluation task."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import DataError
from dare_bench.harness.common.formulas import holds_algebra
from dare_bench.harness.common.time_limits import ANSWER_SECONDS, Answers, AnswerTimeout, within
from dare_bench.harness.opencompass.catalog import opencompass_folder
from dare_bench.harness.opencompass.dataset import DataSet, config_errors
from dare_bench.harness.opencompass.details import numbers

FORMULA_EVALUATORS = frozenset(
    {
        "datasets/OlympiadBench.py",
        "datasets/TheoremQA/number_utils.py",
        "datasets/TheoremQA/utils.py",
        "datasets/cmphysbench/SEED/SEED.py",
        "datasets/cmphysbench/SEED/latex_pre_process.py",
        "datasets/game24.py",
        "datasets/korbench/korbench_utils.py",
        "datasets/phybench/EED.py",
        "datasets/phybench/latex_pre_process.py",
        "datasets/scicode.py",
        "datasets/srbench.py",
        "datasets/supergpqa/supergpqa_utils.py",
        "evaluator/math_evaluator.py",
    }
)
"""Files of OpenCompass 0.5.4 whose evaluators compare formulas, below its folder. A test compares this with the files
of the installed OpenCompass that name a computer algebra package."""


class DataSetEvaluator:
    """Postprocesses and evaluates answers to a data set's documents; predictions are given for places in
    ``documents``, so that any part of a data set can be scored.

    Raises:
        DataError: a postprocessor of the references fails.
    """

    def __init__(self, data: DataSet) -> None:
        self._data = data
        self._cfg: Mapping[str, Any] = data.cfg["eval_cfg"]
        self._column: str | None = data.cfg["reader_cfg"].get("output_column")
        self._places = {document: place for place, document in enumerate(data.documents)}
        self.lost: list[tuple[Any, str]] = []
        """Answers (or their documents) that the postprocessor or the evaluator failed on, with the errors."""

    @cached_property
    def _rows(self) -> Any:
        """The documents asked, their references postprocessed."""
        rows, column = self._data.test.select(self._data.documents), self._column
        if "dataset_postprocessor" not in self._cfg or column is None:
            return rows
        post = _function(self._cfg["dataset_postprocessor"])

        def refer(row: dict[str, Any]) -> dict[str, Any]:
            return {**row, column: post(row[column])}

        with config_errors(self._data.config, self._data.name, "postprocessing its references"):
            return rows.map(refer, load_from_cache_file=False)

    @cached_property
    def references(self) -> dict[int, Any]:
        """What each document's answer is compared with; empty if the data set has no output column."""
        if self._column is None:
            return {}
        return dict(zip(self._data.documents, self._rows[self._column], strict=True))

    @cached_property
    def _post(self) -> Any:
        given = self._cfg.get("pred_postprocessor")
        return _function(given) if given else None

    def extract(self, text: str) -> Any:
        """What the data set's postprocessor makes of an answer. One that it fails on, or does not end for, reads as
        empty, and is noted: no answer may cost a run its scores."""
        if self._post is None:
            return text
        try:
            with within(ANSWER_SECONDS):
                return self._post(text)
        except (Exception, AnswerTimeout) as error:
            self.lost.append((text, f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"))
            return ""

    @cached_property
    def kind(self) -> Any:
        """The evaluator's class."""
        from opencompass.registry import ICL_EVALUATORS

        given = self._cfg["evaluator"]["type"]
        found = ICL_EVALUATORS.get(given) if isinstance(given, str) else given
        if found is None:
            raise DataError(f"data set {self._data.name!r}: OpenCompass has no evaluator {given!r}")
        return found

    @cached_property
    def compares_formulas(self) -> bool:
        """Can one comparison take for ever? OpenCompass's own evaluators by :data:`FORMULA_EVALUATORS`, others by what
        their module imports."""
        file, folder = Path(inspect.getfile(self.kind)), opencompass_folder().parents[1]
        if file.is_relative_to(folder):
            return file.relative_to(folder).as_posix() in FORMULA_EVALUATORS
        return holds_algebra(vars(sys.modules[self.kind.__module__]))

    @cached_property
    def compares_texts(self) -> bool:
        """Is a document right exactly if prediction and reference are the same text? OpenCompass's AccEvaluator gives
        no details, and loading its metric anew for each document would take minutes."""
        from opencompass.openicl.icl_evaluator import AccEvaluator

        return all(getattr(self.kind, name, None) is getattr(AccEvaluator, name) for name in ("score", "_preprocess"))

    def evaluate(self, documents: Sequence[int], predictions: list[Any]) -> dict[str, Any]:
        """The evaluator's own result, ``details`` included. A prediction that keeps it busy for too long is noted, and
        made empty in ``predictions``.

        Raises:
            DataError: the evaluator stops or reports an error.
        """
        data, answers = self._data, Answers(predictions, math.inf if self.compares_formulas else ANSWER_SECONDS)
        with config_errors(data.config, data.name, f"scoring with {self.kind.__name__}"):
            while (result := self._within_limits(documents, answers)) is None:
                predictions[:] = answers
        if "error" in result and not numbers(result):
            raise DataError(f"data set {data.name!r}: {self.kind.__name__} reports: {result['error']}")
        if self.compares_texts:
            pairs = zip(predictions, (self.references[document] for document in documents), strict=True)
            result["details"] = [{"correct": str(prediction) == str(reference)} for prediction, reference in pairs]
        return result

    def _within_limits(self, documents: Sequence[int], answers: Answers) -> dict[str, Any] | None:
        """None where an answer kept the evaluator busy for too long; it is empty now."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                return self._score(documents, answers, folder)
        except AnswerTimeout as error:
            place = answers.give_up()
            self.lost.append((documents[place], str(error)))
            return None

    def _score(self, documents: Sequence[int], predictions: list[Any], folder: str) -> dict[str, Any]:
        rows = self._rows.select([self._places[document] for document in documents])
        references = rows[self._column] if self._column is not None else None
        settings = {key: value for key, value in copy.deepcopy(dict(self._cfg["evaluator"])).items() if key != "type"}
        if {"predictions", "references"} <= set(inspect.signature(self.kind).parameters):
            settings |= {"predictions": predictions, "references": references}
        evaluator = self.kind(**settings)
        evaluator._out_dir = str(Path(folder) / "results")
        post = getattr(evaluator, "pred_postprocess", None)
        known = {
            "predictions": post(predictions) if post is not None else predictions,
            "references": references,
            "test_set": rows,
            "origin_prompt": [self._data.questions[document][0].args[0] for document in documents],
            "gold": references,
            "prediction": predictions,
        }
        wanted = [p.name for p in inspect.signature(evaluator.score).parameters.values() if p.kind not in _VARIABLE]
        lacking = [name for name in wanted if name not in known]
        if lacking:
            raise DataError(f"{self.kind.__name__} asks for {', '.join(lacking)}, which these answers do not have")
        return dict(evaluator.score(**{name: known[name] for name in wanted}))


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _function(given: Mapping[str, Any]) -> Any:
    """A postprocessor as its configuration says it."""
    from opencompass.registry import TEXT_POSTPROCESSORS

    named = copy.deepcopy(dict(given))
    function = named.pop("type")
    found = TEXT_POSTPROCESSORS.get(function) if isinstance(function, str) else function
    if found is None:
        raise DataError(f"OpenCompass has no postprocessor {function!r}")
    return functools.partial(found, **named)
